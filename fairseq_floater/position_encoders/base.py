"""Define what every kind of position encoder has: options, a part in each block, a kept table.

Letters: N positions, L blocks that receive positions, C channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.options import ADD, MULTIPLY, Option
from fairseq_floater.position_encoders.row_range import check_rows

# `max_positions()` of an encoder without a limit of its own.
UNLIMITED_POSITIONS = 1_000_000
# A kept table has at least this many rows, and grows by doubling.
SMALLEST_KEPT_TABLE = 64


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """Say where an encoder stands in a model, and its options.

    Attributes:
        dim: C.
        every_block: ``--position-blocks all``; else ``input``, the first block only.
        target: ``--position-target``, one of the encoder's ``targets``.
        side: ``source`` or ``target``: whose tokens are counted.
        max_positions: rows of a table of fixed length (``--max-source/target-positions``).
        padding_idx: of the dictionary; fairseq's sinusoid is offset by it.
        base_at_input: whether fairseq's own ``embed_positions`` is there underneath.
        options: the encoder's own options by ``dest``.
        streams: what a signal is added to, see ``signal.py``.
        combine: ``--position-combine``: how a signal enters a block's input.
        heads: of self-attention.
        blocks: how many the stack has.
        vocabulary: V, the words of the dictionary, special ones included.
    """

    dim: int
    every_block: bool
    target: str
    side: str
    max_positions: int
    padding_idx: int
    base_at_input: bool
    options: dict[str, Any] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    combine: str = ADD
    heads: int = 1
    blocks: int = 1
    vocabulary: int = 1

    @property
    def head_dim(self) -> int:
        """Return D = C / H."""
        return self.dim // self.heads

    @property
    def causal(self) -> bool:
        """Return whether no key comes after its query, as in a decoder."""
        return self.side == "target"

    @property
    def neutral(self) -> float:
        """Return the entry of a row that leaves a block's input as it is."""
        return 1.0 if self.combine == MULTIPLY else 0.0


class BlockPositions(nn.Module):
    """Hold one block's part of an encoder: here nothing but the block's own index."""

    def __init__(self, block_index: int):
        super().__init__()
        self.block_index = block_index


