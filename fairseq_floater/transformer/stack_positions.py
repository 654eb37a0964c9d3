"""Connect a stack of blocks with its position encoder.

The stack owns the encoder (FLOATER's dynamics). Each block owns its part of it (FLOATER's p(0)) as
``layers.N.<attribute>``, so that layerdrop and ``--*-layers-to-keep`` keep block and part together.

Letters: N rows of the table, S streams, C channels, H heads, B sentences, T tokens.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.modules import LearnedPositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_floater.position_encoders import encoder_class, encoder_options, has_base
from fairseq_floater.position_encoders.base import CROSS_STREAMS, EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.hooks import IncrementalState
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.none import NoPositions
from fairseq_floater.position_encoders.options import ADD
from fairseq_floater.position_encoders.registry import block_numbers, check_depth, layer_numbers
from fairseq_floater.position_encoders.shared_options import has_positions
from fairseq_floater.position_encoders.stage import ForwardPass, InputStage
from fairseq_floater.position_encoders.transforms import Positions, Tokens
from fairseq_floater.transformer.prepared import (
    PreparedAttention,
    PreparedPositions,
    PreparedSignal,
    PreparedStage,
)

# Key of the encoder's output: how training moved the source tokens.
WARP = "position_warp"
# Key of the encoder's output: copies of each sentence, one for each beam.
BEAM = "beam_size"


def attach_encoder(
    stack: Any,
    attribute: str,
    cfg: Any,
    *,
    streams: tuple[str, ...],
    side: str,
    shape: Any,
) -> None:
    """Build ``cfg``'s encoder as ``stack.<attribute>`` and each block's part as ``block.<attribute>``.

    Args:
        stack: encoder or decoder, complete except for positions; ``length_option`` names the option that
            limits its input, ``fills_length`` says whether input usually reaches that limit.
        attribute: name of the encoder in the stack, and of its part in each block.
        cfg: the model's options, complete.
        streams: what a signal is added to.
        side: ``source`` or ``target``: whose tokens are counted.
        shape: ``cfg.encoder`` or ``cfg.decoder``: width, heads, and fairseq's ``layers_to_keep``. Blocks
            keep the index they were trained under.

    Raises:
        ValueError: the stack has no blocks, or `--position-blocks` names a block that no stack has, or no
            block of this stack.
    """
    layers_to_keep = shape.layers_to_keep
    blocks = all_blocks(stack)
    name = "encoder" if shape is cfg.encoder else "decoder"
    if not blocks:
        raise ValueError(f"`--{name}-layers` must be at least 1, because positions enter blocks.")
    indices = _kept_indices(layers_to_keep) if layers_to_keep else list(range(len(blocks)))
    spec = _spec(stack, cfg, streams, side, shape, indices)
    kind = cfg.position_encoder if has_positions(cfg, side) else NoPositions.name
    encoder = encoder_class(kind, cfg.position_target)(spec)
    for index, block in zip(indices, blocks):
        part = encoder.build_block(index) if encoder.receives(index) else None
        if isinstance(part, AttentionPart):
            part.set_attention(block.encoder_attn if spec.crosses else block.self_attn)
        setattr(block, attribute, part)
    if any(map(encoder.receives, spec.chosen or ())) and not any(map(encoder.receives, indices)):
        kept = f" by `--{name}-layers-to-keep`" if layers_to_keep else ""
        raise ValueError(
            f"`--position-blocks` must name a block of each stack with positions, but is "
            f"{cfg.position_blocks}, and the {name} has only {', '.join(map(str, indices))}{kept}."
        )
    setattr(stack, attribute, encoder)


def _chosen_blocks(cfg: Any) -> tuple[int, ...] | None:
    """Return the blocks that ``cfg`` gives positions; None: all."""
    numbers = block_numbers(cfg.position_blocks)
    sides = (("source", cfg.encoder), ("target", cfg.decoder))
    shapes = [shape for side, shape in sides if has_positions(cfg, side)]
    is_pruned = any(shape.layers_to_keep for shape in shapes)
    if not is_pruned:  # a pruned stack does not say how many blocks it had
        check_depth(numbers, max(shape.layers for shape in shapes))
    return numbers


def _spec(
    stack: Any, cfg: Any, streams: tuple[str, ...], side: str, shape: Any, blocks: list[int]
) -> EncoderSpec:
    max_positions = _max_positions(cfg, side, streams)
    return EncoderSpec(
        streams=streams,
        combine=cfg.position_combine if has_positions(cfg, side) else ADD,
        heads=shape.attention_heads,
        blocks=blocks,
        chosen=_chosen_blocks(cfg),
        dim=shape.embed_dim,
        target=cfg.position_target,
        side=side,
        max_positions=max_positions,
        padding_idx=stack.padding_idx,
        base=stack.embed_positions is not None,
        options=encoder_options(cfg),
        vocabulary=len(stack.dictionary),
        length_option=stack.length_option,
        usual_length=max_positions if stack.fills_length else 0,
        eval_law=stack.eval_law,
    )


def _max_positions(cfg: Any, side: str, streams: tuple[str, ...]) -> int:
    """Return how many positions a table of fixed length needs, at least."""
    if streams == CROSS_STREAMS:
        targets = math.ceil(cfg.max_target_positions * cfg.position_cross_ratio)
        return max(cfg.max_source_positions, targets)
    return cfg.max_source_positions if side == "source" else cfg.max_target_positions


def _kept_indices(layers_to_keep: str) -> list[int]:
    """Parse fairseq's ``--*-layers-to-keep``: the indices that the blocks were trained under."""
    numbers = layer_numbers(layers_to_keep)
    if numbers is None:
        raise ValueError(
            "`--encoder-layers-to-keep` and `--decoder-layers-to-keep` must be numbers with commas "
            f"between them, but are {layers_to_keep!r}."
        )
    return sorted(numbers)


