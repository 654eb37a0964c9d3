"""Rebuild the model of a checkpoint: its size, its parameters."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_floater.checkpoints.dictionaries import donor_dictionaries
from fairseq_floater.checkpoints.families import ROBERTA, architecture, family_of, without_heads
from fairseq_floater.checkpoints.length import DEFAULT_POSITIONS
from fairseq_floater.checkpoints.reading import CheckpointError

STACKS = ("encoder", "decoder")


class BareTask(NamedTuple):
    """The part of a task that `build_model` needs."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary


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


def build_model(
    state: dict[str, Any],
    args: argparse.Namespace,
    path: Any,
    dictionaries: tuple[Dictionary, Dictionary] | None = None,
) -> Any:
    """Build the checkpoint's model without data, in evaluation mode.

    Args:
        state: the checkpoint.
        args: its model options.
        path: its name in messages.
        dictionaries: of source and target; default: as large as the checkpoint says.

    Raises:
        CheckpointError: no Transformer, or one that does not fit its own options.
    """
    arch = architecture(args)
    family = family_of(arch)
    if family is None:
        raise CheckpointError(f"{path} is no Transformer: its architecture is {arch!r}.")
    parameters = without_heads(state["model"])[0] if family is ROBERTA else state["model"]
    try:
        ARCH_CONFIG_REGISTRY[arch](args)
        # The checkpoint holds what these files gave.
        args.encoder_embed_path = args.decoder_embed_path = None
        if family is ROBERTA:
            args.max_positions = getattr(args, "max_positions", None) or DEFAULT_POSITIONS
        dictionaries = dictionaries or donor_dictionaries(state, args, path, None)
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, BareTask(*dictionaries))
    except ValueError as error:
        raise CheckpointError(f"{path}: its options make no model: {error}") from None
    try:
        loaded = model.load_state_dict(dict(parameters), strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise CheckpointError(f"{path} does not fit its own options: {reason}.") from None
    missing = [name for name in loaded.missing_keys if "positions." in name]
    if missing:
        raise CheckpointError(f"{path} lacks {missing[0]}, which its own options ask for.")
    return model.eval()
