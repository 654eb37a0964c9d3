"""Convert the checkpoint of a Transformer or RoBERTa to a start for a model with other positions.

See the paper, B.2 and section 4.2; for a change of encoder, Gumma, Chitale and Bali 2024.

Every tensor of the donor is copied, except those of a position encoder that the new model does not have
(`donor.py`). New position parameters start from their usual initialisation (FLOATER: small dynamics). With
``--position-base keep`` they start without any effect, if the encoder can do that. Optimiser, scheduler and
epoch start afresh. The result is for ``fairseq-train --finetune-from-model``.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_floater.checkpoints.dictionaries import longest_sentence
from fairseq_floater.checkpoints.donor import Donor, read_donor, start_model
from fairseq_floater.checkpoints.families import ROBERTA, train_options
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    config_of,
    fresh_state,
    is_position,
    refuse_existing,
    save_checkpoint,
)
from fairseq_floater.position_encoders import all_options, has_base
from fairseq_floater.position_encoders.floater import FloaterPositions
from fairseq_floater.position_encoders.floater_options import BIAS, SINUSOID
from fairseq_floater.position_encoders.shared_options import ATTENTION_OPTIONS, POSITION_SIDES
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.transformer.owners import biases_of, positions_of, scale_queries

# Donor tensors that may be dropped: fairseq's positions, if the encoder replaces them; values that are
# derived from others; and the duplicates that fairseq 0.12.2 kept for a fast path.
_LEFT_BEHIND = re.compile(
    r"\.embed_positions\.|\.(version|_float_tensor)$"
    r"|^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)
# Present once a translation donor's learned rows have become fairseq's table.
_LEARNED_BASE = "encoder.embed_positions.weight"
# The new model and the donor are compared on sentences of this many tokens. Beyond some tens of tokens
# an untrained flow is far from its donor, whatever it will learn.
_MEASURED = 16
# The log-probabilities of two equal functions differ by at most this in float32.
_EXACT = 1e-5


@dataclass
class WarmStartReport:
    """What became of each tensor, and how far the new model is from its donor.

    ``difference`` is the largest absolute difference of log-probabilities on 4 random sentences of
    16 tokens, or None for an adaptive softmax. ``changed`` lists how the new model's positions differ
    from the donor's. ``train`` are fairseq-train's options for the new model's shape and positions.
    """

    donor: str
    output: str
    arch: str
    encoder: str
    copied: list[str] = field(default_factory=list)
    new: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    train: list[str] = field(default_factory=list)
    difference: float | None = None

    def format_text(self) -> str:
        lines = [
            f"donor    {self.donor}",
            f"output   {self.output}  (--arch {self.arch}, position encoder {self.encoder})",
            f"copied   {len(self.copied)} tensors",
            f"new      {len(self.new)} tensors, {sum(self.new.values()):,} parameters in all",
            *(f"           {name} ({count:,})" for name, count in self.new.items()),
            f"ignored  {len(self.ignored)} tensors of the donor",
            *(f"           {name}" for name in self.ignored),
            "reset    optimizer, learning-rate scheduler, epoch and update count",
            *(f"note     {note}" for note in self.notes),
            f"train    fairseq-train {shlex.join([*self.train, '--finetune-from-model', self.output])} ...",
        ]
        if self.difference is None or self.difference <= _EXACT:
            lines += [f"changed  {change}" for change in self.changed]
        return "\n".join([*lines, f"start    {self._start()}"])

    def _start(self) -> str:
        """Say whether the new model computes the donor's function."""
        if self.difference is None:
            return "not compared with the donor: adaptive softmax"
        measured = f"log-probabilities differ by at most {self.difference:.2e} on a random batch"
        if not self.difference <= _EXACT:  # NaN too
            why = ", ".join(self.changed) or f"{self.encoder} acts from the start"
            return f"not the donor's function: {measured}; {why}"
        beyond = f"; the sentences have {_MEASURED} tokens, the changes may affect longer ones"
        return f"the donor's function: {measured}{beyond if self.changed else ''}"


