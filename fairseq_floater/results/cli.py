"""Add the verbs that show results: table, plot, page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.results.paper import collect_paper_tables
from fairseq_floater.results.table import collect, plot_scores
from fairseq_floater.results.tasks import collect_tasks, plot_tasks
from fairseq_floater.results.understanding import collect_understanding
from fairseq_floater.verbs import add_parts, add_verb, positive


def add_plot(verbs: Any) -> None:
    # Imports torch, which takes seconds.
    from fairseq_floater.results.position_figure import STACK_CHOICES, plot_models

    parser = add_verb(
        add_parts(verbs, "plot"),
        "positions",
        "floater plot positions average.pt positions.png --data data/bin --blocks 1 6",
        plot_models,
        summary="Figure 3: a model's position tables, also past the trained length",
        details="Several checkpoints give one picture: a panel for each, with the same colour scale.",
    )
    add = parser.add_argument
    add("checkpoint", nargs="+", metavar="CHECKPOINT", help="of a plugin or fairseq model")
    add("output", metavar="OUT", help="png, svg or pdf")
    add("--stack", default="both", choices=STACK_CHOICES)
    add("--streams", nargs="+", metavar="NAME", help="hidden, q, cross_k, base, ... (all)")
    add("--blocks", nargs="+", metavar="N", help="block numbers from 1, or all (default: 1)")
    text = "number of positions (3 times the trained length, or 128)"
    add("--length", type=positive, metavar="N", help=text)
    text = "length of the longest training sentence, marked in the figure"
    add("--trained-length", type=positive, metavar="N", help=text)
    add("--data", metavar="DIR", help="binarised data, to find the trained length")


def add_page(verbs: Any) -> None:
    # Imports torch, which takes seconds.
    from fairseq_floater.results.page.write import SENTENCES, write_page

    parser = add_verb(verbs, "page", "floater page work/numbers_s2l page.html", write_page)
    add = parser.add_argument
    text = "folder of scripts/compare.sh, s2l.sh, tasks.sh, demo.sh or protocol.sh"
    add("work", metavar="WORK", help=text)
    add("output", metavar="OUT", help="the page: a single HTML file")
    text = "do not draw positions; drawing takes seconds for each system"
    add("--no-pictures", dest="pictures", action="store_false", help=text)
    text = f"sentences with translations to show from each group ({SENTENCES})"
    add("--sentences", type=positive, default=SENTENCES, metavar="N", help=text)


def add_table(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "table",
        "floater table work/demo --figure scores.png\n"
        "  floater table work --paper          # Tables 2 and 6, the paper's numbers beside ours\n"
        "  floater table work/tables345        # Tables 3 to 5, likewise\n"
        "  floater table work/tasks            # exact match on tasks, beside published numbers",
        _table,
    )
    add = parser.add_argument
    add("results", metavar="RESULTS_DIR")
    add("--figure", metavar="FILE", help="the scores with intervals: png, svg or pdf")
    text = "only Tables 2 and 6, from all runs up to four folders deep"
    add("--paper", action="store_true", help=text)
    text = "with --paper: the test set (newstest2014, test, or the only one)"
    add("--test", metavar="NAME", help=text)


@dataclass
class Joined:
    """Several results printed one after the other."""

    parts: list[Any]

    def to_json_dict(self) -> dict[str, Any]:
        joined: dict[str, Any] = {}
        for values in (part.to_json_dict() for part in self.parts):
            outside = [*joined.get("outside", []), *values.get("outside", [])]
            joined |= {**values, "outside": outside}
        return joined

    def format_text(self) -> str:
        return "\n\n".join(part.format_text() for part in self.parts)


def _table(results: str, *, figure: str | None, paper: bool, test: str | None) -> Any:
    if test is not None and not paper:
        raise UsageError("`--test` needs `--paper`.")
    if paper and figure is not None:
        raise UsageError("`--figure` draws an experiment's scores, not `--paper`'s tables.")
    if paper:
        return collect_paper_tables(results, test=test)
    if tasks := collect_tasks(results):
        if figure is not None:
            plot_tasks(tasks, figure)
        return tasks
    understanding = None if figure is not None else collect_understanding(results)
    parts: list[Any] = []
    try:
        parts += _translation(collect_paper_tables(results), results, figure)
    except ReportError:
        if understanding is None:
            raise
    if understanding is not None:
        parts.append(understanding)
    return Joined(parts)


def _translation(tables: Any, results: str, figure: str | None) -> list[Any]:
    """Return the scores of an experiment, and the paper's tables if a run belongs in one of their cells."""
    filled = [tables] if any(cell.runs for cell in tables.cells.values()) else []
    try:
        scores = collect(results)
    except ReportError:
        if figure is not None or not filled:
            raise
        return filled  # the runs lie deeper, in several experiments
    if figure is not None:
        plot_scores(scores, figure)
    return [scores, *filled]
