"""Add the verbs that make checkpoints: warm-start, average."""

from __future__ import annotations

from typing import Any

from fairseq_floater.checkpoints.averaging import average as average_checkpoints
from fairseq_floater.checkpoints.length import WAYS
from fairseq_floater.checkpoints.warm_start import warm_start as make_warm_start
from fairseq_floater.verbs import add_verb, positive


def warm_start(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "warm-start",
        "floater warm-start donor/checkpoint_best.pt start.pt --arch floater_transformer \\\n"
        "    --data data/bin --position-blocks all\n"
        "  fairseq-train ... --finetune-from-model start.pt\n"
        "any option of the model (--position-encoder, --floater-delta, ...) may follow",
        make_warm_start,
        unknown="model_options",
    )
    parser.add_argument(
        "donor", metavar="DONOR", help="checkpoint of fairseq's transformer or roberta"
    )
    parser.add_argument("output", metavar="OUT", help="checkpoint to write")
    parser.add_argument(
        "--arch", required=True, help="a floater_transformer or floater_roberta one"
    )
    parser.add_argument("--data", metavar="DIR", help="binarised data to compare dictionaries with")
    parser.add_argument(
        "--trained-length",
        type=positive,
        metavar="N",
        help="learned: rows that start as the donor's positions (default: longest training "
        "sentence of --data, else all rows)",
    )
    parser.add_argument(
        "--extend",
        choices=WAYS,
        help="RoBERTa: rows of the donor's table from its end up to --max-positions: all of them again "
        "(tile), or the last one",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the new tensors (default: 1)")
    parser.add_argument("--force", action="store_true", help="overwrite OUT")


def average(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "average",
        "floater average --inputs checkpoints --last 5 --output average.pt",
        average_checkpoints,
    )
    parser.add_argument("--inputs", nargs="+", required=True, metavar="DIR_OR_FILE")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=positive, metavar="N", help="the N latest")
    choice.add_argument("--best", type=positive, metavar="N", help="the N best on validation")
    parser.add_argument(
        "--updates", action="store_true", help="take checkpoint_<epoch>_<updates>.pt, not epochs"
    )
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
