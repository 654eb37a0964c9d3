"""Measure how the cost of positions grows with their number, and with the tokens of an update."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq.tasks.translation import TranslationTask

from fairseq_floater.benchmark.contestants import Contestant, fresh_model, without_intervals
from fairseq_floater.benchmark.parts import Bench, Row, update_rows
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.timing import Spread, exponent
from fairseq_floater.transformer.stack_positions import all_blocks


def table_rows(bench: Bench) -> list[Row]:
    """Time each contestant's encoder table, forward and backward, by its number of positions.

    The table is the one that the model computes in an update, for all blocks and streams at once
    (q, k, v of six blocks: 18 rows a position), with the model's solver. Contestants whose tables
    have nothing to learn are left out, and so are lengths that a table cannot have.
    """
    turns: dict[str, Callable[[int], None]] = {}
    names = {}
    for contestant in without_intervals(bench.contestants):
        for length, turn in _turns(bench, contestant).items():
            key = f"{contestant.name}, {length} positions"
            turns[key], names[key] = turn, (contestant.name, length)
    if not turns:
        return []
    times = bench.timed("growth", turns, bench.settings.rounds)
    rows = []
    for key, (name, length) in names.items():
        spread = Spread.of(times[key])
        row: Row = {"contestant": name, "positions": length, "seconds": spread.median}
        rows.append(row | {"seconds_low": spread.low, "seconds_high": spread.high})
    return rows


def exponents(rows: list[Row], settings: Settings) -> dict[str, float]:
    """Fit the exponent of time against positions, from ``growth_from`` on, by contestant."""
    fitted: dict[str, float] = {}
    for name in dict.fromkeys(row["contestant"] for row in rows):
        own = [
            row
            for row in rows
            if row["contestant"] == name and row["positions"] >= settings.growth_from
        ]
        if len(own) > 1:
            fitted[name] = exponent([r["positions"] for r in own], [r["seconds"] for r in own])
    return fitted


def update_rows_by_tokens(bench: Bench, measured: list[Row]) -> list[Row]:
    """Compare updates on a quarter, a half and all of ``settings.tokens``.

    ``measured`` is what the part ``update`` found, if it ran; it is not measured again.
    """
    settings = bench.settings
    rows: list[Row] = []
    for tokens in (settings.tokens // 4, settings.tokens // 2, settings.tokens):
        if tokens == settings.tokens and measured:
            rows += measured
        elif tokens >= settings.length[1]:
            rows += update_rows(bench, tokens, settings.rounds)
    return rows


def _turns(bench: Bench, contestant: Contestant) -> dict[int, Callable[[int], None]]:
    """Return, by number of positions, a function that computes the table and its gradient."""
    cfg, device = contestant.cfg, bench.settings.device
    model = fresh_model(contestant, TranslationTask(cfg.task, bench.words, bench.words))
    stack = model.to(device).train().encoder
    signal = getattr(stack, "positions", None)
    if signal is None:
        return {}
    owners = (getattr(block, "positions", None) for block in all_blocks(stack))
    parts = [part for part in owners if part is not None]
    learned = [p for module in (signal, *parts) for p in module.parameters() if p.requires_grad]
    if not learned:
        return {}
    lengths = [n for n in bench.settings.growth_lengths if n <= signal.max_positions]

    def turn(length: int) -> Callable[[int], None]:
        gradient = torch.ones(1, device=device)

        def compute(number: int) -> None:
            table = signal(length, parts, torch.float32)
            torch.autograd.grad(table, learned, gradient.expand_as(table))

        return compute

    return {length: turn(length) for length in lengths}
