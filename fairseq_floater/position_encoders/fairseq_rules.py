"""List fairseq's options that do not work with positions, and those whose effect may surprise.

`rules.py` asks for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq_floater.position_encoders.registry import POSITION_ENCODERS
from fairseq_floater.position_encoders.shared_options import BOTH, FLOAT32, LINEAR, OFF, has_base

# What `--floater-lr-scale` s becomes if a step depends on the size of gradients or parameters.
_LR_SCALE_BECOMES = {
    "sgd": "its square",
    "nag": "its square",
    "adadelta": "another multiple",
    "lamb": "1",
    "adafactor --scale-parameter": "1",
}


def fairseq_option_faults(args: Any) -> Iterator[str]:
    if getattr(args, "base_layers", 0):
        yield (
            f"`--base-layers` must be 0, but is {args.base_layers} instead: a BASE layer is not a "
            "Transformer block and takes no positions."
        )
    for name in ("encoder_xformers_att_config", "decoder_xformers_att_config"):
        value = getattr(args, name, None)
        if value:
            yield (
                f"`--{name.replace('_', '-')}` must not be set, but is {value!r} instead: xformers "
                "has no place for positions."
            )
    noise = getattr(args, "quant_noise_scalar", 0)
    if noise and not POSITION_ENCODERS[args.position_encoder].takes_scalar_noise:
        yield (
            f"`--quant-noise-scalar` must be 0 with --position-encoder {args.position_encoder}, but is "
            f"{noise} instead: fairseq adds noise only to parameters named `weight`, and this encoder has "
            "others. Use --quant-noise-pq."
        )
    if noise and args.decoding_weights != FLOAT32:
        yield (
            f"`--decoding-weights` must be {FLOAT32} with `--quant-noise-scalar`, but is "
            f"{args.decoding_weights} instead: fairseq's quantised maps round their weights themselves."
        )
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        yield (
            "`--ddp-backend` must not be fully_sharded: the stack reads every block's initial "
            "positions at once, and sharding hides them. Use pytorch_ddp or legacy_ddp."
        )
    if not getattr(args, "cross_self_attention", False):
        return
    if args.position_target in ("attention", "relative"):
        yield (
            "`--cross-self-attention` must be off with `--position-encoder "
            f"{args.position_encoder}`: source and target tokens have no distance from each other."
        )
    if args.position_target == "qkv" and args.position_sides != BOTH:
        yield (
            "`--cross-self-attention` must be off with `--position-sides "
            f"{args.position_sides}` and target `qkv`: one attention reads both sides' biases."
        )


def one_stack_faults(args: Any, stack: str) -> Iterator[str]:
    """Yield faults of a model with ``stack``, encoder or decoder, alone."""
    alone, side, other = "an encoder alone", "source", "target"
    if stack == "decoder":
        alone, side, other = "a decoder alone", "target", "source"
    for name in ("mha_heads_to_keep", "ffn_blocks_to_remove"):
        value = getattr(args, name, -1)
        if value != -1:
            flag = "--" + name.replace("_", "-")
            yield (
                f"`{flag}` must be -1, but is {value} instead: fairseq's pruning rebuilds a block's "
                "projections, and its trained positions would no longer fit."
            )
    if args.position_sides == other:
        yield (
            f"`--position-sides` must be both or {side} with {alone}, which has {side} tokens only, but is "
            f"{other} instead."
        )
    for option, value in (
        ("--linear-cross", args.linear_cross),
        ("--position-cross", args.position_cross),
    ):
        if value not in (False, OFF):
            yield f"`{option}` must be off with {alone}, which has no cross-attention."
    if args.decoding_weights != FLOAT32 and stack == "encoder":
        yield f"`--decoding-weights` must be {FLOAT32} with {alone}, which decodes nothing."


def fairseq_option_warnings(args: Any) -> Iterator[str]:
    """Yield warnings about options of fairseq that do less than their names say, or something else."""
    dropout = getattr(args, "attention_dropout", 0.0)
    if args.attention_kind == LINEAR and dropout:
        remains = "nowhere" if args.linear_cross else "in cross-attention only"
        yield (
            "`--attention-dropout` should be 0 with `--attention-kind linear`, which forms no weights to "
            f"drop, but is {dropout}: it acts {remains}."
        )
    is_learned = getattr(args, "decoder_learned_pos", False)
    is_marian = getattr(args, "output_bias", False)  # its learned tables hold its own sinusoid
    is_base = POSITION_ENCODERS[args.position_encoder].base == "itself" and has_base(args)
    if is_learned and is_base and not is_marian:
        yield (
            "`--encoder-learned-pos --decoder-learned-pos` replace the sinusoid by fairseq's learned table: "
            "use `--position-encoder learned`, or leave them out."
        )


def training_fault(args: Any) -> str | None:
    """Return why the optimiser in ``args`` must not train the model, or None; hydra names no optimiser."""
    optimizer = getattr(args, "optimizer", None) or ""
    if optimizer == "adafactor" and getattr(args, "scale_parameter", False):
        optimizer += " --scale-parameter"
    becomes = _LR_SCALE_BECOMES.get(optimizer)
    if becomes is None or args.position_encoder != "floater" or args.floater_lr_scale == 1:
        return None
    return (
        f"`--floater-lr-scale` must be 1 with `--optimizer {optimizer}`, but is {args.floater_lr_scale} "
        f"instead: it would act as {becomes}. Use adam, adamax, adagrad, or "
        "adafactor without --scale-parameter."
    )
