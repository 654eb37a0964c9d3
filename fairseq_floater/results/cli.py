"""Add the verbs that show results: table, plot."""

from __future__ import annotations

from typing import Any

from fairseq_floater.errors import UsageError
from fairseq_floater.records import ReportError
from fairseq_floater.results import table as report
from fairseq_floater.verbs import VERBS, add_verb, positive


def plot(verbs: Any) -> None:
    parser = verbs.add_parser(
        "plot",
        help=VERBS["plot"].summary,
        description="Figures of models.",
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    _plot_positions(parts)


def _plot_positions(parts: Any) -> None:
    # Brings torch, which takes seconds; the other verbs of this door do without.
    from fairseq_floater.results.position_drawing import ORDERS
    from fairseq_floater.results.position_figure import STACK_CHOICES, plot_positions

    parser = add_verb(
        parts,
        "positions",
        "floater plot positions average.pt positions.png --data data/bin --blocks 1 6",
        plot_positions,
        summary="Figure 3: a model's position tables, also past the trained length",
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="of the plugin or of fairseq's own"
    )
    parser.add_argument("output", metavar="OUT", help="png, svg or pdf")
    parser.add_argument("--stack", default="both", choices=STACK_CHOICES)
    parser.add_argument(
        "--streams", nargs="+", metavar="NAME", help="hidden, q, cross_k, base, ... (all)"
    )
    parser.add_argument(
        "--blocks", nargs="+", metavar="N", help="numbers from 1, or all (the first)"
    )
    parser.add_argument(
        "--length",
        type=positive,
        metavar="N",
        help="positions (3 times the trained length, or 128)",
    )
    parser.add_argument(
        "--trained-length", type=positive, metavar="N", help="longest training sentence, marked"
    )
    parser.add_argument("--data", metavar="DIR", help="binarised data that tell the trained length")
    parser.add_argument(
        "--order", default="auto", choices=ORDERS, help="of the dimensions, to be read (auto)"
    )


def table(verbs: Any) -> None:
    def run(results: str, *, figure: str | None, paper: bool, test: str | None) -> Any:
        if paper and figure is not None:
            raise UsageError("`--figure` draws an experiment's scores, not `--paper`'s tables.")
        # These bring torch, which scoring and our own table do without.
        from fairseq_floater.results.paper import collect_paper_tables
        from fairseq_floater.results.scores_figure import plot_scores

        tables = collect_paper_tables(results, test=test)
        if paper:
            return tables
        try:
            scores = report.collect(results)
        except ReportError:
            if figure is not None or not tables.filled:
                raise
            return tables  # the runs lie deeper, in several experiments
        if figure is not None:
            plot_scores(scores, figure)
        # Show the paper's numbers unasked where a run answers to one.
        return report.Joined([scores, tables]) if tables.filled else scores

    parser = add_verb(
        verbs,
        "table",
        "floater table work/demo --figure scores.png\n"
        "  floater table work --paper          # Tables 2 and 6, the paper's numbers beside ours",
        run,
    )
    parser.add_argument("results", metavar="RESULTS_DIR")
    parser.add_argument("--figure", metavar="FILE", help="bars with intervals: png, svg or pdf")
    parser.add_argument(
        "--paper",
        action="store_true",
        help="Tables 2 and 6 alone, from every run up to three folders deep",
    )
    parser.add_argument(
        "--test",
        metavar="NAME",
        help="with --paper: the test set (newstest2014, test, or the only one)",
    )
