"""Measure part by part; each part gives rows for a table and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from fairseq.utils import move_to_cuda

from benchmarks import batches
from benchmarks.bench import WARM_UP, Bench
from benchmarks.contestants import (
    Contestant,
    Stepper,
    Translator,
    fresh_model,
    trainer,
    update,
)
from benchmarks.floor import Work
from benchmarks.launches import engines_of_a_gpu, update_launches
from benchmarks.memory import peak_bytes
from benchmarks.settings import Settings
from benchmarks.timing import Row, Turn, exponent, summary
from fairseq_floater.checkpoints.dictionaries import placeholder_dictionary
from fairseq_floater.transformer.stack_positions import owned_parts


def update_rows(bench: Bench) -> list[Row]:
    """Time a training update with fairseq's own trainer.

    The rounds cycle through the batches of :data:`batches.PLACES`. A contestant that solves its flow every
    K updates is compared in blocks of rounds. A block holds each batch equally often, and whole cycles of
    K. From block to block the batches move on by one, so that the solves meet each batch in turn.
    """
    settings, dictionary, contestants = bench.settings, bench.dictionary, bench.contestants
    made = batches.make_batches(settings, dictionary, tokens=settings.tokens)
    for trainers in bench.groups("update", [{}], contestants, lambda c: trainer(c, dictionary)):
        blocks = {
            c.name: 1 if c.interval == 1 else math.lcm(c.interval, len(made))
            for c in contestants
            if c.name in trainers
        }
        _race_updates(bench, trainers, made, blocks)
    return bench.rows("update", {}, contestants)


def _race_updates(
    bench: Bench,
    trainers: dict[str, Trainer],
    made: list[batches.Batch],
    blocks: dict[str, int],
) -> None:
    longest = math.lcm(*blocks.values())

    def at(number: int) -> int:
        return (number + number // max(longest, len(made))) % len(made)

    def turn(name: str) -> Turn:
        return lambda number: update(trainers[name], made[at(number)], name)

    sizes = [batches.size(batch) for batch in made]
    about = {
        name: {
            "parameters": sum(p.numel() for p in built.model.parameters()),
            "max_tokens": bench.settings.tokens,
            "batches": sizes,
        }
        for name, built in trainers.items()
    }
    work = Work(trainers[bench.contestants[0].name].model)
    bench.race(
        "update",
        {},
        {name: turn(name) for name in trainers},
        math.ceil(bench.settings.rounds / longest) * longest,
        floors=lambda number: bench.floor.seconds(work.update(made[at(number)])),
        blocks=blocks,
        about=about,
    )


def generation_rows(bench: Bench, vocabulary: int) -> list[Row]:
    """Time beam search as in fairseq-generate, on one vocabulary and every number of sentences."""
    settings, dictionary = bench.settings, placeholder_dictionary(vocabulary)
    contestants = bench.translating
    places = [{"vocabulary": vocabulary, "sentences": n} for n in settings.batch_sizes]
    for translators in bench.groups(
        "generation", places, contestants, lambda c: Translator(c, dictionary, settings)
    ):
        for place in places:
            _race_translations(bench, translators, place)
    return [row for place in places for row in bench.rows("generation", place, contestants)]


def _race_translations(bench: Bench, translators: dict[str, Translator], place: Row) -> None:
    settings, [reference, *_] = bench.settings, translators.values()
    made = batches.make_batches(settings, reference.dictionary, sentences=place["sentences"])
    if settings.device == "cuda":
        made = [move_to_cuda(batch) for batch in made]

    def turn(translator: Translator) -> Turn:
        return lambda number: translator.translate(made[number % len(made)])

    work = Work(reference.model)
    floors = [work.translation(bench.floor, b, settings.steps, settings.beam) for b in made]
    lengths = [batch["net_input"]["src_tokens"].size(1) for batch in made]
    about = {"steps": settings.steps, "source_lengths": lengths}
    bench.race(
        "generation",
        place,
        {name: turn(translator) for name, translator in translators.items()},
        settings.rounds,
        floors=lambda number: floors[number % len(floors)],
        about=dict.fromkeys(translators, about),
    )


def step_rows(bench: Bench) -> list[Row]:
    """Time single decoding steps of one sentence, around each of ``settings.step_positions``.

    The models decode in turn from the first token on; ``step_rounds`` steps around a position are timed.
    """
    settings, vocabulary = bench.settings, bench.settings.vocabulary[0]
    dictionary, contestants = placeholder_dictionary(vocabulary), bench.translating
    places = [{"vocabulary": vocabulary, "position": p} for p in sorted(settings.step_positions)]
    for steppers in bench.groups(
        "step", places, contestants, lambda c: Stepper(c, dictionary, settings)
    ):
        for place in places:
            _race_steps(bench, steppers, place)
    return [row for place in places for row in bench.rows("step", place, contestants)]


def _race_steps(bench: Bench, steppers: dict[str, Stepper], place: Row) -> None:
    settings, [reference, *others] = bench.settings, steppers.values()
    before = 1 + WARM_UP[settings.device] + settings.step_rounds // 2
    start = max(place["position"] - before, 0)

    reference.walk(start)
    walked = (s for s in others if bench.attempt("step", s.name, partial(s.walk, start)))
    ready = [reference, *walked]
    floor = Work(reference.model).step(bench.floor, settings.beam)
    turns = {stepper.name: stepper.step for stepper in ready}
    bench.race("step", place, turns, settings.step_rounds, floors=lambda number: floor)


def memory_rows(bench: Bench) -> list[Row]:
    """Measure the peak memory of an update that solves the flow, on the batch of the longest sentences.

    It is not the first update, so that the optimiser has its state.
    """
    settings, dictionary = bench.settings, bench.dictionary
    longest = batches.make_batches(settings, dictionary, tokens=settings.tokens)[0]

    def peak(contestant: Contestant) -> int:
        def prepare() -> Trainer:
            trained = trainer(contestant, dictionary)
            trained.cuda_env = None  # with it, fairseq resets the peak after an update
            solved = trained.get_num_updates()
            update(trained, longest, contestant.name)
            trained.set_num_updates(solved + contestant.interval)  # the next update that solves
            return trained

        return peak_bytes(
            prepare, lambda trained: update(trained, longest, contestant.name), settings.device
        )

    if settings.device == "cuda":
        peak(bench.contestants[0])  # libraries allocate memory at their first use and keep it
    batch = batches.size(longest)
    return [{**row, "batch": batch} for row in counted_rows(bench, "memory", "bytes", peak)]


def launch_rows(bench: Bench) -> list[Row]:
    """Count the kernels of forward and backward pass on the longest batch, with the engines of a GPU."""
    settings, dictionary = bench.settings, bench.dictionary
    longest = batches.make_batches(settings, dictionary, tokens=settings.tokens)[0]

    def count(contestant: Contestant) -> int:
        trained = trainer(contestant, dictionary)
        if settings.device == "cuda":
            return update_launches(trained, move_to_cuda(longest))
        with engines_of_a_gpu(trained.model):
            return update_launches(trained, longest)

    return counted_rows(bench, "launches", "kernels", count)


def counted_rows(
    bench: Bench, part: str, key: str, count: Callable[[Contestant], int]
) -> list[Row]:
    """Measure each contestant by a count that other work on the machine does not disturb.

    Args:
        bench: contestants and records.
        part: what is measured.
        key: name of the count in a row.
        count: returns the count of one contestant.
    """
    for contestant in bench.contestants:
        name = contestant.name
        if bench.records.find(part, {}, name):
            continue
        value = bench.attempt(part, name, partial(count, contestant))
        if value is not None:
            bench.records.add(part, {}, name, **{key: value})
            bench.progress(f"{part}, {name}: {value:,} {key}")
    values = {row["contestant"]: row[key] for row in bench.records.find(part, {})}
    baseline = values.get(bench.contestants[0].name)
    return [
        {"contestant": c.name, "ratio": values[c.name] / baseline, key: values[c.name]}
        for c in bench.contestants
        if baseline and c.name in values
    ]


def growth_rows(bench: Bench) -> list[Row]:
    """Time each contestant's table of encoder positions, forward and backward, by number of positions.

    The table is the one that the model computes in an update, for all blocks and streams at once
    (q, k, v of six blocks: 18 rows a position), with the model's solver. Contestants whose tables
    have nothing to learn are left out, and so are lengths that a table cannot have.
    """
    turns: dict[str, Turn] = {}
    named: dict[str, Row] = {}
    for contestant in bench.contestants:
        if contestant.trains_only:
            continue
        # A flow may leave the range of float32, at once or at some length.
        tables = bench.attempt("growth", contestant.name, partial(_tables, bench, contestant)) or {}
        for length, turn in tables.items():
            if not bench.attempt("growth", contestant.name, partial(turn, 1)):
                continue
            key = f"{contestant.name}, {length} positions"
            turns[key], named[key] = turn, {"contestant": contestant.name, "positions": length}
    bench.progress(f"growth: {len(turns)} tables in turn")
    times = bench.timed(turns, bench.settings.rounds) if turns else {}
    return [named[key] | summary(seconds) for key, seconds in times.items()]


def exponents(rows: Sequence[Row], settings: Settings) -> dict[str, float]:
    """Fit the exponent of time against positions, from ``growth_from`` on, by contestant."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["positions"] >= settings.growth_from:
            points.setdefault(row["contestant"], []).append((row["positions"], row["seconds"]))
    return {
        name: exponent(*zip(*measured)) for name, measured in points.items() if len(measured) > 1
    }


def _tables(bench: Bench, contestant: Contestant) -> dict[int, Turn]:
    """Return, by number of positions, a function that computes the table and its gradient."""
    cfg, device = contestant.cfg, bench.settings.device
    model = fresh_model(contestant, TranslationTask(cfg.task, bench.dictionary, bench.dictionary))
    stack = model.to(device).train().encoder
    signal = getattr(stack, "positions", None)
    # A table of fixed length does not grow with the input, and some encoders have none.
    if signal is None or not signal.tabulated or signal.table_length:
        return {}
    parts = owned_parts(stack, "positions")
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
