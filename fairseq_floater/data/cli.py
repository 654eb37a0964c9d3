"""The verbs that need no model: user-dir, and numbers, the built-in corpus."""

from __future__ import annotations

from typing import Any

from fairseq_floater.data import number_words
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import add_verb


def user_dir(verbs: Any) -> None:
    add_verb(
        verbs,
        "user-dir",
        'fairseq-train data --user-dir "$(floater user-dir)" --arch floater_transformer ...',
        lambda: print(USER_DIR),
    )


def numbers(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "numbers",
        "floater numbers numbers --tgt fr --train 20000",
        number_words.write_numbers,
    )
    parser.add_argument("out_dir", metavar="OUT_DIR")
    for name, side, language in (("src", "source", "en"), ("tgt", "target", "de")):
        parser.add_argument(
            f"--{name}",
            dest=f"{side}_language",
            default=language,
            metavar="LANG",
            help=f"en, de or fr (default: {language})",
        )
    for split, lines in (("train", 12_000), ("valid", 500), ("test", 500), ("test-long", 500)):
        parser.add_argument(
            f"--{split}", type=int, default=lines, metavar="N", help=f"lines ({lines})"
        )
    for name, span in (("numbers-per-line", (1, 4)), ("long-numbers-per-line", (6, 10))):
        parser.add_argument(
            f"--{name}", type=int, nargs=2, default=span, metavar=("MIN", "MAX"), help=f"{span}"
        )
    parser.add_argument("--max-number", type=int, default=9_999, metavar="N", help="largest (9999)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--force",
        dest="overwrite",
        action="store_true",
        help="replace a corpus of other parameters",
    )
