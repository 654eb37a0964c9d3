"""Compare the arguments of a training or a search with those that it was begun with."""

from __future__ import annotations

import os
from typing import NamedTuple, Self

from fairseq_floater.position_encoders.options import option_values

# Options that set the batch of one process.
BATCH_OPTIONS = {"--batch-size", "--max-tokens"}
# Options that follow from the machine, its GPUs and their memory.
_MACHINE_OPTIONS = {
    "--user-dir",  # where the checkout lies
    "--finetune-from-model",  # `check_start` compares the file's bytes
    "--max-tokens",
    "--update-freq",
    "--ddp-backend",
    "--cpu",
    "--fp16",
    "--load-checkpoint-on-all-dp-ranks",
    "--distributed-world-size",
    "--distributed-init-method",
    "--distributed-backend",
    "--distributed-no-spawn",
    "--find-unused-parameters",
    "--log-interval",
    "--log-format",
    "--num-workers",
}
_DATA = ""  # the words before the first option
_FOLDERS = {_DATA, "--save-dir"}
# Options that end a training, and that may change with them. With these schedules the learning rate does not
# depend on the end.
_ENDS = {"--max-epoch", "--max-update"}
_SAVING = {"--save-interval", "--save-interval-updates", "--keep-last-epochs"}
_SCHEDULES = {"fixed", "inverse_sqrt"}


class Changes(NamedTuple):
    """The options that differ, and all options before and now."""

    names: list[str]
    old: dict[str, str]
    new: dict[str, str]

    @classmethod
    def between(cls, before: list[str], now: list[str], *, batch_may_differ: bool) -> Self:
        """Compare two lists of arguments; options of the machine may differ."""
        old, new = option_values(before), option_values(now)
        may_differ = _MACHINE_OPTIONS | (BATCH_OPTIONS if batch_may_differ else set())
        may_differ = may_differ | _same_folders(old, new)
        names = [
            name
            for name in {**old, **new}
            if name not in may_differ and not _equal(old.get(name), new.get(name))
        ]
        return cls(names, old, new)

    def described(self) -> list[str]:
        return [
            f"{name or 'the data folder'} was {_value(self.old, name)} and is {_value(self.new, name)} now"
            for name in self.names
        ]

    def end_later(self) -> bool:
        """Return whether the changes do nothing but let a training end at a later update."""
        ends = _ENDS.intersection(self.names)
        if not ends or not ends.union(_SAVING).issuperset(self.names):
            return False
        if self.new.get("--lr-scheduler") not in _SCHEDULES:
            return False
        return all(float(self.old.get(n, "inf")) < float(self.new.get(n, "inf")) for n in ends)


def _same_folders(old: dict[str, str], new: dict[str, str]) -> set[str]:
    """Return the options whose paths, seen from the run's folder, are the same in both.

    A stage without ``--save-dir`` names only the data folder, which was checked for the training.
    """
    if "--save-dir" not in old or "--save-dir" not in new:
        return {_DATA}
    seen_before, seen_now = (
        {
            name: os.path.relpath(options[name], options["--save-dir"])
            for name in _FOLDERS & options.keys()
        }
        for options in (old, new)
    )
    return {name for name, path in seen_before.items() if seen_now.get(name) == path}


def _equal(old: str | None, new: str | None) -> bool:
    try:  # 1e-7 is 1e-07
        return old == new or float(old or "") == float(new or "")
    except ValueError:
        return False


def _value(arguments: dict[str, str], name: str) -> str:
    return (arguments[name] or "given") if name in arguments else "not given"
