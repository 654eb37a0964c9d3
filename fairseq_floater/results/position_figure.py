"""Draw Figure 3 of the paper for any checkpoint, also past the trained length.

Every position table is drawn in four panels: the matrix, the norms of its rows, its first principal
components, and the cosine similarity of its rows. For positions inside attention, their effect is
drawn by distance (`attention_terms.py`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.checkpoints.families import STACKS, Family, architecture, family_of
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint, model_args
from fairseq_floater.checkpoints.rebuild import build_model
from fairseq_floater.experiments.system import PLAIN, PLAIN_SIGNATURE
from fairseq_floater.figures import checked_format
from fairseq_floater.position_encoders import distance_warning, encoder_class, signature
from fairseq_floater.position_encoders.eval_law import NONE
from fairseq_floater.position_encoders.registry import ALL_BLOCKS, INPUT_BLOCK, block_numbers
from fairseq_floater.records import markdown_table
from fairseq_floater.results.attention_terms import Term, read_terms
from fairseq_floater.results.position_drawing import draw, draw_panels
from fairseq_floater.results.position_rows import BASE, PositionTable, read_tables, trained_lengths
from fairseq_floater.transformer.positioned_model import PositionedModel
from fairseq_floater.version import __version__

STACK_CHOICES = ("both", *STACKS)
# Warn if the norm at 3T is more than this many times the norm at T.
WORRYING_GROWTH = 2.0
# Warn if the smallest step past T, divided by the median step up to T, is less than this.
WORRYING_STEP = 0.01


@dataclass
class PositionFigure:
    """The figure in numbers: measures of every table and term inside attention, notes and warnings."""

    checkpoint: str
    output: str
    encoder: str
    model: str
    positions: str  # their signature
    trained_lengths: dict[str, int | None]
    tables: list[dict[str, Any]] = field(default_factory=list)
    terms: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        known = [f"{n} {side}" for side, n in self.trained_lengths.items() if n]
        lengths = f"{' and '.join(known)} tokens" if known else "unknown"
        return f"{self.model}; trained length T: {lengths}"

    @property
    def signature(self) -> str:
        return f"{Path(self.checkpoint).name} · {self.positions}"

    def format_text(self) -> str:
        unit = "T" if any(self.trained_lengths.values()) else "N"
        lengths = [f"{unit}/2", unit, f"2{unit}", f"3{unit}"]
        lines = [f"{self.output}: {self.title}"]
        if unit == "N":
            lines.append("N is the number of positions; --data or --trained-length tells T.")
        lines.append("")
        if self.tables:
            heads = ["table", "positions", f"norm at {unit}/2", *lengths[1:]]
            for part in (f"up to {unit}", f"past {unit}"):
                heads += [f"nearest neighbours {part}: distance", "cosine"]
            rows = [_cells(t, t["positions"], *t["norms"].values(), *_near(t)) for t in self.tables]
            lines += [*markdown_table(heads, rows), ""]
        if self.terms:
            heads = ["term", "distances up to", *(f"at {name}" for name in ("1", *lengths))]
            heads.append("alike from")
            rows = [
                _cells(t, t["furthest"], *t["means"].values(), t["alike_from"]) for t in self.terms
            ]
            lines += [*markdown_table(heads, rows), ""]
        lines += [f"note: {n}" for n in self.notes] + [f"warning: {w}" for w in self.warnings]
        return "\n".join(lines).rstrip()


def _near(table: dict[str, Any]) -> list[float | None]:
    """Return distance and cosine of the nearest neighbours up to T, then past it."""
    parts = (table[part] or {} for part in ("up_to_T", "past_T"))
    return [part.get(name) for part in parts for name in ("distance", "cosine")]


def _cells(measures: dict[str, Any], *numbers: float | None) -> list[str]:
    name = "{stack}, block {block}, {stream}".format(**measures)
    texts = (f"{n:.4g}" if isinstance(n, float) else "-" if n is None else str(n) for n in numbers)
    return [name, *texts]


@dataclass
class PanelFigure:
    """The numbers of several models that are drawn in one picture."""

    output: str
    panels: list[PositionFigure]

    def format_text(self) -> str:
        return "\n\n".join(panel.format_text() for panel in self.panels)


def plot_models(
    checkpoint: Sequence[str], output: str, **options: Any
) -> PositionFigure | PanelFigure:
    """Draw one checkpoint as :func:`plot_positions`, or one table of each of several side by side.

    It is a table of the encoder whose rows differ, if the model has one, else that of fairseq's base.

    Raises:
        CheckpointError: one of several checkpoints has no position table.
    """
    if len(checkpoint) == 1:
        return plot_positions(checkpoint[0], output, **options)
    checked_format(output)
    figures, panels = [], []
    for path in checkpoint:
        positions, figure = read_positions(path, **options)
        figure.output = output
        figures.append(figure)
        tables = [table for table in positions if isinstance(table, PositionTable)]
        if not tables:
            raise CheckpointError(f"{path} has no position table for a panel: {figure.model}.")
        of_encoder = [t for t in tables if t.stream != BASE and bool(t.rows.diff(dim=0).any())]
        panels.append((figure.model.partition(",")[0], (of_encoder or tables)[0]))
    names = [Path(path).name for path in checkpoint]
    draw_panels(panels, output, " · ".join([*names, f"fairseq_floater {__version__}"]))
    return PanelFigure(output, figures)


def plot_positions(
    checkpoint: str | os.PathLike[str], output: str | os.PathLike[str], **options: Any
) -> PositionFigure:
    """Draw what :func:`read_positions` reads, which takes the options, into ``output`` (png, svg or pdf)."""
    checked_format(output)
    positions, figure = read_positions(checkpoint, **options)
    figure.output = str(output)
    heading = [figure.title, *figure.notes]
    draw(positions, figure.output, heading=heading, signature=figure.signature)
    return figure


def read_positions(
    checkpoint: str | os.PathLike[str],
    *,
    stack: str = "both",
    streams: str | Sequence[str] | None = None,
    blocks: str | int | Sequence[str | int] | None = None,
    length: int | None = None,
    trained_length: int | None = None,
    data: str | None = None,
) -> tuple[list[PositionTable | Term], PositionFigure]:
    """Read the positions of a trained model as tensors: rows of tables, and terms inside attention.

    Args:
        checkpoint: of a model of this plugin, or of fairseq's plain Transformer or RoBERTa.
        stack: one of :data:`STACK_CHOICES`.
        streams: names such as ``hidden``, ``q``, ``cross_k``, ``base``, ``bias``; default: all.
        blocks: numbers from 1, or ``"all"``; default: the first.
        length: N; default: 3 T, or :data:`~fairseq_floater.results.position_rows.DEFAULT_LENGTH`.
        trained_length: T of both stacks.
        data: binarised data; T is their longest training sentence unless ``trained_length`` is given.
            A RoBERTa's T is the length of its samples.

    Returns:
        The tables (``rows``, [N, C] float64) and terms (``values``, [H, M]), and their measures.

    Raises:
        CheckpointError: the checkpoint is unreadable or not a Transformer, or has no position table.
        ValueError: a choice is unknown, a length is below 2, or ``data`` has no training sentences.
    """
    for name, number in (("--length", length), ("--trained-length", trained_length)):
        if number is not None and number < 2:
            raise ValueError(f"`{name}` must be at least 2, but is {number} instead.")
    state = load_checkpoint(checkpoint)
    args = model_args(state, checkpoint)
    args.position_eval = NONE  # the figure shows the trained positions
    model = build_model(state, args, checkpoint)
    trained = trained_lengths(trained_length, data, state, args)
    figure = PositionFigure(str(checkpoint), "", *_described(model, args), trained)
    read = _read(model, args, stack, length, figure)
    chosen = _selected(read, streams, blocks, figure.notes)
    for positions in chosen:
        measures = positions.measure()
        if isinstance(positions, Term):
            figure.terms.append(measures)
        else:
            figure.tables.append(measures)
            _judge(positions, measures, figure)
    known = [n for n in trained.values() if n]
    if figure.terms and known and (warning := distance_warning(args, min(known))):
        figure.warnings.append(warning)
    return chosen, figure


def _family(args: argparse.Namespace) -> Family:
    family = family_of(architecture(args))
    assert family is not None  # the model was built
    return family


def _read(
    model: Any, args: argparse.Namespace, choice: str, length: int | None, figure: PositionFigure
) -> list[PositionTable | Term]:
    """Read all that can be drawn of the chosen stacks."""
    by_module = _family(args).stacks(model)
    stacks = {name.partition(".")[0]: stack for name, stack in by_module.items()}
    if choice != "both":
        _check("--stack", [choice], ["both", *stacks])
        stacks = {choice: stacks[choice]}
    read: list[PositionTable | Term] = []
    for name, stack in stacks.items():
        read += read_tables(stack, name, length, figure.trained_lengths, figure.notes)
        read += read_terms(stack, name, length, figure.trained_lengths)
    if not read:
        raise CheckpointError(
            f"{figure.checkpoint} has no position table to draw: {figure.model}. It has no "
            "positions, or they are zero or depend on the words."
        )
    has_others = figure.encoder not in (PLAIN, "sinusoidal", "none")
    if has_others and all(t.stream == BASE for t in read):
        figure.notes.append("only fairseq's positions can be drawn, not those of the encoder")
    return read


def _described(model: Any, args: argparse.Namespace) -> tuple[str, str, str]:
    """Return the encoder's name, a description of the model, and the signature of its positions."""
    if not isinstance(model, PositionedModel):
        is_learned = any(getattr(args, f"{stack}_learned_pos", False) for stack in STACKS)
        kind = "learned" if is_learned else "sinusoidal"
        words = f"{PLAIN} {_family(args).name}, {kind} positions"
        return PLAIN, words, PLAIN_SIGNATURE
    target = args.position_target
    encoder = encoder_class(args.position_encoder, target)
    where = "inside attention" if target in ("attention", "relative") else f"target {target}"
    chosen = args.position_blocks
    if chosen not in (ALL_BLOCKS, INPUT_BLOCK):  # the figure counts blocks from 1
        chosen = ", ".join(str(number + 1) for number in block_numbers(chosen) or ())
    words = f"{encoder.title}, {where}, blocks {chosen}"
    has_delta = encoder.name == "floater" and target != "relative"
    words += f", delta {args.floater_delta}" if has_delta else ""
    return encoder.name, words, signature(args)


