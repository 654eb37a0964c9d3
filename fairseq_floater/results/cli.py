"""The verb plot: figures of models."""

from __future__ import annotations

from typing import Any

from fairseq_floater.results.position_drawing import ORDERS
from fairseq_floater.results.position_figure import STACK_CHOICES, plot_positions
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
    parser = add_verb(
        parts,
        "positions",
        "floater plot positions average.pt positions.png --data data/bin --blocks 1 6",
        lambda args: plot_positions(
            args.checkpoint,
            args.output,
            stack=args.stack,
            streams=args.streams,
            blocks=args.blocks,
            length=args.length,
            trained_length=args.trained_length,
            data=args.data,
            order=args.order,
        ),
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
