"""Run a training to its end, from its last whole checkpoint on, and keep the record of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_floater.experiments.hardware import Machines, starter
from fairseq_floater.experiments.job import Job, python
from fairseq_floater.experiments.launch import CommandError, StoppedError
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.screen import TrainingLine


@dataclass(frozen=True)
class Training:
    """A training of a job.

    Args:
        stage: its name in the record.
        path: its folder; that of the job, or of a donor.
        arguments: fairseq-train's.
        size: of an update, in tokens or examples.
        size_in_words: the same, and what makes it.
        notes: further entries of the record, such as the run's settings.
        counts: the key of the configuration that ``size`` is of.
        expected: the recipe's updates an epoch, said beside the data's; None where it has none.
    """

    stage: str
    path: Path
    arguments: list[str]
    size: str
    size_in_words: str
    notes: dict[str, Any]
    counts: str = "tokens-per-update"
    expected: float | None = None

    def name(self, job: Job) -> str:
        return job.title if self.path == job.path else self.path.name


def train(job: Job, training: Training, machines: Machines) -> None:
    """Train until fairseq is done; go on from the last whole checkpoint.

    Raises:
        ReportError: it was begun with other arguments.
        StoppedError: it was told to stop, and has saved.
        UserError: it failed, or its disk was lost.
    """
    folder, path, name = RunFolder(training.path), training.path, training.name(job)
    command: list[Any] = starter(path.name, machines)
    command += python("fairseq_cli.train", *training.arguments)
    if job.launcher.dry_run:
        job.command(command)
        return
    path.mkdir(parents=True, exist_ok=True)
    folder.check_same(training.stage, training.arguments, training.size, training.counts)
    if folder.read().get("trained"):
        job.launcher.say(f"{name}: trained already")
        return
    whence = folder.resume(training.stage, training.arguments, machines.world)
    job.launcher.say(f"{name}: {whence}")
    _begin(folder, training, machines)
    job.launcher.say(f"{name}: training, {training.size_in_words}; log in {path / 'train.log'}")
    updates = _watch(job, training, command)
    job.locks.check_same_disk()
    with folder.changing() as record:
        record["trained"] = True
        record["updates_an_epoch"] = updates or record.get("updates_an_epoch")


def _begin(folder: RunFolder, training: Training, machines: Machines) -> None:
    with folder.changing() as record:
        record["arguments"][training.stage] = training.arguments
        record["tokens"][training.stage] = training.size
        record["processes"] = machines.world
        record |= training.notes
    # Left by an earlier stop: a failure before the first update must not be taken for one.
    (folder.path / "checkpoints" / "stopped").unlink(missing_ok=True)


def _watch(job: Job, training: Training, command: list[Any]) -> int | None:
    """Run a training with its progress on the screen; return its updates an epoch, as far as it says."""
    name, path = training.name(job), training.path
    line = TrainingLine(job.launcher.screen, name, training.arguments, training.expected)
    failure = None
    try:
        job.command(command, name=name, log=path / "train.log", line=line)
    except CommandError as error:
        failure = error
    finally:
        line.close()
    # First: torchrun fails where its processes were told to stop, and did so well.
    if (path / "checkpoints" / "stopped").is_file():
        job.launcher.say(f"{name}: told to stop, and saved; run the same command to go on.")
        raise StoppedError
    if failure is not None:
        raise failure
    return line.updates_an_epoch
