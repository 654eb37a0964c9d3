"""Turn queries and keys, and let a decoder's products fade with distance (xPos)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.rope import VALUES, RopePositions
from fairseq_floater.position_encoders.segments import SEGMENTS

# The share of a head's channels that keeps the first pair from fading at once.
GAMMA = 0.4


class XposPositions(RopePositions):
    """Turn the pair c of q_i and k_j as RoPE does; a decoder's product fades by z_c^((i - j) / S).

    z_c = (2c + 0.4 R) / (1.4 R) over the R channels that are turned, S = ``--xpos-scale-base``: q_i is
    multiplied by z_c^(i / S) and k_j by z_c^(-j / S). An encoder, where the factor of a key behind the
    query would grow, has plain RoPE. Counting from the first token makes a row independent of the
    length, as cached keys need; the paper's code counts from the middle, which gives the same logits.
    So factors grow with the position, to 2e4 at 4,096: from some 3,500 tokens on float16 may not hold
    keys times them, past 4,500 the factors, which is an error that says so. Past the trained length
    come angles that were never met, faded.

    Shapes: table [N, 2, R / 2], cos and sin; in a decoder [N, 4, R / 2], those of q, then of k.
    Parameters: none; ``--rope-learned``: w, R / 2 a stack.
    """

    name = "xpos"
    title = "xPos"
    formula = "q_i, k_j turned by i w, j w; decoder: product times z^((i - j) / 512)"
    source = "Sun et al. 2023; encoder: RoPE"
    can_cross = False
    range_advice = (
        "Raise --xpos-scale-base, or use float32 or bfloat16 for sentences as long as this."
    )
    options = (
        Option(
            "--xpos-scale-base",
            512.0,
            "distance at which a pair of channels has faded to its factor",
            float,
            above=0,
            why="; 512 is the paper's.",
        ),
        *(o for o in RopePositions.options if o not in (VALUES, SEGMENTS)),
    )

    def fading(self) -> Tensor:
        if not self.spec.causal:
            return super().fading()
        width = 2 * self.pairs
        channels = torch.arange(0, width, 2, dtype=torch.float64, device=self.anchor.device)
        zeta = (channels + GAMMA * width) / ((1 + GAMMA) * width)
        return zeta.log() / self.spec.options["xpos_scale_base"]

    def turns(self, places: Tensor, frequencies: Tensor) -> Tensor:
        turns = super().turns(places, frequencies)
        if not self.spec.causal:
            return turns
        factors = (places * self.fading())[..., None, :]
        return torch.cat([turns * factors.exp(), turns * (-factors).exp()], dim=-2).float()
