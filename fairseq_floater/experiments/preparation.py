"""Make the data of a comparison: the text, its split by source length, and what fairseq reads."""

from __future__ import annotations

from pathlib import Path

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.job import Job, floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System


class ShortToLongData(Job):
    """Make the data of all systems, while others wait.

    Args:
        experiment: the configuration, with a section ``s2l``.
        work: where everything goes.
        raw: parallel text; None for the built-in corpus.
        launcher: starts the commands.
    """

    def __init__(self, experiment: Experiment, work: Path, raw: Path | None, launcher: Launcher):
        super().__init__(work, work.name, launcher)
        self.experiment, self.raw = experiment, raw

    def run(self) -> None:
        """Run every step; unlike a system, data have no record."""
        if self.raw is None and self.experiment.config.data.numbers is None:
            raise UsageError(
                f"{self.experiment.path} is for your text: pass its folder with --raw."
            )
        if self.raw is not None and self.experiment.config.data.numbers is not None:
            raise UsageError(f"{self.experiment.path} is for the built-in corpus, without --raw.")
        with self.alone(self.path / ".data.lock"):
            self.steps()

    def steps(self) -> None:
        raw, split = self.raw or self.path / "numbers", self.path / "split"
        if self.raw is None:
            self.command(floater("numbers", raw, *self._arguments("numbers")))
        self.command(floater("s2l", "split", raw, split, *self._arguments("split")))
        self.command(floater("prepare", split, self.path / "data", *self._arguments("prepare")))

    def _arguments(self, stage: str) -> list[str]:
        return self.experiment.arguments(stage, System(PLAIN), work=str(self.path))
