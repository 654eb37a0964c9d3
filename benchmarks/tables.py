"""Format a benchmark's result as Markdown, ready for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.goals import ARCH, TOKENS, verdicts
from benchmarks.settings import Settings
from benchmarks.summary import (
    SUMMARISED,
    SUMMARY_REMARK,
    SummaryColumn,
    format_seconds,
    summary_columns,
    summary_table,
)
from benchmarks.timing import Row
from fairseq_floater.records import markdown_table


def _rounds(row: Row) -> str:
    in_blocks = f" in blocks of {row['block']}" if row.get("block", 1) > 1 else ""
    return f"{row['rounds']}{in_blocks}"


def _quartiles_of_seconds(row: Row) -> str:
    return f"{format_seconds(row['seconds_low'])} to {format_seconds(row['seconds_high'])}"


# A column: its key in a row, its head, and the text of a cell. A table has the columns whose keys are in
# its rows.
Column = tuple[str, str, Callable[[Row], str]]
_COLUMNS: Sequence[Column] = (
    ("vocabulary", "vocabulary", lambda r: f"{r['vocabulary']:,}"),
    ("position", "position", lambda r: f"{r['position']:,}"),
    ("sentences", "sentences at once", lambda r: str(r["sentences"])),
    ("flow", "flow", lambda r: str(r["flow"])),
    ("contestant", "model", lambda r: f"`{r['contestant']}`"),
    ("engine", "engine", lambda r: f"`{r['engine']}`"),
    ("parameters", "parameters", lambda r: f"{r['parameters']:,}"),
    ("positions", "positions", lambda r: f"{r['positions']:,}"),
    ("value_error", "error of values", lambda r: f"{r['value_error']:.1e}"),
    ("gradient_error", "of the gradient", lambda r: f"{r['gradient_error']:.1e}"),
    ("evaluations", "rounds of h", lambda r: f"{r['evaluations']:,}"),
    ("ratio", "beside fairseq's", lambda r: f"{r['ratio']:.3f}"),
    ("ratio_low", "quartiles", lambda r: f"{r['ratio_low']:.3f} to {r['ratio_high']:.3f}"),
    ("floor_ratio", "times the floor", lambda r: f"{r['floor_ratio']:.2f}"),
    ("ratio_of_totals", "all rounds in one", lambda r: f"{r['ratio_of_totals']:.3f}"),
    ("speedup", "times faster than `rk4`", lambda r: f"{r['speedup']:.1f}"),
    ("speedup_low", "quartiles", lambda r: f"{r['speedup_low']:.1f} to {r['speedup_high']:.1f}"),
    ("seconds", "median", lambda r: format_seconds(r["seconds"])),
    ("seconds_low", "quartiles", _quartiles_of_seconds),
    ("rounds", "rounds", _rounds),
    ("bytes", "peak", lambda r: f"{r['bytes'] / 2**20:,.1f} MiB"),
    ("kernels", "kernels", lambda r: f"{r['kernels']:,}"),
)


def table(rows: Sequence[Row]) -> str:
    """Format rows, all with the same keys, as a table of the columns that they have."""
    columns = [(head, cell) for key, head, cell in _COLUMNS if key in rows[0]]
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return "\n".join(markdown_table([head for head, _ in columns], cells))


@dataclass
class BenchmarkResult:
    """The measurements by part, and the machine.

    Attributes:
        machine: date, device, cores, load at the start, versions.
        settings: as given.
        floor: the machine's ``bandwidth`` and ``peak``, in bytes and operations a second.
        failures: ``part``, ``contestant`` and ``reason`` of what could not be measured.
        update, generation, memory, launches, step, solve: rows, empty if not measured.
        growth: ``tables`` (rows: time by number of positions) and ``exponents`` by contestant.
    """

    machine: dict[str, Any]
    settings: Settings
    floor: dict[str, float] = field(default_factory=dict)
    failures: list[Row] = field(default_factory=list)
    update: list[Row] = field(default_factory=list)
    generation: list[Row] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)
    launches: list[Row] = field(default_factory=list)
    step: list[Row] = field(default_factory=list)
    solve: list[Row] = field(default_factory=list)
    growth: dict[str, Any] = field(default_factory=dict)

    def format_text(self) -> str:
        """Format heading, machine and settings, and a table for each part that was measured."""
        settings = self.settings
        translation = f"Translation, beam {settings.beam}, {settings.steps} steps"
        solve = f"The solve, forward and backward, {settings.solve_length} positions"
        growth = "The encoder's position table, forward and backward, by length"
        step = f"One step of decoding, {settings.beam} hypotheses of one sentence"
        tables = [
            ("A training update", self.update, self._batches),
            (translation, self.generation, None),
            (step, self.step, None),
            ("Peak memory of an update", self.memory, None),
            ("Kernels that an update launches, on a GPU's engines", self.launches, None),
            (solve, self.solve, None),
            (growth, self.growth.get("tables"), self._exponents),
        ]
        blocks = self._heading()
        failed = (f"`{f['contestant']}`, {f['part']} ({f['reason']})" for f in self.failures)
        blocks += [f"Could not be measured: {'; '.join(failed)}."] if self.failures else []
        if whole := summary_table(self.columns()):
            blocks += ["### Beside fairseq's Transformer", whole, SUMMARY_REMARK]
            blocks += ["\n".join(lines)] if (lines := self.goals()) else []
        for title, rows, remark in tables:
            if rows:
                blocks += [f"### {title}", table(rows), *([remark()] if remark else [])]
        return "\n\n".join(blocks)

    @property
    def failed(self) -> bool:
        return bool(self.failures)

    def columns(self) -> list[SummaryColumn]:
        """Return the ratios of all parts, column by column."""
        return summary_columns({part: getattr(self, part) for part in SUMMARISED})

    def goals(self) -> list[str]:
        """Return a line on each goal, whether it holds; goals are for the base shape as it is, on a CPU."""
        settings = self.settings
        if settings.device != "cpu" or settings.arch != ARCH or settings.model_options:
            return []
        training = {"update": self.update, "memory": self.memory}
        parts = {"generation": self.generation, **(training if settings.tokens == TOKENS else {})}
        return [f"* On {self.machine['cpu']}: {verdict}." for verdict in verdicts(parts)]

    def _heading(self) -> list[str]:
        machine, settings = self.machine, self.settings
        on_gpu = settings.device == "cuda"
        installed = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        options = " ".join(settings.model_options)
        return [
            f"## Benchmark, {machine['date']}, {'GPU' if on_gpu else 'CPU'}",
            (f"{machine['device']}, " if on_gpu else "")
            + f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
            f"load at the start {machine['load']:.1f}; {installed}.",
            f"`{settings.arch}` beside fairseq's Transformer of the same shape, {settings.dtype}, "
            f"vocabulary {settings.vocabulary[-1]:,}, at most {settings.tokens:,} tokens a batch, "
            f"sentences of {settings.length[0]} to {settings.length[1]} tokens, "
            f"seed {settings.seed}{f'; model options `{options}`' if options else ''}.",
            *self._rates(),
            f"Contestants, at most {settings.together} beside fairseq's, took turns in every round, "
            "in a new random order, on the same batch; a "
            "ratio is within one round, its median and quartiles are over rounds (K > 1: over "
            "blocks of rounds that hold whole cycles of solves).",
        ]

    def _rates(self) -> list[str]:
        if not self.floor:
            return []
        side, read = self.settings.floor_side, self.settings.floor_bytes / 2**20
        return [
            f"The floor: a product of two matrices of {side:,} x {side:,} runs at "
            f"{self.floor['peak'] / 1e9:,.4g} GFLOP/s, {read:,.0f} MiB are read at "
            f"{self.floor['bandwidth'] / 1e9:,.3g} GB/s."
        ]

    def _batches(self) -> str:
        sizes = ", ".join(
            f"{b['sentences']} sentences of up to {b['source_length']} and {b['target_length']}"
            for b in self.update[0]["batches"]
        )
        return f"Batches, source and target tokens: {sizes}."

    def _exponents(self) -> str:
        fitted = ", ".join(f"{v:.2f} (`{name}`)" for name, v in self.growth["exponents"].items())
        start = f"{self.settings.growth_from:,}"
        return (
            f"Time grows as positions to the power of {fitted}, fitted from {start} positions on."
        )