def warm_start(
    donor: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arch: str,
    data: str | None = None,
    model_options: Sequence[str] = (),
    trained_length: int | None = None,
    extend: str | None = None,
    force: bool = False,
    seed: int = 1,
) -> WarmStartReport:
    """Write ``output``, a checkpoint of ``arch`` that starts from ``donor``.

    Args:
        donor: a checkpoint of fairseq's ``transformer`` or ``roberta`` (any architecture, with or
            without the plugin, with any of its encoders; a RoBERTa of any age).
        arch: an architecture of this package of the donor's family; the shape is the donor's.
        data: binarised data (``--data``); its dictionaries must be the donor's.
        model_options: further model options as on fairseq-train's command line.
        trained_length: for ``learned``: rows that start as the donor's positions; default: the
            longest training sentence in ``data``, else the donor's ``--max-*-positions``.
        extend: ``tile`` or ``last``: the rows that extend a RoBERTa's table to ``--max-positions``.
        seed: of the new tensors.

    Raises:
        CheckpointError: the donor is unusable, of another shape or dictionary, or ``output`` exists.
        ValueError: the position options contradict each other.
    """
    output = Path(output)
    refuse_existing(output, force, donor)
    given = read_donor(donor, arch, data)
    if extend is not None and given.family is not ROBERTA:
        raise ValueError("`--extend` must come with a donor and an architecture of RoBERTa.")
    start, args, model = start_model(given, arch, model_options, extend, seed)
    if trained_length is not None and args.position_encoder != "learned":
        raise ValueError("`--trained-length` must come with `--position-encoder learned`.")
    report = WarmStartReport(str(donor), str(output), arch, args.position_encoder)
    _copy(model, start, report)
    report.ignored += [name for name in given.tensors if name not in start.tensors] + given.heads
    if has_base(args) and _LEARNED_BASE in start.tensors and _LEARNED_BASE not in given.tensors:
        report.notes.append("the donor's learned table is kept")
    report.train = train_options(args, given.family, model_options)
    report.notes += _adopt(model, start, report.new, args, data, trained_length)
    report.changed = _changes(given, start, args)
    report.difference = _difference(given, model)
    cfg = given.state.get("cfg") or config_of(args)
    names = (given.state.get("optimizer_history") or [{}])[-1]
    # fairseq-generate must not refuse the start because of the optimiser that trained the donor.
    vars(args).pop("optimizer", None)
    save_checkpoint(fresh_state(cfg, args, model.state_dict(), names), output)
    return report


def _copy(model: BaseFairseqModel, donor: Donor, report: WarmStartReport) -> None:
    """Copy the donor's tensors. Only positions may be new, and only :data:`_LEFT_BEHIND` may be dropped."""
    tensors = dict(donor.tensors)
    model.upgrade_state_dict(tensors)  # renames old tensors in place
    state = model.state_dict()
    for name, tensor in tensors.items():
        if name not in state:
            report.ignored.append(name)
        elif state[name].shape != tensor.shape:
            raise CheckpointError(
                f"{donor.path} has another shape: its {name} is {list(tensor.shape)}, the new "
                f"model's {list(state[name].shape)}."
            )
        else:
            report.copied.append(name)
            state[name] = tensor
    new = {name: t.numel() for name, t in state.items() if name not in tensors}
    unknown = [name for name in new if not is_position(name)]
    unknown += [name for name in report.ignored if not _LEFT_BEHIND.search(name)]
    if unknown:
        lacks_table = any(".embed_positions." in name for name in unknown)
        remedy = "; pass --position-base drop" if lacks_table else ""
        raise CheckpointError(
            f"{donor.path} does not fit: {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''} "
            f"is in only one of the two models and does not belong to a position encoder{remedy}."
        )
    report.new = {name: count for name, count in new.items() if not name.endswith("lr_scale")}
    model.load_state_dict(state, strict=True)


