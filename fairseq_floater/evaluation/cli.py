"""The verb score."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.evaluation import score as scoring
from fairseq_floater.verbs import add_verb


def score(verbs: Any) -> None:
    def run(args: argparse.Namespace) -> Any:
        return scoring.run(
            args.hypotheses,
            args.references,
            target_language=args.target_lang,
            format=args.format,
            remove_bpe=args.remove_bpe,
            check_references=args.self_check,
            tokenize=args.tokenize,
            compound_split=args.compound_split or None,
            test_set=args.test_set,
            bootstrap=args.bootstrap,
            seed=args.seed,
        )

    parser = add_verb(
        verbs,
        "score",
        "floater score generate.txt --references test.de --target-lang de --json scores.json",
        run,
    )
    parser.add_argument(
        "hypotheses", metavar="HYPOTHESES", help="fairseq-generate's output or lines"
    )
    parser.add_argument(
        "--references", required=True, metavar="FILE", help="raw text, one sentence a line"
    )
    parser.add_argument(
        "--target-lang", required=True, metavar="LANG", help="of the references: de"
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
        action="store_true",
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
        action="store_true",
        help="first see that the reference scores 100 on itself",
    )
