"""Run the second half of the paper's section 4.2: fine-tune one system on one task, and score it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.roberta.protocol import FlowStage, RobertaRequest, Steps
from fairseq_floater.experiments.roberta.stages import system_name
from fairseq_floater.experiments.stages import as_words
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.training import Training, train
from fairseq_floater.records import read_json


class FineTuning(Steps):
    """The fine-tuning of one system on one task under one seed, its predictions and scores.

    Args:
        asked: the request.
        task: one of :data:`~fairseq_floater.experiments.roberta.config.TASKS`.
        launcher: starts the commands.
    """

    script = "finetune.sh"

    def __init__(self, asked: RobertaRequest, task: str, launcher: Launcher):
        asked.experiment.check_task(task)
        self.task, self.kind = task, TASKS[task]
        self.seed = asked.experiment.config.seed if asked.seed is None else asked.seed
        name = f"{task}-{system_name(asked.system)}"
        # Data are cut to the length of the model: a longer one has its own.
        self.longest = asked.experiment.longest(task, asked.system)
        usual = self.longest == asked.experiment.longest(task, System(PLAIN))
        self.data = asked.work / "data" / (task if usual else f"{task}-{self.longest}")
        path = asked.folder / name / f"seed-{self.seed}"
        super().__init__(asked, path, f"{name}, seed {self.seed}", launcher)

    def steps(self) -> None:
        """Run every step that is not whole yet."""
        self.check_options()
        self.prepare_text()
        start = self._start(self.prepare_donor())
        self._prepare_task()
        self._check_splits()
        self._finetune(start)
        for split in self.kind.splits:
            self._predict(split)
            self._score(split)

    def trainings(self) -> dict[str, list[str]]:
        if self.asked.system.encoder == PLAIN:
            before = super().trainings()
        else:
            before = FlowStage(self.asked, self.launcher).trainings()
        return {**before, "finetune": self._arguments(self.path)}

    def _arguments(self, start: Path) -> list[str]:
        asked = self.asked
        return self.experiment.finetune(
            self.task,
            asked.system,
            data=self.data,
            start=start,
            folder=self.path,
            machines=asked.machines,
            seed=self.seed,
        )

    def _start(self, donor: Path) -> Path:
        """Return what is fine-tuned: the donor, or the end of the system's masked-LM stage."""
        if self.asked.system.encoder == PLAIN:
            return donor
        stage = FlowStage(self.asked, self.launcher)
        with self.alone(stage.path.parent / f".{stage.path.name}.lock"):
            stage.within(self)
            if not self.launcher.dry_run:
                stage.path.mkdir(parents=True, exist_ok=True)
            stage.train_from(donor)
        return stage.checkpoint

    def _prepare_task(self) -> None:
        """Make the data of the task, or make sure that they are what its raw files make."""
        with self.alone(self.asked.work / ".data.lock"):
            if self.raw is None:
                family = self.kind.family
                self.need_raw(self.data, f"{self.task} is made of raw files", f"{family}/")
                return
            family, recipe = self.kind.family, self.experiment.config.recipe(self.task)
            given: dict[str, Any] = {}
            if family in ("glue", "race"):
                given["max-positions"] = self.longest
            if family == "race" and "max-option-length" in recipe:
                given["max-option-length"] = recipe["max-option-length"]
            given |= {"data-version": self.kind.version} if self.kind.version else {}
            words: list[Any] = ["prepare", *([self.task] if family == "glue" else [])]
            words += [self.raw / family, self.data, "--like", self.asked.mlm, *as_words(given)]
            self.command(floater(family, *words), log=self.asked.work / "data.log")

    def _check_splits(self) -> None:
        """Refuse data on which the task cannot be scored, before anything is fine-tuned."""
        for split in self.kind.splits:
            if not self.launcher.dry_run and not self._references(split).is_file():
                raise UserError(
                    f"{self.kind.title} is scored on {split}, which {self.data} does not have: its raw "
                    "files lack that split."
                )

    def _finetune(self, start: Path) -> None:
        asked, experiment = self.asked, self.experiment
        self.check_start(start, begun="finetune" in self.folder.read()["arguments"])
        share = experiment.share(self.task, asked.system, asked.machines)
        settings = experiment.settings(self.task, asked.system, asked.machines, self.seed)
        here = f"{settings['batch']} examples an update ({share.batch_size} x --update-freq "
        training = Training(
            "finetune",
            self.path,
            self._arguments(start),
            settings["batch"],
            f"{here}{share.update_freq}, {asked.machines})",
            settings,
            counts="batch",
            expected=experiment.updates_an_epoch(self.task),
        )
        train(self, training, asked.machines)

    # Predictions and scores.

    def _result(self, name: str, split: str, ending: str) -> Path:
        """Return the file of a result; the first split's carries no name."""
        middle = "" if split == self.kind.splits[0] else f".{split}"
        return self.path / f"{name}{middle}.{ending}"

    def _references(self, split: str) -> Path:
        return self.data / f"references.{split}.{self.kind.ending}"

    def _predictions(self, split: str) -> Path:
        return self._result("predictions", split, self.kind.ending)

    def _predict(self, split: str) -> None:
        """Write the predictions of the chosen checkpoint in the task's official form."""
        result, chosen = self._predictions(split), self.experiment.checkpoint(self.task)
        if self.is_made(result, [chosen]):
            return
        checkpoint = self.path / "checkpoints" / chosen
        words = [checkpoint, self.data, result, "--task", self.kind.family, "--split", split]
        self.command(floater("predict", *words))
        if not self.launcher.dry_run:  # what is there is of other predictions
            self._result("scores", split, "json").unlink(missing_ok=True)
        self.note_made(result, [chosen])
        self.say(result.name)

    def _score(self, split: str) -> None:
        """Score predictions against the official references."""
        result, family = self._result("scores", split, "json"), self.kind.family
        if result.is_file():
            return
        predictions = self._predictions(split)
        words: list[Any] = [*([self.task] if family == "glue" else []), predictions]
        words += ["--references", self._references(split)]
        if self.kind.version == "2.0":
            # The predictions are answers to everything: whether there is one is left to a threshold.
            words += ["--na-prob", predictions.with_suffix(".na.json"), "--na-prob-thresh", "0.5"]
        self.command(floater(family, "score", *words, "--json", result))
        if not self.launcher.dry_run:
            found = read_json(result)
            score = found["score"] if family != "squad" else found["f1"]
            self.say(f"{self.kind.title}, {split}: {score:.2f}")