def _adopt(
    model: Any,
    donor: Donor,
    new: Container[str],
    args: argparse.Namespace,
    data: str | None,
    trained_length: int | None,
) -> list[str]:
    """Start new position encoders as near to the donor's function as they can. Return notes on them.

    Args:
        model: the new model, which holds the donor's other tensors already.
        donor: with the tensors that were copied.
        new: names of the tensors that the donor does not have.
        args: the new model's options.
        data: binarised data; its longest training sentence is the trained length.
        trained_length: overrides ``data``.
    """
    notes, stacks = [], donor.family.stacks(model)
    positionless = not donor.base and not donor.lost
    added = {id(p) for name, p in model.named_parameters() if name in new}
    if donor.family is ROBERTA:
        data = None  # a table has as many rows as its donor's
    for positions in positions_of(stacks):
        name, encoder, stack = positions.stack, positions.encoder, stacks[positions.stack]
        own = {id(p) for m in (encoder, *positions.parts) for p in m.parameters()}
        crosses_anew = positions.attribute != "positions" and own and own <= added
        if donor.has_encoder and not crosses_anew:
            continue  # its positions were copied

        def donor_rows(limit: int, name: str = name, stack: Any = stack) -> Tensor:
            length = min(trained_length or longest_sentence(data, name, args) or limit, limit)
            return _donor_rows(donor, name, stack, args, length)

        stays = encoder.spec.base or positionless
        note = encoder.adopt_donor(positions.parts, donor_rows, stays)
        if stays and not math.isclose(factor := scale_queries(positions, -1), 1):
            folded = f"the donor's q_proj times {factor:.4g}, which the scale of the logits undoes"
            note = "; ".join(filter(None, (note, folded)))
        if isinstance(encoder, FloaterPositions) and args.floater_start == BIAS:
            with torch.no_grad():
                for part, start, bias in biases_of(positions):
                    start.copy_(bias / part.lr_scale)
                    bias.zero_()
            note = "p(0) starts at the donor's biases, which are zero now"
        elif isinstance(encoder, FloaterPositions) and args.floater_start == SINUSOID:
            note = "p(0) and h start as fairseq's sinusoid"
        if note:
            crosses = "cross-attention" if encoder.spec.crosses else "source positions"
            side = "" if positions.attribute == "positions" else f", {crosses}"
            notes.append(f"{name}{side}: {note}")
    return notes


def _donor_rows(
    donor: Donor, name: str, stack: Any, args: argparse.Namespace, length: int
) -> Tensor:
    """Return at most ``length`` of the donor's positions at the input of stack ``name``: float32 [n, C]."""
    learned = donor.tensors.get(f"{name}.embed_positions.weight")
    if not donor.base or getattr(args, "no_token_positional_embeddings", False):
        return torch.zeros(0, stack.positions.spec.dim)
    if learned is not None:
        return learned[stack.padding_idx + 1 :][:length].float()
    return sinusoid_rows(length, stack.positions.spec.dim, stack.padding_idx)


def _changes(given: Donor, start: Donor, args: argparse.Namespace) -> list[str]:
    """List how the new model's positions (``args``) differ from the donor's; ``start`` was copied."""
    changes = [f"the donor's {start.lost} is left out"] if start.lost else []
    table = getattr(start.args, "encoder_learned_pos", False)
    if start.base != has_base(args) and (table or args.floater_start != SINUSOID):
        changes.append(f"fairseq's own positions are {'left out' if start.base else 'new'}")
    if given.has_encoder:
        same = given.args.position_encoder == args.position_encoder
        # The position sides and the attention options change any model, whatever its encoder.
        compared = all_options() if same else (POSITION_SIDES, *ATTENTION_OPTIONS)
        for option in compared:
            before, now = getattr(given.args, option.dest), getattr(args, option.dest)
            changes += [f"{option.name} was {before} and is {now}"] if before != now else []
    return changes


def _difference(donor: Donor, model: BaseFairseqModel) -> float | None:
    """Return the largest difference of log-probabilities from the donor, on 4 random sentences."""
    if getattr(donor.args, "adaptive_softmax_cutoff", None) is not None:
        return None
    donor_model = donor.build()
    is_roberta = donor.family is ROBERTA
    generator = torch.Generator().manual_seed(0)
    limits = donor_model.max_positions()
    limit = min(_MEASURED, limits) if is_roberta else min(_MEASURED, *limits)
    source, target = (
        torch.randint(d.nspecial, len(d), (4, limit), generator=generator)
        for d in donor.dictionaries
    )
    batch = (source,) if is_roberta else (source, None, target)
    with torch.no_grad():
        first, second = (
            torch.log_softmax(m.float().eval()(*batch)[0], dim=-1) for m in (model, donor_model)
        )
    return float((first - second).abs().max())
