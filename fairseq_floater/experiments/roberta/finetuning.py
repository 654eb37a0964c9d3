"""Run the second half of the paper's section 4.2: fine-tune one system on one task, and score it."""

from __future__ import annotations

from pathlib import Path

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.job import Step, Training, floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.roberta.protocol import MaskedLmJob, RobertaJob
from fairseq_floater.experiments.roberta.stages import RobertaRequest, system_name
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.records import NUMBER, read_json
from fairseq_floater.verbs import as_options


class FineTuning(RobertaJob):
    """The fine-tuning of one system on one task under one seed, its predictions and scores."""

    script = "finetune.sh"

    def __init__(self, request: RobertaRequest, task: str, launcher: Launcher):
        request.experiment.check_task(task)
        self.task, self.kind = task, TASKS[task]
        self.seed = request.experiment.seed(request.seed)
        name = f"{task}-{system_name(request.system)}"
        # Examples are cut to the length of the model, so a longer model has other data.
        self.longest = request.experiment.longest(task, request.system)
        usual = self.longest == request.experiment.longest(task, System(PLAIN))
        self.data = request.work / "data" / (task if usual else f"{task}-{self.longest}")
        path = request.folder / name / f"seed-{self.seed}"
        title = f"{request.experiment.size}, {name}, seed {self.seed}"
        super().__init__(request, path, title, launcher)

    def steps(self) -> None:
        self.check_options()
        self.prepare_text()
        donor = self.prepare_donor()
        # Before the flow stage, which may train for days: missing raw files end the run here.
        self._prepare_task()
        self._check_splits()
        self._finetune(self._start(donor))
        for split in self.kind.splits:
            self._predict(split)
            self._score(split)

    def trainings(self) -> dict[str, list[str]]:
        if self.request.system.encoder == PLAIN:
            before = super().trainings()
        else:
            before = MaskedLmJob(self.request, self.launcher).trainings()
        return {**before, "finetune": self._arguments(self.path)}

    def _arguments(self, start: Path) -> list[str]:
        request = self.request
        return self.experiment.finetune(
            self.task,
            request.system,
            data=self.data,
            start=start,
            folder=self.path,
            machines=request.machines,
            seed=self.seed,
        )

    def _start(self, donor: Path) -> Path:
        """Return the checkpoint to fine-tune: the donor, or the result of the system's masked-LM stage."""
        if self.request.system.encoder == PLAIN:
            return donor
        stage = MaskedLmJob(self.request, self.launcher, self.locks)
        with self.shared_lock(stage.path.parent / f".{stage.path.name}.lock"):
            if not self.launcher.dry_run:
                stage.path.mkdir(parents=True, exist_ok=True)
            stage.train_from(donor)
        return stage.checkpoint

    def _prepare_task(self) -> None:
        with self.shared_lock(self.request.work / ".data.lock"):
            family, recipe = self.kind.family, self.experiment.config.recipe(self.task)
            if self.raw is None:
                self.need_raw(self.data, f"{self.task} needs raw files", f"{family}/")
                return
            options = {
                "max-positions": None if family == "squad" else self.longest,
                "max-option-length": recipe.get("max-option-length"),  # of RACE
                "data-version": self.kind.version or None,
            }
            argv = floater(family, "prepare", *self._task_of_glue, self.raw / family, self.data)
            argv += ["--like", self.request.mlm, *as_options(options)]
            self.make_data(argv)

    def _check_splits(self) -> None:
        for split in self.kind.splits:
            if not self.launcher.dry_run and not self._references(split).is_file():
                raise UserError(
                    f"{self.kind.title} is scored on {split}, which {self.data} does not have: its raw "
                    "files lack that split."
                )

    def _finetune(self, start: Path) -> None:
        request, experiment = self.request, self.experiment
        self.check_start(start, begun="finetune" in self.folder.read()["arguments"])
        share = experiment.share(self.task, request.system, request.machines)
        settings = experiment.settings(self.task, request.system, request.machines, self.seed)
        size = f"{share.batch_size} x --update-freq {share.update_freq}, {request.machines}"
        training = Training(
            "finetune",
            self.path,
            self._arguments(start),
            settings["batch"],
            f"{settings['batch']} examples an update ({size})",
            {"settings": settings},
            counts="batch",
            expected=experiment.updates_an_epoch(self.task),
        )
        self.train(training, request.machines)

    # Predictions and scores.

    def _result(self, name: str, split: str, ending: str) -> Path:
        """Return the file of a result; its name leaves out the first split."""
        middle = "" if split == self.kind.splits[0] else f".{split}"
        return self.path / f"{name}{middle}.{ending}"

    def _references(self, split: str) -> Path:
        return self.data / f"references.{split}.{self.kind.ending}"

    def _predictions(self, split: str) -> Path:
        return self._result("predictions", split, self.kind.ending)

    @property
    def _task_of_glue(self) -> list[str]:
        return [self.task] if self.kind.family == "glue" else []

    def _predict(self, split: str) -> None:
        result, chosen = self._predictions(split), self.experiment.checkpoint(self.task)
        checkpoint = self.path / "checkpoints" / chosen
        options = ["--task", self.kind.family, "--split", split]
        command = floater("predict", checkpoint, self.data, result, *options)
        scores = self._result("scores", split, "json")
        if self.make(Step(result, command, made_of=[chosen], outdates=[scores])):
            self.say(result.name)

    def _score(self, split: str) -> None:
        result, family = self._result("scores", split, "json"), self.kind.family
        predictions = self._predictions(split)
        argv = floater(family, "score", *self._task_of_glue, predictions)
        argv += ["--references", self._references(split)]
        if self.kind.version == "2.0":
            # The predictions answer every question. A threshold decides whether a question has an answer.
            argv += ["--na-prob", predictions.with_suffix(".na.json"), "--na-prob-thresh", "0.5"]
        if self.make(Step(result, [*argv, "--json", result])):
            score = read_json(result, {"score": NUMBER})["score"]
            self.say(f"{self.kind.title}, {split}: {score:.2f}")