class PositionEncoder(nn.Module, ABC):
    """Compute a table over token positions; subclasses say how, kinds of encoders how it is used.

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
    #: Values of ``--position-target`` that the encoder allows; the first is the default.
    targets: ClassVar[tuple[str, ...]]
    #: fairseq's own ``embed_positions`` stays underneath (unless --no-token-positional-embeddings).
    keeps_base: ClassVar[bool] = True
    #: It is that base itself, so that both together would count twice.
    is_base: ClassVar[bool] = False
    #: Rows may enter a block's input by ``--position-combine``.
    combines: ClassVar[bool] = False
    #: Table 1 of the paper.
    inductive: ClassVar[bool]
    data_driven: ClassVar[bool]
    parameter_efficient: ClassVar[bool]
    #: Only the distance of two tokens counts, not where they stand.
    relative: bool = False
    #: Where it acts by default, in words; None: nowhere.
    acts_on: ClassVar[str | None] = "input of blocks"
    #: A table of rows is computed, and kept in evaluation.
    tabulated: ClassVar[bool] = True
    #: There are positions between two tokens, which ``--position-stretch`` needs.
    continuous: ClassVar[bool] = False
    #: Parameters, of the encoder or of its parts, that take it out of the model where they are zero.
    silent_at_zero: ClassVar[tuple[str, ...]] = ()
    #: It adds to attention's logits, scales them or reads its weights; linear attention has neither.
    needs_logits: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()
    #: The remedy where rows grow too large.
    range_advice: ClassVar[str] = (
        "Train with a smaller learning rate: the parameters have diverged."
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__()
        self.spec = spec
        # Carries the device: an encoder without parameters must still follow `.to()`.
        self.anchor: Tensor
        self.register_buffer("anchor", torch.empty(0), persistent=False)
        self._kept: dict[torch.dtype, Tensor] = {}
        self._kept_for = torch.empty(0)  # the parameters' sums when it was computed
        #: size of the last table, see :func:`check_rows`
        self.size = 0.0

    @classmethod
    def check_options(cls, options: dict[str, Any], target: str) -> None:
        """Raise ValueError where options do not go together; ``options`` by ``dest``."""

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        """Return one phrase for the log at start."""
        return ""

    @classmethod
    def distance_limit(cls, options: dict[str, Any]) -> tuple[str, int] | None:
        """Return the option beyond whose value distances look alike, and that value; None without one."""
        return None

    @classmethod
    def takes_stretch(cls, options: dict[str, Any]) -> bool:
        """Return whether ``--position-stretch`` goes with ``options``; needs ``continuous``."""
        return cls.continuous

    def receives(self, block_index: int) -> bool:
        """Return whether this block gets positions from the encoder."""
        return self.spec.every_block or block_index == 0

    def build_block(self, block_index: int) -> nn.Module:
        """Build the part that block ``block_index`` owns and keeps when layers are pruned."""
        return BlockPositions(block_index)

    @abstractmethod
    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        """Compute the table in float32 from the parts of the blocks: [N, ...]."""

    def compute_between(self, num_rows: int, rows_per_token: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows at token positions 0, 1/r, 2/r, ...: float32 [N, ...].

        ``continuous`` encoders have them.

        Args:
            num_rows: N.
            rows_per_token: r.
            blocks: the parts of the blocks that receive positions.
        """
        raise NotImplementedError(f"{self.name} has no positions between two tokens.")

    def adopt_donor(
        self, blocks: Sequence[Any], attentions: Sequence[Any], rows: Callable[[int], Tensor]
    ) -> str:
        """Start a warm start as near to the donor's function as the encoder can.

        Here what :attr:`silent_at_zero` names becomes zero where the donor's own positions stay
        underneath (``--position-base keep``); kinds of encoders do more.

        Args:
            blocks: the parts of the blocks that receive positions.
            attentions: the self-attention of those blocks, the donor's parameters in place.
            rows: gives the donor's positions up to the trained length, or as many as it is asked for
                where that is fewer: float32 [n, C].

        Returns:
            What was done, for the report; empty where nothing was.
        """
        if not self.spec.base_at_input:
            return ""
        silenced: dict[str, None] = {}
        for module in (self, *blocks):
            for name, parameter in module.named_parameters():
                if name in self.silent_at_zero:
                    parameter.detach().zero_()
                    silenced[name] = None
        return f"zero at the start: {', '.join(silenced)}" if silenced else ""

    def costs(self) -> tuple[str, ...]:
        """Return what it costs beside attention without positions, by the names of `floater info`."""
        return ("elementwise",)

    def statistics(self) -> dict[str, Any]:
        """Return numbers for the training log, by name, counted since the last call."""
        return {}

    def share_words(self, other: PositionEncoder) -> None:
        """Take over from ``other``, of the same class, what belongs to the words of one dictionary."""

    @property
    def max_positions(self) -> int:
        """Return the longest input in tokens, end symbol included."""
        return UNLIMITED_POSITIONS

    @property
    def length_option(self) -> str:
        """Return the option that sets :attr:`max_positions` where the encoder has a limit."""
        return f"--max-{self.spec.side}-positions"

    def forward(
        self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype, rows_per_token: int = 1
    ) -> Tensor:
        """Return the table [N, ...] in ``dtype``, computed or kept.

        Args:
            num_positions: N, unless :attr:`table_length` sets it.
            blocks: the parts of the blocks that receive positions.
            dtype: of the model.
            rows_per_token: more than 1 while training on stretched positions only: the N rows are
                that much closer, and nothing is kept.

        Raises:
            ValueError: more positions than the encoder has.
            PositionRangeError: a row is too large for a model of ``dtype``.
        """
        num_positions = self.table_length or num_positions
        if rows_per_token > 1:
            return self._cast(
                lambda: self.compute_between(num_positions, rows_per_token, blocks), dtype
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

    @property
    def table_length(self) -> int | None:
        """Return N where it does not grow with the input (a table of buckets, say), else None."""
        return None

    def drop_kept_table(self) -> None:
        """Compute the table anew at the next call."""
        self._kept.clear()

    def begin_batch(self, blocks: Sequence[Any]) -> None:
        """Forget what is kept if parameters changed unnoticed: reads each of them once."""
        if self._kept and not torch.equal(self._kept_for, self._parameter_sums(blocks)):
            self.forget()

    def forget(self) -> None:
        """Drop all that was derived from the parameters, which may have changed."""
        self.drop_kept_table()

    def sources(self, blocks: Sequence[Any]) -> list[nn.Parameter]:
        """Return the parameters that the table is computed from: the encoder's and its parts'."""
        return [p for module in (self, *blocks) for p in module.parameters()]

    def _parameter_sums(self, blocks: Sequence[Any]) -> Tensor:
        sums = [p.detach().sum(dtype=torch.float64) for p in self.sources(blocks)]
        return torch.stack(sums) if sums else torch.empty(0)

    def _with_room(self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        if self.table_length:
            return self._computed(num_positions, blocks, dtype)
        room = max(SMALLEST_KEPT_TABLE, 1 << (num_positions - 1).bit_length())
        try:
            return self._computed(min(room, self.max_positions), blocks, dtype)
        except FloatingPointError:
            # A row that nobody has asked for yet left the range; the rows asked for may be fine.
            return self._computed(num_positions, blocks, dtype)

    def _computed(self, num_positions: int, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return self._cast(lambda: self.compute(num_positions, blocks), dtype)

    def _cast(self, compute: Callable[[], Tensor], dtype: torch.dtype) -> Tensor:
        """Compute in float32 and cast last; refuse rows that a model of ``dtype`` cannot use."""
        with torch.autocast(self.anchor.device.type, enabled=False):
            table = compute()
        self.size = check_rows(table.detach(), dtype, self.name, self.range_advice)
        return table.to(dtype)

    def _check_length(self, num_positions: int) -> None:
        if num_positions > self.max_positions:
            raise ValueError(
                f"A {self.spec.side} sequence of {num_positions} tokens (end symbol included) is "
                f"longer than the {self.max_positions} positions of --position-encoder {self.name}; "
                f"its table is set by {self.length_option} before training."
            )

    def train(self, mode: bool = True) -> Self:
        if mode or self.training:
            self.drop_kept_table()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> PositionEncoder:
        self.forget()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.forget()
        super()._load_from_state_dict(*args, **kwargs)
