"""The first kind of position encoder: a signal that is added to the stream of a block.

A *signal* is a float32 table of rows over token positions, [N, streams, blocks, C], added to the
input of blocks (target ``hidden``) or to the projected queries, keys and values of attention
(target ``qkv``).

Letters: N positions, S streams, L blocks that receive positions, C channels, B sentences, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, Option
from fairseq_floater.position_encoders.row_range import check_rows

# What `max_positions()` answers for an encoder without a limit of its own.
UNLIMITED_POSITIONS = 1_000_000
# A kept table has at least this many rows, and grows by doubling.
SMALLEST_KEPT_TABLE = 64
HIDDEN_STREAMS = ("hidden",)
SELF_STREAMS = ("q", "k", "v")
CROSS_QUERY_STREAMS = ("cross_q",)
SOURCE_STREAMS = ("cross_k", "cross_v")


@dataclass(frozen=True)
class SignalSpec:
    """Where a signal goes: one stack's own positions, or a decoder's view of source positions.

    Attributes:
        dim: C.
        streams: what is biased, see the ``*_STREAMS`` constants.
        every_block: ``--position-blocks all``; else ``input``, the first block only.
        target: ``hidden`` or ``qkv``.
        side: ``source`` or ``target``: whose tokens are counted.
        max_positions: rows of a table of fixed length (``--max-source/target-positions``).
        padding_idx: of the dictionary; fairseq's sinusoid is offset by it.
        base_at_input: fairseq's own ``embed_positions`` is there underneath.
        options: the encoder's own options by ``dest``.
    """

    dim: int
    streams: tuple[str, ...]
    every_block: bool
    target: str
    side: str
    max_positions: int
    padding_idx: int
    base_at_input: bool
    options: dict[str, Any] = field(default_factory=dict)


class StartingPoints(BlockPositions):
    """p(0) of every stream of one block: ``values`` [S, C], normal with deviation ``std``."""

    def __init__(self, block_index: int, spec: SignalSpec, std: float):
        super().__init__(block_index)
        self.values = nn.Parameter(torch.randn(len(spec.streams), spec.dim) * std)


class PositionSignal(nn.Module, ABC):
    """A table over token positions; subclasses say how it is computed.

    The table is computed in float32 with autocast off and cast last. In training, and wherever
    gradients are wanted, it is computed at every call. In evaluation without gradients it is kept,
    grown when a longer sentence comes, and dropped when the parameters may have changed: by
    ``train()``, by loading a state dict, by ``_apply`` (``.half()``, ``.to()``), by any call that
    wants gradients, and, where a batch begins, by whatever changed a parameter's sum (``p.data``,
    ``vector_to_parameters``, the state dict of a part). It is no buffer: never saved, averaged or
    copied with a graph.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    #: fairseq's own ``embed_positions`` stays underneath (unless --no-token-positional-embeddings).
    keeps_base: ClassVar[bool] = True
    #: Table 1 of the paper.
    inductive: ClassVar[bool]
    data_driven: ClassVar[bool]
    parameter_efficient: ClassVar[bool]
    #: There are positions between two tokens (:meth:`compute_between`).
    continuous: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()
    #: What to change where rows grow too large.
    range_advice: ClassVar[str] = (
        "Train with a smaller learning rate: the parameters have diverged."
    )

    def __init__(self, spec: SignalSpec):
        super().__init__()
        self.spec = spec
        self._kept: dict[torch.dtype, Tensor] = {}
        self._kept_for = torch.empty(0)  # sums of the parameters then
        #: of the last table, see :func:`check_rows`
        self.size = 0.0

    @classmethod
    def check_options(cls, options: dict[str, Any], target: str) -> None:
        """Raise ValueError where options do not go together; ``options`` by ``dest``."""

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        """One phrase for the log at start."""
        return ""

    def receives(self, block_index: int) -> bool:
        """Whether this block gets positions from the signal."""
        return self.spec.every_block or block_index == 0

    def build_block(self, block_index: int) -> nn.Module:
        """What block ``block_index`` owns of this signal, kept with it when layers are pruned."""
        return BlockPositions(block_index)

    @abstractmethod
    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        """Rows 0 .. N - 1: float32 [N, S, len(blocks), C], from what the blocks own."""

    def compute_between(self, num_rows: int, rows_per_token: int, blocks: Sequence[Any]) -> Tensor:
        """Rows at token positions 0, 1/r, 2/r, ...: float32 [N, S, len(blocks), C].

        For ``continuous`` encoders; ``--position-stretch`` needs them.
        """
        raise NotImplementedError(f"{self.name} has no positions between two tokens.")

    def statistics(self) -> dict[str, Any]:
        """What the training log should hear of since the last call; numbers by name."""
        return {}

    @property
    def max_positions(self) -> int:
        """Longest input in tokens, end symbol included."""
        return UNLIMITED_POSITIONS

    def forward(
        self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype, rows_per_token: int = 1
    ) -> Tensor:
        """The table [N, S, len(blocks), C] in ``dtype``.

        With ``rows_per_token`` > 1 (training on stretched positions only) the N rows are that much
        closer, and nothing is kept.

        Raises:
            ValueError: more positions than the encoder has.
            PositionRangeError: a row is too large for a model of ``dtype``.
        """
        if rows_per_token > 1:
            return self._cast(
                lambda: self.compute_between(num_positions, rows_per_token, blocks), blocks, dtype
            )
        self._check_length(num_positions)
        if self.training or torch.is_grad_enabled():
            self.drop_kept_table()
            return self._computed(num_positions, blocks, dtype)
        kept = self._kept.get(dtype)
        if not self._kept:
            self._kept_for = self._parameter_sums(blocks)
        if kept is None or len(kept) < num_positions:
            kept = self._kept[dtype] = self._with_room(num_positions, blocks, dtype)
        return kept[:num_positions]

    def drop_kept_table(self) -> None:
        self._kept.clear()

    def begin_batch(self, blocks: Sequence[Any]) -> None:
        """Forget what is kept if parameters changed without a call of ours: reads each of them once."""
        if self._kept and not torch.equal(self._kept_for, self._parameter_sums(blocks)):
            self.forget()

    def forget(self) -> None:
        """The parameters may be others from now on."""
        self.drop_kept_table()

    def _parameter_sums(self, blocks: Sequence[Any]) -> Tensor:
        owned = [p for module in (self, *blocks) for p in module.parameters()]
        sums = [p.detach().sum(dtype=torch.float64) for p in owned]
        return torch.stack(sums) if sums else torch.empty(0)

    def _with_room(self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        room = max(SMALLEST_KEPT_TABLE, 1 << (num_positions - 1).bit_length())
        try:
            return self._computed(min(room, self.max_positions), blocks, dtype)
        except FloatingPointError:
            # A row that nobody has asked for yet left the range; the rows asked for may be fine.
            return self._computed(num_positions, blocks, dtype)

    def _computed(self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return self._cast(lambda: self.compute(num_positions, blocks), blocks, dtype)

    def _cast(
        self, compute: Callable[[], Tensor], blocks: Sequence[Any], dtype: torch.dtype
    ) -> Tensor:
        """What ``compute`` gives in float32, cast last; refuses what a model of ``dtype`` cannot use."""
        device_type = next((p.device.type for b in blocks for p in b.parameters()), "cpu")
        with torch.autocast(device_type, enabled=False):
            table = compute()
        self.size = check_rows(table.detach(), dtype, self.name, self.range_advice)
        return table.to(dtype)

    def _check_length(self, num_positions: int) -> None:
        if num_positions > self.max_positions:
            raise ValueError(
                f"A {self.spec.side} sequence of {num_positions} tokens (end symbol included) is "
                f"longer than the {self.max_positions} positions of --position-encoder {self.name}; "
                f"its table is set by --max-{self.spec.side}-positions before training."
            )

    def train(self, mode: bool = True) -> Self:
        if mode or self.training:
            self.drop_kept_table()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> PositionSignal:
        self.forget()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.forget()
        super()._load_from_state_dict(*args, **kwargs)
