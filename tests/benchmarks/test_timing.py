import gc

import pytest

from benchmarks.summary import format_seconds
from benchmarks.timing import comparison, exponent, quartiles, side_by_side


class Race:
    """A race on a simulated clock; ``costs`` gives the duration of each turn."""

    def __init__(self, costs):
        self.now, self.turns, self.collecting = 0.0, [], []
        self.contestants = {name: self.contestant(name, cost) for name, cost in costs.items()}

    def contestant(self, name, cost):
        def turn(number):
            self.turns.append((name, number))
            self.collecting.append(gc.isenabled())
            self.now += cost(number)

        return turn

    def run(self, rounds=6, warm_up=2, seed=1):
        return side_by_side(
            self.contestants, rounds, warm_up=warm_up, seed=seed, clock=lambda: self.now
        )


def costs():
    return {"a": lambda number: 1.0 + number, "b": lambda number: 3.0, "c": lambda number: 0.5}


def test_every_contestant_has_one_turn_a_round_in_an_order_drawn_anew():
    race = Race(costs())
    times = race.run()
    assert times == {"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "b": [3.0] * 6, "c": [0.5] * 6}
    rounds = [race.turns[i : i + 3] for i in range(0, len(race.turns), 3)]
    assert [{number for _, number in turns} for turns in rounds] == [{0}, {1}] + [
        {number} for number in range(6)
    ]
    orders = ["".join(name for name, _ in turns) for turns in rounds]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 2
    again, other = Race(costs()), Race(costs())
    again.run()
    other.run(seed=2)
    assert again.turns == race.turns != other.turns


def test_garbage_is_not_collected_during_a_turn():
    race = Race(costs())
    race.run(rounds=1)
    assert not any(race.collecting)
    assert gc.isenabled()


def test_the_device_is_waited_for_before_and_after_each_turn():
    events = []
    side_by_side(
        {"a": lambda number: events.append("work")},
        2,
        warm_up=1,
        seed=1,
        synchronize=lambda: events.append("wait"),
    )
    assert events == ["wait", "work", "wait"] * 3


def test_a_ratio_is_of_the_same_round():
    compared = comparison([2.0, 6.0, 3.0, 40.0], [1.0, 2.0, 3.0, 10.0])
    assert compared["ratio"] == pytest.approx(2.5)  # the median of 2, 3, 1, 4
    assert (compared["ratio_low"], compared["ratio_high"]) == pytest.approx((1.75, 3.25))
    assert compared["ratio_of_totals"] == pytest.approx(51 / 16)
    assert compared["seconds"] == pytest.approx(4.5)
    assert (compared["rounds"], compared["block"]) == (4, 1)
    assert comparison([3.0], [2.0])["ratio_low"] == 1.5
    assert quartiles([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)


def test_a_cycle_is_compared_as_a_whole():
    """Four updates take 9, 1, 1, 1 in any order, the baseline's 2 each: (9 + 3) / 8."""
    for start in range(4):
        own = [9.0 if (i + start) % 4 == 0 else 1.0 for i in range(12)]
        compared = comparison(own, [2.0] * 12, block=4)
        assert compared["ratio"] == compared["ratio_low"] == compared["ratio_high"] == 1.5
        assert compared["seconds"] == 3.0
    with pytest.raises(ValueError, match="10 rounds cannot be split into blocks of 4"):
        comparison([1.0] * 10, [1.0] * 10, block=4)


def test_the_exponent_is_the_slope_of_the_logarithms():
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert format_seconds(0.01234) == "12.3 ms"
    assert format_seconds(12.34) == "12.3 s"
