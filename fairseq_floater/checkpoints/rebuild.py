"""Rebuild the model of a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fairseq import options
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_floater.checkpoints.dictionaries import load_dictionaries
from fairseq_floater.checkpoints.families import (
    DEFAULT_POSITIONS,
    ROBERTA,
    ROBERTA_TABLE,
    TRANSLATION,
    architecture,
    family_of,
    not_of_family,
    split_heads,
)
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import parsed


class BareTask(NamedTuple):
    """The part of a task that `build_model` needs."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary


def parse_fairseq(
    argv: Sequence[str],
    rule: str,
    make_parser: Callable[[], argparse.ArgumentParser] = options.get_training_parser,
) -> argparse.Namespace:
    """Parse a command line of fairseq, by default fairseq-train's.

    Raises:
        UsageError: fairseq refuses it; the message begins with ``rule``.
    """
    args: argparse.Namespace = parsed(
        make_parser(), lambda parser: options.parse_args_and_arch(parser, list(argv)), rule
    )
    return args


def build_model(
    state: dict[str, Any],
    args: argparse.Namespace,
    path: Any,
    dictionaries: tuple[Dictionary, Dictionary] | None = None,
) -> Any:
    """Build the checkpoint's model without data, in evaluation mode.

    Args:
        state: the checkpoint.
        args: the checkpoint's model options.
        path: the checkpoint's name in messages.
        dictionaries: of source and target; default: placeholders of the checkpoint's sizes.

    Raises:
        CheckpointError: the model is not a Transformer, or does not fit its options.
    """
    arch = architecture(args)
    family = family_of(arch)
    if family is None:
        raise not_of_family(path, TRANSLATION.name, arch)
    parameters = split_heads(state["model"])[0] if family is ROBERTA else dict(state["model"])
    try:
        ARCH_CONFIG_REGISTRY[arch](args)
        # The checkpoint holds the embeddings that were read from these files.
        args.encoder_embed_path = args.decoder_embed_path = None
        dictionaries = dictionaries or load_dictionaries(state, args, path, None)
        if family is ROBERTA and not getattr(args, "max_positions", None):
            # Hydra's configuration lacks it. It was the task's length, which the table shows.
            table, first = parameters.get(ROBERTA_TABLE), dictionaries[0].pad() + 1
            args.max_positions = DEFAULT_POSITIONS if table is None else len(table) - first
        model = ARCH_MODEL_REGISTRY[arch].build_model(args, BareTask(*dictionaries))
    except ValueError as error:
        raise CheckpointError(f"{path}: no model can be built from its options: {error}") from None
    try:
        loaded = model.load_state_dict(parameters, strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise CheckpointError(f"{path} does not fit its own options: {reason}.") from None
    # Checkpoints may lack what fairseq does not compute with.
    unused = (".version", "._float_tensor")
    missing = [name for name in loaded.missing_keys if not name.endswith(unused)]
    if missing:
        raise CheckpointError(f"{path} lacks {missing[0]}, which its own options require.")
    return model.eval()
