"""Run `fairseq-preprocess` on prepared text; check its output, put it in place and sum it up."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.products import PreparedFolder
from fairseq_floater.data.subwords import SEGMENTATIONS, WORDS
from fairseq_floater.errors import say
from fairseq_floater.files import file_hash, put_folder
from fairseq_floater.records import read_json, write_json

MANIFEST = "prepare.json"


def binarise_command(
    out_dir: Path, parameters: dict[str, Any], tests: list[str], workers: int
) -> list[str]:
    """Return the command line of `fairseq-preprocess`."""
    text = out_dir / SEGMENTATIONS[parameters["bpe"]].folder
    command = [sys.executable, "-m", "fairseq_cli.preprocess"]
    command += ["--source-lang", parameters["src"], "--target-lang", parameters["tgt"]]
    command += ["--trainpref", str(text / "train"), "--validpref", str(text / "valid")]
    if tests:
        command += ["--testpref", ",".join(str(text / name) for name in tests)]
    if "separate_dictionaries" not in parameters:  # else fairseq makes one for each side
        command += ["--srcdict", str(out_dir / "dict.txt"), "--joined-dictionary"]
    return [*command, "--destdir", str(out_dir / ".bin.tmp"), "--workers", str(workers)]


def binarise(out_dir: Path, command: list[str]) -> None:
    """Run ``command``, unless its result exists; the log of its output is kept only if it fails."""
    if (out_dir / "bin").is_dir():
        say(f"{out_dir / 'bin'} exists already: skipped.")
        return
    log = out_dir / "binarise.log"
    say(f"+ {shlex.join(command)}")
    signals: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    # The command inherits the locks of the scripts: it may outlive a parent that is killed.
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, close_fds=False) as child,
    ):
        while child.poll() is None:
            if signals:
                child.terminate()
            time.sleep(0.1)
    signal.signal(signal.SIGTERM, previous)
    if signals:
        sys.exit(143)
    if child.returncode != 0:
        raise TextDataError(f"Binarising failed; see the end of {log}.")
    log.unlink()


def finish(out_dir: Path) -> dict[str, Any]:
    """Check the binarised data against the text, put it in place, write and return the summary."""
    parameters = read_json(out_dir / MANIFEST, {"parameters": dict})["parameters"]
    kind, langs = SEGMENTATIONS[parameters["bpe"]], (parameters["src"], parameters["tgt"])
    counts = read_json(out_dir / kind.folder / "counts.json", dict)
    subsets = {"train": "train", "valid": "valid", **read_json(out_dir / "tests.json", dict)}
    if not (out_dir / "bin").is_dir():
        for split, subset in subsets.items():
            for lang in langs:
                prefix = out_dir / ".bin.tmp" / f"{subset}.{'-'.join(langs)}.{lang}"
                _check_binary(prefix, counts[split]["kept"])
        put_folder(out_dir / ".bin.tmp", out_dir / "bin")
    dictionary = (out_dir / "dict.txt").read_text(encoding="utf-8")
    summary = {
        "parameters": parameters,
        "dictionary": dictionary.count("\n"),
        "splits": {s: {"subset": subset, **counts[s]} for s, subset in subsets.items()},
        "sha256": {name: file_hash(out_dir / name) for name in (kind.model, "dict.txt")},
        **{package: version(package) for package in kind.packages},
    }
    write_json(out_dir / "summary.json", summary)
    return summary


def _check_binary(prefix: Path, lines: int) -> None:
    from fairseq.data.indexed_dataset import MMapIndexedDataset  # slow to import

    sentences = len(MMapIndexedDataset(str(prefix)))
    if sentences != lines:
        raise TextDataError(
            f"fairseq-preprocess wrote {sentences:,} sentences to {prefix}, but the text has "
            f"{lines:,}; run again with --workers 1."
        )


class PreparedText(PreparedFolder):
    """A folder of binarised parallel text and its summary."""

    def format_text(self) -> str:
        src, tgt = self.summary["parameters"]["src"], self.summary["parameters"]["tgt"]
        unit = "words" if self.summary["parameters"]["bpe"] == WORDS else "subwords"
        columns = ("pairs", "empty", "too long", "ratio", f"{src} {unit}", f"{tgt} {unit}")
        lines = [f"{'split':<14}{'subset':<8}" + "".join(f" {c:>13}" for c in columns)]
        for split, counts in self.summary["splits"].items():
            values = [counts["kept"], *counts["dropped"].values(), *counts["subwords"].values()]
            row = "".join(f" {value:>13,}" for value in values)
            lines.append(f"{split:<14}{counts['subset']:<8}{row}")
            if kept := counts["empty_kept"]:
                lines.append(f"  {kept:,} of these pairs with an empty side, kept for scoring")
        use = f"{self.summary['dictionary']:,} entries, shared by both languages"
        if "separate_dictionaries" in self.summary["parameters"]:
            use = "one for each language"
        return "\n".join([*lines, f"dictionary: {use}"])
