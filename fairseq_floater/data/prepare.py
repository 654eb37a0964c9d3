"""From raw parallel text to what `fairseq-preprocess` takes; `scripts/prepare_text.sh` runs it.

`encode` checks the text, learns the subwords, encodes and writes the joint dictionary; `finish`
(`binarised.py`) checks what `fairseq-preprocess` made of it. Everything streams, and every output is
there whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.data.binarised import MANIFEST, damaged, finish, read_record, summary_table
from fairseq_floater.data.parallel_text import (
    TextDataError,
    check_parallel,
    find_splits,
    progress,
    read_pairs,
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


def encode_all(
    raw_dir: Path,
    out_dir: Path,
    parameters: dict[str, Any],
    *,
    spm_model: Path | None = None,
    force: bool = False,
    threads: int = 1,
) -> list[str]:
    """Make everything in ``out_dir`` but ``bin``; returns the test splits in fairseq's order.

    ``parameters["bpe"]`` names the segmentation. With ``spm_model`` the subwords are that model's,
    else one of ``parameters["vocab"]`` is learned.

    What is whole already is kept, if it was made with the same parameters from the same text.
    """
    kind = SEGMENTATIONS[parameters["bpe"]]
    langs = (parameters["src"], parameters["tgt"])
    splits = find_splits(raw_dir, *langs)
    if raw_dir.resolve() in [(out_dir / name).resolve() for name in ("raw", "bin", kind.folder)]:
        raise TextDataError(
            f"RAW_DIR must not be {raw_dir}, because output goes there; move it or choose "
            "another OUT_DIR."
        )
    inputs = [text_file(raw_dir, split, lang) for split in splits for lang in langs]
    if spm_model is not None:
        Segmenter(spm_model)  # refuses what is no model
        inputs.append(spm_model)
    manifest = {"parameters": parameters, "inputs": {p.name: file_hash(p) for p in inputs}}
    stale = _stale_products(out_dir, manifest, force, kind.model)
    encoded = not stale and (out_dir / kind.folder).is_dir() and (out_dir / "raw").is_dir()
    if not encoded:
        lines = check_parallel(raw_dir, *langs, splits)
    for name in [*stale, f".{kind.folder}.tmp", ".raw.tmp", ".bin.tmp", ".bin.gone"]:
        _remove(out_dir / name)
    write_text(out_dir / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    model = out_dir / kind.model
    if model.is_file():
        _say(f"{kind.model} is there already: skipped.")
    elif spm_model is not None:
        write_whole(model, lambda temporary: shutil.copyfile(spm_model, temporary))
    else:
        _learn(kind, raw_dir, langs, lines["train"], model, parameters, threads)
    if encoded:
        _say(f"{kind.folder} is there already: skipped.")
    else:
        with kind.segmenter(model, langs, threads) as segmenter:
            encoder = SplitEncoder(segmenter, parameters["max_len"], parameters["max_ratio"])
            _encode_splits(encoder, kind, raw_dir, out_dir, langs, lines)
    if not (out_dir / "dict.txt").is_file():
        texts = [out_dir / kind.folder / f"train.{lang}" for lang in langs]
        kind.write_dictionary(model, texts, out_dir / "dict.txt", threads)
    tests = splits[2:]
    subsets = {split: f"test{k or ''}" for k, split in enumerate(tests)}
    write_text(out_dir / "tests.json", json.dumps(subsets, indent=2) + "\n")
    return tests


def _learn(
    kind: Segmentation,
    raw_dir: Path,
    langs: tuple[str, str],
    lines: int,
    model: Path,
    parameters: dict[str, Any],
    threads: int,
) -> None:
    _say(f"Learning {parameters['vocab']} subwords from {lines:,} pairs.")
    pairs = progress(read_pairs(raw_dir, "train", *langs), "learn", lines)
    kind.learn(pairs, lines, model, langs, parameters, threads)


def _encode_splits(
    encoder: SplitEncoder,
    kind: Segmentation,
    raw_dir: Path,
    out_dir: Path,
    langs: tuple[str, str],
    lines: dict[str, int],
) -> None:
    """Encode every split of ``lines`` beside its place, then put all of them there."""
    encoded, raw = (out_dir / name for name in (f".{kind.folder}.tmp", ".raw.tmp"))
    encoded.mkdir()
    raw.mkdir()
    counts = {}
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
    """What must go before work can start; raises where that is not for this tool to decide."""
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
                what = (
                    f"`{name}` {then.get(name)}, not {now.get(name)}"
                    if kind == "parameters"
                    else f"another {name}"
                )
                raise TextDataError(
                    f"{out_dir} was made with {what}; choose another OUT_DIR or add --force."
                )
    # Without its model the encoded text is of no use.
    return [] if (out_dir / model).is_file() else present


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def _language(text: str) -> str:
    # fairseq reads the languages back from file names, where `.` and `-` separate.
    if not re.fullmatch(r"\w+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"a language is letters, digits and _, but is {text!r}")
    return text


def _limit(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _ratio(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 0 (no limit) or at least 1, but is {text!r}")
    return float(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_floater.data.prepare",
        description="The Python half of scripts/prepare_text.sh, which is what people run.",
        epilog="example: scripts/prepare_text.sh raw data --src en --tgt de --vocab 8000",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    encode = commands.add_parser("encode", help="raw text to encoded text; prints the test splits")
    encode.add_argument("raw_dir", type=Path)
    encode.add_argument("out_dir", type=Path)
    encode.add_argument("--src", type=_language, required=True)
    encode.add_argument("--tgt", type=_language, required=True)
    subwords = encode.add_mutually_exclusive_group(required=True)
    subwords.add_argument("--vocab", type=positive)
    subwords.add_argument("--spm-model", type=Path)
    encode.add_argument("--bpe", choices=SEGMENTATIONS, default="sentencepiece")
    encode.add_argument("--max-len", type=_limit, default=250)
    encode.add_argument("--max-ratio", type=_ratio, default=0.0)
    encode.add_argument("--character-coverage", type=share, default=1.0)
    encode.add_argument("--workers", type=positive, default=1)
    encode.add_argument("--force", action="store_true")
    encode.add_argument("--dry-run", action="store_true", help="only print the test splits")
    commands.add_parser("finish", help="check and install bin").add_argument("out_dir", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command == "encode" and args.src == args.tgt:
        parser.error(f"--src and --tgt must differ, but both are {args.src!r}")
    if args.command == "encode" and args.spm_model and args.bpe != "sentencepiece":
        parser.error(f"--spm-model is for --bpe sentencepiece, but --bpe is {args.bpe}")
    return exit_code(lambda: print(_run(args)), args.out_dir)


def _run(args: argparse.Namespace) -> str:
    """What the command prints."""
    if args.command == "finish":
        return summary_table(finish(args.out_dir))
    if args.dry_run:
        return "\n".join(find_splits(args.raw_dir, args.src, args.tgt)[2:])
    names = ("src", "tgt", "bpe", "vocab", "max_len", "max_ratio", "character_coverage")
    tests = encode_all(
        args.raw_dir,
        args.out_dir,
        {name: getattr(args, name) for name in names},
        spm_model=args.spm_model,
        force=args.force,
        threads=args.workers,
    )
    return "\n".join(tests)


if __name__ == "__main__":
    sys.exit(main())
