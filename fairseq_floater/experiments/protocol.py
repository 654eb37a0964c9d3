"""Run the paper's protocol for one system: donor, warm start, further training, average, generation, scores.

A finished step is skipped. A killed step starts over, but a training resumes from its last whole
checkpoint. The folder of a run holds all its results and its record (`run_folder.py`).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.evaluation.metrics import bleu_metric
from fairseq_floater.evaluation.s2l.systems import token_counts
from fairseq_floater.experiments.job import SCRIPTS, Step, Training, floater, python
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.preparation import RunRequest, TranslationJob
from fairseq_floater.experiments.run_folder import MADE_OF_MODEL, RunFolder, write_validation
from fairseq_floater.experiments.system import PLAIN, PLAIN_SIGNATURE
from fairseq_floater.experiments.variants import Variant
from fairseq_floater.position_encoders import signature
from fairseq_floater.records import NUMBER, read_json
from fairseq_floater.transformer.shapes import MAX_POSITIONS

# Part of the names of files with a warm start's translations.
WARM_START_MARK = ".before"


class Protocol(TranslationJob):
    """The steps of one run, in order: :meth:`run`."""

    def __init__(self, request: RunRequest, launcher: Launcher):
        self.stage = request.system.stage
        self.donor = request.donor or request.work / PLAIN
        # A run keeps its checkpoints in a subfolder. The --save-dir of fairseq-train holds them directly.
        if self.donor.is_file() or any(self.donor.glob("checkpoint*.pt")):
            raise UserError(
                f"`--donor` must be the folder of a run of `--encoder {PLAIN}`, but {self.donor} is a "
                "checkpoint or a --save-dir of fairseq-train: start from those with `floater warm-start`."
            )
        if request.donor is not None:
            encoder = RunFolder(self.donor).read()["settings"].get("encoder", PLAIN)
            if encoder != PLAIN:
                raise UserError(
                    f"`--donor` must be a run of `--encoder {PLAIN}`, but {self.donor} is one of {encoder}."
                )
        if self.stage == "donor" and request.donor is not None and request.seed is not None:
            raise UsageError(
                f"`--seed` must be left out with `--donor` and `--encoder {PLAIN}`: the shared donor has the "
                f"seed of {request.experiment.path}."
            )
        name, seed = request.system.name, request.seed
        path = self.donor if self.stage == "donor" else request.work / name
        super().__init__(request, path, name if seed is None else f"{name}, seed {seed}", launcher)
        self.signature = PLAIN_SIGNATURE

    def single_run_command(self) -> str:
        """Return the command that makes this run alone. With another ``--work``, it makes the run again."""
        request, environment = self.request, self.launcher.environment
        names = ("OMP_NUM_THREADS", "FLOATER_PYTHON", "FLOATER_USER_DIR")
        kept = {name: environment.get(name) for name in names}
        argv: list[Any] = ["env", *(f"{name}={value}" for name, value in kept.items() if value)]
        argv += ["bash", SCRIPTS / "protocol.sh", request.experiment.path.absolute()]
        for name in ("work", "data", "donor", "raw"):
            if (path := getattr(request, name)) is not None:
                argv += [f"--{name}", path.absolute()]
        argv += [] if request.seed is None else ["--seed", request.seed]
        argv += [*request.machines.words(), *request.preparation]
        argv += ["--losses"] if request.losses else []
        return shlex.join(map(str, [*argv, *request.system.words()]))

    def steps(self) -> None:
        self.experiment.check_average(self.request.system)
        # Fails before training if the tokenizer is not installed.
        bleu_metric(self.experiment.config.data.tokenize, self.settings["target"])
        options = self.check_options()
        positions = None if self.request.system.encoder == PLAIN else options
        if positions is not None:
            self.signature = signature(positions)
        self.prepare_data()
        if not self.launcher.dry_run:
            self._check_lengths(options)
        if positions is not None:
            self._warn_of_distances(positions)
        # Once the warm start exists, the donor may be gone.
        is_started = (self.path / "warm_start.json").is_file() and not self.launcher.dry_run
        if self.stage == "donor" or (self.stage == "finetune" and not is_started):
            with self.shared_lock(self.donor.parent / ".donor.lock"):
                self._train("donor", self.donor)
        if self.stage == "finetune":
            self._warm_start()
            s2l = self.experiment.config.s2l
            if self.request.losses and s2l is not None and s2l.before:
                for test in self.experiment.config.data.tests:
                    self._translate("warm_start.pt", test, WARM_START_MARK)
        if self.stage != "donor":
            self._train(self.stage, self.path)
        self._average()
        for test in self.experiment.config.data.tests:
            self._translate("average.pt", test)
            self._score(test)

    def further_steps(self) -> None:
        for test in self.experiment.config.data.tests:
            for variant in self.request.variants:
                self._translate("average.pt", test, variant.mark, variant)

    def check_options(self) -> argparse.Namespace:
        """Parse the options of the system's and the donor's training before hours are spent on either."""
        # Imports torch and fairseq, which takes seconds.
        from fairseq_floater.checkpoints.donor import check_options_of_a_warm_start
        from fairseq_floater.experiments.model_options import (
            check_generation,
            check_owners,
            parse_training,
        )

        config, system = self.experiment.path, self.request.system
        check_owners(system)
        check_generation(self.arguments("generate"), config)
        if self.stage == "finetune":
            parse_training(self.arguments("donor"), config, "donor")
            check_options_of_a_warm_start(self.experiment.arch(system), system.options)
        return parse_training(self.arguments(self.stage), config, self.stage)

    def _warn_of_distances(self, options: argparse.Namespace) -> None:
        from fairseq_floater.experiments.model_options import untrained_distances

        s2l = self.experiment.config.s2l
        threshold = None if s2l is None else s2l.threshold
        warning = untrained_distances(options, self.data / "bin", threshold)
        if warning is not None:
            self.launcher.say(f"{self.title}: warning: {warning}")

    def _check_lengths(self, options: argparse.Namespace) -> None:
        """Warn of references that are longer than hypotheses can be.

        Raises:
            UsageError: a test set has sentences that fairseq-generate refuses.
        """
        a, b = (float(self.settings[name]) for name in ("max_len_a", "max_len_b"))
        folder = self.data / SEGMENTATIONS[self.settings["bpe"]].folder
        for test in self.experiment.config.data.tests:
            sides = [folder / f"{test}.{self.settings[side]}" for side in ("source", "target")]
            if not all(path.is_file() for path in sides):
                continue
            source, target = map(token_counts, sides)
            for side, path, tokens in zip(("source", "target"), sides, (source, target)):
                limit = getattr(options, f"max_{side}_positions", MAX_POSITIONS)
                longest = int(tokens.max()) + 1
                if longest > limit:
                    raise UsageError(
                        f"`max-{side}-positions` must be at least {longest} for line "
                        f"{int(tokens.argmax()) + 1} of {path} and its end symbol, but is {limit} instead: "
                        "set it under `shape`."
                    )
            if cut := int((target > a * (source + 1) + b).sum()):
                self.say(
                    f"warning: {cut} of {len(target)} references of {test} are longer than "
                    f"the longest hypothesis that `max-len-a: {a:g}` and `max-len-b: {b:g}` allow."
                )

    def _train(self, stage: str, path: Path) -> None:
        machines, notes = self.request.machines, dict[str, Any]()
        if path == self.path:  # the donor's record does not get this run's settings
            notes = {"settings": self.settings, "signature": self.signature}
        training = Training(
            stage,
            path,
            self.arguments(stage),
            self.settings["tokens_per_update"],
            self.experiment.config.budget.update_in_words(machines),
            notes,
            may_end_later=stage != "donor",  # other runs start from a donor
        )
        self.train(training, machines)

    def _warm_start(self) -> None:
        result, model = self.path / "warm_start.json", self.path / "warm_start.pt"
        best = self.donor / "checkpoints" / "checkpoint_best.pt"
        self.check_start(best, begun=result.is_file())
        options = ["--force", "--json", result, *self.arguments("warm-start")]
        if self.make(Step(result, floater("warm-start", best, model, *options))):
            self.say("warm start from the donor's best checkpoint")
        result, log = self.path / "before.json", self.path / "before.log"
        options = [*self.arguments("validate"), "--path", model, "--valid-subset", "valid"]
        if self.make(Step(result, python("fairseq_cli.validate", *options), log=log)):
            loss = write_validation(log, result)["loss"]
            self.say(f"validation loss before the first update: {loss}")

    def _average(self) -> None:
        result = self.path / "average.json"
        made_of = {key: self.settings[key] for key in ("average", "average_of")}
        if result.is_file():
            self.folder.check_average(made_of)
        options = ["--inputs", self.path / "checkpoints", "--last", self.settings["average"]]
        options += ["--updates"] if self.settings["average_of"] == "updates" else []
        options += ["--output", self.path / "average.pt", "--force", "--json", result]
        last = self.settings["average"]
        made = [path for name in MADE_OF_MODEL for path in self.path.glob(name)]
        outdated = [path for path in made if WARM_START_MARK not in path.name]
        if self.make(Step(result, floater("average", *options), outdates=outdated)):
            self.say(f"average of the last {last} checkpoint{'s' * (last != '1')}")
        if not self.launcher.dry_run:
            with self.folder.changing() as record:
                # A donor that another run trained has no settings yet.
                record["settings"] = (record["settings"] or self.settings) | made_of
                record.setdefault("signature", self.signature)

    def _translate(
        self, model: str, test: str, mark: str = "", variant: Variant | None = None
    ) -> None:
        """Translate a test set with ``model``, a file of this run; ``mark`` is part of the results' names."""
        further = () if variant is None else variant.arguments
        if self.request.losses and (variant is None or variant.changes_losses):
            self._generate("score-reference", model, test, f"losses.{test}{mark}.txt", further)
        self._generate("generate", model, test, f"generate.{test}{mark}.txt", further)

    def _generate(
        self, stage: str, model: str, test: str, name: str, further: Sequence[str]
    ) -> None:
        arguments, result = self.arguments(stage), self.path / name
        options = ["--path", self.path / model, "--gen-subset", self.subset(test), *further]
        command = python("fairseq_cli.generate", *arguments, *options)
        if not self.launcher.dry_run:
            self.folder.check_same(stage, arguments)
            if not result.is_file():
                with self.folder.changing() as record:
                    record["arguments"][stage] = arguments
        log, scores = result.with_suffix(".log"), name.replace("generate", "scores", 1)
        outdated = [(self.path / scores).with_suffix(".json")]
        if self.make(Step(result, command, log=log, is_output=True, outdates=outdated)):
            self.say(result.name)

    def _score(self, test: str) -> None:
        result, target = self.path / f"scores.{test}.json", self.settings["target"]
        metrics = self.experiment.metrics()
        options = ["--references", self.data / "raw" / f"{test}.{target}", "--target-lang", target]
        # The record of a trained run has the signature of the version that trained it.
        dry = self.launcher.dry_run
        system = self.signature if dry else self.folder.read().get("signature", "")
        separator = self.experiment.config.data.separator
        options += ["--documents", separator] if separator else []
        options += [*metrics, "--system", system, "--json", result]
        command = floater("score", self.path / f"generate.{test}.txt", *options)
        if self.make(Step(result, command, made_of=metrics)):
            scores = read_json(result, {"bleu": {"score": NUMBER}})
            exact = scores.get("exact_match")
            share = f", exact match {exact['score']:.3f}" if exact else ""
            self.say(f"{test}: BLEU {scores['bleu']['score']:.2f}{share}")
