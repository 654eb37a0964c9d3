"""Measure contestants in turn beside fairseq's Transformer, a few at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from fairseq.data import Dictionary

from benchmarks import batches
from benchmarks.contestants import Contestant
from benchmarks.floor import Floor, measure_floor
from benchmarks.records import Records
from benchmarks.settings import Settings
from benchmarks.timing import Row, Turn, comparison, side_by_side
from fairseq_floater.checkpoints.dictionaries import placeholder_dictionary
from fairseq_floater.errors import UserError, one_line

Subject = TypeVar("Subject")
# Rounds that do not count, after a first turn of each contestant alone. On a GPU, libraries and the
# allocator thus meet every shape twice before the measurement.
WARM_UP = {"cpu": 0, "cuda": 2 * len(batches.PLACES)}


class Bench:
    """Hold what all parts share: settings, contestants with the baseline first, and records.

    Attributes:
        contestants: those that are trained; ``translating``: those that translate.
        failures: ``part``, ``contestant`` and ``reason`` of those that could not be measured.
    """

    def __init__(
        self,
        settings: Settings,
        contestants: Sequence[Contestant],
        progress: Callable[[str], object],
        records: Records | None = None,
    ):
        self.settings = settings
        self.contestants = [c for c in contestants if not c.translates_only]
        self.translating = [c for c in contestants if not c.trains_only]
        self.progress = progress
        self.records = Records({}) if records is None else records
        self.failures: list[Row] = []

    @cached_property
    def floor(self) -> Floor:
        """The machine's rates, measured once for all rows of the records."""
        if not (kept := self.records.find("floor", {})):
            floor = measure_floor(self.settings, getattr(torch, self.settings.dtype))
            self.records.add("floor", {}, "machine", **floor._asdict())
            return floor
        return Floor(kept[0]["bandwidth"], kept[0]["peak"])

    @property
    def dictionary(self) -> Dictionary:
        """The dictionary of all parts that use one vocabulary only."""
        return placeholder_dictionary(self.settings.vocabulary[-1])

    def timed(self, turns: Mapping[str, Turn], rounds: int) -> dict[str, list[float]]:
        """Time the turns side by side. Return the seconds of each round, by name of the turn."""
        on_gpu = self.settings.device == "cuda"
        return side_by_side(
            turns,
            rounds,
            warm_up=WARM_UP[self.settings.device],
            seed=self.settings.seed,
            synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
        )

    def groups(
        self,
        part: str,
        places: Sequence[Row],
        contestants: Sequence[Contestant],
        make: Callable[[Contestant], Subject],
    ) -> Iterator[dict[str, Subject]]:
        """Yield groups of subjects: the baseline's, made once, and ``together`` others at a time.

        Only contestants that lack a record in some place are made. Each group is emptied before the next
        is made, so that their models are not held in memory all at once.
        """
        left = [
            c
            for c in contestants[1:]
            if not all(self.records.find(part, p, c.name) for p in places)
        ]
        baseline = make(contestants[0]) if left else None
        for start in range(0, len(left), self.settings.together):
            made = {contestants[0].name: baseline}
            for c in left[start : start + self.settings.together]:
                made[c.name] = self.attempt(part, c.name, partial(make, c))
            yield (group := {name: one for name, one in made.items() if one is not None})
            made.clear()
            group.clear()
            gc.collect()  # models contain reference cycles

    def attempt(self, part: str, name: str, work: Callable[[], Any]) -> Any:
        """Return the result of ``work``, True for None; if it fails, note the failure and return None."""
        try:
            result = work()
            return True if result is None else result
        # A full GPU is a RuntimeError, a position out of range a FloatingPointError.
        except (RuntimeError, ValueError, FloatingPointError, UserError) as error:
            reason = one_line(error)
            self.failures.append({"part": part, "contestant": name, "reason": reason})
            self.progress(f"{part}, {name}: FAILED: {reason}")
            return None

    def race(
        self,
        part: str,
        where: Row,
        turns: Mapping[str, Turn],
        rounds: int,
        *,
        floors: Callable[[int], float],
        blocks: Mapping[str, int] | None = None,
        about: Mapping[str, Row] | None = None,
    ) -> None:
        """Time contestants beside the baseline and put the times on record.

        Args:
            part, where: what is measured.
            turns: by contestant, the baseline first.
            rounds: a multiple of every block.
            floors: returns the least seconds that a round's work takes, by number of the round.
            blocks: rounds that are compared as one, by contestant; 1 by default.
            about: further entries of a contestant's row.
        """
        baseline, *others = turns
        label = ", ".join([part, *(f"{key} {value:,}" for key, value in where.items())])

        turns[baseline](0)
        running = {
            name: turns[name]
            for name in others
            if not self.records.find(part, where, name)
            and self.attempt(label, name, partial(turns[name], 0))
        }
        if not running:
            return
        times = self.timed({baseline: turns[baseline], **running}, rounds)
        least = [floors(number) for number in range(rounds)]
        for name, measured in times.items():
            block = (blocks or {}).get(name, 1)
            kept = {"times": measured, "baseline": times[baseline], "floors": least, "block": block}
            self.records.add(part, where, name, **kept, about=(about or {}).get(name, {}))
            if name != baseline:
                row = comparison(measured, times[baseline], block)
                self.progress(f"{label}, {name}: {row['ratio']:.3f} beside {baseline}'s")

    def rows(self, part: str, where: Row, contestants: Sequence[Contestant]) -> list[Row]:
        """Compare what is on record: a row for each contestant, the baseline (ratio 1) first.

        If contestants ran in several groups, the baseline's row covers all its rounds.
        """
        rows = []
        for contestant in contestants:
            kept = self.records.find(part, where, contestant.name)
            if not kept:
                continue
            block = kept[0]["block"]
            measured, baseline, floors = (
                [value for row in kept for value in row[key]]
                for key in ("times", "baseline", "floors")
            )
            compared = comparison(measured, baseline, block)
            compared["floor_ratio"] = comparison(measured, floors, block)["ratio"]
            rows.append({**where, "contestant": contestant.name, **compared, **kept[0]["about"]})
        return rows if len(rows) > 1 else []
