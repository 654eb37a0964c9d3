"""Show exact match on tasks by length, ours and below it published results: `floater table`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data.products import SUMMARY
from fairseq_floater.experiments.published_tasks import Published, published
from fairseq_floater.records import markdown_table, read_json

_SHARE = {"value": float, "spread?": object}
_COMPARISON = {"labels": dict, "bins": {...: {"systems": {...: {"exact_match": _SHARE}}}}}


@dataclass
class TaskTables:
    """By task: the comparison, as `floater compare` writes it, and the published results."""

    ours: dict[str, dict[str, Any]]
    published: dict[str, list[Published]]

    def format_text(self) -> str:
        texts = ["\n".join([f"{name}:", "", *self._lines(name)]) for name in self.ours]
        return "\n\n".join([*texts, "Ours: means over seeds, ± their standard deviation."])

    def _lines(self, name: str) -> list[str]:
        labels, bins = self.ours[name]["labels"], self.ours[name]["bins"]
        main = next(iter(bins.values()))["systems"]
        order = sorted(main, key=lambda system: -main[system]["exact_match"]["value"])
        rows = [
            [labels[system], *(_shown(of["systems"].get(system)) for of in bins.values())]
            for system in order
        ]
        for row in self.published[name]:
            shares = (row.shares.get(group) for group in bins)
            cells = ("" if share is None else f"{share:.3g}" for share in shares)
            rows.append([f"*published: {row.label}*", *cells])
        setups = dict.fromkeys(row.setup for row in self.published[name])
        table = markdown_table(["exact match", *bins], rows)
        return [*table, "", *(setups or ["No published results are stored."])]


def collect_tasks(folder: str) -> TaskTables | None:
    """Read the comparison of every task in ``folder``; None if there is none."""
    tables = TaskTables({}, {})
    for text in sorted(Path(folder).glob(f"*/text/{SUMMARY}")):
        work = text.parents[1]
        if (work / "compare.json").is_file():
            made = read_json(text, {"parameters": {"task": str}})["parameters"]
            tables.ours[work.name] = read_json(work / "compare.json", _COMPARISON)
            tables.published[work.name] = published(made)
    return tables if tables.ours else None


def _shown(score: dict[str, Any] | None) -> str:
    if score is None:
        return "-"
    share = score["exact_match"]
    spread = "" if share.get("spread") is None else f" ±{share['spread']:.3f}"
    return f"{share['value']:.3f}{spread}"
