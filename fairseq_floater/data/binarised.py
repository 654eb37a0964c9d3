"""What `fairseq-preprocess` made of prepared text: checked, put in place, and summed up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.files import file_hash, put_folder, read_json, write_text

MANIFEST = "prepare.json"


def finish(out_dir: Path) -> dict[str, Any]:
    """Check the binarised data against the text, put it in place, write and return the summary.

    Raises:
        TextDataError: lines are missing, or a record of an earlier step is damaged.
    """
    try:
        summary = _checked_summary(out_dir)
        summary_table(summary)  # what cannot be shown was not recorded here
    except (LookupError, TypeError, AttributeError, ValueError):
        raise TextDataError(
            f"The records in {out_dir} are damaged; make it again with --force."
        ) from None
    write_text(out_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _checked_summary(out_dir: Path) -> dict[str, Any]:
    manifest = read_record(out_dir / MANIFEST)
    kind = SEGMENTATIONS[manifest["parameters"]["bpe"]]
    counts = read_record(out_dir / kind.folder / "counts.json")
    subsets = {"train": "train", "valid": "valid", **read_record(out_dir / "tests.json")}
    if not (out_dir / "bin").is_dir():
        pair = (manifest["parameters"]["src"], manifest["parameters"]["tgt"])
        for split, subset in subsets.items():
            for lang in pair:
                name = f"{subset}.{'-'.join(pair)}.{lang}"
                _check_binary(out_dir / ".bin.tmp" / name, counts[split]["kept"])
        put_folder(out_dir / ".bin.tmp", out_dir / "bin")
    dictionary = (out_dir / "dict.txt").read_text(encoding="utf-8")
    return {
        "parameters": manifest["parameters"],
        "dictionary": dictionary.count("\n"),
        "splits": {s: {"subset": subset, **counts[s]} for s, subset in subsets.items()},
        "sha256": {name: file_hash(out_dir / name) for name in (kind.model, "dict.txt")},
        **{package: version(package) for package in kind.packages},
    }


def summary_table(summary: dict[str, Any]) -> str:
    """The counts of :func:`finish` for a person."""
    src, tgt = summary["parameters"]["src"], summary["parameters"]["tgt"]
    columns = ("pairs", "empty", "too long", "ratio", f"{src} subwords", f"{tgt} subwords")
    lines = [f"{'split':<14}{'subset':<8}" + "".join(f"{c:>14}" for c in columns)]
    for split, counts in summary["splits"].items():
        values = [counts["kept"], *counts["dropped"].values(), *counts["subwords"].values()]
        row = "".join(f"{value:>14,}" for value in values)
        lines.append(f"{split:<14}{counts['subset']:<8}{row}")
        if counts["empty_kept"]:
            lines.append(f"  {counts['empty_kept']:,} of them with an empty side, kept for scoring")
    lines.append(f"dictionary: {summary['dictionary']:,} entries, shared by both languages")
    return "\n".join(lines)


def _check_binary(prefix: Path, lines: int) -> None:
    with _quiet_destructors():
        found = _sentences(prefix)
    if isinstance(found, str):
        raise TextDataError(f"{prefix} is no binarised text ({found}); run again.")
    if found != lines:
        raise TextDataError(
            f"fairseq-preprocess wrote {found:,} sentences to {prefix}, but the text has "
            f"{lines:,}; run again with --workers 1."
        )


def _sentences(prefix: Path) -> int | str:
    """How many there are, or why that cannot be told."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    try:
        return len(MMapIndexedDataset(str(prefix)))
    except Exception as error:  # fairseq asserts, unpacks and maps whatever is there
        return str(error)


@contextmanager
def _quiet_destructors() -> Iterator[None]:
    """fairseq's data sets, where they could not be opened, fail once more when they are closed."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def read_record(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def damaged(path: Path) -> TextDataError:
    return TextDataError(f"{path} is damaged; choose another OUT_DIR or add --force.")