def _selected(
    read: list[PositionTable | Term],
    streams: str | Sequence[str] | None,
    blocks: str | int | Sequence[str | int] | None,
    notes: list[str],
) -> list[PositionTable | Term]:
    """Return the tables and terms of some streams and blocks; add a note if the default omits blocks."""
    streams = [streams] if isinstance(streams, str) else streams
    blocks = [blocks] if isinstance(blocks, (str, int)) else blocks
    if streams:
        _check("--streams", streams, [t.stream for t in read])
        read = [t for t in read if t.stream in streams]
    numbers = [str(n) for n in sorted({t.block for t in read})]
    if not blocks and len(numbers) > 1:
        notes.append(f"only block {numbers[0]} is shown, of blocks {', '.join(numbers)}")
    wanted = [str(b) for b in blocks or numbers[:1]]
    _check("--blocks", wanted, [*numbers, "all"])
    return [t for t in read if "all" in wanted or str(t.block) in wanted]


def _check(name: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            known = ", ".join(dict.fromkeys(allowed))
            raise ValueError(f"`{name}` must be one of {known}, but is {value!r} instead.")


def _judge(table: PositionTable, measures: dict[str, Any], figure: PositionFigure) -> None:
    near, past, norms = measures["up_to_T"], measures["past_T"], measures["norms"]
    steps = table.rows.diff(dim=0).abs().max()
    if float(steps) <= 1e-6 * float(table.rows.abs().max()):
        note = "all rows are the same: no position differs from another"
        figure.notes.append(f"{table.name}: {note}")
        return
    if table.trained and norms["3T"] and norms["3T"] > WORRYING_GROWTH * norms["T"]:
        figure.warnings.append(
            f"{table.name}: the trajectory grows past the trained length, from a norm of "
            f"{norms['T']:.3g} at T to {norms['3T']:.3g} at 3T"
        )
    if near and past and past["distance"] < WORRYING_STEP * near["median_distance"]:
        figure.warnings.append(
            f"{table.name}: rows past the trained length become indistinguishable, the nearest "
            f"neighbours differ by {past['distance']:.2g} (median up to T: {near['median_distance']:.2g})"
        )
