"""Turn the checkpoint of a Transformer or RoBERTa into one that starts a model with other positions.

Paper, B.2 and section 4.2; from one encoder to another, Gumma, Chitale and Bali 2024.

Every tensor of the donor is copied, but for positions of ours that the new model does not have
(`plain_donor.py`); what the position encoder adds starts as its own
initialisation says (FLOATER: small dynamics), or, with ``--position-base keep``, so that it changes
nothing where the encoder can; optimiser, scheduler and epoch start afresh. The result is for
``fairseq-train --finetune-from-model``.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_floater.checkpoints.adoption import adopt
from fairseq_floater.checkpoints.dictionaries import donor_dictionaries
from fairseq_floater.checkpoints.donor import PlainDonor, complete_languages, target_args
from fairseq_floater.checkpoints.families import (
    ROBERTA,
    Family,
    family_of,
    todays_names,
    without_heads,
)
from fairseq_floater.checkpoints.fresh import config_of, fresh_state
from fairseq_floater.checkpoints.length import fit_length
from fairseq_floater.checkpoints.plain_donor import (
    are_the_same,
    as_it_is,
    changes,
    complete_options,
    shapes_of_positions,
    without_our_positions,
)
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    is_position,
    load_checkpoint,
    model_args,
    refuse_existing,
    save_checkpoint,
)
from fairseq_floater.checkpoints.rebuild import BareTask, build_model
from fairseq_floater.checkpoints.warm_start_report import MEASURED, WarmStartReport
from fairseq_floater.position_encoders import POSITION_ENCODERS, has_base
from fairseq_floater.transformer.bert import FAIRSEQ_EPS

# Donor tensors that may stay behind: fairseq's own positions where the encoder replaces them,
# quantities derived from the rest, and the duplicates that fairseq 0.12.2 kept for a fast path.
_LEFT_BEHIND = re.compile(
    r"\.embed_positions\.|\.(version|_float_tensor)$"
    r"|^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)
# Present once a translation donor's learned rows have become fairseq's table.
_LEARNED_BASE = "encoder.embed_positions.weight"
_TABLE_NOTE = (
    "the donor's learned rows stand underneath: fairseq-train needs `--encoder-learned-pos "
    "--decoder-learned-pos` as well"
)
_EPS_NOTE = (
    "LayerNorm adds {0:g} to the variance: fairseq-train needs `--layer-norm-eps {0:g}` as well"
)


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
            without plugin and with any of its encoders; a RoBERTa of any age).
        arch: one of ours of the donor's family; the shape is the donor's.
        data: binarised data (``--data``); its dictionaries must be the donor's.
        model_options: further model options as on fairseq-train's command line.
        trained_length: for ``learned``: rows that start as the donor's positions; default: the
            longest training sentence in ``data``, else the donor's ``--max-*-positions``.
        extend: ``tile`` or ``last``: what a RoBERTa's table goes on with up to ``--max-positions``.
        seed: of the new tensors.

    Raises:
        CheckpointError: the donor is unusable, of another shape or dictionary, or ``output`` exists.
        ValueError: position options that do not go together.
    """
    output = Path(output)
    refuse_existing(output, force)
    given, args = _read_donor(donor, arch, data, model_options)
    if given.family is ROBERTA:
        data = None  # a table's rows are as many as its donor's
    elif extend is not None:
        raise ValueError("`--extend` must come with a donor and an architecture of RoBERTa.")
    plain, same, args, model = _new_model(given, args, model_options, extend, seed)
    report = WarmStartReport(str(donor), str(output), arch, args.position_encoder)
    _copy(model, dict(plain.state), donor, report)  # fairseq renames what is old in place
    report.ignored += [name for name in given.parameters if name not in plain.state] + given.heads
    if has_base(args) and _LEARNED_BASE in plain.state and _LEARNED_BASE not in given.parameters:
        report.notes.append(_TABLE_NOTE)
    eps = getattr(args, "layer_norm_eps", None) or FAIRSEQ_EPS
    if given.family is ROBERTA and eps != FAIRSEQ_EPS:
        report.notes.append(_EPS_NOTE.format(eps))
    if not same:
        stacks = given.family.stacks(model)
        report.notes += adopt(stacks, plain, args, data=data, trained_length=trained_length)
    report.changed = changes(plain, given.options, args)
    report.difference = _difference(given, model)
    save_checkpoint(_new_state(given.state, args, model), output)
    return report


@dataclass(frozen=True)
class _Donor:
    """A donor as its file has it, with today's names: ``options`` are those of our plugin, if it had it."""

    name: str | os.PathLike[str]
    state: dict[str, Any]
    args: argparse.Namespace
    family: Family
    dictionaries: tuple[Dictionary, Dictionary]
    parameters: dict[str, Tensor]
    heads: list[str]
    options: argparse.Namespace | None

    def build_model(self) -> Any:
        """Build the donor itself, its parameters in place."""
        args = argparse.Namespace(**vars(self.args))
        return build_model(self.state, args, self.name, self.dictionaries)


