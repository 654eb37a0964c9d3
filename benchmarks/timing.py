"""Time contestants side by side, and compare their times.

Machines change speed while they run (other work, clock rates), so a contestant is compared with the
baseline of the same round, never with another run's, and the order of turns changes every round.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Called with the number of the round, from 0; the work of a round is the same for all.
Turn = Callable[[int], object]
Row = dict[str, Any]


def side_by_side(
    turns: Mapping[str, Turn],
    rounds: int,
    *,
    warm_up: int,
    seed: int,
    synchronize: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return every contestant's time in each round, in seconds.

    Args:
        turns: by contestant.
        rounds: that count.
        warm_up: rounds before these, which do not count; they are numbered from 0, too.
        seed: of the order of turns, which is drawn anew for each round.
        synchronize: waits for the device, before and after each turn.
        clock: in seconds.
    """
    order, generator = list(turns), random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in turns}
    gc.disable()
    try:
        for number in range(-warm_up, rounds):
            gc.collect()  # what the last round left behind
            generator.shuffle(order)
            for name in order:
                synchronize()
                start = clock()
                turns[name](number if number >= 0 else number + warm_up)
                synchronize()
                elapsed = clock() - start
                if number >= 0:
                    times[name].append(elapsed)
    finally:
        gc.enable()
    return times


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def summary(times: Sequence[float]) -> Row:
    """Return ``seconds``, the median, with its quartiles, and the number of ``rounds``."""
    low, median, high = quartiles(times)
    return {"seconds": median, "seconds_low": low, "seconds_high": high, "rounds": len(times)}


def comparison(times: Sequence[float], baseline: Sequence[float], block: int = 1) -> Row:
    """Compare a contestant's times with the baseline's of the same rounds.

    If the work of a contestant differs from round to round in a cycle (one solve every K updates),
    ``block`` is a multiple of that cycle. Rounds are first summed in blocks of this many, so that every
    ratio is of whole cycles.

    Returns:
        ``ratio`` with its quartiles ``ratio_low`` and ``ratio_high`` over rounds or blocks,
        ``ratio_of_totals`` (all rounds in one), ``seconds`` (the median, of one round), ``rounds``
        and ``block``.
    """
    sums, other = _block_sums(times, block), _block_sums(baseline, block)
    low, median, high = quartiles([a / b for a, b in zip(sums, other)])
    return {
        "ratio": median,
        "ratio_low": low,
        "ratio_high": high,
        "ratio_of_totals": sum(times) / sum(baseline),
        "seconds": statistics.median(sums) / block,
        "rounds": len(times),
        "block": block,
    }


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Fit the slope of log time over log size: 1 if time is proportional to size."""
    return statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, times)]).slope


def _block_sums(values: Sequence[float], block: int) -> list[float]:
    if not values or len(values) % block:
        raise ValueError(f"{len(values)} rounds cannot be split into blocks of {block}.")
    return [sum(values[i : i + block]) for i in range(0, len(values), block)]