def _log_statistics(encoder: PositionEncoder) -> None:
    """Log the encoder's statistics: means over encoders and updates, but the sum of the fallbacks."""
    statistics = encoder.statistics()  # in evaluation too, which resets the counts without logging
    for name, value in statistics.items() if encoder.training else ():
        log = metrics.log_scalar_sum if name == "fallbacks" else metrics.log_scalar
        log(f"flow_{name}", value, priority=1500, round=8)


def all_blocks(stack: Any) -> list[nn.Module]:
    """Return every block; iterating ``stack.layers`` itself skips some under layerdrop."""
    return list(stack.layers.children())


def owning_blocks(stack: Any, attribute: str) -> list[nn.Module]:
    """Return the blocks that receive positions of the encoder ``stack.<attribute>``."""
    return [block for block in all_blocks(stack) if getattr(block, attribute) is not None]


def owned_parts(stack: Any, attribute: str) -> list[Any]:
    """Return the part of the encoder ``stack.<attribute>`` in each block that receives positions."""
    return [getattr(block, attribute) for block in owning_blocks(stack, attribute)]


def prepare(
    stack: Any,
    attribute: str,
    tokens: Tokens,
    dtype: torch.dtype,
    words: Tensor | None = None,
    incremental_state: IncrementalState | None = None,
    facing: Tokens | None = None,
) -> PreparedPositions:
    """Prepare the positions of the encoder ``stack.<attribute>`` for one forward pass.

    Args:
        stack: encoder or decoder.
        attribute: name of the encoder in the stack, and of its part in each block.
        tokens: whose positions are needed.
        dtype: of the model.
        words: [B, T], indices of ``tokens`` in the dictionary; only a stage reads them.
        incremental_state: of the decoding; a batch begins if it is empty or None.
        facing: the source tokens that the target tokens ``tokens`` see in cross-attention; None:
            ``tokens`` see those of their own side.
    """
    if torch.compiler.is_dynamo_compiling():  # a trace of a solver's choice of a step takes minutes
        uncompiled = torch.compiler.disable(prepare)
        return uncompiled(stack, attribute, tokens, dtype, words, incremental_state, facing)
    encoder: Any = getattr(stack, attribute)
    owners = owning_blocks(stack, attribute)
    parts = [getattr(block, attribute) for block in owners]
    if not parts:
        return PreparedPositions()
    if not incremental_state:  # a later step of decoding begins no batch
        encoder.begin_batch(parts)
    if isinstance(encoder, InputStage):
        assert words is not None
        in_stream = words[:, -1:] if tokens.last_only else words
        prepared = encoder.prepare(in_stream, tokens, dtype)
        forward_pass = ForwardPass(tokens, prepared, incremental_state)
        return PreparedStage(encoder, {id(b): p for b, p in zip(owners, parts)}, forward_pass)
    at = _positions(stack, encoder, tokens, facing)
    if isinstance(encoder, AttentionPositions):
        bias = encoder.logit_bias(at, parts, dtype)
        tables = {id(b): t for b, t in zip(owners, encoder.prepare(at, parts, dtype))}
        added = encoder.input_rows(at, parts, dtype)
        _log_statistics(encoder)
        return PreparedAttention(tables, bias, {id(owners[n]): r for n, r in added.items()})
    table = encoder.token_rows(at, parts, dtype)
    if table is None:
        table = encoder(at.num_rows, parts, dtype, at.rows_per_token, at.rows_before)
    else:
        numbers = torch.arange(len(table), device=table.device)
        at = at._replace(queries=numbers.view_as(at.queries), num_rows=len(table))
    _log_statistics(encoder)
    if tokens.last_only:  # a step reads its rows for all blocks at once
        table = table.index_select(0, at.queries[:, -1])
    return PreparedSignal(encoder, table, owners, tokens, at)


