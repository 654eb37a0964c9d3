"""Turn queries and keys, and let a decoder's products fade with distance (xPos)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.rope import VALUES, RopePositions
from fairseq_floater.position_encoders.segments import SEGMENTS

# The share of a head's channels that is added to keep the first pair from fading at once.
GAMMA = 0.4


class XposPositions(RopePositions):
    """Turn the pair c of q_i and k_j as RoPE does; a decoder's product fades by z_c^((i - j) / S).

    q_i is multiplied by z_c^(i / S) and k_j by z_c^(-j / S), with z_c = (2c + 0.4 R) / (1.4 R) over the R
    channels that are turned, and S = ``--xpos-scale-base``. An encoder has plain RoPE, because the factor
    of a key after the query would grow. Positions count from the first token, so a row does not depend
    on the length, as cached keys need. The paper's code counts from the middle, with the same logits.
    Factors grow with the position, to 2e4 at 4,096. float16 may not hold keys times their factors from
    some 3,500 tokens on; past 4,500 it does not hold the factors, and an error says so. Past the trained
    length, angles are new to the model, but faded.

    Shapes: table [N, 2, R / 2], cos and sin; in a decoder [N, 4, R / 2], those of q, then of k.
    Parameters: none; ``--rope-learned``: w, R / 2 a stack.
    """

    name = "xpos"
    title = "xPos"
    formula = "q_i, k_j rotated by i w, j w; decoder: product times z^((i - j) / 512)"
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
