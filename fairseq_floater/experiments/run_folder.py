"""Keep the record of a run (``run.json`` in its folder), and check whether a run may resume.

The record holds the settings, the arguments and update size of each stage begun, the number of
processes that trained last, whether the training is complete (``trained``), how the run ended
(``state``: done or failed, with the ``reason``), the ``command`` that makes this run alone, and its
``sessions``: when it ran, how long, where, and with which code and versions.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_floater.errors import ReportError
from fairseq_floater.experiments.argument_changes import BATCH_OPTIONS, Changes
from fairseq_floater.files import USER_DIR
from fairseq_floater.position_encoders.options import option_values
from fairseq_floater.records import NUMBER, RECORD, read_json, write_json
from fairseq_floater.requirements import cpu_name, versions

# What is made of a trained model.
MADE_OF_MODEL = ("average.json", "generate.*", "losses.*", "scores.*")
_REMOVE_THEM = "remove {}, {}, {} and {} there".format(*MADE_OF_MODEL)
# Stage -> prefix of its results. If the arguments of the stage change, all of these must be removed.
_RESULTS = {"generate": "generate", "score-reference": "losses"}
_SHAPE = {
    "arguments?": {...: [str]},
    "settings?": dict,
    "tokens?": dict,
    "made?": dict,
    "sessions?": [{"seconds": NUMBER}],
    "processes?": int,
}


@dataclass(frozen=True)
class RunFolder:
    """The record of one run."""

    path: Path  # the run's folder; it need not exist yet

    def format_text(self) -> str:
        return str(self.path / RECORD)

    def to_json_dict(self) -> dict[str, Any]:
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the record, with empty entries if none is written yet.

        Files of ``made`` that were removed, such as scores, are left out, and the run is no longer done.

        Raises:
            ReportError: the file is not JSON, or has another shape.
        """
        path = self.path / RECORD
        record = read_json(path, _SHAPE) if path.exists() else {}
        made = record.get("made", {})
        removed = [name for name in made if not (self.path / name).is_file()]
        for name in removed:
            del made[name]
        if removed and record.get("state") == "done":
            del record["state"]
        return {"arguments": {}, "settings": {}, "tokens": {}, **record}

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Yield the record for changes, then write it; locked, as two runs may change a donor's record."""
        handle = os.open(self.path / ".record.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            record = self.read()
            yield record
            write_json(self.path / RECORD, record, sort_keys=True)
        finally:
            os.close(handle)

    def check_same(
        self,
        stage: str,
        arguments: list[str],
        size: str | None = None,
        key: str = "tokens-per-update",
        *,
        may_end_later: bool = False,
    ) -> bool:
        """Check that a stage has the arguments that it was begun with; options of the machine may differ.

        Args:
            stage: one of :data:`fairseq_floater.experiments.stages.STAGES`.
            arguments: its arguments now.
            size: the size of an update, if the stage is a training.
            key: the key that sets ``size``. With ``batch``, the batch of one process may differ too.
            may_end_later: a training may get a later end, once what was made of its model is removed.

        Returns:
            Whether the training gets a later end.

        Raises:
            ReportError: an option has another value, or an update another size.
        """
        record = self.read()
        results = _RESULTS.get(stage)
        if stage not in record["arguments"] or (
            results is not None and not any(self.path.glob(f"{results}.*.txt"))
        ):
            return False
        begun_with = record["arguments"][stage]
        changes = Changes.between(begun_with, arguments, batch_may_differ=key == "batch")
        texts = changes.described()
        before = record["tokens"].get(stage, size)
        if size is not None and before != size:
            texts.append(f"{key} was {before} and is {size} now")
        elif may_end_later and changes.end_later():
            if not any(path for name in MADE_OF_MODEL for path in self.path.glob(name)):
                return True
            texts[-1] += f" (to train further, {_REMOVE_THEM})"
        if texts:
            scores = " and scores.*" if stage == "generate" else ""
            remove = f"{results}.*{scores} there" if results else str(self.path)
            raise ReportError(
                f"{self.path} was started with other arguments of {stage}: {'; '.join(texts)}. "
                f"Set back what has changed, use another --work, or remove {remove}."
            )
        return False

    def check_average(self, settings: Mapping[str, str]) -> None:
        """Raise ReportError unless the average is of the checkpoints that ``settings`` name."""
        made = self.read()["settings"]
        for key, value in settings.items():
            if made.get(key, value) != value:
                raise ReportError(
                    f"{self.path} was made with {key} {made[key]}, not {value}; use another --work, or "
                    f"{_REMOVE_THEM}."
                )

    def resume(self, stage: str, arguments: list[str], processes: int) -> str:
        """Check that a training can resume with ``processes``; return a sentence that says from where.

        fairseq counts the progress within an epoch in batches of each process. With another number of
        processes or another batch size, a training would repeat or skip parts of the epoch.

        Raises:
            CheckpointError: the last checkpoint was saved within an epoch, and with another number
                of processes or another batch size.
        """
        # These import torch, which takes seconds.
        from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
        from fairseq_floater.checkpoints.resume import repair_last

        sentence = repair_last(self.path / "checkpoints")
        record, now = self.read(), _batch(processes, arguments)
        before = _batch(
            record.get("processes", processes), record["arguments"].get(stage, arguments)
        )
        last = self.path / "checkpoints" / "checkpoint_last.pt"
        if before != now and last.is_file():
            progress = (load_checkpoint(last).get("extra_state") or {}).get("train_iterator") or {}
            if progress.get("iterations_in_epoch", 0):
                raise CheckpointError(
                    f"{last} was saved within epoch {progress.get('epoch')} by {before}, not {now}: continue "
                    f"with {before}, or replace the file with a checkpoint that ended an epoch."
                )
        return sentence


def _batch(processes: int, arguments: list[str]) -> str:
    """Return the batch of a training in words: ``2 processes of --max-tokens 2000``."""
    options = option_values(arguments)
    sizes = [f"{name} {options[name]}" for name in sorted(BATCH_OPTIONS & options.keys())]
    text = f"{processes} process" + "es" * (processes != 1)
    return " ".join([text, *(["of", *sizes] if sizes else [])])


# Other records that a run reads and writes.


@cache
def origin() -> dict[str, Any]:
    """Return the machine, the commit and the versions of this process, as they are at the first call."""
    command = ["git", "-C", str(USER_DIR), "describe", "--always", "--dirty", "--abbrev=40"]
    command += ["--exclude", "*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None  # no checkout, or no git
    cores = len(os.sched_getaffinity(0))
    machine = {"host": platform.node(), "processor": cpu_name(), "cores": cores}
    return {**machine, "commit": commit, "code": _code(), "versions": versions()}


def _code() -> str:
    """Return a checksum of this package's files and of those imported from FLOATER_USER_DIR."""
    files = {str(path.relative_to(USER_DIR)): path for path in USER_DIR.rglob("[!.]*.py")}
    if folder := os.environ.get("FLOATER_USER_DIR"):
        yours = Path(folder).absolute().name  # fairseq imports the folder by this name
        for name, module in [*sys.modules.items()]:
            if name.partition(".")[0] == yours and (file := getattr(module, "__file__", None)):
                files[name] = Path(file)
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with suppress(OSError):  # an editor may have removed it meanwhile
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def write_validation(log: Path, output: Path) -> dict[str, Any]:
    """Write the losses that fairseq-validate printed last in ``log`` as JSON, and return them.

    Raises:
        ReportError: the log holds no validation.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = re.findall(r"valid on '(\S+)' subset \| (loss .+)", text)
    if not lines:
        raise ReportError(f"{log} holds no result of fairseq-validate; see the end of the file.")
    subset, fields = lines[-1]
    pairs = (field.split(" ", 1) for field in fields.split(" | "))
    losses = {"subset": subset, **{name: float(value) for name, value in pairs}}
    write_json(output, losses)
    return losses


def check_data(
    folder: Path, settings: Mapping[str, str], cleaning: Mapping[str, Any], *, rehearsal: bool
) -> None:
    """Check that data match a run's ``settings``. In a rehearsal, WMT14's data must be a stand-in's.

    ``cleaning`` has the parameters of ``floater prepare`` that the configuration sets, if it made the data.

    Raises:
        ReportError: other languages, subwords, vocabulary or cleaning; or another pair or kind of WMT14's
            data.
    """
    made = read_json(folder / "summary.json", {"parameters?": dict}).get("parameters", {})
    names = (("src", "source"), ("tgt", "target"), ("bpe", "bpe"), ("vocab", "vocab"))
    for parameter, key in names:
        # A vocabulary of None means a ready subword model, as in short-to-long.
        value = made.get(parameter)
        if value is not None and str(value) != settings[key]:
            raise ReportError(
                f"{folder} was made with {parameter} {value}, not {settings[key] or 'a given model'}."
            )
    for parameter, wanted in cleaning.items():
        if wanted is not None and made.get(parameter, wanted) != wanted:
            raise ReportError(
                f"{folder} was made with {parameter} {made[parameter]}, not {wanted}: pass --raw with "
                f"another --work, or remove {folder}."
            )
    if settings["wmt14"]:
        recipe = read_json(folder / "wmt14.json", {"pair": str, "rehearsal": bool})
        if recipe["pair"] != settings["wmt14"] or recipe["rehearsal"] != rehearsal:
            kind = "a rehearsal's" if recipe["rehearsal"] else "WMT14's"
            raise ReportError(f"{folder} holds {kind} {recipe['pair']}, not the data of this run.")
