"""Keep a table of positions in evaluation, and know when it is stale.

Letters: N positions.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_floater.ode.precision import exact_products
from fairseq_floater.position_encoders.row_range import check_rows

# `max_positions()` of an encoder without a limit of its own.
UNLIMITED_POSITIONS = 1_000_000
# A kept table has at least this many rows, and grows by doubling.
SMALLEST_KEPT_TABLE = 64


class KeptTable(nn.Module, ABC):
    """Compute a table of rows [N, ...] over token positions; subclasses say how.

    The table is computed in float32 with autocast and TF32 off and cast last. In training, and wherever
    gradients are wanted, it is computed at every call, unless no parameter that it comes from is
    trained. There, and in evaluation without gradients, it is kept, grown when a longer sentence
    comes, and dropped when the parameters may have changed: by a change of ``train()``, by loading a
    state dict, by ``_apply`` (``.half()``, ``.to()``), by any call that wants gradients, and, where a
    batch begins, by whatever else changed a parameter (``p.data``, ``vector_to_parameters``, the state
    dict of a part). It is no buffer: never saved, averaged or
    copied with a graph.
    """

    name: ClassVar[str]
    #: The remedy where rows grow too large.
    range_advice: ClassVar[str] = (
        "Train with a smaller learning rate: the parameters have diverged."
    )

    def __init__(self) -> None:
        super().__init__()
        # Carries the device: an encoder without parameters must still follow `.to()`.
        self.anchor: Tensor
        self.register_buffer("anchor", torch.empty(0), persistent=False)
        self._kept: dict[torch.dtype, Tensor] = {}
        self._kept_for: list[Tensor] = []  # the parameters when it was computed
        #: size of the last table, see :func:`check_rows`
        self.size = 0.0

    def check_length(self, num_positions: int) -> None:
        """Raise ValueError for more positions than there are."""

    def compute(self, num_positions: int, blocks: Sequence[Any]) -> Tensor:
        """Compute the table in float32 from the parts of the blocks: [N, ...]."""
        return self.compute_between(num_positions, 1, blocks)

    def compute_between(self, num_rows: int, rows_per_token: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows at token positions 0, 1/r, 2/r, ...: float32 [N, ...].

        ``continuous`` encoders have them.

        Args:
            num_rows: N.
            rows_per_token: r.
            blocks: the parts of the blocks that receive positions.
        """
        raise NotImplementedError(f"{self.name} has no position table between two tokens.")

    def compute_before(self, num_rows: int, rows_per_token: int, blocks: Sequence[Any]) -> Tensor:
        """Compute rows at token positions -N/r, ..., -2/r, -1/r: float32 [N, ...].

        Arguments as :meth:`compute_between`. Encoders have them that know places, not distances alone.
        """
        raise NotImplementedError(f"{self.name} has no positions before the first token.")

    @property
    def max_positions(self) -> int:
        """Return the longest input in tokens, end symbol included."""
        return UNLIMITED_POSITIONS

    @property
    def table_length(self) -> int | None:
        """Return N where it does not grow with the input (a table of buckets, say), else None."""
        return None

    def forward(
        self,
        num_positions: int,
        blocks: Sequence[Any],
        dtype: torch.dtype,
        rows_per_token: int = 1,
        rows_before: int = 0,
    ) -> Tensor:
        """Return the table [N, ...] in ``dtype``, computed or kept.

        Args:
            num_positions: N, unless :attr:`table_length` sets it.
            blocks: the parts of the blocks that receive positions.
            dtype: of the model.
            rows_per_token: more than 1 while training on moved positions only: the N rows are that
                much closer, and nothing is kept.
            rows_before: how many of the N rows lie before position 0, in such training.

        Raises:
            ValueError: more positions than the encoder has.
            PositionRangeError: a row is too large for a model of ``dtype``.
        """
        num_positions = self.table_length or num_positions
        if rows_per_token > 1:
            return self._cast(
                lambda: self._moved(num_positions, rows_per_token, rows_before, blocks), dtype
            )
        self.check_length(num_positions)
        wants_gradients = self.training or torch.is_grad_enabled()
        if wants_gradients and not self._is_frozen(blocks):
            self.drop_kept_table()
            return self._computed(num_positions, blocks, dtype)
        kept = self._kept.get(dtype)
        if not self._kept:
            self._kept_for = [p.detach().clone() for p in self.sources(blocks)]
        is_of_inference = kept is not None and kept.is_inference()  # no use in a backward pass
        if is_of_inference and not torch.is_inference_mode_enabled():
            kept = None
        if kept is None or len(kept) < num_positions:
            kept = self._kept[dtype] = self._with_room(num_positions, blocks, dtype)
        return kept[:num_positions]

    def _moved(
        self, num_rows: int, rows_per_token: int, rows_before: int, blocks: Sequence[Any]
    ) -> Tensor:
        """Compute rows from ``rows_before`` before position 0 on: float32 [N, ...]."""
        if not rows_before:
            return self.compute_between(num_rows, rows_per_token, blocks)
        before = self.compute_before(rows_before, rows_per_token, blocks)
        return torch.cat(
            [before, self.compute_between(num_rows - rows_before, rows_per_token, blocks)]
        )

    def drop_kept_table(self) -> None:
        """Compute the table anew at the next call."""
        self._kept.clear()
        self._kept_for = []

    def begin_batch(self, blocks: Sequence[Any]) -> None:
        """Forget what is kept if parameters changed unnoticed: compares each of them once."""
        if self._kept_for:
            pairs = zip(self._kept_for, self.sources(blocks))
            changed = torch.stack([(kept != now).any() for kept, now in pairs])
            if bool(changed.any()):  # one look at the device for all of them
                self.forget()

    def forget(self) -> None:
        """Drop all that was derived from the parameters, which may have changed."""
        self.drop_kept_table()

    def sources(self, blocks: Sequence[Any]) -> list[nn.Parameter]:
        """Return the parameters that the table is computed from: the encoder's and its parts'."""
        return [p for module in (self, *blocks) for p in module.parameters()]

    def _is_frozen(self, blocks: Sequence[Any]) -> bool:
        """Return whether none of the parameters that the table comes from is trained."""
        return not any(parameter.requires_grad for parameter in self.sources(blocks))

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
        with torch.autocast(self.anchor.device.type, enabled=False), exact_products():
            table = compute()
        self.size = check_rows(table.detach(), dtype, self.name, self.range_advice)
        return table.to(dtype)

    def train(self, mode: bool = True) -> Self:
        # fairseq calls train() before every update, so only a change counts. After validation a flow is
        # solved, and its error measured, at once, as in a run resumed from the checkpoint saved there.
        if mode != self.training:
            self.forget()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.forget()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.forget()
        super()._load_from_state_dict(*args, **kwargs)
