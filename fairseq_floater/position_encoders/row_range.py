"""Check that a model can use a row: LayerNorm and attention overflow long before the row does."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Blocks add their rows up and projections lengthen them before anything is squared.
HEADROOM = 16


class PositionRangeError(FloatingPointError):
    """Report a position that is too large for the dtype that the model computes in."""


def check_rows(table: Tensor, dtype: torch.dtype, name: str, advice: str) -> float:
    """Refuse a table [N, S, L, C] with a row that a model of ``dtype`` cannot use.

    LayerNorm sums a row's squares in float32, or in float64 for float64: where the sum overflows it
    returns zeros, and a little further on NaN. float16 squares nothing that way; there an entry
    overflows, when it is cast or, in a model of float32 under autocast, when it enters a product.

    Args:
        table: the rows before they are cast to ``dtype``.
        dtype: the model's.
        name: the encoder's name.
        advice: a sentence that names the remedy.

    Returns:
        The norm of the table, all rows together; where products are float16, its largest entry.

    Raises:
        PositionRangeError: names the first such position.
    """
    device = table.device.type
    products = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype
    if products == torch.float16:
        order, limit = math.inf, torch.finfo(products).max
        found, rule = "reaches", "the largest float16"
        advice = f"Use float32 or bfloat16. {advice}"
    else:
        squares = torch.promote_types(products, torch.float32)
        order, limit = 2, torch.finfo(squares).max ** 0.5 / HEADROOM
        found, rule = "has norm", f"near which LayerNorm's squares leave {squares}"
    # As a rule the table as a whole is below what one row may be: one reduction and one transfer.
    size = float(torch.linalg.vector_norm(table, order))
    if size <= limit:
        return size
    norms = torch.linalg.vector_norm(table.double(), order, dim=-1).flatten(1).amax(1)
    beyond = (~(norms <= limit)).nonzero()
    if not len(beyond):
        return size
    row = int(beyond[0])
    raise PositionRangeError(
        f"Position {row} of {name} {found} {float(norms[row]):.4g}, beyond {limit:.4g}, {rule}. {advice}"
    )
