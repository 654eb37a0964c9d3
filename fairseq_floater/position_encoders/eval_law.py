"""Define what ``--position-eval`` does to the positions of a trained model, in evaluation only.

n is the number of source tokens, end symbol included. The target side uses it too, because the length
of a translation is unknown while it is made. T is the trained length, W a window, s = max(1, n / T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.options import Option

if TYPE_CHECKING:
    from torch import Tensor

NONE = "none"
INTERPOLATE, NTK, YARN = "interpolate", "ntk", "yarn"
CAP, GROUPED = "cap", "grouped"
LOGN, WINDOW = "logn", "window"
# How to write each kind.
FORMS = {
    INTERPOLATE: "interpolate:T",
    NTK: "ntk:T",
    YARN: "yarn:T",
    CAP: "cap:W",
    GROUPED: "grouped:W:K",
    LOGN: "logn:T",
    WINDOW: "window:W",
}
EVAL = Option(
    "--position-eval",
    NONE,
    "change positions in evaluation alone, of any trained checkpoint: interpolate:T (token i of n stands at "
    "i T / max(T, n)), ntk:T and yarn:T (other frequencies of sinusoids and rotations), cap:W (distances "
    "beyond W count as W), grouped:W:K (beyond W, K distances count as one), logn:T (logits times "
    "ln n / ln T where n > T), window:W (hides keys beyond W tokens, except the first 4)",
)
# YaRN's alpha and beta: pairs that turn less than alpha times within T are interpolated; pairs that turn
# more than beta times are left alone.
SLOW_TURNS, FAST_TURNS = 1.0, 32.0
# An interpolated place is at most 1/128 of a radian off for a rotation by one radian a token.
INTERPOLATED_ROWS_PER_TOKEN = 64


@dataclass(frozen=True)
class EvalLaw:
    """Hold the value of ``--position-eval``.

    Attributes:
        kind: one of :data:`FORMS`.
        size: T or W, in tokens.
        group: K of ``grouped``.
    """

    kind: str
    size: int
    group: int = 1

    @classmethod
    def read(cls, args: Any) -> EvalLaw | None:
        """Parse the option in complete ``args``; None if evaluation changes nothing.

        Raises:
            ValueError: the value has none of the :data:`FORMS`.
        """
        kind, *numbers = args.position_eval.split(":")
        if kind == NONE and not numbers:
            return None
        form = FORMS.get(kind, "")
        fits = len(numbers) == form.count(":") and all(n.isdecimal() for n in numbers)
        if not form or not fits or int(numbers[0]) < 2 or int(numbers[-1]) < 1:
            raise ValueError(
                f"`--position-eval` must be none or one of {', '.join(FORMS.values())} with whole "
                "numbers (T and W at least 2, K at least 1), such as interpolate:80, but is "
                f"{args.position_eval!r} instead."
            )
        return cls(kind, *map(int, numbers))

    @property
    def reads_lengths(self) -> bool:
        return self.kind in (INTERPOLATE, NTK, YARN)

    @property
    def changes_frequencies(self) -> bool:
        return self.kind in (NTK, YARN)

    @property
    def changes_distances(self) -> bool:
        return self.kind in (CAP, GROUPED)

    def distances(self, distances: Tensor, parts: int) -> Tensor:
        """Return the distances that replace signed ``distances``; the unit is 1 / ``parts`` of a token."""
        window = self.size * parts
        if self.kind == CAP:
            return distances.clamp(-window, window)
        beyond = (distances.abs() - window).clamp(min=0)
        grouped = distances.abs().clamp(max=window) + beyond // self.group
        return grouped * distances.sign()

    def frequencies(self, frequencies: Tensor, lengths: Tensor) -> Tensor:
        """Return the frequencies [B, 1, P] for ``lengths`` n [B, 1], from those of training [P].

        ``ntk``: the base is s^(D/(D-2)) times as large, so the slowest pair turns s times more slowly and
        the fastest as in training. ``yarn``: by parts (Peng et al. 2023).
        """
        scale = self._scale(lengths)[:, :, None]
        pairs = frequencies.size(-1)
        if self.kind == NTK:
            shares = scale.new_tensor(range(pairs)) / max(pairs - 1, 1)
            return frequencies / scale**shares
        turns = self.size * frequencies.abs() / (2 * math.pi)
        kept = ((turns - SLOW_TURNS) / (FAST_TURNS - SLOW_TURNS)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / scale)

    def temperature(self, lengths: Tensor) -> Tensor:
        """Return the factor of the logits [B, 1]: (0.1 ln s + 1)^2 for ``yarn``, 1 for ``ntk``."""
        scale = self._scale(lengths)
        return (0.1 * scale.log() + 1) ** 2 if self.kind == YARN else scale.new_ones(scale.shape)

    def _scale(self, lengths: Tensor) -> Tensor:
        """Return s for ``lengths`` [B, 1]: float64 [B, 1]."""
        return (lengths.double() / self.size).clamp(min=1)
