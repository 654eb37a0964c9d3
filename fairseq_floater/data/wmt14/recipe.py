"""Make WMT14 data from its archives; `scripts/prepare_wmt14.sh` fetches them and runs the steps here."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data import prepare
from fairseq_floater.data.parallel_text import TextDataError, say
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.data.wmt14.corpora import COUNTS, assemble
from fairseq_floater.data.wmt14.sources import RECIPES, Archive, Recipe
from fairseq_floater.errors import exit_code
from fairseq_floater.files import write_text
from fairseq_floater.records import read_json
from fairseq_floater.verbs import positive

VALID = ("held-out", "newstest2013")


def archives_of(recipe: Recipe, valid: str) -> list[Archive]:
    """Return the archives of a language pair, each once."""
    parts = (*recipe.corpora, recipe.test, *(() if valid == "held-out" else (recipe.valid,)))
    return list({part.archive.name: part.archive for part in parts}.values())


def archive_lines(
    pair: str,
    out: Path,
    *,
    mirror: str | None = None,
    valid: str = VALID[0],
    rehearsal: bool = False,
) -> list[str]:
    """Return a line for each archive: its URL, SHA-256, MD5 and place; a dash where none is published.

    Args:
        pair: a key of :data:`RECIPES`.
        out: the folder of the data; archives lie in ``out/archives``.
        mirror: the URL of a folder that replaces the published one.
        valid: one of :data:`VALID`.
        rehearsal: whether the archives are not the published ones.
    """
    lines = []
    for archive in archives_of(RECIPES[pair], valid):
        url = archive.url if mirror is None else f"{mirror}/{archive.name}"
        checksums = (None, None) if rehearsal else (archive.sha256, archive.md5)
        words = (url, *(checksum or "-" for checksum in checksums))
        lines.append(" ".join((*words, str(out / "archives" / archive.name))))
    return lines


def make_corpus(pair: str, out: Path, *, valid: str, rehearsal: bool) -> None:
    """Assemble ``out/corpus`` from ``out/archives``, unless it was made of the same archives.

    Args:
        pair: a key of :data:`RECIPES`.
        out: the folder of the data.
        valid: one of :data:`VALID`.
        rehearsal: whether the archives are not the published ones: their lines are not compared.
    """
    recipe, folder = RECIPES[pair], out / "archives"
    checksums = {a.name: _recorded_checksum(folder / a.name) for a in archives_of(recipe, valid)}
    made_of = {"pair": pair, "valid": valid, "rehearsal": rehearsal, "archives": checksums}
    manifest = out / "corpus.json"
    if (out / "corpus" / COUNTS).is_file() and _read(manifest) == made_of:
        say("corpus is there already: skipped.")
        return
    # Gone while the text is made: a break in between never leaves old text under a new description.
    manifest.unlink(missing_ok=True)
    assemble(recipe, folder, out / "corpus", valid=valid, check=not rehearsal, say=say)
    write_text(manifest, json.dumps(made_of, indent=2) + "\n")


def _recorded_checksum(archive: Path) -> str:
    """Return the SHA-256 that the script wrote beside an archive once it had checked it."""
    record = archive.with_name(f"{archive.name}.sha256")
    if not (archive.is_file() and record.is_file()):
        raise TextDataError(f"{archive} must be fetched first: run scripts/prepare_wmt14.sh.")
    return record.read_text(encoding="utf-8").split(" ")[0]


def _read(path: Path) -> Any:
    """Return the content of a JSON record; None where there is none."""
    try:
        return read_json(path) if path.is_file() else None
    except ValueError:
        raise TextDataError(
            f"{path} is damaged; remove it and run again: it is made anew."
        ) from None


def report(pair: str, out: Path) -> dict[str, Any]:
    """Return what was made beside what is published: lines of each corpus, pairs kept of each split."""
    try:
        found = _report(RECIPES[pair], out)
        report_text(found)  # a record that cannot be shown was not written here
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
        raise TextDataError(f"The records in {out} are damaged; make it again.") from None
    return found


def _report(recipe: Recipe, out: Path) -> dict[str, Any]:
    counts = _read(out / "corpus" / COUNTS)
    summary = _read(out / "summary.json")
    published = recipe.published_lines
    train = summary["splits"]["train"]
    made_of = _read(out / "corpus.json")
    return {
        **{key: made_of[key] for key in ("pair", "valid", "rehearsal")},
        "lines": {n: {"found": k, "published": published[n]} for n, k in counts["lines"].items()},
        "repaired": counts["repaired"],
        "splits": {
            name: {"lines": counts["splits"][name], "kept": summary["splits"][name]["kept"]}
            for name in counts["splits"]
        },
        "share_kept": {"found": train["kept"] / train["lines"], "published": recipe.kept}
        | {"source": recipe.kept_source},
        **{key: summary[key] for key in ("dictionary", "sha256", "parameters")},
    }


def report_text(found: dict[str, Any]) -> str:
    """Format the result of :func:`report` for a person."""
    lines = [f"{'corpus':<22}{'lines':>14}{'published':>14}"]
    for name, count in found["lines"].items():
        mark = "" if count["found"] == count["published"] else "   differs"
        lines.append(f"{name:<22}{count['found']:>14,}{count['published']:>14,}{mark}")
    lines += ["", f"{'split':<22}{'lines':>14}{'pairs kept':>14}"]
    for name, count in found["splits"].items():
        lines.append(f"{name:<22}{count['lines']:>14,}{count['kept']:>14,}")
    kept = found["share_kept"]
    lines += [
        "",
        f"kept of train: {kept['found']:.1%} (published: {kept['published']:.1%}, {kept['source']})",
        f"dictionary: {found['dictionary']:,} entries, shared by both languages",
    ]
    for lang, number in found["repaired"].items():
        if number:
            lines.append(f"{lang}: {number:,} lines were no valid UTF-8; bad bytes became U+FFFD")
    return "\n".join(lines)


def _mirror(text: str) -> str:
    """Return the URL of a mirror that is given as a URL or a folder."""
    if "://" not in text:
        return Path(text).resolve().as_uri()
    if not text.startswith(("http://", "https://", "file:///")):
        raise argparse.ArgumentTypeError(
            f"must be a folder or a URL of http://, https:// or file:///, but is {text!r}"
        )
    return text.rstrip("/")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prepare_wmt14.sh",
        usage="bash scripts/prepare_wmt14.sh en-de|en-fr --out DIR [options]",
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=("archives", "corpus", "text", "report"))
    parser.add_argument("pair", choices=RECIPES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bpe", choices=SEGMENTATIONS, default="subword-nmt")
    parser.add_argument("--vocab", type=positive, default=40_000)
    parser.add_argument("--valid", choices=VALID, default=VALID[0])
    parser.add_argument("--mirror", type=_mirror)
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--workers", type=positive, default=prepare.cores(16))
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a step of the script; return the exit code."""
    args = _parser().parse_args(argv)
    if args.command == "text":
        return _prepare_text(args)
    return exit_code(lambda: _run(args), args.out)


def _run(args: argparse.Namespace) -> None:
    sources = {"valid": args.valid, "rehearsal": args.rehearsal}
    if args.command == "archives":
        print("\n".join(archive_lines(args.pair, args.out, mirror=args.mirror, **sources)))
    elif args.command == "corpus":
        make_corpus(args.pair, args.out, **sources)
    else:
        found = report(args.pair, args.out)
        write_text(args.out / "wmt14.json", json.dumps(found, indent=2) + "\n")
        print(report_text(found))


def _prepare_text(args: argparse.Namespace) -> int:
    words = ["all", str(args.out / "corpus"), str(args.out), "--src", "en"]
    words += ["--tgt", RECIPES[args.pair].target, "--bpe", args.bpe, "--vocab", str(args.vocab)]
    words += ["--max-len", "250", "--max-ratio", "1.5", "--workers", str(args.workers)]
    # Its table is progress here: the report is the result.
    with contextlib.redirect_stdout(sys.stderr):
        return prepare.main([*words, *(["--force"] if args.force else [])])


if __name__ == "__main__":
    sys.exit(main())
