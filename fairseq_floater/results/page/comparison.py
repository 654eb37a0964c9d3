"""Read the folder of a comparison: systems, their runs by seed, and their scores by group of sentences.

A group is a bin of source lengths (`s2l.json`), or a test set (`compare.json`, or the folder of
`scripts/demo.sh` or `scripts/protocol.sh`). Scores have the form of `floater s2l score --json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import ReportError, say
from fairseq_floater.evaluation.s2l.split_report import shares
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.system import PLAIN
from fairseq_floater.records import read_json
from fairseq_floater.results.page.logs import RunLog, read_log
from fairseq_floater.results.runs import Run, confidence_interval, read_run
from fairseq_floater.results.table import collect

LENGTHS, WHOLE = "s2l.json", "compare.json"
_COMPARISON = {"labels": dict, "bins": {...: {"systems": dict}}, "warnings": list}


@dataclass
class ScoredSystem:
    """A system: its runs and their logs by seed, and its scores by the name of the group."""

    name: str
    label: str
    runs: dict[str, Run] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    logs: dict[str, RunLog] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """Return the line that says where positions come from; empty if no run has one."""
        return next((run.signature for run in self.runs.values() if run.signature), "")

    def add_run(self, seed: str, folder: Path, run: Run) -> None:
        self.runs[seed], self.folders[seed], self.logs[seed] = run, folder, read_log(folder)


class Group(NamedTuple):
    """A group of test sentences, with the mean source length and the shares of files, if known."""

    name: str
    sentences: int
    mean_length: float | None = None
    files: str = ""

    @property
    def mean(self) -> str:
        return "" if self.mean_length is None else f"mean {self.mean_length:.0f}"


@dataclass
class ScoredComparison:
    """A comparison as its folder holds it; ``facts`` say how it was scored."""

    folder: Path
    systems: list[ScoredSystem]
    groups: list[Group]
    baseline: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the folder's name, even if the folder was given as `.`."""
        return self.folder.resolve().name

    @property
    def main_group(self) -> str:
        """Return the group that sorts the systems: all longer sentences, or a whole test set."""
        is_in_parts = (self.folder / WHOLE).exists() and not self.is_short_to_long
        return self.groups[0 if is_in_parts else -1].name

    @property
    def is_short_to_long(self) -> bool:
        return (self.folder / LENGTHS).exists()

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of the first run that has any; empty if none has."""
        settings = (run.settings for system in self.systems for run in system.runs.values())
        return next(filter(None, settings), {})


def read_comparison(folder: Path) -> ScoredComparison:
    """Read the folder of `scripts/compare.sh`, `s2l.sh`, `demo.sh` or `protocol.sh`."""
    for name in (LENGTHS, WHOLE):
        if (folder / name).exists():
            return _compared(folder, read_json(folder / name, _COMPARISON))
    if any(folder.glob("seed-*/*/run.json")):
        raise ReportError(
            f"{folder} must hold {LENGTHS} or {WHOLE}, but does not: `scripts/compare.sh CONFIG --table` "
            "writes it for the complete runs."
        )
    return _test_sets(folder)


def _compared(folder: Path, report: dict[str, Any]) -> ScoredComparison:
    seeds = sorted(folder.glob("seed-*"), key=lambda path: (len(path.name), path.name))
    systems, warnings = [], [*report["warnings"]]
    for name, label in report["labels"].items():
        system = ScoredSystem(name, label)
        # A run that was finished after the scores were made has no part in them.
        scored = {Path(run).parts[-2:] for run in report.get("runs", {}).get(name, ())}
        for seed in seeds:
            if "runs" in report and (seed.name, name) not in scored:
                continue
            if RunFolder(seed / name).read().get("state") == "done":
                run = read_run(seed / name, name)
                system.add_run(seed.name.removeprefix("seed-"), seed / name, run)
        system.scores = scores_of(name, report)
        systems.append(system)
    runs = {p.parent.relative_to(folder) for p in folder.glob("seed-*/*/average.json")}
    runs -= {f.relative_to(folder) for system in systems for f in system.folders.values()}
    if others := sorted(str(run) for run in runs if run.name != PLAIN):
        warnings.append(
            f"The last scores leave out {len(others)} of the trained runs, such as {others[0]}: repeat the "
            "command with all systems and seeds; it skips finished runs."
        )
        say(f"warning: {warnings[-1]}")
    known = {"signature", "length", "resamples", "seed", "length_limit", "version", "split"}
    facts = {name: value for name, value in report.items() if name in known and value is not None}
    if stopping := report.get("stopping"):
        shares_of = (f"{report['labels'][name]} {share:.0%}" for name, share in stopping.items())
        facts["BLEU regained with told lengths"] = ", ".join(shares_of)
    return ScoredComparison(folder, systems, groups_of(report), report["baseline"], facts, warnings)


def groups_of(report: dict[str, Any]) -> list[Group]:
    return [
        Group(name, of["sentences"], of["mean_source_tokens"], shares(of.get("files", {})))
        for name, of in report["bins"].items()
    ]


def scores_of(name: str, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scores of the system ``name`` by group."""
    bins = report["bins"].items()
    return {group: of["systems"][name] for group, of in bins if name in of["systems"]}


def _test_sets(folder: Path) -> ScoredComparison:
    results = collect(folder)
    labels = results.labels
    systems, sizes, signatures = [], {}, set()
    for run in results.runs:
        system = ScoredSystem(run.name, labels[run.name])
        system.add_run(run.seed or "1", folder / run.name, run)
        for test, score in run.scores.items():
            system.scores[test] = _as_bin(score)
            sizes[test] = score["sentences"]
            signatures.add(score["bleu"]["signature"])
        systems.append(system)
    groups = [Group(test, sizes[test]) for test in results.tests]
    return ScoredComparison(
        folder, systems, groups, facts={"signature": "; ".join(sorted(signatures))}
    )


def _as_bin(score: dict[str, Any]) -> dict[str, Any]:
    """Return a test set's scores in the form of a bin's, without loss and comparison."""
    bleu = score["bleu"]
    low, high = confidence_interval(bleu) or (None, None)
    measure = {"value": bleu["score"], "low": low, "high": high}
    exact = score.get("exact_match")
    return {
        "exact_match": exact and {"value": exact["score"]},
        "bleu": {**measure, "per_seed": [bleu["score"]], "spread": None},
        "chrf": score["chrf"]["score"],
        "length_ratio": score["length_ratio"],
    }
