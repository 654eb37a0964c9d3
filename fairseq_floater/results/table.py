"""Show the results of an experiment's folder as one table, and as a figure: `floater table`."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure
from fairseq_floater.records import markdown_table
from fairseq_floater.results.runs import Run, check_experiment, confidence_interval, read_run


@dataclass
class Results:
    """All runs found below a folder, the plain donor first, from-scratch runs last."""

    folder: str
    runs: list[Run]
    tests: list[str]

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each run: its system, and its seed if runs are in folders by seed."""
        labels = {}
        for run in self.runs:
            seed = "" if Path(run.name).name == run.name else f", seed {run.seed}"
            labels[run.name] = run.label if run.label == run.name else f"{run.label}{seed}"
        common = Counter(labels.values())
        return {name: label if common[label] == 1 else name for name, label in labels.items()}

    def to_json_dict(self) -> dict[str, Any]:
        names = ("name", "label", "seed", "signature", "scores", "average", "before")
        runs = [{name: getattr(run, name) for name in names} for run in self.runs]
        return {"folder": self.folder, "tests": self.tests, "runs": runs}

    def format_text(self) -> str:
        exact = any(of.get("exact_match") for run in self.runs for of in run.scores.values())
        names = ("chrF", "length", *(["exact match"] if exact else []))
        heads = ["system", *(h for t in self.tests for h in (f"{t}: BLEU", *names))]
        heads += ["encoder parameters", "training seconds", "loss before further training"]
        signatures = {
            f"{test}: {score['bleu']['signature']}"
            for run in self.runs
            for test, score in run.scores.items()
        }
        labels = self.labels.values()
        rows = [[label, *self._cells(run, exact)] for run, label in zip(self.runs, labels)]
        notes = ["", "BLEU with its 95 % bootstrap interval; length: hypothesis / reference."]
        systems = [
            f"{label}: {run.signature}" for run, label in zip(self.runs, labels) if run.signature
        ]
        return "\n".join([*markdown_table(heads, rows), *notes, *sorted(signatures), *systems])

    def _cells(self, run: Run, exact: bool) -> list[str]:
        seconds = run.average.get("training_seconds")
        return [
            *(cell for t in self.tests for cell in _score_cells(run.scores.get(t), exact)),
            f"{run.average['position_parameters']:,}",
            "-" if seconds is None else f"{seconds:.0f}",
            "-" if run.before is None else f"{run.before['loss']:.3f}",
        ]


def _score_cells(score: dict[str, Any] | None, exact: bool) -> list[str]:
    """Return BLEU, chrF and length, and the exact match if the table shows it."""
    if score is None:
        return ["-"] * (3 + exact)
    bleu, share = score["bleu"], score.get("exact_match")
    interval = confidence_interval(bleu)
    spread = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
    return [
        f"{bleu['score']:.2f}{spread}",
        f"{score['chrf']['score']:.1f}",
        f"{score['length_ratio']:.2f}",
        *([f"{share['score']:.3f}" if share else "-"] if exact else []),
    ]


def collect(folder: str | os.PathLike[str]) -> Results:
    """Read every scored run below ``folder``.

    Raises:
        ReportError: there is no run, ``folder`` is a run itself, or a result is not JSON.
    """
    work = Path(folder)
    check_experiment(work)
    # compare.sh and s2l.sh put runs one folder deeper, by seed.
    paths = [p.parent for p in (*work.glob("*/average.json"), *work.glob("seed-*/*/average.json"))]
    runs = [run for path in paths if (run := read_run(path, str(path.relative_to(work)))).scores]
    if not runs:
        scores = (*work.glob("*/*/scores.*.json"), *work.glob("*/seed-*/*/scores.*.json"))
        folders = (path.parents[1] for path in scores)
        deeper = {f.parent if f.name.startswith("seed-") else f for f in folders} - {work}
        hint = f"; give a folder below it, such as {min(deeper)}" if deeper else ""
        raise ReportError(
            f"{folder} holds no scored run (a folder with average.json and scores.*.json){hint}."
        )
    # Order: the donor, its warm starts, systems trained from random parameters.
    runs.sort(key=lambda run: (Path(run.name).name != "plain", "-scratch" in run.name, run.name))
    tests = sorted({test for run in runs for test in run.scores}, key=lambda t: (len(t), t))
    return Results(str(folder), runs, tests)


def plot_scores(results: Results, path: str | os.PathLike[str]) -> None:
    """Draw BLEU of every run on every test set as grouped bars with bootstrap intervals."""
    labels = results.labels
    bars = {
        (test, labels[run.name]): Bar(score["bleu"]["score"], confidence_interval(score["bleu"]))
        for run in results.runs
        for test, score in run.scores.items()
    }
    with new_figure(path, 1, len(labels) * len(results.tests)) as (figure, (axes,)):
        grouped_bars(axes, results.tests, list(labels.values()), bars)
        axes.set_ylabel("BLEU (95 % bootstrap interval)")
        legend(figure, axes)
