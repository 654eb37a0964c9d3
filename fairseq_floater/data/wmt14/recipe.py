"""The Python half of `scripts/prepare_wmt14.sh`: archives to raw text, and the counts at the end."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.wmt14.archive import RECORDS, Archive
from fairseq_floater.data.wmt14.corpora import COUNTS, assemble
from fairseq_floater.data.wmt14.download import fetch
from fairseq_floater.data.wmt14.sources import RECIPES, Recipe
from fairseq_floater.errors import exit_code
from fairseq_floater.files import read_json, write_text

VALID = ("held-out", "newstest2013")


def archives_of(recipe: Recipe, valid: str) -> list[Archive]:
    """The archives that a pair is made of, each once."""
    parts = (*recipe.corpora, recipe.test, *(() if valid == "held-out" else (recipe.valid,)))
    return list({part.archive.name: part.archive for part in parts}.values())


def make_corpus(
    pair: str, out: Path, *, mirror: str | None, valid: str, rehearsal: bool
) -> dict[str, Any]:
    """Fetch the archives of ``pair`` and assemble ``out/corpus``; what is whole is kept."""
    recipe = RECIPES[pair]
    folder = out / "archives"
    folder.mkdir(parents=True, exist_ok=True)
    made_of: dict[str, Any] = {"pair": pair, "valid": valid, "rehearsal": rehearsal, "archives": {}}
    for archive in archives_of(recipe, valid):
        if rehearsal:
            archive = dataclasses.replace(archive, size=None, sha256=None, md5=None)
        fetch(archive, folder, mirror=mirror, say=_say)
        # As it was when it was last checked: hashing gigabytes again would say the same.
        made_of["archives"][archive.name] = _read(folder / RECORDS)[archive.name]["sha256"]
    manifest = out / "corpus.json"
    counts = _read(out / "corpus" / COUNTS)
    if isinstance(counts, dict) and _read(manifest) == made_of:
        _say("corpus is there already: skipped.")
        return counts
    # Gone while the text is made: a break in between never leaves old text under a new description.
    manifest.unlink(missing_ok=True)
    counts = assemble(recipe, folder, out / "corpus", valid=valid, check=not rehearsal, say=_say)
    write_text(manifest, json.dumps(made_of, indent=2) + "\n")
    return counts


def _read(path: Path) -> Any:
    """A JSON file of ours; None where there is none."""
    try:
        return read_json(path) if path.is_file() else None
    except ValueError:
        raise TextDataError(
            f"{path} is damaged; remove it and run again: it is made anew."
        ) from None


def report(pair: str, out: Path) -> dict[str, Any]:
    """What was made, beside what is published: lines of each corpus, pairs kept of each split."""
    try:
        found = _report(RECIPES[pair], out)
        report_text(found)  # what cannot be shown was not recorded here
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
        "dictionary": summary["dictionary"],
        "sha256": summary["sha256"],
        "parameters": summary["parameters"],
    }


def report_text(found: dict[str, Any]) -> str:
    """The report for a person."""
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
    repaired = {lang: n for lang, n in found["repaired"].items() if n}
    for lang, number in repaired.items():
        lines.append(f"{lang}: {number:,} lines were no valid UTF-8; what was wrong became U+FFFD")
    return "\n".join(lines)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_floater.data.wmt14.recipe", description=__doc__
    )
    parser.add_argument("command", choices=("corpus", "report"))
    parser.add_argument("pair", choices=RECIPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mirror", metavar="URL_OR_DIR")
    parser.add_argument("--valid", choices=VALID, default=VALID[0])
    parser.add_argument("--rehearsal", action="store_true", help="archives are not the published")
    args = parser.parse_args(argv)
    return exit_code(lambda: _run(args), args.out)


def _run(args: argparse.Namespace) -> None:
    if args.command == "corpus":
        options = {name: getattr(args, name) for name in ("mirror", "valid", "rehearsal")}
        make_corpus(args.pair, args.out, **options)
    else:
        found = report(args.pair, args.out)
        write_text(args.out / "wmt14.json", json.dumps(found, indent=2) + "\n")
        print(report_text(found))


if __name__ == "__main__":
    sys.exit(main())
