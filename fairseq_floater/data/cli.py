"""Add the verbs that need no model: user-dir, the built-in corpora, and the preparation of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.data import documents, number_words, prepare, task_generators, tasks
from fairseq_floater.data.binarised import PreparedText
from fairseq_floater.data.prepare_options import add_options
from fairseq_floater.data.understanding import quizzes as quiz_files
from fairseq_floater.data.wmt14 import recipe
from fairseq_floater.errors import UserError
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import add_parts, add_verb, from_options, positive, positives


@dataclass(frozen=True)
class UserDir:
    user_dir: str

    def format_text(self) -> str:
        return self.user_dir


def add_user_dir(verbs: Any) -> None:
    add_verb(
        verbs,
        "user-dir",
        'fairseq-train data --user-dir "$(floater user-dir)" --arch floater_transformer ...',
        lambda: UserDir(str(USER_DIR)),
    )


def add_numbers(verbs: Any) -> None:
    defaults = vars(number_words.Parameters())
    parser = add_verb(
        verbs,
        "numbers",
        "floater numbers numbers --tgt fr --train 20000",
        number_words.write_numbers,
    )
    parser.set_defaults(**defaults)
    add = parser.add_argument
    add("out_dir", metavar="OUT_DIR")
    for flag, name in (("--src", "source_language"), ("--tgt", "target_language")):
        languages = f"en, de or fr (default: {defaults[name]})"
        add(flag, dest=name, metavar="LANG", help=languages)
    for split in number_words.SHARES:
        flag, lines = f"--{split.replace('_', '-')}", f"lines ({defaults[split]})"
        add(flag, type=int, metavar="N", help=lines)
    for name in ("numbers_per_line", "long_numbers_per_line"):
        flag, span = f"--{name.replace('_', '-')}", "numbers ({}, {})".format(*defaults[name])
        add(flag, type=int, nargs=2, metavar=("MIN", "MAX"), help=span)
    add("--max-number", type=int, metavar="N", help="largest number (9999)")
    add("--seed", type=int)
    text = "replace a corpus made with other parameters"
    add("--force", dest="overwrite", action="store_true", help=text)


def add_quizzes(verbs: Any) -> None:
    parser = add_verb(
        verbs, "quizzes", "floater quizzes quizzes --scale 0.1", quiz_files.write_quizzes
    )
    add = parser.add_argument
    add("out_dir", type=Path, metavar="OUT")
    add("--seed", type=int, default=1, metavar="N", help="random seed (1)")
    text = "multiplies the number of examples (1.0)"
    add("--scale", type=float, default=1.0, metavar="X", help=text)
    text = "replace quizzes made with another seed or scale"
    add("--force", action="store_true", help=text)


def add_tasks(verbs: Any) -> None:
    parts = add_parts(verbs, "tasks")
    summary = "SCAN: commands -> actions, trained on few actions, tested on more"
    example, pairs = "floater tasks scan scan --cutoff 26", 300
    scan = add_verb(parts, "scan", example, tasks.write_scan, summary=summary)
    text = "train on up to N actions, test on more"
    scan.add_argument("--cutoff", type=positive, required=True, metavar="N", help=text)
    text = "your own copy of tasks.txt, plain or .gz (default: it is fetched)"
    scan.add_argument("--from", dest="file", type=Path, metavar="FILE", help=text)
    sizes = {"train": 200_000, "valid": 1024, "test": 1024}
    for name, task in task_generators.TASKS.items():
        summary = "trained on lengths {} to {}, tested on {} to {}".format(
            *task.trained, *task.tested
        )
        example, details = f"floater tasks {name} {name}", str(task_generators.__doc__)
        part = add_verb(
            parts, name, example, tasks.write_generated, summary=summary, details=details
        )
        part.set_defaults(task=name)
    for part in parts.choices.values():
        part.add_argument("out_dir", type=Path, metavar="OUT")
        given = {"valid": pairs} if part is scan else sizes
        for split, size in given.items():
            text = f"pairs ({size})"
            part.add_argument(f"--{split}", type=positive, default=size, metavar="N", help=text)
        part.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (1)")
        text = "replace a task made with other parameters"
        part.add_argument("--force", action="store_true", help=text)


def add_prepare(verbs: Any) -> None:
    def run(out_dir: Path, **options: Any) -> PreparedText | None:
        summary = prepare.prepare(out_dir=out_dir, **options)
        return None if summary is None else PreparedText(out_dir, summary)

    parser = add_verb(
        verbs,
        "prepare",
        "bash scripts/prepare_text.sh numbers/raw numbers/data --src en --tgt de --vocab 300",
        run,
        details="""
OUT_DIR gets
  bin/    what fairseq-train and fairseq-generate take; tests.json: the --gen-subset of each test split
  raw/    the raw lines of valid and the test splits, line for line as in bin/, for scoring
  spm/    the text in subwords (bpe/ with --bpe subword-nmt, words/ with --subwords none)
and the subword model, dict.txt and summary.json.
Complete outputs are not made again: after an interruption, run the same command again.""",
    )
    add_options(parser)


def add_documents(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "documents",
        "floater documents my_text my_documents --segments 2,4,8 --separator '<s2>'",
        documents.join_lines,
        details="""
Train and valid become documents of 1, 2, 4 and 8 sentences in turn; test_2, test_4 and test_8 have the
sentences of test. scripts/prepare_text.sh takes OUT_DIR, with --separator.""",
    )
    add = parser.add_argument
    add("raw_dir", type=Path, metavar="RAW_DIR")
    add("out_dir", type=Path, metavar="OUT_DIR")
    text = "numbers of sentences in a document, separated by commas"
    add("--segments", type=_counts, required=True, metavar="N,N", help=text)
    text = "word to put between two sentences; the text must not contain it"
    add("--separator", required=True, metavar="SYMBOL", help=text)
    add("--force", action="store_true", help="replace documents from other text")


def _counts(text: str) -> list[int]:
    return sorted({*positives(text)} - {1})


def add_wmt14(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "wmt14",
        "bash scripts/prepare_wmt14.sh en-de --out data/wmt14-en-de",
        from_options(recipe.run),
        details="""
The script takes the options below, fetches the archives and runs the other steps. DIR gets
  archives/   what was downloaded, with its checksums; corpus/ has the raw text of train, valid and test
  bin/        what fairseq-train takes, and raw/, bpe/ or spm/ as prepare_text.sh makes them
  wmt14.json  our counts and the published ones
Cleaning: 1 to 250 subwords a side, at most 1.5 times as many on one side as on the other.
En-De takes 1.7 GB of downloads and about 7 GB of disk, En-Fr 6.7 GB and about 55 GB.""",
        json=False,
    )
    recipe.add_options(parser)


def add_benchmark(verbs: Any) -> None:
    def run(*, argv: list[str]) -> None:
        raise UserError("The benchmarks run from a clone of the project: python -m benchmarks.")

    add_verb(
        verbs, "benchmark", "python -m benchmarks speed --quick", run, unknown="argv", json=False
    )
