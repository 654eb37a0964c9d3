"""Run `fairseq-preprocess` on prepared text; check its output, put it in place and sum it up."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from fairseq_floater.data.parallel_text import TextDataError, say
from fairseq_floater.data.subwords import SEGMENTATIONS
from fairseq_floater.files import file_hash, put_folder, write_text
from fairseq_floater.records import read_json

MANIFEST = "prepare.json"


def binarise_command(
    out_dir: Path, parameters: dict[str, Any], tests: list[str], workers: int
) -> list[str]:
    """Return the command line of `fairseq-preprocess`.

    Args:
        out_dir: the folder of the encoded text and its dictionary.
        parameters: ``src``, ``tgt`` and ``bpe`` of the data.
        tests: the test splits, in the order in which fairseq is to number them.
        workers: processes.
    """
    text = out_dir / SEGMENTATIONS[parameters["bpe"]].folder
    command = [sys.executable, "-m", "fairseq_cli.preprocess"]
    command += ["--source-lang", parameters["src"], "--target-lang", parameters["tgt"]]
    command += ["--trainpref", str(text / "train"), "--validpref", str(text / "valid")]
    if tests:
        command += ["--testpref", ",".join(str(text / name) for name in tests)]
    command += ["--srcdict", str(out_dir / "dict.txt"), "--joined-dictionary"]
    return [*command, "--destdir", str(out_dir / ".bin.tmp"), "--workers", str(workers)]


def binarise(out_dir: Path, command: list[str]) -> None:
    """Run ``command``, unless its result is there, with its output in a log that stays if it fails.

    Raises:
        TextDataError: it failed.
    """
    if (out_dir / "bin").is_dir():
        say(f"{out_dir / 'bin'} is there already: skipped.")
        return
    log = out_dir / "binarise.log"
    say(f"+ {shlex.join(command)}")
    with log.open("wb") as output:
        status = _run_stoppable(command, output)
    if status != 0:
        raise TextDataError(f"Binarising failed; see the end of {log}.")
    log.unlink()


def _run_stoppable(command: list[str], output: IO[bytes]) -> int:
    """Return the exit code of ``command``; a SIGTERM of this process ends the command first."""
    children: list[subprocess.Popen[bytes]] = []
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        for child in children:
            child.terminate()

    previous = signal.signal(signal.SIGTERM, stop)
    # The child inherits the locks of the scripts: it may outlive a parent that is killed.
    with subprocess.Popen(command, stdout=output, stderr=output, close_fds=False) as child:
        children.append(child)
        if stopped:  # before the child was known
            child.terminate()
        status = child.wait()
    signal.signal(signal.SIGTERM, previous)
    if stopped:
        sys.exit(143)
    return status


def finish(out_dir: Path) -> dict[str, Any]:
    """Check the binarised data against the text, put it in place, write and return the summary.

    Raises:
        TextDataError: lines are missing, or a record of an earlier step is damaged.
    """
    try:
        summary = _checked_summary(out_dir)
        summary_table(summary)  # a record that cannot be shown was not written here
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
    """Format the counts of :func:`finish` for a person."""
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
    """Return the number of sentences, or the reason why they cannot be read."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    try:
        return len(MMapIndexedDataset(str(prefix)))
    except Exception as error:  # fairseq asserts, unpacks and maps whatever is there
        return str(error)


@contextmanager
def _quiet_destructors() -> Iterator[None]:
    """Silence the destructors of fairseq's data sets, which fail if the files could not be opened."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def read_record(path: Path) -> dict[str, Any]:
    """Return the content of a JSON record of an earlier step; refuse a damaged one."""
    try:
        content = read_json(path)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def damaged(path: Path) -> TextDataError:
    """Return the error that reports a damaged record."""
    return TextDataError(f"{path} is damaged; choose another OUT_DIR or add --force.")
