"""Define the second kind of position encoder: positions that act inside attention.

They turn queries and keys, or add to the logits and to the values, by the distance or the positions
of two tokens. They act in self-attention. With ``--position-cross relative`` a separate encoder acts in
cross-attention.

Letters: T queries, S keys, B sentences, H heads, D head width, N rows of a table; d = i - j is the
signed distance from key j to query i.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import BlockPositions, EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.hooks import AttentionHooks, Tables
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows

BIAS_DIRECTION = Option(
    "--bias-direction",
    "offset",
    "how an encoder tells keys after the query from keys before it: half a token less distance "
    "(offset), not at all (mirror), heads alternate between the sides (heads)",
    choices=("offset", "mirror", "heads"),
)
# Hides a key, but stays finite for rows of padding that see no other key; fits float16.
HIDING_BIAS = -3e4


class Gate(nn.Module):
    """Multiply by a learned number that starts at 0, for positions without a parameter that could be 0.

    The number exists if fairseq's base stays underneath (``--position-base keep``), so that a warm start
    begins with the donor's function. Else the gate returns its input. Parameters: 1, or none.
    """

    def __init__(self, spec: EncoderSpec):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1)) if spec.base else None

    def forward(self, x: Tensor) -> Tensor:
        return x if self.weight is None else x * self.weight.to(x.dtype)


class AttentionPart(BlockPositions, AttentionHooks):
    """Hold one block's part, with the hooks that its attention calls."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.spec = spec

    def set_attention(self, attention: Any) -> None:
        """Give the part the attention that it acts in, if it reads the attention's projections."""


class AttentionPositions(PositionEncoder):
    """Prepare, once a forward pass, the tensors that the blocks' attentions need."""

    targets = ("attention",)
    acts_on = "logits"
    part = AttentionPart
    base = "replaced"
    can_cross = True
    needs_logits = True

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        return True  # slots may then serve as positions if padding is only at the ends

    @classmethod
    def reads_distances(cls, options: dict[str, Any]) -> bool:
        # Those with frequencies use the hook for a bias of queries, which no position changes (xl.py).
        turns = cls.part.turn is not AttentionHooks.turn and not cls.has_frequencies
        return super().reads_distances(options) and not turns

    def costs(self) -> tuple[str, ...]:
        """Return the costs of the hooks that encoder and part override."""
        part: Any = self.build_block(0)

        def changed(*hooks: str) -> bool:
            return any(getattr(type(part), h) is not getattr(AttentionHooks, h) for h in hooks)

        shared = type(self).logit_bias is not AttentionPositions.logit_bias
        is_paid = {
            "elementwise": changed("project", "turn"),
            "mask": shared or changed("bias", "between"),
            "weights": part.needs_weights,
        }
        return tuple(name for name, paid in is_paid.items() if paid)

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        """Return each block's tensors for its part's hooks; none unless overridden.

        Args:
            at: the positions of queries and keys.
            blocks: the parts of the blocks that receive positions.
            dtype: of the model.
        """
        return [()] * len(blocks)

    def logit_bias(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
        """Return a bias that all blocks share, [B or 1, H, T, S]; it is added to the batch's mask."""
        return None

    def signed_rows(self, distances: Tensor) -> Tensor:
        """Return the rows of signed ``distances``, of any shape, in a flattened table [N * sides, ...]."""
        if self.spec.causal:
            return distances.clamp(min=0)  # a key that comes later is masked out
        return 2 * distances.abs() + (distances < 0)

    def signed_distances(self, places: Places) -> Tensor:
        """Return the signed distance that each row of such a table holds: float64 [N, sides]."""
        distances = places.in_tokens(self.anchor.device)
        return torch.stack([distances, -distances][: self.spec.sides], dim=1)

    def input_rows(
        self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        """Return rows to add to the input of some blocks, by index in ``blocks``: [T, B or 1, C] each."""
        return {}


class WithoutTable(AttentionPositions):
    """Keep no table, because the bias of the logits depends on more than the distance, or on the words."""

    tabulated = False
    can_cross = False


class DistanceBias(AttentionPositions):
    """Add a number for each head and distance to the logits, the same in all blocks.

    Subclasses compute it for real-valued distances. The table of distances is kept in evaluation.
    """

    continuous = True

    @abstractmethod
    def biases(self, distances: Tensor) -> Tensor:
        """Return the biases at signed real ``distances`` [N]: float32 [N, H]."""

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        sides = self.signed_distances(places).float().unbind(1)
        return torch.stack([self.biases(side) for side in sides], dim=1)  # [N, sides, H]

    def logit_bias(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return self.gathered(self(at.num_rows, blocks, dtype, at.rows_per_token), at)

    def gathered(self, table: Tensor, at: Positions) -> Tensor:
        """Return the bias of each pair of tokens, [B or 1, H, T, S], from ``table`` [N, sides, H]."""
        rows = gather_rows(table.flatten(0, 1), self.signed_rows(at.distances))
        # Contiguous, because every block reads it in this order.
        return rows.permute(0, 3, 1, 2).contiguous()


def directed(bias: Callable[[Tensor], Tensor], distances: Tensor, spec: EncoderSpec) -> Tensor:
    """Apply ``bias``, [N] -> [N, H] for absolute distances, to signed ones by ``--bias-direction``.

    Returns:
        [N, H]; keys after the query have distances below 0, which a decoder does not have.
    """
    direction = "mirror" if spec.causal else spec.options["bias_direction"]
    after = distances < 0
    if direction == "offset":
        return bias(distances.abs() - 0.5 * after)
    biases = bias(distances.abs())
    if direction == "heads":
        odd = torch.arange(biases.size(1), device=biases.device) % 2 == 1
        hidden = torch.where(odd, (distances > 0)[:, None], after[:, None])
        biases = biases.masked_fill(hidden, HIDING_BIAS)
    return biases
