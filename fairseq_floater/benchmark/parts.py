"""Measure part by part; each part gives rows for a table and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq.utils import move_to_cuda

from fairseq_floater.benchmark import batches
from fairseq_floater.benchmark.contestants import (
    Contestant,
    Translator,
    fresh_model,
    trainer,
    update,
    without_intervals,
)
from fairseq_floater.benchmark.memory import peak_bytes
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.timing import Row, Turn, comparison, exponent, side_by_side, summary
from fairseq_floater.transformer.stack_positions import all_blocks

# Rounds that do not count. A GPU's libraries and allocator meet every shape twice before.
WARM_UP = {"cpu": 2, "cuda": 2 * len(batches.PLACES)}


class Bench:
    """Hold what all parts share: settings, dictionary, and contestants, the baseline first."""

    def __init__(
        self, settings: Settings, found: Sequence[Contestant], progress: Callable[[str], object]
    ):
        self.settings = settings
        self.contestants = list(found)
        self.progress = progress
        self.words: Dictionary = batches.dictionary(settings.vocabulary)

    def timed(self, part: str, turns: Mapping[str, Turn], rounds: int) -> dict[str, list[float]]:
        """Return seconds in each round by name of the turn, taken side by side."""
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
        part: str,
        turns: Mapping[str, Turn],
        rounds: int,
        blocks: Mapping[str, int] | None = None,
    ) -> list[Row]:
        """Time contestants; return a row for each, the baseline (beside itself, ratio 1) first.

        Args:
            part: what is measured, for the report of progress.
            turns: by contestant, the baseline first.
            rounds: a multiple of every block.
            blocks: rounds that are compared as one, by contestant; 1 by default.
        """
        times = self.timed(part, turns, rounds)
        baseline = times[next(iter(turns))]
        return [
            {"contestant": name, **comparison(own, baseline, (blocks or {}).get(name, 1))}
            for name, own in times.items()
        ]


def update_rows(bench: Bench, tokens: int, rounds: int) -> list[Row]:
    """Time a training update by fairseq's own trainer, on batches of ``tokens`` tokens.

    The rounds go through :data:`batches.PLACES`' batches. A contestant that solves its flow every
    K updates is compared in blocks of rounds that hold each batch equally often and whole cycles of
    K; from block to block the batches move on by one, so that the solves meet one after the other.
    """
    made = batches.make_batches(bench.settings, bench.words, tokens=tokens)
    blocks = {
        c.name: 1 if c.interval == 1 else math.lcm(c.interval, len(made)) for c in bench.contestants
    }
    longest = math.lcm(*blocks.values())
    trainers = {c.name: trainer(c, bench.words) for c in bench.contestants}

    def turn(name: str) -> Turn:
        def train(number: int) -> None:
            index = number + number // max(longest, len(made))
            update(trainers[name], made[index % len(made)], name)

        return train

    rows = bench.compared(
        f"update, {tokens} tokens",
        {name: turn(name) for name in trainers},
        math.ceil(rounds / longest) * longest,
        blocks,
    )
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
    settings = bench.settings
    made = batches.make_batches(settings, bench.words, sentences=sentences)
    if settings.device == "cuda":
        made = [move_to_cuda(batch) for batch in made]

    def turn(contestant: Contestant) -> Turn:
        translator = Translator(contestant, bench.words, settings)
        return lambda number: translator.translate(made[number % len(made)])

    turns = {c.name: turn(c) for c in without_intervals(bench.contestants)}
    rows = bench.compared(f"generation, {sentences} sentences", turns, rounds)
    lengths = [batch["net_input"]["src_tokens"].size(1) for batch in made]
    return [
        {"sentences": sentences, **row, "steps": settings.steps, "source_lengths": lengths}
        for row in rows
    ]


def memory_rows(bench: Bench) -> list[Row]:
    """Measure the peak of an update that solves the flow, on the batch of the longest sentences.

    It is not the first update, so that the optimiser has its state.
    """
    settings = bench.settings
    longest = batches.make_batches(settings, bench.words, tokens=settings.tokens)[0]

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
        peak(bench.contestants[0])  # what libraries keep for themselves from the first use on
    peaks = {c.name: peak(c) for c in bench.contestants}
    base = peaks[bench.contestants[0].name]
    batch = batches.size(longest)
    return [
        {"contestant": name, "ratio": value / base, "bytes": value, "batch": batch}
        for name, value in peaks.items()
    ]


def growth_rows(bench: Bench) -> list[Row]:
    """Time each contestant's encoder table, forward and backward, by its number of positions.

    The table is the one that the model computes in an update, for all blocks and streams at once
    (q, k, v of six blocks: 18 rows a position), with the model's solver. Contestants whose tables
    have nothing to learn are left out, and so are lengths that a table cannot have.
    """
    turns: dict[str, Turn] = {}
    named: dict[str, Row] = {}
    for contestant in without_intervals(bench.contestants):
        for length, turn in _tables(bench, contestant).items():
            key = f"{contestant.name}, {length} positions"
            turns[key], named[key] = turn, {"contestant": contestant.name, "positions": length}
    times = bench.timed("growth", turns, bench.settings.rounds) if turns else {}
    return [named[key] | summary(own) for key, own in times.items()]


def exponents(rows: Sequence[Row], settings: Settings) -> dict[str, float]:
    """Fit the exponent of time against positions, from ``growth_from`` on, by contestant."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["positions"] >= settings.growth_from:
            points.setdefault(row["contestant"], []).append((row["positions"], row["seconds"]))
    return {name: exponent(*zip(*own)) for name, own in points.items() if len(own) > 1}


def _tables(bench: Bench, contestant: Contestant) -> dict[int, Turn]:
    """Return, by number of positions, a function that computes the table and its gradient."""
    cfg, device = contestant.cfg, bench.settings.device
    model = fresh_model(contestant, TranslationTask(cfg.task, bench.words, bench.words))
    stack = model.to(device).train().encoder
    signal = getattr(stack, "positions", None)
    # A table of fixed length does not grow with the input, and some encoders have none.
    if signal is None or not signal.tabulated or signal.table_length:
        return {}
    owners = (getattr(block, "positions", None) for block in all_blocks(stack))
    parts = [part for part in owners if part is not None]
    learned = [p for module in (signal, *parts) for p in module.parameters() if p.requires_grad]

    one = torch.ones(1, device=device)

    def turn(length: int) -> Turn:
        def compute(number: int) -> None:
            table = signal(length, parts, torch.float32)
            # What only attention reads (u and v of Transformer-XL) has no part in the table.
            torch.autograd.grad(table, learned, one.expand_as(table), allow_unused=True)

        return compute

    if not parts or not signal(2, parts, torch.float32).requires_grad:
        return {}
    lengths = bench.settings.growth_lengths
    return {n: turn(n) for n in lengths if n <= signal.max_positions}
