"""Compute a lower bound on the time of any implementation of fairseq's Transformer on this machine.

Only matrix products and reads of weights are counted, at the rates that this machine reaches on one
large product and on one large read.

Letters: B sentences, S source and T target tokens of the padded batch, C channels, V vocabulary.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.batches import Batch
from benchmarks.settings import Settings

# The backward pass multiplies twice for every product of the forward one.
FORWARD_AND_BACKWARD = 3
SOURCE_PROJECTIONS = ("encoder_attn.k_proj", "encoder_attn.v_proj")


class Floor(NamedTuple):
    """Hold the machine's rates: ``bandwidth`` in bytes read and ``peak`` in operations a second."""

    bandwidth: float
    peak: float

    def seconds(self, operations: float, read: float = 0.0) -> float:
        """Return the seconds of the operations or of reading ``read`` bytes, whichever takes longer."""
        return max(operations / self.peak, read / self.bandwidth)


def measure_floor(settings: Settings, dtype: torch.dtype, repeats: int = 10) -> Floor:
    """Measure both rates, the best of ``repeats``: on the settings' device and in ``dtype``."""
    device, side = settings.device, settings.floor_side
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    one = torch.ones(side, side, device=device, dtype=dtype)
    rows = torch.ones(settings.floor_bytes // (side * one.element_size()), side, device=device)
    rows = rows.to(dtype)
    vector = one[0]

    def fastest(work: Callable[[], object]) -> float:
        def finish() -> None:
            work()
            synchronize()

        return min(timeit.repeat(finish, synchronize, number=1, repeat=repeats))

    read = rows.numel() * rows.element_size() / fastest(lambda: torch.mv(rows, vector))
    return Floor(read, 2 * side**3 / fastest(lambda: torch.mm(one, one)))


class Work:
    """Count the matrix products of fairseq's ``model``, an encoder and a decoder.

    Attributes:
        encoder, decoder, source: entries of the matrices that multiply every source token, every target
            token, and every source token for cross-attention.
        output: entries of the output layer.
    """

    def __init__(self, model: Any):
        def entries(stack: Any) -> dict[str, int]:
            named = stack.layers.named_modules()
            return {n: m.weight.numel() for n, m in named if isinstance(m, nn.Linear)}

        decoder = entries(model.decoder)
        self.source = sum(n for name, n in decoder.items() if name.endswith(SOURCE_PROJECTIONS))
        self.encoder = sum(entries(model.encoder).values())
        self.decoder = sum(decoder.values()) - self.source
        self.output = model.decoder.output_projection.weight.numel()
        self.channels = model.decoder.output_projection.in_features
        self.layers = len(model.encoder.layers), len(model.decoder.layers)
        self.bytes_an_entry = next(model.parameters()).element_size()

    def _encode(self, sentences: int, source: int) -> int:
        attention = 2 * self.layers[0] * source * self.channels
        return 2 * sentences * source * (self.encoder + self.source + attention)

    def update(self, batch: Batch) -> int:
        """Count the operations of a training update: products of all tokens, forward and backward."""
        sentences, source = batch["net_input"]["src_tokens"].shape
        target = batch["target"].size(1)
        attention = 2 * self.layers[1] * (source + target) * self.channels
        decode = 2 * sentences * target * (self.decoder + self.output + attention)
        return FORWARD_AND_BACKWARD * (self._encode(sentences, source) + decode)

    def step(self, floor: Floor, rows: int) -> float:
        """Return seconds of a decoding step of ``rows`` hypotheses: every weight is read once."""
        entries = self.decoder + self.output
        return floor.seconds(2 * rows * entries, entries * self.bytes_an_entry)

    def translation(self, floor: Floor, batch: Batch, steps: int, beam: int) -> float:
        """Return seconds of a search: the source once, then the steps, cached keys not counted."""
        sentences, source = batch["net_input"]["src_tokens"].shape
        weights = (self.encoder + self.source) * self.bytes_an_entry
        encode = floor.seconds(self._encode(sentences, source), weights)
        return encode + steps * self.step(floor, sentences * beam)
