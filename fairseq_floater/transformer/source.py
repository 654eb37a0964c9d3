"""Read the encoder's output as the decoder needs it, or do without an encoder.

Letters: S source and T target tokens, B sentences, C channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fairseq_floater.position_encoders.transforms import Warp
from fairseq_floater.position_encoders.warp import warp_of_source
from fairseq_floater.transformer.stack_positions import BEAM, WARP


class Source(NamedTuple):
    """Hold the encoder's output; without an encoder, nothing.

    Shapes: ``states`` [S, B, C], ``padding_mask`` [B, S].
    """

    states: Tensor | None = None
    padding_mask: Tensor | None = None
    warp: Warp | None = None
    beam_size: int = 1

    @classmethod
    def read(cls, encoder_out: dict[str, list[Any]] | None) -> Source:
        """Read ``encoder_out``; its values are lists of one item or none."""
        if not encoder_out:
            return cls()
        return cls(
            next(iter(encoder_out["encoder_out"]), None),
            next(iter(encoder_out["encoder_padding_mask"]), None),
            next(iter(encoder_out.get(WARP, ())), None),
            next(iter(encoder_out.get(BEAM, ())), 1),
        )

    def warp_of_target(self, decoder: Any, is_padding: Tensor, one_step: bool) -> Warp | None:
        """Return the warp of the decoder's tokens, whose padding is ``is_padding`` [B, T].

        Without an encoder, the decoder's own options decide.

        Raises:
            ValueError: they need the length of a text that is being written, step by step.
        """
        if self.states is not None:
            return None if self.warp is None else self.warp.of_target(is_padding)
        warp = warp_of_source(
            decoder.warp_law, is_padding, decoder.training, eval_law=decoder.eval_law
        )
        if warp is not None and one_step:
            raise ValueError(
                "`--position-random` and `--position-eval` interpolate, ntk and yarn must be left out of "
                "decoding with a decoder alone, as by --model-overrides \"{'position_random': None}\": they "
                "need the length of the text, which is not known yet."
            )
        return warp
