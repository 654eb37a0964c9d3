"""Run the paper's protocol for one system: donor, warm start, training on, averaging, generation, scores.

A finished step is skipped, a killed one starts over; a training goes on from its last
whole checkpoint. Everything of a run lies in its folder, with the record of it (`run_folder.py`).
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import text_file
from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.evaluation.metrics import bleu_metric
from fairseq_floater.experiments.hardware import ONE_CPU, Machines, update_in_words
from fairseq_floater.experiments.job import SCRIPTS, Job, floater, python
from fairseq_floater.experiments.launch import CommandError, Launcher
from fairseq_floater.experiments.run_folder import check_data, write_validation
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.training import Training, train
from fairseq_floater.files import write_whole
from fairseq_floater.records import read_json

# In the names of a warm start's own translations.
BEFORE = ".before"


@dataclass(frozen=True)
class RunRequest:
    """A request: one system of an experiment.

    Args:
        experiment: the configuration.
        system: the encoder, how it enters, and from where it starts.
        work: where everything goes.
        raw: parallel text to make data of.
        data: data that are made; made there where they are WMT14's.
        donor: its folder; None for ``work/plain``.
        seed: of training; None for the configuration's.
        machines: what to train on.
        losses: also compute the loss of every test sentence; where the configuration's ``s2l`` says
            ``before``, of the warm start as well, which is translated with too.
        preparation: further options of prepare_wmt14.sh.
    """

    experiment: Experiment
    system: System
    work: Path
    raw: Path | None = None
    data: Path | None = None
    donor: Path | None = None
    seed: int | None = None
    machines: Machines = ONE_CPU
    losses: bool = False
    preparation: tuple[str, ...] = ()


class Protocol(Job):
    """The steps of one run, in order: :meth:`run`.

    Args:
        run: what is asked for.
        launcher: starts the commands.
    """

    def __init__(self, run: RunRequest, launcher: Launcher):
        self.asked = run
        self.experiment, self.stage = run.experiment, run.system.stage
        self.data = run.data or run.work / "data"
        self.donor = run.donor or run.work / PLAIN
        if self.stage == "donor" and run.donor is not None and run.seed is not None:
            raise UsageError(
                f"With `--donor` the run of `--encoder {PLAIN}` is what others start from, under the seed of "
                f"{run.experiment.path}; leave `--seed` out."
            )
        self.settings = run.experiment.settings(run.system, run.machines, run.seed)
        name = run.system.name
        path = self.donor if self.stage == "donor" else run.work / name
        super().__init__(path, name if run.seed is None else f"{name}, seed {run.seed}", launcher)

    def arguments(self, stage: str) -> list[str]:
        return self.experiment.arguments(
            stage,
            self.asked.system,
            data=str(self.data / "bin"),
            work=str(self.asked.work),
            machines=self.asked.machines,
            seed=self.asked.seed,
            donor=None if self.asked.donor is None else str(self.asked.donor),
        )

    def own_command(self) -> str:
        """Return the command that makes this run alone; with another ``--work``, once more."""
        asked = self.asked
        settings = ("OMP_NUM_THREADS", "FLOATER_PYTHON")
        found = [f"{k}={v}" for k in settings if (v := self.launcher.environment.get(k))]
        words = ["env", *found, "bash", SCRIPTS / "protocol.sh", asked.experiment.path.absolute()]
        for name in ("work", "data", "donor", "raw"):
            if (place := getattr(asked, name)) is not None:
                words += [f"--{name}", place.absolute()]
        words += [] if asked.seed is None else ["--seed", asked.seed]
        words += [*asked.machines.words(), *asked.preparation]
        words += ["--losses"] if asked.losses else []
        return shlex.join(map(str, [*words, *asked.system.words()]))

    def steps(self) -> None:
        """Run every step that is not whole yet."""
        whole = self.folder.read().get("state") == "done" and not self.launcher.dry_run
        if not whole:
            self.experiment.check_average(self.asked.system)
            # A tokenizer that is not installed costs no training.
            bleu_metric(self.experiment.config.data.tokenize, self.settings["target"])
        options = None if whole else self._model_options()
        self.prepare_data()
        if options is not None and self.asked.system.encoder != PLAIN:
            self._warn_of_distances(options)
        if self.stage != "scratch":
            with self.alone(self.donor.parent / ".donor.lock"):
                self._train("donor", self.donor)
        if self.stage == "finetune":
            self._warm_start()
            self._validate_warm_start()
            s2l = self.experiment.config.s2l
            if self.asked.losses and s2l is not None and s2l.before:
                for test in self.experiment.config.data.tests:
                    self._translate("warm_start.pt", test, BEFORE)
        if self.stage != "donor":
            self._train(self.stage, self.path)
        self._average()
        for test in self.experiment.config.data.tests:
            self._translate("average.pt", test)
            self._score(test)

    def _model_options(self) -> argparse.Namespace:
        """Return the options of the system's training; a wrong one, of the donor's too, costs no hours."""
        # Imports torch and fairseq, which takes seconds.
        from fairseq_floater.experiments.model_options import check_generation, training_options

        asked = self.asked
        check_generation(self.experiment, asked.machines, asked.system)
        if self.stage == "finetune":
            training_options(self.experiment, "donor", asked.machines, System(PLAIN))
        return training_options(self.experiment, self.stage, asked.machines, asked.system)

    def _warn_of_distances(self, options: argparse.Namespace) -> None:
        from fairseq_floater.experiments.distances import untrained_distances

        warning = untrained_distances(self.experiment, options, self.data / "bin")
        if warning is not None:
            self.launcher.say(f"{self.title}: warning: {warning}")

    def prepare_data(self) -> None:
        """Make the data, or make sure that those given are what the configuration describes."""
        with self.alone(self.asked.work / ".data.lock"):
            self._prepare_data()
        if not self.launcher.dry_run:
            for test in self.experiment.config.data.tests:  # a name that is wrong costs no training
                self._subset(test)

    def _prepare_data(self) -> None:
        raw, wmt14 = self.asked.raw, self.settings["wmt14"]
        binarised = (self.data / "bin").is_dir()
        if self.asked.data is not None:
            if raw is not None:
                raise UsageError(
                    "--data is for data that are made, --raw for text to make them of."
                )
            # WMT14's data are made where they are wanted, if they are not there.
            if not wmt14 or ((self.data / "wmt14.json").is_file() and binarised):
                if not self.launcher.dry_run:
                    if not binarised:
                        raise UserError(f"{self.data} holds no binarised data (bin).")
                    rehearsal = "--rehearsal" in self.asked.preparation
                    check_data(self.data, self.settings, rehearsal=rehearsal)
                return
        if self.experiment.config.s2l is not None and not self.launcher.dry_run:
            raise UsageError(
                f"{self.experiment.path} splits its text by length: scripts/s2l.sh does that and trains its "
                "systems. For another one pass the data that it made: --data WORK/data."
            )
        log = self.asked.work / "data.log"
        if self.experiment.config.data.numbers is not None:
            if raw is not None:
                raise UsageError(
                    f"{self.experiment.path} makes its own corpus; --raw is for your text."
                )
            raw = self.asked.work / "numbers"
            self.run_unrecorded(floater("numbers", raw, *self.arguments("numbers")), log=log)
        if wmt14 and raw is None:
            words: list[Any] = ["--out", self.data, "--bpe", self.settings["bpe"]]
            words += ["--vocab", self.settings["vocab"], *self.asked.preparation]
            self.run_unrecorded(["bash", SCRIPTS / "prepare_wmt14.sh", wmt14, *words], log=log)
        elif raw is not None:
            if raw.is_dir() and self.asked.raw is not None:
                self._check_tests(raw)
            words = [raw, self.data, *self.arguments("prepare")]
            try:
                self.run_unrecorded(["bash", SCRIPTS / "prepare_text.sh", *words], log=log)
            except CommandError:
                self.launcher.say(
                    f"If text or settings have changed, use another --work or remove {self.data}."
                )
                raise
        elif not binarised:
            raise UsageError(
                f"{self.experiment.path} is for your text: pass its folder with --raw."
            )

    def _check_tests(self, raw: Path) -> None:
        """Make sure that every test set of the configuration is among the text; data are made without."""
        languages = self.experiment.config.languages
        for test in self.experiment.config.data.tests:
            for language in (languages.source, languages.target):
                text_file(raw, test, language)

    def _train(self, stage: str, path: Path) -> None:
        settings, machines = self.settings, self.asked.machines
        training = Training(
            stage,
            path,
            self.arguments(stage),
            settings["tokens_per_update"],
            update_in_words(self.experiment.config.budget, machines),
            # The settings of a run that trains on are not the donor's.
            settings if path == self.path else None,
        )
        train(self, training, machines)

    def _warm_start(self) -> None:
        """Start the system from the donor's best checkpoint."""
        result = self.path / "warm_start.json"
        best = self.donor / "checkpoints" / "checkpoint_best.pt"
        self.check_start(best, begun=result.is_file())
        if result.is_file():
            return
        words = ["--force", "--json", result, *self.arguments("warm-start")]
        self.command(floater("warm-start", best, self.path / "warm_start.pt", *words))
        self.say("warm start from the donor's best checkpoint")

    def _validate_warm_start(self) -> None:
        """Compute the validation loss before the first update."""
        result, log = self.path / "before.json", self.path / "before.log"
        if result.is_file():
            return
        words = [*self.arguments("validate"), "--path", self.path / "warm_start.pt"]
        self.command(python("fairseq_cli.validate", *words, "--valid-subset", "valid"), log=log)
        if not self.launcher.dry_run:
            found = write_validation(log, result)
            self.say(f"validation loss before the first update: {found['loss']}")

    def _average(self) -> None:
        """Average the last checkpoints."""
        result = self.path / "average.json"
        if result.is_file():
            self.folder.check_average(self.settings)
            self._keep_settings()
            return
        words = ["--inputs", self.path / "checkpoints", "--last", self.settings["average"]]
        words += ["--updates"] if self.settings["average_of"] == "updates" else []
        words += ["--output", self.path / "average.pt", "--force", "--json", result]
        self.command(floater("average", *words))
        self._keep_settings("average", "average_of")
        self.say(f"average of the last {self.settings['average']} checkpoints")

    def _keep_settings(self, *keys: str) -> None:
        """Keep the settings where none are kept, else those of ``keys``.

        What was trained with is noted when it is trained: a later look from another machine changes
        nothing.
        """
        if self.launcher.dry_run:
            return
        with self.folder.changing() as record:
            new = {key: self.settings[key] for key in keys} if record["settings"] else self.settings
            record["settings"].update(new)

    def _translate(self, model: str, test: str, mark: str = "") -> None:
        """Translate a test set with ``model``, a file of this run; ``mark`` is in the names of results."""
        if self.asked.losses:
            self._generate("score-reference", model, test, f"losses.{test}{mark}.txt")
        self._generate("generate", model, test, f"generate.{test}{mark}.txt")

    def _generate(self, stage: str, model: str, test: str, name: str) -> None:
        """Keep fairseq-generate's output of a test set as ``name``, whole or not at all."""
        words, result = self.arguments(stage), self.path / name
        command = python("fairseq_cli.generate", *words, "--path", self.path / model)
        command.append("--gen-subset")
        if self.launcher.dry_run:
            # The numbers that prepare_text.sh gives to all that it finds.
            number = sorted(self.experiment.config.data.tests).index(test)
            self.command([*command, f"test{number or ''}"], output=result)
            return
        self.folder.check_same(stage, words)
        if result.is_file():
            return
        with self.folder.changing() as record:
            record["arguments"][stage] = words
        command.append(self._subset(test))
        log = result.with_suffix(".log")
        write_whole(result, lambda part: self.command(command, output=part, log=log))
        self.say(result.name)

    def _subset(self, test: str) -> str:
        """Return fairseq's name of a test set (test, test1, ...), as prepare_text.sh wrote it down."""
        path = self.data / "tests.json"
        found = read_json(path)
        if test not in found:
            raise UserError(
                f"{path} knows no test set {test} (the `data: tests` of {self.experiment.path}); "
                f"it has {', '.join(found) or 'none'}."
            )
        return str(found[test])

    def _score(self, test: str) -> None:
        """Score a test set's translation against the raw reference."""
        result, target = self.path / f"scores.{test}.json", self.settings["target"]
        tokenizer = self.experiment.tokenizer()
        if self.is_made(result, tokenizer):
            return
        words = ["--references", self.data / "raw" / f"{test}.{target}", "--target-lang", target]
        words += tokenizer
        self.command(floater("score", self.path / f"generate.{test}.txt", *words, "--json", result))
        self.note_made(result, tokenizer)
        if not self.launcher.dry_run:
            self.say(f"{test}: BLEU {read_json(result)['bleu']['score']:.2f}")
