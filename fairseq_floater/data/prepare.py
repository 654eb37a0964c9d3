"""Make binarised fairseq data of raw parallel text; `scripts/prepare_text.sh` runs it.

`encode` checks the text, learns the subwords, encodes and writes the joint dictionary; `finish`
(`binarised.py`) checks the output of `fairseq-preprocess`; `all` runs the three one after the other.
Everything streams, and every output is there whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data.binarised import (
    MANIFEST,
    binarise,
    binarise_command,
    damaged,
    finish,
    read_record,
    summary_table,
)
from fairseq_floater.data.parallel_text import (
    TextDataError,
    check_parallel,
    find_splits,
    progress,
    read_pairs,
    say,
    text_file,
)
from fairseq_floater.data.sentencepiece_subwords import Segmenter, SplitEncoder
from fairseq_floater.data.subwords import SEGMENTATIONS, Segmentation
from fairseq_floater.errors import exit_code
from fairseq_floater.files import file_hash, put_folder, remove_folder, write_text, write_whole
from fairseq_floater.verbs import positive, share

PRODUCTS = (
    *(name for kind in SEGMENTATIONS.values() for name in (kind.folder, kind.model)),
    *("raw", "bin", "dict.txt", "tests.json", "summary.json"),
)
_PARAMETERS = ("src", "tgt", "bpe", "vocab", "max_len", "max_ratio", "character_coverage")
_STEP = (sys.executable, "-m", "fairseq_floater.data.prepare")


def encode_all(
    raw_dir: Path,
    out_dir: Path,
    parameters: dict[str, Any],
    *,
    spm_model: Path | None = None,
    force: bool = False,
    threads: int = 1,
) -> list[str]:
    """Make everything in ``out_dir`` but ``bin``, and keep what the same text and parameters made.

    Args:
        raw_dir: the text.
        out_dir: where the products go.
        parameters: the options that shape the data, by their names in Python.
        spm_model: a sentencepiece model to use instead of learning one.
        force: replace data of other text or parameters.
        threads: threads or processes.

    Returns:
        The test splits in fairseq's order.

    Raises:
        TextDataError: the text cannot be used, or other data are in the way.
    """
    kind = SEGMENTATIONS[parameters["bpe"]]
    langs = (parameters["src"], parameters["tgt"])
    splits = find_splits(raw_dir, *langs)
    manifest = _manifest(raw_dir, out_dir, parameters, splits, spm_model)
    stale = _stale_products(out_dir, manifest, force, kind.model)
    encoded = not stale and (out_dir / kind.folder).is_dir() and (out_dir / "raw").is_dir()
    lines = {} if encoded else check_parallel(raw_dir, *langs, splits)
    for name in [*stale, f".{kind.folder}.tmp", ".raw.tmp", ".bin.tmp", ".bin.gone"]:
        _remove(out_dir / name)
    write_text(out_dir / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    model, dictionary = out_dir / kind.model, out_dir / "dict.txt"
    if model.is_file():
        say(f"{kind.model} is there already: skipped.")
    elif spm_model is not None:
        write_whole(model, lambda temporary: shutil.copyfile(spm_model, temporary))
    else:
        _learn(kind, raw_dir, model, parameters, lines["train"], threads)
    if encoded:
        say(f"{kind.folder} is there already: skipped.")
    else:
        _encode_splits(kind, raw_dir, out_dir, parameters, lines, threads)
    if not dictionary.is_file():
        texts = [out_dir / kind.folder / f"train.{lang}" for lang in langs]
        kind.write_dictionary(model, texts, dictionary, threads)
    subsets = {split: f"test{k or ''}" for k, split in enumerate(splits[2:])}
    write_text(out_dir / "tests.json", json.dumps(subsets, indent=2) + "\n")
    return splits[2:]


def _manifest(
    raw_dir: Path,
    out_dir: Path,
    parameters: dict[str, Any],
    splits: list[str],
    spm_model: Path | None,
) -> dict[str, Any]:
    """Return the parameters and the checksums of all inputs; refuse inputs that cannot be used."""
    folder = SEGMENTATIONS[parameters["bpe"]].folder
    if raw_dir.resolve() in [(out_dir / name).resolve() for name in ("raw", "bin", folder)]:
        raise TextDataError(
            f"RAW_DIR must not be {raw_dir}, because output goes there; move it or choose "
            "another OUT_DIR."
        )
    langs = (parameters["src"], parameters["tgt"])
    inputs = [text_file(raw_dir, split, lang) for split in splits for lang in langs]
    if spm_model is not None:
        Segmenter(spm_model)  # refuses what is no model
        inputs.append(spm_model)
    return {"parameters": parameters, "inputs": {p.name: file_hash(p) for p in inputs}}


def _learn(
    kind: Segmentation,
    raw_dir: Path,
    model: Path,
    parameters: dict[str, Any],
    lines: int,
    threads: int,
) -> None:
    langs = (parameters["src"], parameters["tgt"])
    say(f"Learning {parameters['vocab']} subwords from {lines:,} pairs.")
    pairs = progress(read_pairs(raw_dir, "train", *langs), "learn", lines)
    kind.learn(pairs, lines, model, langs, parameters, threads)


def _encode_splits(
    kind: Segmentation,
    raw_dir: Path,
    out_dir: Path,
    parameters: dict[str, Any],
    lines: dict[str, int],
    threads: int,
) -> None:
    """Encode every split of ``lines`` into temporary folders, then put all of them in place."""
    langs = (parameters["src"], parameters["tgt"])
    encoded, raw = (out_dir / name for name in (f".{kind.folder}.tmp", ".raw.tmp"))
    encoded.mkdir()
    raw.mkdir()
    counts = {}
    with kind.segmenter(out_dir / kind.model, langs, threads) as segmenter:
        encoder = SplitEncoder(segmenter, parameters["max_len"], parameters["max_ratio"])
        for split, total in lines.items():
            pairs = progress(read_pairs(raw_dir, split, *langs), f"encode {split}", total)
            counts[split] = encoder.encode(pairs, split, langs, encoded, raw)
    write_text(encoded / "counts.json", json.dumps(counts, indent=2) + "\n")
    _remove(out_dir / kind.folder)
    # A dictionary that was counted from other text goes with it.
    _remove(out_dir / "dict.txt")
    put_folder(raw, out_dir / "raw")
    put_folder(encoded, out_dir / kind.folder)  # last: where this folder is, all of it is there


def _stale_products(out_dir: Path, manifest: dict[str, Any], force: bool, model: str) -> list[str]:
    """Return the products that must go before work can start; refuse to decide that without --force."""
    present = [name for name in PRODUCTS if (out_dir / name).exists()]
    if not present:
        return []
    if not (out_dir / MANIFEST).is_file():
        raise TextDataError(
            f"{out_dir} holds `{present[0]}`, which was not made here; choose another OUT_DIR."
        )
    if force:
        return present
    old = read_record(out_dir / MANIFEST)
    for kind in ("parameters", "inputs"):
        then, now = old.get(kind, {}), manifest[kind]
        if not isinstance(then, dict):
            raise damaged(out_dir / MANIFEST)
        for name in sorted(then.keys() | now.keys()):
            if then.get(name) != now.get(name):
                values = f"`{name}` {then.get(name)}, not {now.get(name)}"
                found = values if kind == "parameters" else f"another {name}"
                raise TextDataError(
                    f"{out_dir} was made with {found}; choose another OUT_DIR or add --force."
                )
    # Without its model the encoded text is of no use.
    return [] if (out_dir / model).is_file() else present


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def cores(most: int) -> int:
    """Return the number of processor cores that this process may use, at most ``most``."""
    return min(len(os.sched_getaffinity(0)), most)


def _language(text: str) -> str:
    # fairseq reads the languages back from file names, where `.` and `-` separate.
    if not re.fullmatch(r"\w+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"a language is letters, digits and _, but is {text!r}")
    return text


def _folder(text: str) -> Path:
    if "," in text:
        raise argparse.ArgumentTypeError(
            f"must hold no comma, by which fairseq separates names, but is {text!r}"
        )
    return Path(text)


def _limit(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _ratio(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 0 (no limit) or at least 1, but is {text!r}")
    return float(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prepare_text.sh",
        usage="bash scripts/prepare_text.sh RAW_DIR OUT_DIR --src LANG --tgt LANG --vocab N [options]",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("all", "encode"):
        encode = commands.add_parser(name, usage=parser.usage, prog=parser.prog, allow_abbrev=False)
        encode.add_argument("raw_dir", metavar="RAW_DIR", type=Path)
        encode.add_argument("out_dir", metavar="OUT_DIR", type=_folder)
        encode.add_argument("--src", type=_language, required=True)
        encode.add_argument("--tgt", type=_language, required=True)
        subwords = encode.add_mutually_exclusive_group(required=True)
        subwords.add_argument("--vocab", type=positive)
        subwords.add_argument("--spm-model", type=Path)
        encode.add_argument("--bpe", choices=SEGMENTATIONS, default="sentencepiece")
        encode.add_argument("--max-len", type=_limit, default=250)
        encode.add_argument("--max-ratio", type=_ratio, default=0.0)
        encode.add_argument("--character-coverage", type=share, default=1.0)
        encode.add_argument("--workers", type=positive, default=cores(8))
        encode.add_argument("--force", action="store_true")
        encode.add_argument("--dry-run", action="store_true")
    commands.add_parser("finish").add_argument("out_dir", metavar="OUT_DIR", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command != "finish" and args.src == args.tgt:
        parser.error(f"--src and --tgt must differ, but both are {args.src!r}")
    if args.command != "finish" and args.spm_model and args.bpe != "sentencepiece":
        parser.error(f"--spm-model is for --bpe sentencepiece, but --bpe is {args.bpe}")
    return exit_code(lambda: _run(args, argv), args.out_dir)


def _run(args: argparse.Namespace, argv: Sequence[str]) -> None:
    if args.command != "finish":
        if args.dry_run:
            splits = find_splits(args.raw_dir, args.src, args.tgt)
            words = [word for word in argv[1:] if word != "--dry-run"]
            print(shlex.join([*_STEP, "encode", *words]))
            print(shlex.join(binarise_command(args.out_dir, vars(args), splits[2:], args.workers)))
            print(shlex.join([*_STEP, "finish", str(args.out_dir)]))
            return
        parameters = {name: getattr(args, name) for name in _PARAMETERS}
        tests = encode_all(
            args.raw_dir,
            args.out_dir,
            parameters,
            spm_model=args.spm_model,
            force=args.force,
            threads=args.workers,
        )
        if args.command == "encode":
            return
        binarise(args.out_dir, binarise_command(args.out_dir, parameters, tests, args.workers))
    print(summary_table(finish(args.out_dir)))


if __name__ == "__main__":
    sys.exit(main())