def _positions(stack: Any, encoder: Any, tokens: Tokens, facing: Tokens | None) -> Positions:
    """Return the positions of ``tokens``, with the law by which evaluation changes them, if any."""
    if facing is None:
        at = tokens.at(use_slots=encoder.is_relative(encoder.spec.options))
    else:
        at = tokens.facing(facing, stack.cfg.position_cross_ratio)
    law, lengths = stack.eval_law, getattr(tokens.warp, "lengths", None)
    # Without lengths no source is longer than the trained length.
    if law is not None and not stack.training and not (law.changes_frequencies and lengths is None):
        at = at._replace(law=law, lengths=lengths)
    if at.num_rows > encoder.max_positions:  # a limit counts tokens, not padding
        at = at._replace(num_rows=int(max(at.keys.max(), at.queries.max())) + 1)
    return at


def with_base(cfg: Any, side: str) -> Any:
    """Return ``cfg`` with fairseq's positions off, if others replace them or ``side`` has none."""
    cfg = copy.copy(cfg)  # both stacks are built from the same cfg
    cfg.no_token_positional_embeddings = not has_base(cfg, side)
    return cfg


def wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """Wrap a block for checkpointing, as fairseq's stacks do."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return layer


def check_base_length(stack: Any, is_padding: Tensor) -> None:
    """Check that fairseq's *learned* table, if any, has a row for every token; ``is_padding`` [B, T].

    Raises:
        ValueError: a sequence has more tokens than the table has rows.
    """
    table = stack.embed_positions
    if not isinstance(table, LearnedPositionalEmbedding):
        return
    limit, tokens = table.max_positions, is_padding.size(1)
    if tokens > limit:  # only now: counting real tokens waits for the device
        tokens = int((~is_padding).sum(1).max())
    if tokens > limit:
        raise ValueError(
            f"A sequence of {tokens} tokens (end symbol included) is longer than the {limit} rows of the "
            f"learned table of positions, which `{stack.length_option}` sets before training. `floater "
            "warm-start --extend` lengthens RoBERTa's table; `--position-base drop` leaves it out."
        )


def longest_input(stack: Any, encoder: PositionEncoder, learned_base: bool) -> int:
    """Return the longest input that the encoder and fairseq's table, if it is *learned*, allow."""
    if stack.embed_positions is None or not learned_base:
        return encoder.max_positions
    return min(encoder.max_positions, int(stack.embed_positions.max_positions))
