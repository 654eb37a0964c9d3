"""Turn a plain Transformer's checkpoint into one that starts a model with positions (paper, B.2).

Every tensor of the donor is copied; what the position encoder adds starts as its own
initialisation says (FLOATER: small dynamics), or, with ``--position-base keep``, so that it changes
nothing where the encoder can; optimiser, scheduler and epoch start afresh. The result is for
``fairseq-train --finetune-from-model``.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_floater.checkpoints.donor import complete_languages, target_args
from fairseq_floater.checkpoints.fresh import fresh_state
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    load_checkpoint,
    model_args,
    save_checkpoint,
)
from fairseq_floater.checkpoints.rebuild import (
    BareTask,
    architecture,
    donor_dictionaries,
    longest_sentence,
)
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.transformer.stack_positions import all_blocks
from fairseq_floater.transformer.translation import FloaterTransformerModel

_POSITION_KEY = re.compile(r"\.(positions|source_positions)\.")
# Donor tensors that may stay behind: fairseq's own positions where the encoder replaces them,
# quantities derived from the rest, and the duplicates that fairseq 0.12.2 kept for a fast path.
_LEFT_BEHIND = re.compile(
    r"\.embed_positions\.|\.(version|_float_tensor)$"
    r"|^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)


@dataclass
class WarmStartReport:
    """The fate of each tensor, and how far the new model is from its donor.

    ``difference`` is the largest absolute difference of log-probabilities on a random batch, or
    None where the donor's own model cannot be built here.
    """

    donor: str
    output: str
    arch: str
    encoder: str
    copied: list[str] = field(default_factory=list)
    new: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
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
        ]
        if self.difference is not None:
            lines.append(
                f"start    {'not ' * (self.difference > 1e-5)}the donor's function: log-probabilities "
                f"differ by at most {self.difference:.2e} on a random batch"
            )
        return "\n".join(lines)


def warm_start(
    donor: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arch: str,
    data: str | None = None,
    model_options: Sequence[str] = (),
    trained_length: int | None = None,
    force: bool = False,
    seed: int = 1,
) -> WarmStartReport:
    """Write ``output``, a checkpoint of ``arch`` that starts from ``donor``.

    Args:
        donor: a checkpoint of fairseq's ``transformer`` (any architecture, with or without plugin).
        arch: one of :data:`ARCHITECTURES`; the shape is the donor's.
        data: binarised data (``--data``); its dictionaries must be the donor's.
        model_options: further model options as on fairseq-train's command line.
        trained_length: for ``learned``: rows that start as the donor's positions; default: the
            longest training sentence in ``data``, else the donor's ``--max-*-positions``.
        seed: of the new tensors.

    Raises:
        CheckpointError: the donor is unusable, of another shape or dictionary, or ``output`` exists.
        ValueError: position options that do not go together.
    """
    output = Path(output)
    if output.exists() and not force:
        raise CheckpointError(f"{output} exists; choose another name or pass --force.")
    state = load_checkpoint(donor)
    donor_args = model_args(state, donor)
    if data is not None:
        complete_languages(donor_args, state, data)
    args = target_args(donor_args, arch, model_options, donor)
    dictionaries = donor_dictionaries(state, donor_args, donor, data)
    torch.manual_seed(seed)
    model = FloaterTransformerModel.build_model(args, BareTask(*dictionaries))
    report = WarmStartReport(str(donor), str(output), arch, args.position_encoder)
    _copy(model, dict(state["model"]), donor, report)
    _adopt(model, state["model"], args, report, data, trained_length)
    report.difference = _difference(donor_args, state["model"], model, dictionaries)
    save_checkpoint(_new_state(state, args, model), output)
    return report


def _copy(
    model: FloaterTransformerModel,
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
    unknown = [n for n in new if not _POSITION_KEY.search(n)]
    unknown += [n for n in report.ignored if not _LEFT_BEHIND.search(n)]
    if unknown:
        raise CheckpointError(
            f"{donor} does not fit: {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''} "
            "is in only one of the two models and is no position."
        )
    report.new = {n: count for n, count in new.items() if not n.endswith("lr_scale")}
    model.load_state_dict(ours, strict=True)


def _adopt(
    model: FloaterTransformerModel,
    donor_state: dict[str, Tensor],
    args: argparse.Namespace,
    report: WarmStartReport,
    data: str | None,
    trained_length: int | None,
) -> None:
    """Let every position encoder start as near to the donor's function as it can."""
    if any(map(_POSITION_KEY.search, report.copied)):
        return  # the donor has the encoder itself
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):

        def donor_rows(limit: int, name: str = name, stack: Any = stack) -> Tensor:
            length = min(trained_length or longest_sentence(data, name, args) or limit, limit)
            learned = donor_state.get(f"{name}.embed_positions.weight")
            if getattr(args, "no_token_positional_embeddings", False):
                return torch.zeros(0, stack.positions.spec.dim)
            if learned is not None:
                return learned[stack.padding_idx + 1 :][:length].float()
            return sinusoid_rows(length, stack.positions.spec.dim, stack.padding_idx)

        for attribute in ("positions", "source_positions"):
            encoder = getattr(stack, attribute, None)
            if encoder is None:
                continue
            owners = [b for b in all_blocks(stack) if getattr(b, attribute) is not None]
            parts = [getattr(block, attribute) for block in owners]
            note = encoder.adopt_donor(parts, [block.self_attn for block in owners], donor_rows)
            if note:
                side = "" if attribute == "positions" else ", source positions"
                report.notes.append(f"{name}{side}: {note}")


def _difference(
    donor_args: argparse.Namespace,
    donor_state: dict[str, Tensor],
    model: FloaterTransformerModel,
    dictionaries: tuple[Dictionary, Dictionary],
) -> float | None:
    """Return the largest difference of log-probabilities from the donor, on 4 random sentences."""
    name = architecture(donor_args)
    if getattr(donor_args, "adaptive_softmax_cutoff", None) is not None:
        return None
    args = argparse.Namespace(**vars(donor_args))
    ARCH_CONFIG_REGISTRY[name](args)
    donor = ARCH_MODEL_REGISTRY[name].build_model(args, BareTask(*dictionaries))
    donor.load_state_dict(dict(donor_state), strict=False)
    generator = torch.Generator().manual_seed(0)
    limit = min(16, *donor.max_positions())
    source, target = (
        torch.randint(d.nspecial, len(d), (4, limit), generator=generator) for d in dictionaries
    )
    with torch.no_grad():
        ours, theirs = (
            torch.log_softmax(m.float().eval()(source, None, target)[0], dim=-1)
            for m in (model, donor)
        )
    return float((ours - theirs).abs().max())


def _new_state(
    state: dict[str, Any], args: argparse.Namespace, model: FloaterTransformerModel
) -> dict[str, Any]:
    """Make a checkpoint for --finetune-from-model: the donor's, with fresh progress."""
    cfg = dict(state.get("cfg") or {})
    if not cfg:
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from omegaconf import OmegaConf

        cfg = OmegaConf.to_container(
            convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True
        )
    cfg["model"] = args
    names = (state.get("optimizer_history") or [{}])[-1]
    return fresh_state(cfg, model.state_dict(), names)
