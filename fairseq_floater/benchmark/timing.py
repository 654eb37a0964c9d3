"""Time contestants side by side, and compare their times.

Machines change speed while they run (other work, clock rates), so a contestant is compared with the
baseline of the same round, never with another run's, and the order of turns changes every round.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def side_by_side(
    contestants: Mapping[str, Callable[[int], object]],
    rounds: int,
    *,
    warm_up: int,
    seed: int,
    synchronize: Callable[[], object] = lambda: None,
    progress: Callable[[str], object] = lambda message: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return every contestant's time in each round, in seconds.

    Args:
        contestants: called with the number of the round, from 0; the work of a round is the same
            for all.
        rounds: that count.
        warm_up: rounds before these: a rehearsal of the first ones, from number 0 as well.
        seed: of the order of turns, which is drawn anew for each round.
        synchronize: waits for the device, before and after each turn.
    """
    order, turns = list(contestants), random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    with _no_garbage_collection():
        for number in range(-warm_up, rounds):
            gc.collect()  # what the last round left behind
            turns.shuffle(order)
            for name in order:
                synchronize()
                start = clock()
                contestants[name](number if number >= 0 else number + warm_up)
                synchronize()
                elapsed = clock() - start
                if number >= 0:
                    times[name].append(elapsed)
            if number >= 0:
                last = ", ".join(f"{name} {found[-1]:.3g} s" for name, found in times.items())
                progress(f"round {number + 1} of {rounds}: {last}")
            else:
                progress(f"warm-up, {-number} to go")
    return times


def comparison(
    times: Sequence[float], baseline: Sequence[float], block: int = 1
) -> dict[str, float | int]:
    """Compare a contestant's times with the baseline's of the same rounds.

    Where the work of a contestant differs from round to round in a cycle (one solve every K
    updates), ``block`` is a multiple of that cycle: rounds are summed in blocks of this many
    first, so that every ratio is of whole cycles.

    Returns:
        ``ratio`` with its quartiles ``ratio_low`` and ``ratio_high`` over rounds or blocks,
        ``ratio_of_totals`` (all rounds in one), ``seconds`` (the median, of one round), ``rounds``
        and ``block``.
    """
    own, other = _block_sums(times, block), _block_sums(baseline, block)
    ratio = Spread.of([a / b for a, b in zip(own, other)])
    return {
        "ratio": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "ratio_of_totals": sum(times) / sum(baseline),
        "seconds": statistics.median(own) / block,
        "rounds": len(times),
        "block": block,
    }


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Fit the slope of log time over log size: 1 where time is proportional to size."""
    fit: Any = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(time) for time in times]
    )
    return float(fit.slope)


def _block_sums(values: Sequence[float], block: int) -> list[float]:
    if not values or len(values) % block:
        raise ValueError(f"{len(values)} rounds are no whole blocks of {block}.")
    return [sum(values[i : i + block]) for i in range(0, len(values), block)]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn collection off but for explicit calls, which skip what is there already, and so are quick."""
    was_on = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
