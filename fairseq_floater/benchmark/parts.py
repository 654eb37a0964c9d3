"""Measure part by part; each part gives rows for a table and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.trainer import Trainer
from fairseq.utils import move_to_cuda

from fairseq_floater.benchmark import batches
from fairseq_floater.benchmark.contestants import (
    Contestant,
    Translator,
    trainer,
    update,
    without_intervals,
)
from fairseq_floater.benchmark.memory import peak_bytes
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.timing import comparison, side_by_side

Row = dict[str, Any]
Progress = Callable[[str], object]
# Rounds that do not count. A GPU's libraries and allocator meet every shape twice before.
WARM_UP = {"cpu": 2, "cuda": 2 * len(batches.PLACES)}


class Bench:
    """The state that all parts share: settings, dictionary, contestants, and the report of progress."""

    def __init__(self, settings: Settings, found: Sequence[Contestant], progress: Progress):
        self.settings = settings
        self.contestants = list(found)
        self.progress = progress
        self.words: Dictionary = batches.dictionary(settings.vocabulary)

    @property
    def baseline(self) -> Contestant:
        return next(c for c in self.contestants if c.is_baseline)

    def timed(
        self, part: str, turns: Mapping[str, Callable[[int], object]], rounds: int
    ) -> dict[str, list[float]]:
        on_gpu = self.settings.device == "cuda"
        return side_by_side(
            turns,
            rounds,
            warm_up=WARM_UP[self.settings.device],
            seed=self.settings.seed,
            synchronize=torch.cuda.synchronize if on_gpu else lambda: None,
            progress=lambda message: self.progress(f"{part}, {message}"),
        )

    def compared(
        self,
        times: dict[str, list[float]],
        found: Sequence[Contestant],
        block_of: Callable[[Contestant], int] = lambda contestant: 1,
    ) -> list[Row]:
        """Return a row for each contestant, the baseline (beside itself, ratio 1) first."""
        base = times[self.baseline.name]
        return [
            {"contestant": c.name, **comparison(times[c.name], base, block_of(c))} for c in found
        ]


def update_rows(bench: Bench, tokens: int, rounds: int) -> list[Row]:
    """Time a training update by fairseq's own trainer, on batches of ``tokens`` tokens.

    The rounds go through :data:`batches.PLACES`' batches. A contestant that solves its flow every
    K updates is compared in blocks of rounds that hold each batch equally often and whole cycles of
    K; from block to block the batches move on by one, so that the solves meet one after the other.
    """
    made = batches.training_batches(bench.settings, bench.words, tokens)
    cycles = {c.name: _cycle(c.interval, len(made)) for c in bench.contestants}
    whole = math.lcm(*cycles.values())
    rounds = math.ceil(rounds / whole) * whole
    trainers = {c.name: trainer(c, bench.words) for c in bench.contestants}

    def turn(name: str) -> Callable[[int], None]:
        return lambda number: update(
            trainers[name], made[_batch_at(number, len(made), whole)], name
        )

    times = bench.timed(f"update, {tokens} tokens", {name: turn(name) for name in trainers}, rounds)
    rows = bench.compared(times, bench.contestants, lambda c: cycles[c.name])
    for row in rows:
        model = trainers[row["contestant"]].model
        row["parameters"] = sum(p.numel() for p in model.parameters())
        row["max_tokens"] = tokens
        row["batches"] = [batches.size(batch) for batch in made]
    return rows


def generation_rows(bench: Bench, sentences: int, rounds: int) -> list[Row]:
    """Time beam search as in fairseq-generate, ``sentences`` at once.

    Contestants that differ by their interval of solves alone are the same here: one stands for all.
    """
    found = without_intervals(bench.contestants)
    made = batches.generation_batches(bench.settings, bench.words, sentences)
    if bench.settings.device == "cuda":
        made = [move_to_cuda(batch) for batch in made]
    translators = {c.name: Translator(c, bench.words, bench.settings) for c in found}

    def turn(name: str) -> Callable[[int], None]:
        return lambda number: translators[name].translate(made[number % len(made)])

    times = bench.timed(
        f"generation, {sentences} sentences", {name: turn(name) for name in translators}, rounds
    )
    rows = bench.compared(times, found)
    for row in rows:
        row["sentences"], row["steps"] = sentences, bench.settings.steps
        row["source_lengths"] = [batch["net_input"]["src_tokens"].size(1) for batch in made]
    return rows


def memory_rows(bench: Bench) -> list[Row]:
    """Measure the peak of an update that solves the flow, on the batch of the longest sentences.

    It is not the first update, so that the optimiser has its state.
    """
    settings = bench.settings
    longest = batches.training_batches(settings, bench.words, settings.tokens)[0]

    def peak(contestant: Contestant) -> int:
        def prepare() -> Trainer:
            trained = trainer(contestant, bench.words)
            trained.cuda_env = None  # with it, an update ends by forgetting its peak
            update(trained, longest, contestant.name)
            trained.set_num_updates(contestant.interval)  # the next that solves
            return trained

        bench.progress(f"memory, {contestant.name}")
        return peak_bytes(
            prepare, lambda trained: update(trained, longest, contestant.name), settings.device
        )

    if settings.device == "cuda":
        peak(bench.baseline)  # what libraries keep for themselves from the first use on
    peaks = {c.name: peak(c) for c in bench.contestants}
    base = peaks[bench.baseline.name]
    return [
        {
            "contestant": name,
            "ratio": value / base,
            "bytes": value,
            "batch": batches.size(longest),
        }
        for name, value in peaks.items()
    ]


def _cycle(interval: int, made: int) -> int:
    """Count rounds until batches and solves have both come round; 1 where every round is alike."""
    return 1 if interval == 1 else math.lcm(interval, made)


def _batch_at(number: int, made: int, whole: int) -> int:
    """Return the index of a round's batch."""
    return (number + number // max(whole, made)) % made
