"""Read a run's logs: the validation loss by update, speed, and every command."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import duration

# Lines of fairseq's `--log-format simple`. A plain cross-entropy logs `loss`, but no `nll_loss`.
_VALID = re.compile(
    r"\| INFO \| valid \| .*?\|(?:.*\bnll_loss| loss) ([\d.]+) .*\| num_updates (\d+)"
)
_EPOCH = re.compile(r"\| INFO \| train \| epoch .*\| wps ([\d.]+) ")
_FREE = re.compile(r"\bgb_free[ =]([\d.]+)")
_TRANSLATED = re.compile(r"Translated [\d,]+ sentences .*\(([\d.]+) sentences/s")
_SESSION = "{begun}: {took} on {host} ({processor}, {cores} cores), commit {commit}"


@dataclass
class RunLog:
    """The content of a run's logs.

    Attributes:
        losses: validation loss in bits per token, by update.
        words_per_second: target tokens a second in training, the median over epochs.
        sentences_per_second: in translation of the first test set.
        free_memory: the least free memory of the GPU, in GiB; None on a CPU.
        commands: the one that makes this run alone, if it is recorded, and all as they were run.
        sessions: when, how long, where and from which commit the run was made.
        versions: for each session, the version of each package that affects results.
    """

    losses: dict[int, float] = field(default_factory=dict)
    words_per_second: float | None = None
    sentences_per_second: float | None = None
    free_memory: float | None = None
    commands: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    versions: list[dict[str, str]] = field(default_factory=list)


def read_log(folder: Path) -> RunLog:
    """Read the logs of a run; fields that no log has stay empty."""
    train, record = _text(folder / "train.log"), RunFolder(folder).read()
    log = RunLog({int(updates): float(loss) for loss, updates in _VALID.findall(train)})
    if speeds := [float(wps) for wps in _EPOCH.findall(train)]:
        log.words_per_second = statistics.median(speeds)
    log.free_memory = min((float(gib) for gib in _FREE.findall(train)), default=None)
    logs = sorted(folder.glob("generate.*.log"), key=lambda path: (len(path.name), path.name))
    if logs and (speed := _TRANSLATED.search(_text(logs[0]))):
        log.sentences_per_second = float(speed[1])
    whole = [record["command"]] if "command" in record else []
    log.commands = [*whole, *read_commands(folder)]
    for session in record.get("sessions", []):
        commit = session["commit"] or "unknown"
        parts = {**session, "took": duration(session["seconds"]), "commit": commit}
        log.sessions.append(_SESSION.format(**parts))
        log.versions.append(session["versions"])
    return log


def read_commands(folder: Path) -> list[str]:
    """Return the commands of all logs in a folder, oldest log first."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
    lines = (line for log in logs for line in _text(log).splitlines() if line.startswith("+ "))
    return list(dict.fromkeys(line.removeprefix("+ ") for line in lines))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
