"""What a warm start asks of its donor: a Transformer, of the same shape, with the same dictionaries."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import shown
from fairseq_floater.position_encoders import all_options
from fairseq_floater.transformer.architectures import ARCHITECTURES
from fairseq_floater.transformer.translation import FloaterTransformerModel

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


_LARGEST_SIZE = 1_000_000
_MOST_STEPS = 10_000


class BareTask:
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


def target_args(
    donor_args: argparse.Namespace, arch: str, options: Sequence[str], donor: Any
) -> argparse.Namespace:
    """The donor's model options under ``arch``, explicit ones on top; refuses another shape."""
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    donor_arch = getattr(donor_args, "arch", None) or getattr(donor_args, "_name", None)
    is_known = isinstance(donor_arch, str) and donor_arch in ARCH_MODEL_REGISTRY
    if not is_known or not hasattr(donor_args, "encoder_embed_dim"):
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


def check_size(model: dict[str, Tensor], args: argparse.Namespace, path: Any) -> None:
    """Refuse options of a larger model than the file holds: building it could fill the memory.

    A block of width E and inner width F has at least 4 E^2 + 2 E F parameters.
    """
    needed = 0
    for side, end in (("encoder", "source"), ("decoder", "target")):
        names = ("embed_dim", "ffn_embed_dim", "layers", "output_dim", "input_dim")
        width, inner, blocks, *ends = (_size(args, f"{side}_{name}", path) for name in names)
        _size(args, f"max_{end}_positions", path)
        needed += blocks * (4 * width**2 + 2 * width * inner)
        needed += sum(width * other for other in ends if other != width)
    held = sum(tensor.numel() for tensor in model.values())
    if needed > held:
        raise CheckpointError(
            f"{path} does not fit its own options: they ask for at least {needed:,} parameters, but "
            f"it holds {held:,}."
        )
    delta, step = getattr(args, "floater_delta", 0), getattr(args, "floater_step_size", None) or 0.1
    if delta > _MOST_STEPS * step:
        raise CheckpointError(
            f"{path}: --floater-delta {delta} would take the solver more than {_MOST_STEPS:,} steps a "
            "token."
        )


def _size(args: argparse.Namespace, name: str, path: Any) -> int:
    """An option that is the size of something; 0 where the model has none."""
    value = getattr(args, name, 0)
    if not isinstance(value, int) or not 0 <= value <= _LARGEST_SIZE:
        flag = "--" + name.replace("_", "-")
        raise CheckpointError(
            f"{path}: {flag} must be from 0 to {_LARGEST_SIZE:,}, but is {shown(value)}."
        )
    return value


def donor_dictionaries(
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
        if weight.dim() != 2 or not weight.numel():
            raise CheckpointError(f"{donor}: {side}.embed_tokens.weight is no table of vectors.")
        sizes.append(len(weight))
    if data is None:
        source = _placeholder_dictionary(sizes[0])
        if getattr(donor_args, "share_all_embeddings", False):
            return source, source
        return source, _placeholder_dictionary(sizes[1])
    task_options = task_options_of(state)
    loaded = []
    for side, size in zip(("source", "target"), sizes):
        language = getattr(donor_args, f"{side}_lang", None)
        path = Path(data.split(os.pathsep)[0]) / f"dict.{language}.txt"
        if not path.is_file():
            raise CheckpointError(f"There is no dictionary {path} for the donor's {side} language.")
        loaded.append(_same_dictionary(path, size, donor, task_options.get("data")))
    return loaded[0], loaded[1]


def complete_languages(args: argparse.Namespace, state: dict[str, Any], data: str) -> None:
    """Fill in the languages of ``args``: the task's, or, as fairseq does, those that ``data`` is named by.

    A training without ``-s`` and ``-t`` keeps none in its checkpoint.
    """
    from fairseq.data import data_utils

    folder = Path(data.split(os.pathsep)[0])
    named = data_utils.infer_language_pair(str(folder)) if folder.is_dir() else (None, None)
    task = task_options_of(state)
    for name, in_data in zip(("source_lang", "target_lang"), named):
        setattr(args, name, getattr(args, name, None) or task.get(name) or in_data)


def task_options_of(state: dict[str, Any]) -> dict[str, Any]:
    """The task's options in a checkpoint, languages and data as text; empty where it has none."""
    task = (state.get("cfg") or {}).get("task")
    options = vars(task) if isinstance(task, argparse.Namespace) else task
    names = ("data", "source_lang", "target_lang")
    known = options if isinstance(options, dict) else {}
    return {name: known[name] for name in names if isinstance(known.get(name), str)}


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


def longest_sentence(data: str | None, stack: str, args: argparse.Namespace) -> int | None:
    """Tokens of the longest training sentence in ``data``, end symbol included, if it can be read."""
    if data is None:
        return None
    from fairseq.data import data_utils

    pair = f"{args.source_lang}-{args.target_lang}"
    language = args.source_lang if stack == "encoder" else args.target_lang
    prefix = Path(data.split(os.pathsep)[0]) / f"train.{pair}.{language}"
    dataset = data_utils.load_indexed_dataset(str(prefix), None)
    return None if dataset is None else int(max(dataset.sizes))
