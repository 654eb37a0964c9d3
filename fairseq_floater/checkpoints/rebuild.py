"""Rebuild the model of a checkpoint: its size, its dictionaries, its parameters."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from fairseq_floater.checkpoints.reading import CheckpointError

STACKS = ("encoder", "decoder")


class BareTask(NamedTuple):
    """The part of a task that `build_model` needs."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary


def architecture(args: argparse.Namespace) -> str | None:
    """Return the name of the architecture that a checkpoint was trained as."""
    return getattr(args, "arch", None) or getattr(args, "_name", None)


def donor_dictionaries(
    state: dict[str, Any], donor_args: argparse.Namespace, donor: Any, data: str | None
) -> tuple[Dictionary, Dictionary]:
    """Make dictionaries of the donor's sizes; with ``data``, load that folder's and compare them.

    Args:
        state: the donor's checkpoint.
        donor_args: its model options.
        donor: its name in messages.
        data: a folder of binarised data.

    Raises:
        CheckpointError: a checkpoint without embeddings, or dictionaries that are not the donor's.
    """
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
    own = task_options_of(state).get("data")
    loaded = []
    for side, size in zip(("source", "target"), sizes):
        language = getattr(donor_args, f"{side}_lang", None)
        path = Path(data.split(os.pathsep)[0]) / f"dict.{language}.txt"
        if not path.is_file():
            raise CheckpointError(f"There is no dictionary {path} for the donor's {side} language.")
        loaded.append(_same_dictionary(path, size, donor, own))
    return loaded[0], loaded[1]


def task_options_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a checkpoint's task; empty where it has none."""
    task = (state.get("cfg") or {}).get("task") or {}
    return vars(task) if isinstance(task, argparse.Namespace) else task


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
    """Return the length of the longest training sentence in ``data``, if it can be read.

    Args:
        data: a folder of binarised data.
        stack: ``encoder`` for the source, ``decoder`` for the target.
        args: ``source_lang`` and ``target_lang``.

    Returns:
        Tokens, end symbol included; None without data.
    """
    if data is None:
        return None
    from fairseq.data import data_utils

    pair = f"{args.source_lang}-{args.target_lang}"
    language = args.source_lang if stack == "encoder" else args.target_lang
    prefix = Path(data.split(os.pathsep)[0]) / f"train.{pair}.{language}"
    dataset = data_utils.load_indexed_dataset(str(prefix), None)
    return None if dataset is None else int(max(dataset.sizes))


def build_model(state: dict[str, Any], args: argparse.Namespace, path: Any) -> Any:
    """Build the checkpoint's model without data, in evaluation mode.

    Args:
        state: the checkpoint.
        args: its model options.
        path: its name in messages.

    Raises:
        CheckpointError: no Transformer, or one that does not fit its own options.
    """
    arch = architecture(args)
    if not issubclass(ARCH_MODEL_REGISTRY.get(arch, object), TransformerModelBase):
        raise CheckpointError(f"{path} is no Transformer: its architecture is {arch!r}.")
    try:
        ARCH_CONFIG_REGISTRY[arch](args)
        # The checkpoint holds what these files gave.
        args.encoder_embed_path = args.decoder_embed_path = None
        dictionaries = donor_dictionaries(state, args, path, None)
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, BareTask(*dictionaries))
    except ValueError as error:
        raise CheckpointError(f"{path}: its options make no model: {error}") from None
    try:
        loaded = model.load_state_dict(state["model"], strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise CheckpointError(f"{path} does not fit its own options: {reason}.") from None
    missing = [name for name in loaded.missing_keys if "positions." in name]
    if missing:
        raise CheckpointError(f"{path} lacks {missing[0]}, which its own options ask for.")
    return model.eval()
