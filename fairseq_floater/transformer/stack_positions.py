"""Connect a stack of blocks and its position signals: who owns what, and which block gets which rows.

The stack owns the signal (FLOATER's dynamics); each block owns its part of it (FLOATER's p(0)) as
``layers.N.<attribute>``, so that layerdrop and ``--*-layers-to-keep`` keep block and part together.

Letters: N rows of the table, S streams, C channels, B sentences, T tokens.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.logging import metrics
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_floater.position_encoders import POSITION_ENCODERS, encoder_options
from fairseq_floater.position_encoders.base import UNLIMITED_POSITIONS
from fairseq_floater.position_encoders.signal import PositionSignal, SignalSpec
from fairseq_floater.position_encoders.transforms import (
    ROWS_PER_TOKEN,
    Stretch,
    gather_rows,
    token_positions,
)

# Where the encoder's output tells the decoder of `--position-stretch`.
STRETCH = "position_stretch"
# Where it says that each sentence stands there once for every beam.
BEAM = "beam_size"


def attach_signal(
    stack: Any,
    attribute: str,
    cfg: Any,
    *,
    streams: tuple[str, ...],
    side: str,
    dim: int,
    layers_to_keep: str | None,
) -> None:
    """Build ``cfg``'s encoder as ``stack.<attribute>`` and each block's part as ``block.<attribute>``.

    The random numbers drawn here are given back, so that under one seed the Transformer around the
    encoder starts, and drops out, like fairseq's own.

    Args:
        stack: encoder or decoder, built but for its positions.
        attribute: under which stack and blocks hold encoder and parts.
        cfg: the model's options, complete.
        streams: what the positions are added to.
        side: ``source`` or ``target``: whose tokens are counted.
        dim: C.
        layers_to_keep: fairseq's option; blocks keep the index they were trained under.

    Raises:
        ValueError: pruning would remove the only block that receives positions.
    """
    blocks = all_blocks(stack)
    indices = _kept_indices(layers_to_keep) if layers_to_keep else list(range(len(blocks)))
    spec = SignalSpec(
        dim=dim,
        streams=streams,
        every_block=cfg.position_blocks == "all",
        target=cfg.position_target,
        side=side,
        max_positions=cfg.max_source_positions if side == "source" else cfg.max_target_positions,
        padding_idx=stack.padding_idx,
        base_at_input=stack.embed_positions is not None,
        options=encoder_options(cfg),
    )
    with torch.random.fork_rng(devices=[]):
        signal = POSITION_ENCODERS[cfg.position_encoder](spec)
        for index, block in zip(indices, blocks):
            setattr(block, attribute, signal.build_block(index) if signal.receives(index) else None)
    if signal.receives(0) and not spec.every_block and 0 not in indices:
        raise ValueError(
            "`--encoder-layers-to-keep` and `--decoder-layers-to-keep` must keep layer 0 with "
            f"`--position-blocks input`, but are {layers_to_keep!r}: only layer 0 has positions."
        )
    setattr(stack, attribute, signal)


def _kept_indices(layers_to_keep: str) -> list[int]:
    """Parse fairseq's ``--*-layers-to-keep``: the indices that the blocks were trained under."""
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", layers_to_keep, re.ASCII):
        raise ValueError(
            "`--encoder-layers-to-keep` and `--decoder-layers-to-keep` must be numbers with commas "
            f"between them, but are {layers_to_keep!r}."
        )
    return sorted(int(i) for i in layers_to_keep.split(","))


def _log(statistics: dict[str, Any]) -> None:
    """Log as fairseq does: means over the signals and updates, but the sum of the fallbacks."""
    for name, value in statistics.items():
        log = metrics.log_scalar_sum if name == "fallbacks" else metrics.log_scalar
        log(f"flow_{name}", value, priority=1500, round=8)


def all_blocks(stack: Any) -> list[nn.Module]:
    """Return every block; iterating ``stack.layers`` itself skips some under layerdrop."""
    return list(stack.layers.children())


