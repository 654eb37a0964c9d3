"""Runs as the paper's tables need them: what was trained, how it scored, what it cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import shown
from fairseq_floater.evaluation.score import TEST_SET_LINES
from fairseq_floater.experiments.run_folder import RECORD, RunFolder
from fairseq_floater.records import ReportError, check_fields, read_json

# Where a run has several test sets, the first of these is the paper's.
TEST_NAMES = ("newstest2014", "test")
_METRICS = ("bleu", "compound_split_bleu", "tokenised_bleu")


class OutsideError(Exception):
    """Why a run is in none of the tables."""


@dataclass
class ScoredRun:
    """One run's folder: what was trained (``run.json``), the scores of one test set, the average."""

    name: str
    settings: dict[str, str]
    scores: dict[str, Any]
    average: dict[str, Any]

    @property
    def parameters(self) -> int | None:
        """Of the position encoder, in all."""
        return self.average.get("position_parameters")

    @property
    def comparable(self) -> str:
        """The key of the score that is on the paper's scale."""
        german = self.settings["target"] == "de"
        return "compound_split_bleu" if german else "tokenised_bleu"

    def metric(self, name: str) -> dict[str, Any]:
        """``sacrebleu`` or ``tokenised``: score and signature; empty where it was not computed."""
        return self.scores.get("bleu" if name == "sacrebleu" else self.comparable) or {}

    @property
    def is_papers_test(self) -> bool:
        """As many sentences as newstest2014."""
        lines = TEST_SET_LINES[self.settings["target"]]["wmt14/full"]
        return bool(self.scores.get("sentences", lines) == lines)


def read_run(path: Path, name: str, test: str | None) -> ScoredRun:
    """Read a run's folder.

    Args:
        path: the folder.
        name: how the tables call it.
        test: the test set to take; None for the first of :data:`TEST_NAMES`, or the only one.

    Raises:
        OutsideError: it is not scored, or does not say what was trained.
        ReportError: a file that cannot be read.
    """
    settings = _settings(path)
    tests = {
        p.name.removeprefix("scores.").removesuffix(".json"): p for p in path.glob("scores.*.json")
    }
    wanted = (test,) if test is not None else (*TEST_NAMES, *(tests if len(tests) == 1 else ()))
    chosen = next((tests[t] for t in wanted if t in tests), None)
    if chosen is None:
        has = f"has {', '.join(sorted(tests))}" if tests else "is not scored yet"
        raise OutsideError(f"{has}, not {test or ' or '.join(TEST_NAMES)}" if tests else has)
    average = path / "average.json"
    scores = check_fields(chosen, read_json(chosen), {}, {"sentences": int})
    there = [name for name in _METRICS if scores.get(name)]
    signatures = {f"{name}.signature": str for name in there}
    check_fields(chosen, scores, signatures, {f"{name}.score": float for name in there})
    summary = read_json(average) if average.exists() else {}
    check_fields(average, summary, {}, {"position_parameters": int, "training_seconds": float})
    return ScoredRun(name, settings, scores, summary)


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's own; a donor has a record too, but no settings of its own."""
    return (path / "average.json").exists() or bool(RunFolder(path).read()["settings"])


def _settings(path: Path) -> dict[str, str]:
    """Return the settings of a run's record; what older runs did not write has its only value of then."""
    found = RunFolder(path).read()["settings"]
    if not found:
        raise OutsideError("has no settings")
    for key in ("arch", "source", "target", "encoder", "blocks"):
        if key not in found:
            raise OutsideError(f"its settings lack {key}")
    tokens = found.get("tokens_per_update", "0")
    if not re.fullmatch(r"\d{1,18}", tokens, re.ASCII):
        raise ReportError(
            f"{path / RECORD}: `tokens_per_update` must be a number, but is {shown(tokens)}."
        )
    return {"scratch": "no", "base": "yes", "options": "", **found}


def runs_table(runs: list[ScoredRun]) -> list[str]:
    """Markdown: one line a run with its seed, both scores, parameters, time and tokens an update."""
    if not runs:
        return []
    lines = [
        "| run | seed | sacrebleu | tokenised | sentences | encoder parameters "
        "| training hours | tokens an update |",
        "|---" * 8 + "|",
    ]
    for run in runs:
        scores = [run.metric(name).get("score") for name in ("sacrebleu", "tokenised")]
        cells = ["-" if score is None else f"{score:.2f}" for score in scores]
        cells.append(str(run.scores.get("sentences", "-")))
        cells.append("-" if run.parameters is None else f"{run.parameters:,}")
        seconds = run.average.get("training_seconds")
        cells.append("-" if seconds is None else f"{seconds / 3600:.2f}")
        tokens = run.settings.get("tokens_per_update")
        hardware = run.settings.get("processes", "")
        cells.append(
            "-" if tokens is None else f"{int(tokens):,}" + f" ({hardware})" * bool(hardware)
        )
        lines.append(f"| {run.name} | {run.settings.get('seed', '-')} | {' | '.join(cells)} |")
    return lines


@dataclass
class Row:
    """One run: scores by test set, what its encoder adds, and what training cost."""

    name: str
    scores: dict[str, dict[str, Any]]
    average: dict[str, Any]
    before: dict[str, Any] | None = None


def confidence_interval(metric: dict[str, Any]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a metric of `floater score --json`, if it has one.

    sacreBLEU gives it as mean and half width; near the ends of the scale that leaves 0..100.
    """
    if metric.get("mean") is None:
        return None
    mean, half = metric["mean"], metric["half_width"]
    return max(mean - half, 0.0), min(mean + half, 100.0)


def read_scores(path: Path) -> dict[str, Any]:
    """What `floater score --json` wrote."""
    scores = read_json(path)
    required = {"bleu.score": float, "bleu.signature": str, "chrf.score": float}
    check_fields(path, scores, {**required, "length_ratio": float}, {"bleu.mean": float})
    has_interval = scores["bleu"].get("mean") is not None
    return check_fields(path, scores, {"bleu.half_width": float} if has_interval else {})