def _read_donor(
    donor: str | os.PathLike[str], arch: str, data: str | None, options: Sequence[str]
) -> tuple[_Donor, argparse.Namespace]:
    """Read the donor, and complete the options of the new model, ``arch`` with ``options``."""
    state = load_checkpoint(donor)
    args = model_args(state, donor)
    if data is not None:
        complete_languages(args, state, data)
    family = family_of(arch)
    wanted = target_args(args, arch, options, donor)
    assert family is not None
    dictionaries = donor_dictionaries(state, args, donor, data)
    parameters, heads = dict(state["model"]), list[str]()
    if family is ROBERTA:
        parameters, heads = without_heads(todays_names(parameters))
    ours = complete_options(args, family)
    return _Donor(donor, state, args, family, dictionaries, parameters, heads, ours), wanted


def _new_model(
    donor: _Donor, wanted: argparse.Namespace, options: Sequence[str], extend: str | None, seed: int
) -> tuple[PlainDonor, bool, argparse.Namespace, Any]:
    """Build the new model, its parameters at random.

    Returns:
        The donor's tensors to copy, whether its positions are among them (it has the new model's, of
        no other shape), and the new model's options and the model.
    """
    plain = as_it_is(dict(donor.parameters), donor.args, donor.options)
    same = donor.options is not None and are_the_same(donor.options, wanted)
    if same or donor.options is None:
        args, model = _build(donor, plain, wanted.arch, options, extend, seed)
        rows = shapes_of_positions(donor.parameters).items()
        if donor.options is None or rows <= shapes_of_positions(model.state_dict()).items():
            return plain, same, args, model
    keep_rows = POSITION_ENCODERS[wanted.position_encoder].base != "itself"
    plain = without_our_positions(
        donor.build_model(), donor.parameters, donor.options, donor.family, keep_rows=keep_rows
    )
    return plain, False, *_build(donor, plain, wanted.arch, options, extend, seed)


def _build(
    donor: _Donor,
    plain: PlainDonor,
    arch: str,
    options: Sequence[str],
    extend: str | None,
    seed: int,
) -> tuple[argparse.Namespace, Any]:
    """Build the new model, its parameters at random, and complete its options."""
    args = target_args(plain.args, arch, options, donor.name)
    if donor.family is ROBERTA:
        row = donor.dictionaries[0].pad() + 1
        fit_length(plain.state, args, plain.args, first_row=row, way=extend, donor=donor.name)
    torch.manual_seed(seed)
    return args, donor.family.ours.build_model(args, BareTask(*donor.dictionaries))


def _copy(
    model: BaseFairseqModel,
    donor_state: dict[str, Tensor],
    donor: Any,
    report: WarmStartReport,
) -> None:
    """Copy every tensor; only position tensors may be new, only :data:`_LEFT_BEHIND` may be left."""
    model.upgrade_state_dict(donor_state)
    ours = model.state_dict()
    for name, tensor in donor_state.items():
        if name not in ours:
            report.ignored.append(name)
        elif ours[name].shape != tensor.shape:
            raise CheckpointError(
                f"{donor} is of another shape: {name} is {list(tensor.shape)} there and "
                f"{list(ours[name].shape)} here."
            )
        else:
            report.copied.append(name)
            ours[name] = tensor
    new = {n: t.numel() for n, t in ours.items() if n not in donor_state}
    unknown = [n for n in new if not is_position(n)]
    unknown += [n for n in report.ignored if not _LEFT_BEHIND.search(n)]
    if unknown:
        raise CheckpointError(
            f"{donor} does not fit: {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''} "
            "is in only one of the two models and is no position."
        )
    report.new = {n: count for n, count in new.items() if not n.endswith("lr_scale")}
    model.load_state_dict(ours, strict=True)


def _difference(donor: _Donor, model: BaseFairseqModel) -> float | None:
    """Return the largest difference of log-probabilities from the donor, on 4 random sentences."""
    if getattr(donor.args, "adaptive_softmax_cutoff", None) is not None:
        return None
    plain_model = donor.build_model()
    alone = donor.family is ROBERTA
    generator = torch.Generator().manual_seed(0)
    limits = plain_model.max_positions()
    limit = min(MEASURED, limits) if alone else min(MEASURED, *limits)
    source, target = (
        torch.randint(d.nspecial, len(d), (4, limit), generator=generator)
        for d in donor.dictionaries
    )
    batch = (source,) if alone else (source, None, target)
    with torch.no_grad():
        ours, theirs = (
            torch.log_softmax(m.float().eval()(*batch)[0], dim=-1) for m in (model, plain_model)
        )
    return float((ours - theirs).abs().max())


def _new_state(
    state: dict[str, Any], args: argparse.Namespace, model: BaseFairseqModel
) -> dict[str, Any]:
    """Make a checkpoint for --finetune-from-model: the donor's, with fresh progress."""
    cfg = dict(state.get("cfg") or {}) or config_of(args)
    cfg["model"] = args
    names = (state.get("optimizer_history") or [{}])[-1]
    return fresh_state(cfg, model.state_dict(), names)