class BlockRows:
    """Hold the rows of one signal for one batch, block by block.

    Attributes:
        positions: [T, B or 1], the row of each token, time first as blocks hold their tokens.
    """

    def __init__(self, positions: Tensor, tables: dict[int, Tensor]):
        self.positions = positions
        self._tables = tables  # by id of the block

    @classmethod
    def compute(
        cls,
        stack: Any,
        attribute: str,
        positions: Tensor,
        num_positions: int,
        dtype: torch.dtype,
        stretch: Stretch | None = None,
        begins: bool = True,
    ) -> BlockRows:
        """Compute the table of the signal ``stack.<attribute>``.

        Args:
            stack: encoder or decoder; the table covers the blocks that hold a part of the signal.
            attribute: under which stack and blocks hold signal and parts.
            positions: [B or 1, T], the row of each token.
            num_positions: rows that are enough for ``positions``.
            dtype: of the model.
            stretch: of each sentence, or None.
            begins: whether a batch begins with this call; in a later step of its decoding none does.
        """
        signal: PositionSignal = getattr(stack, attribute)
        owners = [block for block in all_blocks(stack) if getattr(block, attribute) is not None]
        parts = [getattr(block, attribute) for block in owners]
        if num_positions > signal.max_positions:  # a limit counts tokens, not padding
            num_positions = int(positions.max()) + 1
        rows_per_token = 1
        if stretch is not None:
            positions, num_positions = stretch.rows(positions, num_positions)
            rows_per_token = ROWS_PER_TOKEN
        if begins:
            signal.begin_batch(parts)
        # One backward pass joins what flows into all blocks' tables.
        tables = signal(num_positions, parts, dtype, rows_per_token).unbind(2) if parts else ()
        statistics = signal.statistics()  # taken in evaluation too, and dropped
        if signal.training:
            _log(statistics)
        by_block = {id(block): table for block, table in zip(owners, tables)}
        return cls(positions.T.contiguous(), by_block)

    def table(self, block: nn.Module) -> Tensor | None:
        """Return the table of ``block``, [N, S, C], or None where it receives no positions."""
        return self._tables.get(id(block))

    def arguments(self, block: nn.Module) -> dict[str, Tensor | None]:
        """Return what target ``qkv`` passes to ``block``."""
        return {"position_table": self.table(block), "positions": self.positions}

    def add_to(self, x: Tensor, block: nn.Module) -> Tensor:
        """Add the rows of ``block`` to its input ``x`` [T, B, C], as target ``hidden`` does."""
        table = self.table(block)
        return x if table is None else x + gather_rows(table[:, 0], self.positions)


def with_base(cfg: Any) -> Any:
    """Switch fairseq's sinusoid off in ``cfg`` for encoders that replace it."""
    if not POSITION_ENCODERS[cfg.position_encoder].keeps_base:
        cfg.no_token_positional_embeddings = True
    return cfg


def wrapped(layer: nn.Module, cfg: Any) -> nn.Module:
    """Wrap a block for checkpointing and sharding, as fairseq's own stacks do."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    # fairseq shards a checkpointed layer whatever its size; without fairscale this is a no-op.
    wrapped: nn.Module = fsdp_wrap(
        layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
    )
    return wrapped


def batch_positions(padding_mask: Tensor, has_pads: bool) -> Tensor:
    """Return positions [B, T], or [1, T] where no padding moves a token: one row for all sentences."""
    return token_positions(padding_mask if has_pads else padding_mask[:1])


def longest_input(stack: Any, signal: PositionSignal, learned_base: bool) -> int:
    """Return the longest input: the encoder's own limit and, underneath, that of a *learned* base."""
    if stack.embed_positions is None or not learned_base:
        return signal.max_positions
    return min(signal.max_positions, stack.embed_positions.max_positions, UNLIMITED_POSITIONS)
