"""Run a recurrence over the tokens in place of positions."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.stage import (
    ForwardPass,
    InputStage,
    StatefulPart,
    without_gaps,
)


class TokenRecurrence(InputStage):
    """Replace each token by the state of a GRU that has read the sentence up to it.

    x_i = GRU(x_i, h_(i-1)) = h_i, h_(-1) = 0, from the first token to the last on both sides; padding
    is skipped. ``--token-rnn-residual``: x_i + h_i. One GRU serves all blocks of a stack, each from
    a zero state, as in ``rnn``. Any length: a state forgets, so tokens far past the trained length look
    like those near it. With ``--position-base keep`` and ``--token-rnn-residual`` the states start at
    zero, so the model starts exactly as fairseq's.

    Parameters: 6 C (C + 1) a stack. While decoding: h. Training takes as many steps as tokens.
    Source: Neishi and Yoshinaga, CoNLL 2019, at the input of the first block.
    """

    name = "token-rnn"
    title = "RNN over tokens"
    formula = "x_i = GRU(x_i, h_{i-1})"
    source = "Neishi and Yoshinaga 2019"
    part = StatefulPart
    takes_scalar_noise = False
    options = (
        Option(
            "--token-rnn-residual",
            False,
            "add the state to the token instead of replacing it",
            bool,
        ),
    )

    def costs(self) -> tuple[str, ...]:
        return ("recurrence",)

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        self.recurrence = nn.GRU(spec.dim, spec.dim)
        self.is_residual: bool = spec.options["token_rnn_residual"]
        if spec.base and self.is_residual:
            self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Make the GRU ignore its input: h = 0 stays 0, and no gradient reaches the tokens."""
        with torch.no_grad():
            for name, parameter in self.recurrence.named_parameters():
                if name != "weight_hh_l0":
                    parameter[2 * self.spec.dim :] = 0.0  # torch's order: reset, update, new

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.recurrence.train()  # it has no dropout, and cuDNN refuses a gradient in evaluation
        return self

    def change(self, x: Tensor, part: StatefulPart, forward_pass: ForwardPass) -> Tensor:
        if forward_pass.incremental_state is not None:
            states = self._one_step(x, part, forward_pass)
        elif forward_pass.tokens.padding_behind:
            states = self._states(x)
        else:
            states = without_gaps(self._states, x, forward_pass.tokens.is_padding)
        return x + states if self.is_residual else states.to(x.dtype)

    def _states(self, x: Tensor) -> Tensor:
        return self.recurrence(x)[0]

    def _one_step(self, x: Tensor, part: StatefulPart, forward_pass: ForwardPass) -> Tensor:
        """Return the state after the last token ``x`` [1, B, C], from the kept state: [1, B, C]."""
        assert forward_pass.incremental_state is not None
        before = part.recall(forward_pass.incremental_state)
        if before is None:
            before = torch.zeros_like(x)
        state = self.recurrence(x, before)[1]
        if forward_pass.padded is not None:
            state = torch.where(forward_pass.padded, before, state)
        part.keep(forward_pass.incremental_state, state)
        return state
