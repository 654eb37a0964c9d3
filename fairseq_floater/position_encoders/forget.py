"""Let each token decide how much of the tokens beyond it is forgotten (Forgetting Transformer)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import (
    HIDING_BIAS,
    AttentionPart,
    Gate,
    WithoutTable,
)
from fairseq_floater.position_encoders.transforms import Positions

# Initial bias of the gates: sigmoid(5) is 0.993, so nearly everything is remembered at first.
FIRST_BIAS = 5.0


class ForgetPart(AttentionPart):
    """Hold the gates' projection of one block: H gates, in an encoder H more for keys after the query.

    Tables: the signed distance of each pair of tokens, [B or 1, 1, T, S], and each query's own slot among
    the keys, [B or 1, 1, T].
    """

    needs_between = True

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.forget = nn.Linear(spec.dim, spec.heads * spec.sides)
        nn.init.constant_(self.forget.bias, FIRST_BIAS)
        self.gate = Gate(spec)

    def note(self, x: Tensor) -> Tensor:
        """Return ln sigmoid(w x + b) of each head, float32 [B, H or 2 H, S]."""
        return F.logsigmoid(self.forget(x).float()).permute(1, 2, 0)

    def between(
        self, q: Tensor, k: Tensor, notes: Tensor | None, hidden: Tensor | None, tables: Tables
    ) -> Tensor:
        assert notes is not None
        distances, slots = tables
        if hidden is not None:
            # What is hidden from the last query is padding: no other mask hides a token from it.
            notes = notes.masked_fill(hidden[:, :, -1], 0.0)
        sums = notes.cumsum(-1)  # over all tokens up to each one
        of_queries = sums.gather(-1, slots.expand(*sums.shape[:2], -1))
        passed = of_queries[..., None] - sums[:, :, None]  # [B, H or 2 H, T, S]
        if not self.spec.causal:
            before, after = passed.chunk(2, dim=1)
            passed = torch.where(distances < 0, -after, before)
        # Keys that a causal mask hides have sums above 0. float16 must hold these and the lowest sum.
        return self.gate(passed.clamp(HIDING_BIAS, 0.0).to(q.dtype))


class ForgetPositions(WithoutTable):
    """Add the sum of ln f_l over l = j + 1 .. i to the logits; f_l = sigmoid(w_h x_l + b_h) of token l.

    This is ALiBi with slopes that the words decide: a token with a shut gate hides all tokens beyond it.
    In an encoder, other gates forget keys after the query, over l = i + 1 .. j. A token's gate depends on
    this token alone, so decoding keeps it with the key. Any length. CABLE (Veisi et al. 2025), the sums of
    -softplus(w x_l) in a decoder, is the same with b = 0 and -w.

    Parameters: H (C + 1) a block, in an encoder 2 H (C + 1); with ``--position-base keep`` a gate a block.
    """

    name = "forget"
    title = "Forgetting Transformer"
    formula = "logits + sum of ln sigmoid(w_h x_l + b_h) from j + 1 to i"
    source = "Lin et al. 2025; both directions: x-transformers"
    part = ForgetPart
    silent_at_zero = ("gate.weight",)

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        # Padding in front counts as the first token, other padding as the token before it.
        slots = (at.distances >= 0).sum(-1) - 1
        return [(at.distances[:, None], slots[:, None])] * len(blocks)
