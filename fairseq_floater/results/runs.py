"""Read the folders of finished runs, for all tables and figures.

A folder holds the JSON files ``average.json``, ``before.json`` (validation before the first update)
and ``scores.<test>.json``, and the run's record with its settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.evaluation.bleu import TEST_SET_LINES
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.system import System
from fairseq_floater.records import NUMBER, RECORD, read_json

_SCORES = {
    "bleu": {"score": NUMBER, "signature": str},
    "chrf": {"score": NUMBER},
    "length_ratio": NUMBER,
}
# Settings that older runs did not record, with the only value that each could have.
_UNRECORDED = {"position_target": "None", "scratch": "no", "base": "yes", "options": ""}


@dataclass
class Run:
    """A run: its settings, scores by test set, and parameter counts and training time (``average``).

    ``settings`` and ``average`` are empty, and ``before`` is None, if the file is missing. ``signature``
    says where positions come from; older records have none.
    """

    name: str
    settings: dict[str, str]
    scores: dict[str, dict[str, Any]]
    average: dict[str, Any]
    before: dict[str, Any] | None
    signature: str | None = None

    @property
    def system(self) -> System | None:
        """Return the run's system; None if its settings do not identify one."""
        names = ("encoder", "blocks", "position_target", "scratch", "base")
        if not self.settings.keys() >= set(names):
            return None
        encoder, blocks, target, scratch, base = (self.settings[name] for name in names)
        options = tuple(self.settings["options"].split())
        try:
            known = None if target == "None" else target
            return System(encoder, blocks, known, scratch == "yes", base == "yes", options)
        except UsageError:  # an encoder that is no longer registered
            return None

    @property
    def label(self) -> str:
        """Return the system's short label; the run's name if it has no system."""
        return self.system.label if self.system else self.name

    @property
    def parameters(self) -> int | None:
        return self.average.get("position_parameters")

    @property
    def seed(self) -> str | None:
        return self.settings.get("seed")

    def metric(self, name: str, test: str) -> dict[str, Any]:
        """Return score and signature of ``sacrebleu`` or ``tokenised``; empty if not computed.

        Tokenised BLEU is on the paper's scale: for German, compounds are split.
        """
        german = self.settings["target"] == "de"
        tokenised = "compound_split_bleu" if german else "tokenised_bleu"
        return self.scores[test].get("bleu" if name == "sacrebleu" else tokenised) or {}

    def is_newstest2014(self, test: str) -> bool:
        """Return whether the test set has as many sentences as newstest2014, the paper's."""
        lines = TEST_SET_LINES[self.settings["target"]]["wmt14/full"]
        return bool(self.scores[test].get("sentences", lines) == lines)


def check_experiment(folder: Path) -> None:
    """Raise ReportError if there is no ``folder``, or if it is the folder of a run, not of an experiment."""
    if not folder.is_dir():
        raise ReportError(f"There is no folder {folder}.")
    if (folder / RECORD).is_file():
        raise ReportError(
            f"{folder} is a run itself; give the folder that holds the runs, {folder.parent}."
        )


def read_run(folder: Path, name: str) -> Run:
    """Read a run's folder; ``name`` is what the tables call it."""
    scores = {
        path.name.removeprefix("scores.").removesuffix(".json"): read_json(path, _SCORES)
        for path in sorted(folder.glob("scores.*.json"))
    }
    record = RunFolder(folder).read()
    average, before = (folder / file for file in ("average.json", "before.json"))
    return Run(
        name,
        record["settings"] and {**_UNRECORDED, **record["settings"]},
        scores,
        read_json(average, {"position_parameters": int}) if average.exists() else {},
        read_json(before, {"loss": NUMBER}) if before.exists() else None,
        record.get("signature"),
    )


def confidence_interval(metric: dict[str, Any]) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a metric of `floater score --json`, if it has one.

    sacreBLEU gives mean and half width; near the ends of the scale, the interval is cut to 0..100.
    """
    if metric.get("mean") is None:
        return None
    mean, half = metric["mean"], metric["half_width"]
    return max(mean - half, 0.0), min(mean + half, 100.0)
