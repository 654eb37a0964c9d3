"""Format a benchmark's result as Markdown, ready for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_floater.benchmark import parts
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.records import markdown_table

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]

_RATIO: list[Column] = [
    ("beside fairseq's", lambda r: f"{r['ratio']:.3f}"),
    ("quartiles", lambda r: f"{r['ratio_low']:.3f} to {r['ratio_high']:.3f}"),
    ("all rounds in one", lambda r: f"{r['ratio_of_totals']:.3f}"),
    ("median", lambda r: seconds(r["seconds"])),
    ("rounds", lambda r: _rounds(r)),
]
_NAME: Column = ("model", lambda r: f"`{r['contestant']}`")


def format_tables(result: BenchmarkResult) -> str:
    """Format heading, machine and settings, and a table for each part that was measured."""
    blocks = [*_heading(result)]
    settings = result.settings
    if result.update:
        columns = [_NAME, ("parameters", lambda r: f"{r['parameters']:,}"), *_RATIO]
        blocks += ["### A training update", table(columns, result.update)]
        blocks.append(_batches(result.update[0]["batches"]))
    if result.generation:
        columns = [("sentences at once", lambda r: str(r["sentences"])), _NAME, *_RATIO]
        title = f"### Translation, beam {settings.beam}, {settings.steps} steps"
        blocks += [title, table(columns, result.generation)]
    if result.memory:
        ratio: Column = ("beside fairseq's", lambda r: f"{r['ratio']:.3f}")
        columns = [_NAME, ratio, ("peak", lambda r: f"{r['bytes'] / 2**20:,.1f} MiB")]
        blocks += ["### Peak memory of an update", table(columns, result.memory)]
    if result.solve:
        title = f"### The solve, forward and backward, {settings.solve_length} positions"
        blocks += [title, table(_SOLVE, result.solve)]
    if result.growth.get("tables"):
        columns = [_NAME, ("positions", lambda r: f"{r['positions']:,}")]
        columns.append(("median", lambda r: seconds(r["seconds"])))
        columns.append(
            ("quartiles", lambda r: f"{seconds(r['seconds_low'])} to {seconds(r['seconds_high'])}")
        )
        title = "### The encoder's position table, forward and backward, by length"
        blocks += [title, table(columns, result.growth["tables"]), _exponents(result)]
    if result.growth.get("updates"):
        columns = [("tokens an update", lambda r: f"{r['max_tokens']:,}"), _NAME, *_RATIO]
        blocks += ["### An update by its tokens", table(columns, result.growth["updates"])]
    return "\n\n".join(blocks)


_SOLVE: list[Column] = [
    ("flow", lambda r: str(r["flow"])),
    ("engine", lambda r: f"`{r['engine']}`"),
    ("error of values", lambda r: f"{r['value_error']:.1e}"),
    ("of the gradient", lambda r: f"{r['gradient_error']:.1e}"),
    ("rounds of h", lambda r: f"{r['evaluations']:,}"),
    ("times faster than `rk4`", lambda r: f"{1 / r['ratio']:.1f}"),
    ("quartiles", lambda r: f"{1 / r['ratio_high']:.1f} to {1 / r['ratio_low']:.1f}"),
    ("median", lambda r: seconds(r["seconds"])),
]


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Format rows under the columns' heads."""
    heads = [head for head, _ in columns]
    return "\n".join(markdown_table(heads, [[cell(row) for _, cell in columns] for row in rows]))


def seconds(value: float) -> str:
    """Format a time with three digits, in seconds or milliseconds."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _heading(result: BenchmarkResult) -> list[str]:
    machine, settings = result.machine, result.settings
    kind = "GPU" if settings.device == "cuda" else "CPU"
    ran_on = f"{machine['device']}, " if kind == "GPU" else ""
    ran_on += (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"load at the start {machine['load']:.1f}"
    )
    installed = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    low, high = settings.length
    options = f"; model options `{' '.join(settings.model_options)}`" * bool(settings.model_options)
    measured = (
        f"`{settings.arch}` beside fairseq's Transformer of the same shape, {settings.dtype}, "
        f"vocabulary {settings.vocabulary:,}, at most {settings.tokens:,} tokens a batch, sentences "
        f"of {low} to {high} tokens, seed {settings.seed}{options}."
    )
    rule = (
        "Contestants took turns in every round, in an order drawn anew, on the same batch; a ratio "
        "is of the same round, its median and quartiles are over rounds (K > 1: over blocks of "
        "rounds that hold whole cycles of solves)."
    )
    return [f"## Benchmark, {machine['date']}, {kind}", f"{ran_on}; {installed}.", measured, rule]


def _rounds(row: Row) -> str:
    if row["block"] == 1:
        return str(row["rounds"])
    return f"{row['rounds']} in blocks of {row['block']}"


def _batches(found: Sequence[dict[str, int]]) -> str:
    sizes = ", ".join(
        f"{b['sentences']} sentences of up to {b['source_length']} and {b['target_length']}"
        for b in found
    )
    return f"Batches, source and target tokens: {sizes}."


def _exponents(result: BenchmarkResult) -> str:
    fitted = ", ".join(
        f"{value:.2f} (`{name}`)" for name, value in result.growth["exponents"].items()
    )
    start = f"{result.settings.growth_from:,}"
    return f"Time grows as positions to the power of {fitted}, fitted from {start} positions on."


@dataclass
class BenchmarkResult:
    """The measurements by part, and the machine.

    Attributes:
        machine: date, device, cores, load at the start, versions.
        settings: as given.
        update, generation, memory, solve: rows, empty where not measured.
        growth: ``tables`` (time by number of positions), ``exponents`` and ``updates`` (ratio by
            tokens of an update).
    """

    machine: dict[str, Any]
    settings: Settings
    update: list[parts.Row] = field(default_factory=list)
    generation: list[parts.Row] = field(default_factory=list)
    memory: list[parts.Row] = field(default_factory=list)
    solve: list[parts.Row] = field(default_factory=list)
    growth: dict[str, Any] = field(default_factory=dict)

    def format_text(self) -> str:
        return format_tables(self)
