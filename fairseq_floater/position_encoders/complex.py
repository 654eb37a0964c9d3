"""Turn each word's embedding by an angle that grows with the position (complex order)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import (
    BlockPositions,
    EncoderSpec,
    PositionEncoder,
    check_pairs,
)
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.rope import turn_pairs
from fairseq_floater.position_encoders.stage import ForwardPass, InputStage
from fairseq_floater.position_encoders.transforms import Tokens


class ComplexOrderEmbedding(InputStage):
    """Treat the token at position i as C / 2 complex numbers and turn number c of word t by i w_(t, c).

    r exp(sqrt(-1) (w i + theta)): channels (2c, 2c + 1) of the embedding are r exp(sqrt(-1) theta). The
    word's embedding gives amplitude and phase, so only the frequencies w are new. They start as the
    sinusoid's, 10000^(-2c/C), for every word. ``--complex-omega``: a row for each word (word), one row
    for all words (shared), or this row without training (fixed). With ``all`` blocks, every block's input
    is turned by the same angles. Past the trained length, angles are new to the model. With
    ``--position-base keep`` learned frequencies start at zero, so the model starts as fairseq's.

    Parameters: V C / 2 a dictionary of V words (shared: C / 2; fixed: none); source and target count
    once if they share their embeddings. Angles are computed in float32 and cast last.
    Source: Wang et al., ICLR 2020. Their translation code fixes w. Their fully complex network is
    another model.
    """

    name = "complex"
    title = "complex order"
    formula = "x_i rotated by i w, w of its word"
    source = "Wang et al. 2020"
    parameter_efficient = False
    continuous = True
    options = (
        Option(
            "--complex-omega",
            "word",
            "frequencies: learned for each word (word), one row learned for all (shared), or the "
            "sinusoid's (fixed)",
            choices=("word", "shared", "fixed"),
        ),
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        check_pairs(self.name, spec.dim, "the embedding", spec)
        self.by_word = spec.options["complex_omega"] == "word"
        self.omega: nn.Parameter | None = None
        if spec.options["complex_omega"] != "fixed":
            rows = self._initial_omega().repeat(spec.vocabulary if self.by_word else 1, 1)
            # If fairseq's sinusoid stays underneath, the model starts exactly as fairseq's.
            self.omega = nn.Parameter(torch.zeros_like(rows) if spec.base else rows)

    def _initial_omega(self) -> Tensor:
        exponents = torch.arange(0, self.spec.dim, 2, device=self.anchor.device) / self.spec.dim
        return (10000.0**-exponents)[None]

    def share_words(self, other: PositionEncoder) -> None:
        assert isinstance(other, ComplexOrderEmbedding)
        self.omega = other.omega

    def prepare(self, words: Tensor, tokens: Tokens, dtype: torch.dtype) -> Tables:
        """Return the cosines and sines of all angles: [T, B or 1, C / 2] each."""
        at = tokens.at(use_slots=False)
        omega = self._initial_omega() if self.omega is None else self.omega
        if self.by_word:
            omega = F.embedding(words.T, omega)  # [T, B, C / 2]
        # float32 places give float32 angles, even if the frequencies are in half precision.
        positions = (at.queries - at.rows_before) / at.rows_per_token
        angles = positions.T.unsqueeze(-1) * omega
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def change(self, x: Tensor, part: BlockPositions, forward_pass: ForwardPass) -> Tensor:
        return turn_pairs(x, *forward_pass.tables)
