"""Make WMT14 data from its archives; `scripts/prepare_wmt14.sh` fetches them and runs the steps here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_floater.data import prepare
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.prepare_options import cores
from fairseq_floater.data.products import Origin, is_made
from fairseq_floater.data.subwords import SUBWORDS
from fairseq_floater.data.wmt14.corpora import COUNTS, assemble
from fairseq_floater.data.wmt14.sources import LIMITS, RECIPES, Archive, Recipe, listed, mirror
from fairseq_floater.errors import say
from fairseq_floater.files import naming
from fairseq_floater.records import read_json, write_json
from fairseq_floater.verbs import positive

VALID = ("held-out", "newstest2013")
_SETTINGS = ("pair", "valid", "rehearsal")


def archives_of(recipe: Recipe, valid: str) -> list[Archive]:
    parts = [*recipe.corpora, recipe.test]
    if valid != "held-out":
        parts.append(recipe.valid)
    return list({part.archive.name: part.archive for part in parts}.values())


def _list_archives(args: argparse.Namespace) -> None:
    """Print a line for each archive: URL, SHA-256, MD5 and place; a dash if a checksum is not published."""
    for archive in archives_of(RECIPES[args.pair], args.valid):
        print(listed(archive, args.out / "archives", args.mirror, check=not args.rehearsal))


def _make_corpus(args: argparse.Namespace) -> None:
    """Assemble ``OUT/corpus`` from ``OUT/archives``, unless it was made of the same archives."""
    recipe, folder, corpus = RECIPES[args.pair], args.out / "archives", args.out / "corpus"
    checksums = {}
    for archive in archives_of(recipe, args.valid):
        # The script writes this file beside an archive after it has checked the archive.
        record = folder / f"{archive.name}.sha256"
        if not ((folder / archive.name).is_file() and record.is_file()):
            raise TextDataError(
                f"{folder / archive.name} must be fetched first: run scripts/prepare_wmt14.sh."
            )
        checksums[archive.name] = record.read_text(encoding="utf-8").split(" ")[0]
    origin = Origin({name: getattr(args, name) for name in _SETTINGS}, checksums)
    manifest = args.out / "corpus.json"
    if (corpus / COUNTS).is_file() and manifest.is_file():
        settings = read_json(manifest)
        old = Origin(settings, settings.pop("archives"))
        if is_made(corpus, old, origin, force=args.force, option="--out"):
            say("corpus exists already: skipped.")
            return
    # Remove it before the text is made, so that it never describes the text of another run.
    manifest.unlink(missing_ok=True)
    assemble(recipe, folder, corpus, valid=args.valid, check=not args.rehearsal)
    write_json(manifest, {**origin.parameters, "archives": origin.inputs})


def report(pair: str, out: Path) -> dict[str, Any]:
    """Return our counts beside the published ones: lines of each corpus, pairs kept of each split."""
    recipe, settings = RECIPES[pair], read_json(out / "corpus.json")
    counts, summary = read_json(out / "corpus" / COUNTS), read_json(out / "summary.json")
    published = recipe.published_lines
    train = summary["splits"]["train"]
    return {
        **{key: settings[key] for key in _SETTINGS},
        "lines": {n: {"found": k, "published": published[n]} for n, k in counts["lines"].items()},
        "repaired": counts["repaired"],
        "splits": {
            name: {"lines": lines, "kept": summary["splits"][name]["kept"]}
            for name, lines in counts["splits"].items()
        },
        "share_kept": {
            "found": train["kept"] / train["lines"],
            "published": recipe.kept,
            "source": recipe.kept_source,
        },
        **{key: summary[key] for key in ("dictionary", "sha256", "parameters")},
    }


def report_text(counts: dict[str, Any]) -> str:
    lines = [f"{'corpus':<22}{'lines':>14}{'published':>14}"]
    for name, count in counts["lines"].items():
        mark = "" if count["found"] == count["published"] else "   differs"
        lines.append(f"{name:<22}{count['found']:>14,}{count['published']:>14,}{mark}")
    lines += ["", f"{'split':<22}{'lines':>14}{'pairs kept':>14}"]
    for name, count in counts["splits"].items():
        lines.append(f"{name:<22}{count['lines']:>14,}{count['kept']:>14,}")
    kept = counts["share_kept"]
    lines += [
        "",
        f"kept of train: {kept['found']:.1%} (published: {kept['published']:.1%}, {kept['source']})",
        f"dictionary: {counts['dictionary']:,} entries, shared by both languages",
    ]
    for lang, number in counts["repaired"].items():
        if number:
            lines.append(f"{lang}: {number:,} lines were not valid UTF-8; bad bytes became U+FFFD")
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "for `floater wmt14` itself; the script runs all steps"
    add("step", choices=("archives", "corpus", "text", "report"), help=text)
    add("pair", choices=RECIPES)
    add("--out", type=Path, required=True, metavar="DIR", help="folder for all output")
    text = "subword-nmt on Moses tokens (the recipe's, default), or sentencepiece on raw text"
    add("--bpe", choices=SUBWORDS, default="subword-nmt", help=text)
    text = "merges, or subwords of both languages (40000, as in the recipe)"
    add("--vocab", type=positive, default=40_000, metavar="N", help=text)
    text = "validate on every 100th (En-De) or 1,333rd (En-Fr) training line (default), or on newstest2013"
    add("--valid", choices=VALID, default=VALID[0], help=text)
    text = "take the archives only from this URL (http, https, file) or folder, by file name"
    add("--mirror", type=mirror, metavar="PLACE", help=text)
    text = "the archives are not the published ones: record their checksums, do not compare counts"
    add("--rehearsal", action="store_true", help=text)
    text = "processes (the number of cores, at most 16)"
    add("--workers", type=positive, default=cores(16), metavar="N", help=text)
    text = "make the data again if DIR was made with other settings"
    add("--force", action="store_true", help=text)


def run(args: argparse.Namespace) -> None:
    steps = {"archives": _list_archives, "corpus": _make_corpus}
    steps |= {"text": _prepare_text, "report": _report}
    with naming(args.out):
        steps[args.step](args)


def _prepare_text(args: argparse.Namespace) -> None:
    prepare.prepare(
        args.out / "corpus",
        args.out,
        src="en",
        tgt=RECIPES[args.pair].target,
        bpe=args.bpe,
        vocab=args.vocab,
        **LIMITS,
        character_coverage=1.0,
        workers=args.workers,
        force=args.force,
    )


def _report(args: argparse.Namespace) -> None:
    counts = report(args.pair, args.out)
    write_json(args.out / "wmt14.json", counts)
    print(report_text(counts))
