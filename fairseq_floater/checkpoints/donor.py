"""Check the donor of a warm start: a Transformer, of the same shape, with the same dictionaries."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.rebuild import architecture, task_options_of
from fairseq_floater.position_encoders import all_options
from fairseq_floater.transformer.shapes import ARCHITECTURES
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


def target_args(
    donor_args: argparse.Namespace, arch: str, options: Sequence[str], donor: Any
) -> argparse.Namespace:
    """Return the donor's model options under ``arch``, explicit ones on top.

    Args:
        donor_args: the donor's options.
        arch: one of :data:`ARCHITECTURES`.
        options: words of a command line.
        donor: its name in messages.

    Raises:
        CheckpointError: the donor is no Transformer, or of another shape.
        ValueError: an unknown ``arch``.
    """
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    donor_arch = architecture(donor_args)
    if donor_arch not in ARCH_MODEL_REGISTRY or not hasattr(donor_args, "encoder_embed_dim"):
        raise CheckpointError(f"{donor} is no Transformer: its architecture is {donor_arch!r}.")
    parser = argparse.ArgumentParser(
        prog="floater warm-start", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    FloaterTransformerModel.add_args(parser)
    explicit = parser.parse_args(list(options))
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
