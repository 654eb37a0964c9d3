"""The verb score."""

from __future__ import annotations

from typing import Any

from fairseq_floater.evaluation import score as scoring
from fairseq_floater.verbs import add_verb


def score(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "score",
        "floater score generate.txt --references test.de --target-lang de --json scores.json",
        scoring.run,
    )
    parser.add_argument(
        "hypotheses_path", metavar="HYPOTHESES", help="fairseq-generate's output or lines"
    )
    parser.add_argument(
        "--references",
        dest="references_path",
        required=True,
        metavar="FILE",
        help="raw text, one sentence a line",
    )
    parser.add_argument(
        "--target-lang",
        dest="target_language",
        required=True,
        metavar="LANG",
        help="of the references: de",
    )
    parser.add_argument("--format", default="auto", choices=scoring.FORMATS)
    parser.add_argument(
        "--remove-bpe",
        choices=tuple(scoring.BPE_MARKS),
        help="join subwords first, where the hypotheses still hold them",
    )
    parser.add_argument(
        "--tokenize", default="13a", choices=scoring.TOKENIZERS, help="sacreBLEU's tokenizer (13a)"
    )
    parser.add_argument(
        "--compound-split",
        action="store_const",
        const=True,
        help="insist on BLEU after splitting compounds (made for German by itself, refused elsewhere)",
    )
    parser.add_argument(
        "--test-set", metavar="NAME", help="wmt14/full, wmt14: checks the line count"
    )
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=1000,
        metavar="N",
        help="resamples (default: 1000; 0: none)",
    )
    parser.add_argument("--seed", type=int, default=12345, help="of the resamples (default: 12345)")
    parser.add_argument(
        "--self-check",
        dest="check_references",
        action="store_true",
        help="first see that the reference scores 100 on itself",
    )
