"""Convolve the tokens: the zeros around a sentence tell a token its position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.stage import (
    ForwardPass,
    InputStage,
    StatefulPart,
    without_gaps,
)


class ConvolutionPart(StatefulPart):
    """Hold one block's kernels, one a channel; while decoding, keep the last K - 1 inputs."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        kernel = spec.options["conv_kernel"]
        self.convolution = nn.Conv1d(spec.dim, spec.dim, kernel, groups=spec.dim)
        if spec.base:
            # If fairseq's sinusoid stays underneath, the model starts exactly as fairseq's.
            for parameter in self.convolution.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``x`` [T + K - 1, B, C], zeros included: [T, B, C]."""
        return self.convolution(x.permute(1, 2, 0)).permute(2, 0, 1)


class ConvolutionPositions(InputStage):
    """Add to each token a depthwise convolution of its neighbourhood, with zeros outside the sentence.

    x_i += b + sum_r c_r * x_(i+r), channel by channel: |r| <= (K - 1) / 2 in an encoder, r = -(K - 1)
    .. 0 in a decoder. Kernels see the order of neighbours. Through several blocks, the zeros at the ends
    show a token's position. Nothing changes at the trained length; all places inside a long sentence
    look alike. With ``--position-base keep`` the kernels start at zero.

    Parameters: (K + 1) C a stack, for ``all`` a block. While decoding: the last K - 1 inputs.
    Source: Islam et al. 2020 (zeros tell the place), Chu et al. 2021 (before a Transformer's block).
    wav2vec 2.0 takes K = 128, 16 groups of channels and GELU.
    """

    name = "conv"
    title = "convolution"
    formula = "x_i + sum over r of c_r x_(i+r), zeros outside"
    source = "Islam et al. 2020; Chu et al. 2021"
    part = ConvolutionPart
    options = (
        Option(
            "--conv-kernel",
            3,
            "tokens that a kernel sees, an odd number",
            int,
            at_least=3,
            odd=True,
            why=": a kernel sees as many tokens before a token as after it.",
        ),
    )

    def change(self, x: Tensor, part: ConvolutionPart, forward_pass: ForwardPass) -> Tensor:
        if forward_pass.incremental_state is not None:
            return x + self._one_step(x, part, forward_pass)
        reach = self.spec.options["conv_kernel"] - 1
        before = reach if self.spec.causal else reach // 2

        def convolved(stream: Tensor) -> Tensor:
            return part(F.pad(stream, (0, 0, 0, 0, before, reach - before)))

        if forward_pass.tokens.padding_at_ends:
            return x + convolved(x)
        return x + without_gaps(convolved, x, forward_pass.tokens.is_padding)

    def _one_step(self, x: Tensor, part: ConvolutionPart, forward_pass: ForwardPass) -> Tensor:
        """Convolve the last token, ``x`` [1, B, C], with the kept inputs, which start as zeros."""
        assert forward_pass.incremental_state is not None
        before = part.recall(forward_pass.incremental_state)
        if before is None:
            before = x.new_zeros(self.spec.options["conv_kernel"] - 1, *x.shape[1:])
        window = torch.cat([before, x])  # [K, B, C]
        padded = forward_pass.padded
        kept = window[1:] if padded is None else torch.where(padded, before, window[1:])
        part.keep(forward_pass.incremental_state, kept)
        return part(window)
