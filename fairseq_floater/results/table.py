"""The results of an experiment's folder as one table and one figure: `floater table`.

A run's folder holds what the tools wrote as JSON: ``average.json``, ``before.json`` (validation
before the first update) and ``scores.<test>.json``. Tables are made from these and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.records import ReportError, check_fields, read_json
from fairseq_floater.results.runs import Row, confidence_interval, read_scores


@dataclass
class Results:
    """All runs found below a folder, the plain donor first, from-scratch runs last."""

    folder: str
    rows: list[Row]
    tests: list[str] = field(default_factory=list)

    def to_json_dict(self) -> dict[str, Any]:
        return {"folder": self.folder, "tests": self.tests, "runs": [vars(r) for r in self.rows]}

    def format_text(self) -> str:
        """Markdown, with the sacreBLEU signatures underneath."""
        heads = ["system", *(h for t in self.tests for h in (f"{t}: BLEU", "chrF", "length"))]
        heads += ["encoder parameters", "training seconds", "loss before training on"]
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for row in self.rows:
            cells = [row.name]
            for test in self.tests:
                cells += _score_cells(row.scores.get(test))
            seconds = row.average.get("training_seconds")
            cells.append(f"{row.average['position_parameters']:,}")
            cells.append("-" if seconds is None else f"{seconds:.0f}")
            cells.append("-" if row.before is None else f"{row.before['loss']:.3f}")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
        lines.append("BLEU with its 95 % bootstrap interval; length: hypothesis / reference.")
        signatures = {
            (test, score["bleu"]["signature"])
            for r in self.rows
            for test, score in r.scores.items()
        }
        lines += [f"{test}: {signature}" for test, signature in sorted(signatures)]
        return "\n".join(lines)


@dataclass
class Joined:
    """Several results printed one after the other."""

    parts: list[Any]

    def to_json_dict(self) -> dict[str, Any]:
        """The keys of all parts; a later part's win."""
        return {key: value for part in self.parts for key, value in part.to_json_dict().items()}

    def format_text(self) -> str:
        return "\n\n".join(part.format_text() for part in self.parts)


def collect(folder: str | os.PathLike[str]) -> Results:
    """Read every finished run below ``folder``.

    Raises:
        ReportError: no run there, or a result that is not JSON.
    """
    folder = Path(folder)
    rows = []
    for path in folder.glob("*/average.json"):
        scores = {
            p.name.removeprefix("scores.").removesuffix(".json"): read_scores(p)
            for p in sorted(path.parent.glob("scores.*.json"))
        }
        if scores:
            before = path.with_name("before.json")
            required = {"position_parameters": int}
            summary = check_fields(path, read_json(path), required, {"training_seconds": float})
            loss = None
            if before.exists():
                loss = check_fields(before, read_json(before), {"loss": float})
            rows.append(Row(path.parent.name, scores, summary, loss))
    if not rows:
        raise ReportError(
            f"{folder} holds no scored run (a folder with average.json and scores.*.json)."
        )
    # The donor, what was started from it, what was trained from random parameters.
    ordered = sorted(rows, key=lambda r: (r.name != "plain", "-scratch" in r.name, r.name))
    tests = sorted({test for row in ordered for test in row.scores}, key=lambda t: (len(t), t))
    return Results(str(folder), ordered, tests)


def _score_cells(score: dict[str, Any] | None) -> list[str]:
    if score is None:
        return ["-", "-", "-"]
    bleu = score["bleu"]
    interval = confidence_interval(bleu)
    spread = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
    return [
        f"{bleu['score']:.2f}{spread}",
        f"{score['chrf']['score']:.1f}",
        f"{score['length_ratio']:.2f}",
    ]
