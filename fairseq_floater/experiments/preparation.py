"""Make the data of translation runs, or check that given data match the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import find_splits, text_file
from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.experiments.arguments import Request
from fairseq_floater.experiments.job import SCRIPTS, Job, floater
from fairseq_floater.experiments.launch import CommandError, Launcher
from fairseq_floater.experiments.run_folder import check_data
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.variants import Variant
from fairseq_floater.records import read_json


@dataclass(frozen=True)
class RunRequest(Request):
    """The request of a run in translation.

    With ``losses`` the loss of every test sentence is computed as well. If the configuration also sets
    ``s2l: before``, the warm start translates too, and its losses are computed. ``variants`` are further
    translations with the trained model.
    """

    experiment: Experiment
    data: Path | None = None  # folder of prepared data; WMT14's data are made there
    losses: bool = False
    task: tuple[str, ...] = ()  # arguments of `floater tasks`, without the folder
    variants: tuple[Variant, ...] = ()


class TranslationJob(Job):
    """A run in translation, without its steps: the arguments of its stages, and its data."""

    request: RunRequest
    experiment: Experiment

    def __init__(self, request: RunRequest, path: Path, title: str, launcher: Launcher):
        super().__init__(request, path, title, launcher)
        self.data = request.data or request.work / "data"
        self.settings = self.experiment.settings(request.system, request.machines, request.seed)

    def arguments(self, stage: str) -> list[str]:
        request = self.request
        return self.experiment.arguments(
            stage,
            request.system,
            data=self.data / "bin",
            work=request.work,
            machines=request.machines,
            seed=request.seed,
            donor=request.donor,
        )

    def prepare_data(self) -> None:
        """Make the data, or check that given data match the configuration."""
        with self.shared_lock(self.request.work / ".data.lock"):
            self._prepare_data()
        if not self.launcher.dry_run:
            for test in self.experiment.config.data.tests:  # find a wrong name before training
                self.subset(test)

    def subset(self, test: str) -> str:
        """Return fairseq's name of a test set (test, test1, ...), as `floater prepare` recorded it."""
        path = self.data / "tests.json"
        if self.launcher.dry_run and not path.is_file():
            # `floater prepare` numbers them in this order, also those that are not scored.
            config, raw = self.experiment.config, self.request.raw
            tests = sorted(config.data.tests)
            if raw is not None and raw.is_dir():
                tests = find_splits(raw, config.languages.source, config.languages.target)[2:]
            number = tests.index(test) if test in tests else 0
            return f"test{number or ''}"
        subsets = read_json(path, dict)
        if test not in subsets:
            raise UserError(
                f"{path} has no test set {test} (the `data: tests` of {self.experiment.path}); "
                f"it has {', '.join(subsets) or 'none'}."
            )
        return str(subsets[test])

    def _prepare_data(self) -> None:
        raw, wmt14 = self.request.raw, self.settings["wmt14"]
        given, dry_run = self.request.data is not None, self.launcher.dry_run
        made = (self.data / "bin").is_dir() and (not wmt14 or (self.data / "wmt14.json").is_file())
        if given and raw is not None:
            raise UsageError(
                "--data is for prepared data, --raw for text to prepare: pass one of them."
            )
        # The raw text may be gone.
        if made and raw is None and (given or wmt14 or not self._is_built_in):
            if not dry_run:
                rehearsal = "--rehearsal" in self.request.preparation
                data = self.experiment.config.data
                # The split of a short-to-long experiment cleans the text itself.
                is_ours = not given and self.experiment.config.s2l is None
                names = ("max_len", "max_ratio", "normalization", "separator") if is_ours else ()
                cleaning = {name: getattr(data, name) for name in names}
                check_data(self.data, self.settings, cleaning, rehearsal=rehearsal)
            return
        if given and not wmt14:  # WMT14's data are made in that folder if it lacks them
            if dry_run:
                return
            raise UserError(f"{self.data} holds no binarised data (bin).")
        if self.experiment.config.s2l is not None and not dry_run:
            raise UsageError(
                f"{self.experiment.path} splits its text by length: scripts/s2l.sh does that and trains its "
                "systems. For another system pass the data that it made: --data WORK/data."
            )
        if wmt14 and raw is None:
            options: list[Any] = ["--out", self.data, "--bpe", self.settings["bpe"]]
            options += ["--vocab", self.settings["vocab"], *self.request.preparation]
            self.make_data(["bash", SCRIPTS / "prepare_wmt14.sh", wmt14, *options])
            return
        text = self._make_text()
        try:
            self.make_data(floater("prepare", text, self.data, *self.arguments("prepare")))
        except CommandError:
            self.launcher.say(
                f"If text or settings have changed, use another --work or remove {self.data}."
            )
            raise

    @property
    def _is_built_in(self) -> bool:
        return bool(self.request.task) or self.experiment.config.data.numbers is not None

    def _make_text(self) -> Path:
        """Return the folder of the raw text; make the text first if it is the built-in corpus or a task."""
        self._check_raw()
        if self.request.task:
            (name, *options), text = self.request.task, self.request.work / "text"
            self.make_data(floater("tasks", name, text, *options))
            return text
        if self.request.raw is not None:
            return self.request.raw
        text = self.request.work / "numbers"
        self.make_data(floater("numbers", text, *self.arguments("numbers")))
        return text

    def _check_raw(self) -> None:
        """Check ``--raw`` and its files before anything is made from them."""
        raw, path = self.request.raw, self.experiment.path
        if self._is_built_in and raw is not None:
            raise UsageError(f"{path} makes its own corpus; --raw is for your text.")
        if raw is not None and self.settings["wmt14"]:
            raise UsageError(
                f"{path} is for WMT14; for your text (--raw) set `wmt14: null` under `data`."
            )
        if not self._is_built_in and raw is None:
            raise UsageError(f"{path} is for your text: pass its folder with --raw.")
        if raw is None or self.launcher.dry_run:
            return
        if not raw.is_dir():
            raise UserError(f"There is no folder {raw} (--raw).")
        config = self.experiment.config
        # The test sets of a split by length are made from all test files that exist.
        tests = config.data.tests if config.s2l is None else ()
        for split in ("train", "valid", *tests):
            for language in (config.languages.source, config.languages.target):
                text_file(raw, split, language)

    def prepare_split(self) -> None:
        self._check_raw()  # before the lock makes a folder
        work = self.request.work
        with self.shared_lock(work / ".data.lock"):
            text, split = self._make_text(), work / "split"
            self.make_data(floater("s2l", "split", text, split, *self.arguments("split")))
            self.make_data(floater("prepare", split, work / "data", *self.arguments("prepare")))
