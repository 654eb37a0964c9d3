"""From a plain Transformer's checkpoint to one that starts a model with positions (paper, B.2).

Every tensor of the donor is copied; what the position encoder adds starts as its own
initialisation says (FLOATER: small dynamics); optimiser, scheduler and epoch start afresh. The
result is for ``fairseq-train --finetune-from-model``.
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

from fairseq_floater.architectures import ARCHITECTURES
from fairseq_floater.checkpoints import (
    CheckpointError,
    load_checkpoint,
    model_args,
    save_checkpoint,
)
from fairseq_floater.position_encoders import all_options
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.stack_positions import all_blocks
from fairseq_floater.transformer import FloaterTransformerModel

# Options that fix a model's tensors or what it computes from them.
SHAPE_OPTIONS = (
    *(
        f"{side}_{name}"
        for side in ("encoder", "decoder")
        for name in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")
    ),
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "layernorm_embedding",
    "activation_fn",
    "adaptive_softmax_cutoff",
    "no_scale_embedding",
    "no_cross_attention",
    "cross_self_attention",
)
_POSITION_KEY = re.compile(r"\.(positions|source_positions)\.")
# Donor tensors that may stay behind: fairseq's own positions where the encoder replaces them,
# quantities derived from the rest, and the duplicates that fairseq 0.12.2 kept for a fast path.
_LEFT_BEHIND = re.compile(
    r"\.embed_positions\.|\.(version|_float_tensor)$"
    r"|^encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2|ln1|ln2)_(weight|bias)$"
)


@dataclass
class WarmStartReport:
    """What became of each tensor, and how far the new model is from its donor.

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

    def to_json_dict(self) -> dict[str, Any]:
        return dict(vars(self))

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
            verdict = (
                "the donor's function" if self.difference <= 1e-5 else "not the donor's function"
            )
            lines.append(
                f"start    {verdict}: log-probabilities differ by at most {self.difference:.2e} "
                "on a random batch"
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
    args = _target_args(donor_args, arch, model_options, donor)
    dictionaries = _dictionaries(state, donor_args, donor, data)
    torch.manual_seed(seed)
    model = FloaterTransformerModel.build_model(args, _Task(*dictionaries))
    report = WarmStartReport(str(donor), str(output), arch, args.position_encoder)
    _copy(model, dict(state["model"]), donor, report)
    _adopt_base(model, state["model"], args, report, data, trained_length)
    report.difference = _difference(donor_args, state["model"], model, dictionaries)
    save_checkpoint(_new_state(state, args, model), output)
    return report


class _Task:
    """What `build_model` asks of a task."""

    def __init__(self, source_dictionary: Dictionary, target_dictionary: Dictionary):
        self.source_dictionary = source_dictionary
        self.target_dictionary = target_dictionary


def parse_model_options(arch: str, options: Sequence[str]) -> argparse.Namespace:
    """Model options given on a command line, and only those; argparse exits with 2 on a bad one."""
    parser = argparse.ArgumentParser(
        prog="floater warm-start", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    FloaterTransformerModel.add_args(parser)
    return parser.parse_args(list(options))


def _target_args(
    donor_args: argparse.Namespace, arch: str, options: Sequence[str], donor: Any
) -> argparse.Namespace:
    """The donor's model options under ``arch``, explicit ones on top; refuses another shape."""
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    donor_arch = getattr(donor_args, "arch", None) or getattr(donor_args, "_name", None)
    if donor_arch not in ARCH_MODEL_REGISTRY or not hasattr(donor_args, "encoder_embed_dim"):
        raise CheckpointError(f"{donor} is no Transformer: its architecture is {donor_arch!r}.")
    explicit = parse_model_options(arch, options)
    wanted = argparse.Namespace(**vars(explicit))
    if donor_arch in (arch, ARCHITECTURES[arch]):
        # The same named shape: what the donor changed of it holds here too.
        for name in SHAPE_OPTIONS:
            if not hasattr(wanted, name) and hasattr(donor_args, name):
                setattr(wanted, name, getattr(donor_args, name))
    ARCH_CONFIG_REGISTRY[arch](wanted)
    for name in SHAPE_OPTIONS:
        ours, theirs = getattr(wanted, name, None), getattr(donor_args, name, None)
        if theirs is not None and ours != theirs:
            flag = "--" + name.replace("_", "-")
            raise CheckpointError(
                f"{donor} is of another shape: its {flag} is {theirs} (--arch {donor_arch}), but "
                f"--arch {arch} has {ours}; pass the architecture of the donor's name, or {flag}."
            )
    merged = {**vars(donor_args), **vars(explicit), "arch": arch, "_name": arch}
    # A donor trained with the plugin does not decide where the new model's positions come from.
    for option in all_options():
        if not hasattr(explicit, option.dest):
            merged.pop(option.dest, None)
    args = argparse.Namespace(**merged)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def _dictionaries(
    state: dict[str, Any], donor_args: argparse.Namespace, donor: Any, data: str | None
) -> tuple[Dictionary, Dictionary]:
    """Dictionaries of the donor's sizes; with ``data``, that folder's, compared with the donor's."""
    sizes = []
    for side in ("encoder", "decoder"):
        weight = state["model"].get(f"{side}.embed_tokens.weight")
        if not isinstance(weight, Tensor):
            raise CheckpointError(
                f"{donor} has no {side}.embed_tokens.weight; adaptive inputs are not supported."
            )
        sizes.append(len(weight))
    if data is None:
        source = _placeholder_dictionary(sizes[0])
        if getattr(donor_args, "share_all_embeddings", False):
            return source, source
        return source, _placeholder_dictionary(sizes[1])
    task = (state.get("cfg") or {}).get("task")
    task_options = vars(task) if isinstance(task, argparse.Namespace) else dict(task or {})
    loaded = []
    for side, size in zip(("source", "target"), sizes):
        language = task_options.get(f"{side}_lang") or getattr(donor_args, f"{side}_lang", None)
        path = Path(data.split(os.pathsep)[0]) / f"dict.{language}.txt"
        if not path.is_file():
            raise CheckpointError(f"There is no dictionary {path} for the donor's {side} language.")
        loaded.append(_same_dictionary(path, size, donor, task_options.get("data")))
    return loaded[0], loaded[1]


def _same_dictionary(path: Path, size: int, donor: Any, donor_data: str | None) -> Dictionary:
    """Load ``path`` if it can be the donor's dictionary: same size, same words where those are known."""
    dictionary = Dictionary.load(str(path))
    if len(dictionary) != size:
        raise CheckpointError(
            f"The dictionary {path} has {len(dictionary)} entries, but {donor} was trained with {size}."
        )
    original = Path(donor_data.split(os.pathsep)[0]) / path.name if donor_data else None
    if original is not None and original.is_file():
        known = Dictionary.load(str(original))
        if known.symbols != dictionary.symbols:
            i = next(i for i, (a, b) in enumerate(zip(known.symbols, dictionary.symbols)) if a != b)
            raise CheckpointError(
                f"The dictionary {path} is not {original}, which {donor} was trained with: entry {i} "
                f"is {dictionary.symbols[i]!r}, there {known.symbols[i]!r}."
            )
    return dictionary


def _placeholder_dictionary(size: int) -> Dictionary:
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"placeholder{i}")
    return dictionary


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


def _adopt_base(
    model: FloaterTransformerModel,
    donor_state: dict[str, Tensor],
    args: argparse.Namespace,
    report: WarmStartReport,
    data: str | None,
    trained_length: int | None,
) -> None:
    """Let an encoder that replaces fairseq's positions start from the donor's."""
    for name, stack, limit in (
        ("encoder", model.encoder, args.max_source_positions),
        ("decoder", model.decoder, args.max_target_positions),
    ):
        signal = stack.positions
        if signal.keeps_base or not signal.data_driven:
            continue
        length = trained_length or _longest_sentence(data, name, args) or limit
        length = min(length, limit)
        learned = donor_state.get(f"{name}.embed_positions.weight")
        if getattr(args, "no_token_positional_embeddings", False):
            rows = torch.zeros(0, signal.spec.dim)
        elif learned is not None:
            rows = learned[stack.padding_idx + 1 :][:length].float()
        else:
            rows = sinusoid_rows(length, signal.spec.dim, stack.padding_idx)
        parts = [block.positions for block in all_blocks(stack) if block.positions is not None]
        signal.adopt_base(parts, rows)
        report.notes.append(
            f"{name}: block 1 starts as the donor's positions in rows 0 to {len(rows) - 1}, random in "
            f"rows {len(rows)} to {limit - 1}; the other blocks start at zero"
        )


def _longest_sentence(data: str | None, stack: str, args: argparse.Namespace) -> int | None:
    """Tokens of the longest training sentence in ``data``, end symbol included, if it can be read."""
    if data is None:
        return None
    from fairseq.data import data_utils

    pair = f"{args.source_lang}-{args.target_lang}"
    language = args.source_lang if stack == "encoder" else args.target_lang
    prefix = Path(data.split(os.pathsep)[0]) / f"train.{pair}.{language}"
    dataset = data_utils.load_indexed_dataset(str(prefix), None)
    return None if dataset is None else int(max(dataset.sizes))


def _difference(
    donor_args: argparse.Namespace,
    donor_state: dict[str, Tensor],
    model: FloaterTransformerModel,
    dictionaries: tuple[Dictionary, Dictionary],
) -> float | None:
    """Largest difference of log-probabilities between donor and new model on 4 random sentences."""
    name = getattr(donor_args, "arch", None) or donor_args._name
    if getattr(donor_args, "adaptive_softmax_cutoff", None) is not None:
        return None
    args = argparse.Namespace(**vars(donor_args))
    ARCH_CONFIG_REGISTRY[name](args)
    donor = ARCH_MODEL_REGISTRY[name].build_model(args, _Task(*dictionaries))
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
    """A checkpoint for --finetune-from-model: the donor's, with fresh progress."""
    cfg = dict(state["cfg"]) if state.get("cfg") is not None else {}
    if not cfg:
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from omegaconf import OmegaConf

        cfg = OmegaConf.to_container(
            convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True
        )
    cfg["model"] = args
    parameters = model.state_dict()
    # fairseq reads the last entry of the history wherever it loads a checkpoint; no optimiser state
    # comes with this one, so that only the update count is taken from it.
    names = (state.get("optimizer_history") or [{}])[-1]
    history = {
        "criterion_name": names.get("criterion_name", ""),
        "optimizer_name": names.get("optimizer_name", ""),
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    return {
        "args": None,
        "cfg": cfg,
        "model": parameters,
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
            # The same tensors, stored once: fairseq cannot start --store-ema from a checkpoint
            # without them (it has freed the model's parameters when it comes to that).
            "ema": parameters,
        },
    }
