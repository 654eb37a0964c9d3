"""Compute a table of positions, and keep it in evaluation until it may be stale.

Letters: N positions.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fairseq_floater.ode.precision import exact_products
from fairseq_floater.position_encoders.transforms import Places

# `max_positions` of an encoder without a limit.
UNLIMITED_POSITIONS = 1_000_000
# A kept table has at least this many rows, and grows by doubling.
SMALLEST_KEPT_TABLE = 64
# Blocks add up their rows, and projections enlarge them, before anything is squared.
HEADROOM = 16


class PositionRangeError(FloatingPointError):
    """Report a position that is too large for the dtype that the model computes in."""


def check_rows(table: Tensor, dtype: torch.dtype, name: str, advice: str) -> float:
    """Check that a model of ``dtype`` can use all rows of a table [N, S, L, C].

    LayerNorm sums a row's squares in float32, or in float64 for float64. If the sum overflows, it
    returns zeros, and for slightly larger rows NaN. float16 has another limit: an entry overflows when
    it is cast or, in a float32 model under autocast, when it enters a product.

    Args:
        table: the rows before they are cast to ``dtype``.
        dtype: the model's.
        name: the encoder's name.
        advice: a sentence that names the remedy.

    Returns:
        The norm of the whole table; if products are in float16, its largest entry.

    Raises:
        PositionRangeError: a row is too large; the message names the first such position.
    """
    device = table.device.type
    products = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
    if products == torch.float16:
        order, limit = math.inf, torch.finfo(products).max
        verb, rule = "reaches", "the largest float16"
        advice = f"Use float32 or bfloat16. {advice}"
    else:
        squares = torch.promote_types(products, torch.float32)
        order, limit = 2, torch.finfo(squares).max ** 0.5 / HEADROOM
        verb, rule = "has norm", f"near which LayerNorm overflows {squares}"
    # Usually the whole table is below the limit of one row: one reduction and one transfer.
    size = float(torch.linalg.vector_norm(table, order))
    if size <= limit:
        return size
    norms = torch.linalg.vector_norm(table.double(), order, dim=-1).flatten(1).amax(1)
    beyond = (~(norms <= limit)).nonzero()
    if not len(beyond):
        return size
    row = int(beyond[0])
    raise PositionRangeError(
        f"Position {row} of {name} {verb} {float(norms[row]):.4g}, beyond {limit:.4g}, {rule}. {advice}"
    )


class KeptTable(nn.Module, ABC):
    """Compute a table of rows [N, ...] over token positions; subclasses define the rows.

    The table is computed in float32, with autocast and TF32 off, and cast last. In training, and whenever
    gradients are wanted, it is computed at every call. In evaluation without gradients, or if none of its
    parameters is trained, it is kept, and it grows when a longer sentence comes. It is dropped when the
    parameters may have changed: by a change of ``train()``, by loading a state dict, by ``_apply``
    (``.half()``, ``.to()``), and by any call that wants gradients. The start of a batch checks for any
    other change of a parameter (``p.data``, ``vector_to_parameters``, the state dict of a part). The
    table is not a buffer: it is never saved, averaged or copied with a graph.
    """

    name: ClassVar[str]
    #: The remedy if rows grow too large.
    range_advice: ClassVar[str] = (
        "Train with a smaller learning rate: the parameters have diverged."
    )

    def __init__(self) -> None:
        super().__init__()
        # Holds the device, because an encoder without parameters must follow `.to()` too.
        self.anchor: Tensor
        self.register_buffer("anchor", torch.empty(0), persistent=False)
        self._kept: dict[tuple[torch.dtype, int], Tensor] = {}  # by dtype and rows per token
        self._kept_for: dict[str, Tensor] = {}  # the parameters at the time of computation
        self._too_many: dict[tuple[torch.dtype, int], int] = {}  # rows of which some left the range
        #: size of the last table, see :func:`check_rows`
        self.size = 0.0

    def check_length(self, num_positions: int) -> None:
        """Raise ValueError if the table cannot have so many positions."""

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        """Compute the table from the parts of the blocks: float32 [N, ...].

        Only ``continuous`` encoders get places other than 0, 1, 2, ...
        """
        raise NotImplementedError(f"{self.name} has no position table.")

    @property
    def max_positions(self) -> int:
        """Return the longest input in tokens, end symbol included."""
        return UNLIMITED_POSITIONS

    @property
    def table_length(self) -> int | None:
        """Return N if it does not grow with the input (as in a table of buckets), else None."""
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
            rows_per_token: above 1, tokens may stand between whole positions, and training keeps no table.
            rows_before: how many of the N rows lie before position 0, in such training.

        Raises:
            ValueError: more positions than the encoder has.
            PositionRangeError: a row is too large for a model of ``dtype``.
        """
        num_positions = self.table_length or num_positions
        places = Places(num_positions, rows_per_token, rows_before)
        if rows_per_token > 1 and self.training:
            return self._computed(places, blocks, dtype)
        self.check_length(num_positions // rows_per_token)
        wants_gradients = self.training or torch.is_grad_enabled()
        if wants_gradients and any(p.requires_grad for p in self.sources(blocks).values()):
            self.drop_kept_table()
            return self._computed(places, blocks, dtype)
        kept = self._kept.get((dtype, rows_per_token))
        if not self._kept:
            self._kept_for = {n: p.detach().clone() for n, p in self.sources(blocks).items()}
        if kept is None or len(kept) < num_positions:
            # No backward pass takes an inference tensor. To leave that mode switches gradients on.
            with torch.inference_mode(False), torch.no_grad():
                kept = self._with_room(places, blocks, dtype)
            self._kept[dtype, rows_per_token] = kept
        return kept[:num_positions]

    def drop_kept_table(self) -> None:
        self._kept.clear()
        self._too_many.clear()
        self._kept_for = {}

    def begin_batch(self, blocks: Sequence[Any]) -> None:
        """Drop the table if parameters changed without notice.

        An edit of ``p.data`` runs no hook and changes no version, so only a comparison notices it.
        """
        if self._kept_for:
            now = self.sources(blocks)
            if now.keys() != self._kept_for.keys():  # pruning renames parameters
                self.forget()
                return
            changed = torch.stack([(kept != now[n]).any() for n, kept in self._kept_for.items()])
            if bool(changed.any()):  # one transfer from the device for all parameters
                self.forget()

    def forget(self) -> None:
        """Drop all that was derived from the parameters, which may have changed."""
        self.drop_kept_table()

    def sources(self, blocks: Sequence[Any]) -> dict[str, nn.Parameter]:
        """Return the parameters of the encoder and its parts, from which the table is computed, by name."""
        modules = enumerate((self, *blocks))
        return {f"{i}.{name}": p for i, m in modules for name, p in m.named_parameters()}

    def _with_room(self, places: Places, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        if self.table_length:
            return self._computed(places, blocks, dtype)
        room = max(SMALLEST_KEPT_TABLE, 1 << (places.count - 1).bit_length())
        room = min(room, self.max_positions * places.per_token)
        too_many = self._too_many.get((dtype, places.per_token), room + 1)
        if room >= too_many:
            room = max((places.count + too_many) // 2, places.count)
        try:
            return self._computed(replace(places, count=room), blocks, dtype)
        except FloatingPointError:
            # A row beyond the needed ones left the range; the needed rows may be fine.
            self._too_many[dtype, places.per_token] = room
            return self._computed(places, blocks, dtype)

    def _computed(self, places: Places, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        # `exact_products` knows the autocast of CPUs and NVIDIA's GPUs, not that of other devices.
        with torch.autocast(self.anchor.device.type, enabled=False), exact_products():
            table = self.rows(places, blocks)
        self.size = check_rows(table.detach(), dtype, self.name, self.range_advice)
        return table.to(dtype)

    def train(self, mode: bool = True) -> Self:
        # fairseq calls train() before every update, so only a change counts. After validation, a flow is
        # measured at once, as in a run that is resumed from the checkpoint saved at this point.
        if mode != self.training:
            self.forget()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.forget()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.forget()
        super()._load_from_state_dict(*args, **kwargs)
