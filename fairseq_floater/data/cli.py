"""Add the verbs that need no model: user-dir, and the built-in corpora, numbers and quizzes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data import number_words
from fairseq_floater.data.understanding import quizzes as quiz_files
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import add_verb


@dataclass(frozen=True)
class UserDir:
    """The folder of the plugin."""

    user_dir: str

    def format_text(self) -> str:
        """Return the folder alone."""
        return self.user_dir


def add_user_dir(verbs: Any) -> None:
    """Add ``floater user-dir``, which prints the folder of the plugin."""
    add_verb(
        verbs,
        "user-dir",
        'fairseq-train data --user-dir "$(floater user-dir)" --arch floater_transformer ...',
        lambda: UserDir(str(USER_DIR)),
    )


def add_numbers(verbs: Any) -> None:
    """Add ``floater numbers``, whose options are the parameters of the corpus."""
    defaults = vars(number_words.Parameters())
    parser = add_verb(
        verbs,
        "numbers",
        "floater numbers numbers --tgt fr --train 20000",
        number_words.write_numbers,
    )
    parser.set_defaults(**defaults)
    parser.add_argument("out_dir", metavar="OUT_DIR")
    for flag, name in (("--src", "source_language"), ("--tgt", "target_language")):
        languages = f"en, de or fr (default: {defaults[name]})"
        parser.add_argument(flag, dest=name, metavar="LANG", help=languages)
    for split in number_words.SHARES:
        flag, lines = f"--{split.replace('_', '-')}", f"lines ({defaults[split]})"
        parser.add_argument(flag, type=int, metavar="N", help=lines)
    for name in ("numbers_per_line", "long_numbers_per_line"):
        flag, span = f"--{name.replace('_', '-')}", "({}, {})".format(*defaults[name])
        parser.add_argument(flag, type=int, nargs=2, metavar=("MIN", "MAX"), help=span)
    parser.add_argument("--max-number", type=int, metavar="N", help="largest (9999)")
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--force",
        dest="overwrite",
        action="store_true",
        help="replace a corpus of other parameters",
    )


def add_quizzes(verbs: Any) -> None:
    """Add ``floater quizzes``, the stand-in of RoBERTa's data."""
    parser = add_verb(
        verbs, "quizzes", "floater quizzes quizzes --scale 0.1", quiz_files.write_quizzes
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(1)")
    text = "multiplies the number of examples (1.0)"
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help=text)
    text = "replace quizzes of another seed or scale"
    parser.add_argument("--force", action="store_true", help=text)
