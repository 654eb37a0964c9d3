"""Run the first half of the paper's section 4.2: text, donor, and the masked-LM stage of a system.

Several runs share the data, the donor and the flow stage. The first run that needs one of these makes it,
under a lock. A finished step is skipped. A training resumes from its last whole checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError, UsageError, UserError
from fairseq_floater.experiments.job import SCRIPTS, Job, Step, Training, floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.locks import Locks
from fairseq_floater.experiments.roberta.stages import (
    RobertaExperiment,
    RobertaRequest,
    system_name,
)
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import file_hash
from fairseq_floater.verbs import as_options

DONOR = "donor"


class RobertaJob(Job):
    """What both kinds of run with RoBERTa share: raw data, the data of masked LM, the donor."""

    request: RobertaRequest
    experiment: RobertaExperiment

    @property
    def raw(self) -> Path | None:
        if self.experiment.config.data.quizzes is not None:
            return self.request.work / "quizzes"
        return self.request.raw

    @property
    def given_donor(self) -> Path | None:
        """Return the given donor, or that of an earlier run of the experiment, if there is one."""
        noted = RunFolder(self.request.folder / DONOR).read().get("donor")
        return self.request.donor or (Path(noted["path"]) if noted else None)

    def trainings(self) -> dict[str, list[str]]:
        """Return the arguments of fairseq-train for every stage that the run trains."""
        if self.given_donor is not None:
            return {}
        return {DONOR: self._masked_lm("donor", System(PLAIN), self.request.folder / DONOR)}

    def check_options(self) -> None:
        # Imports torch and fairseq, which takes seconds.
        from fairseq_floater.experiments.model_options import check_owners, parse_training

        given = self.given_donor
        if not self.launcher.dry_run and given is not None and not given.is_file():
            raise UserError(f"There is no donor {given}; `floater import-roberta` makes one.")
        check_owners(self.request.system)
        for stage, arguments in self.trainings().items():
            parse_training(arguments, self.experiment.path, stage)

    def prepare_text(self) -> None:
        request, data = self.request, self.experiment.config.data
        with self.shared_lock(request.work / ".data.lock"):
            if data.quizzes is not None:
                if request.raw is not None:
                    path = self.experiment.path
                    raise UsageError(f"{path} makes its own text; --raw is for your text.")
                self.make_data(floater("quizzes", self.raw, *as_options(data.quizzes)))
            elif self.raw is not None and not (self.launcher.dry_run or self.raw.is_dir()):
                raise UserError(f"There is no folder {self.raw}.")
            if data.text is None and self.raw is None:
                what = f"{self.experiment.path} is for your text"
                self.need_raw(request.mlm, what, "mlm/train.txt")
            else:
                self.make_data(self._text_command())

    def need_raw(self, made: Path, what: str, holds: str) -> None:
        if not (made / "summary.json").is_file():
            raise UsageError(f"{what}: pass the folder that holds {holds} with --raw.")

    def _text_command(self) -> list[Any]:
        data, raw = self.experiment.config.data, self.raw
        argv: list[Any] = ["bash", SCRIPTS / "prepare_mlm.sh", self.request.mlm, "--bpe", data.bpe]
        argv += ["--vocab", str(data.vocab)] if data.vocab else []
        argv += ["--text", raw / "mlm"] if data.text is None and raw is not None else []
        if data.bpe == "gpt2" and self.given_donor is not None:
            argv += ["--dict", self.given_donor.parent / "dict.txt"]
        return [*argv, *self.request.preparation]

    def prepare_donor(self) -> Path:
        folder = self.request.folder / DONOR
        given = self.given_donor
        with self.shared_lock(self.request.folder / f".{DONOR}.lock"):
            if given is not None:
                if not self.launcher.dry_run:
                    self._check_dictionary(given)
                    _record_donor(folder, given)
                return given
            self._train("donor", System(PLAIN), folder, {})
        return folder / "checkpoints" / "checkpoint_best.pt"

    def _check_dictionary(self, given: Path) -> None:
        """Refuse a donor whose dictionary is not the data's; fairseq compares only the sizes.

        Raises:
            CheckpointError: the donor is not a RoBERTa, or has another dictionary.
        """
        if self.experiment.config.data.bpe == "gpt2":
            return  # the data have the donor's dict.txt
        from fairseq_floater.checkpoints.reading import load_checkpoint  # brings torch
        from fairseq_floater.checkpoints.roberta_tasks import check_state

        check_state(load_checkpoint(given), given, self.request.mlm)

    def _masked_lm(self, stage: str, system: System, folder: Path) -> list[str]:
        return self.experiment.masked_lm(
            stage, system, data=self.request.mlm, folder=folder, machines=self.request.machines
        )

    def _train(self, stage: str, system: System, folder: Path, notes: dict[str, Any]) -> None:
        machines, budget = self.request.machines, self.experiment.config.budget
        arguments = self._masked_lm(stage, system, folder)
        size, in_words = str(budget.update(machines.world)[1]), budget.update_in_words(machines)
        self.train(Training(stage, folder, arguments, size, in_words, notes), machines)


def _record_donor(folder: Path, given: Path) -> None:
    """Record the donor that the runs of an experiment start from.

    Raises:
        ReportError: earlier runs started from another one.
    """
    donor = {"path": str(given.resolve()), "sha256": file_hash(given)}
    folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).changing() as record:
        before = record.get("donor", donor)
        if before["sha256"] != donor["sha256"] or record["arguments"]:
            other = before["path"] if before != donor else "trained there"
            raise ReportError(
                f"{folder.parent} was begun with another donor ({other}) than {given}; pass the earlier one, "
                "or use another --work."
            )
        record |= {"donor": donor, "state": "done"}


class MaskedLmJob(RobertaJob):
    """The masked-LM stage of a system: warm start, loss by position, training, loss by position.

    FLOATER's stage trains h alone. Another encoder's stage trains all parameters for as many updates.
    """

    script = "pretrain_flow.sh"

    def __init__(self, request: RobertaRequest, launcher: Launcher, locks: Locks | None = None):
        if request.system.encoder == PLAIN:
            raise UsageError(
                "`--encoder` must be one of this package, but is roberta, which is the donor."
            )
        self.checkpoint = request.stage_folder / "checkpoints" / "checkpoint_best.pt"
        title = f"{request.experiment.size}, masked LM of {system_name(request.system)}"
        super().__init__(request, request.stage_folder, title, launcher, locks)

    def run(self) -> None:
        """Run every step under the run's lock, and under the lock of the runs that need this stage."""
        with self.shared_lock(self.path.parent / f".{self.path.name}.lock"):
            super().run()

    def trainings(self) -> dict[str, list[str]]:
        return {
            **super().trainings(),
            "flow": self._masked_lm("flow", self.request.system, self.path),
        }

    def steps(self) -> None:
        self.check_options()
        self.prepare_text()
        self.train_from(self.prepare_donor())

    def train_from(self, donor: Path) -> None:
        self._warm_start(donor)
        self._position_loss(self.path / "warm_start.pt", "before")
        name, experiment = system_name(self.request.system), self.experiment
        settings = {"experiment": "roberta", "stage": "flow", "system": name}
        settings |= {"config": experiment.name, "size": experiment.size}
        self._train("flow", self.request.system, self.path, {"settings": settings})
        self._position_loss(self.checkpoint, "after")
        if not self.launcher.dry_run:
            with self.folder.changing() as record:
                record["state"] = "done"

    def _warm_start(self, donor: Path) -> None:
        result, request = self.path / "warm_start.json", self.request
        extend = ["--extend", request.extend] if request.extend is not None else []
        options = self.experiment.warm_start(request.system, request.mlm)
        argv = floater("warm-start", donor, self.path / "warm_start.pt", "--force")
        step = Step(result, [*argv, "--json", result, *options, *extend], made_of=extend)
        self.check_start(donor, begun=result.is_file())
        if result.is_file() and not self.is_made(step):
            raise UserError(
                f"{self.path} was started with another `--extend`: change it back, use another --work, or "
                "remove the folder."
            )
        if self.make(step):
            self.say("warm start from the donor")

    def _position_loss(self, checkpoint: Path, name: str) -> None:
        result, options = self.path / f"{name}.json", self.experiment.position_loss()
        command = floater("position-loss", checkpoint, self.request.mlm, *options, "--json", result)
        if self.make(Step(result, command, made_of=options)):
            self.say(f"masked-LM loss by position {name} training: {result.name}")
