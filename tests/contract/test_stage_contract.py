"""Beyond the common contract: encoders that act as a stage before a block."""

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders.stage import ForwardPass
from fairseq_floater.position_encoders.transforms import Tokens

# Which of a sentence's 10 slots are padding.
PADDING = {
    "left": [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
    "right": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
    "both": [1, 1, 0, 0, 0, 0, 0, 0, 1, 1],
    "between": [0, 1, 1, 0, 0, 0, 1, 0, 1, 0],
    "none": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
}


class Stream:
    """A stack's stage, and an input for its last block with one sentence for each mask of PADDING."""

    def __init__(self, stack):
        generator = torch.Generator().manual_seed(4)
        self.stack, self.stage = stack, stack.positions
        self.part = next(b.positions for b in reversed(stack.layers) if b.positions is not None)
        self.is_padding = torch.tensor(list(PADDING.values())).bool()
        self.words = torch.randint(4, 40, self.is_padding.shape, generator=generator)
        self.words[self.is_padding] = h.PAD
        self.x = torch.randn(*self.words.T.shape, 64, generator=generator)
        self.x[self.is_padding.T] = float("nan")  # what attention may leave there

    @torch.no_grad()
    def enter(self, words, is_padding, x, state=None):
        tokens = Tokens.read(is_padding, last_only=state is not None)
        in_stream = words[:, -1:] if state is not None else words
        tables = self.stage.prepare(in_stream, tokens, torch.float32)
        return self.stage.enter(x, self.part, ForwardPass(tokens, tables, state))

    def whole(self):
        return self.enter(self.words, self.is_padding, self.x)

    def alone(self, b):
        real = ~self.is_padding[b]
        words = self.words[b, real][None]
        return self.enter(words, torch.zeros_like(words).bool(), self.x[real, b : b + 1])[:, 0]


@h.every_stage
def test_a_sentence_alone_is_the_sentence_among_others_wherever_padding_stands(
    encoder, blocks, target
):
    model = h.visible(encoder, blocks, target)
    for stack in (model.encoder, model.decoder):
        stream = Stream(stack)
        together = stream.whole()
        for b, name in enumerate(PADDING):
            real = ~stream.is_padding[b]
            assert h.difference(together[real, b], stream.alone(b)) <= 1e-6, name


@h.every_stage
def test_no_gradient_sees_what_stands_in_padded_slots(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    for stack in (model.encoder, model.decoder):
        stream = Stream(stack)
        tokens = Tokens.read(stream.is_padding)
        tables = stream.stage.prepare(stream.words, tokens, torch.float32)
        entered = stream.stage.enter(stream.x, stream.part, ForwardPass(tokens, tables))
        entered[~stream.is_padding.T].square().sum().backward()
        own = [*stream.stage.parameters(), *stream.part.parameters()]
        assert own and all(p.grad.isfinite().all() and p.grad.any() for p in own)


@h.every_stage
def test_a_step_skips_padding_and_follows_its_beam(encoder, blocks, target):
    """Beams are reordered before two of the steps, by fairseq's method of the decoder."""
    model = h.visible(encoder, blocks, target)
    stream = Stream(model.decoder)
    order, state, steps = torch.arange(len(PADDING)), {}, []
    exchanges = {3: torch.tensor([0, 2, 1, 4, 3]), 7: torch.tensor([4, 1, 3, 0])}
    # A beam moves as a whole: its past and its future words.
    past = [stream.words, stream.is_padding, stream.x.transpose(0, 1)]
    for t in range(10):
        if t in exchanges:
            order = exchanges[t]
            model.decoder.reorder_incremental_state_scripting(state, order)
            past = [p[order] for p in past]
            steps = [s[:, order] for s in steps]
        words, is_padding, x = past
        steps.append(stream.enter(words[:, : t + 1], is_padding[:, : t + 1], x[:, t][None], state))
    words, is_padding, x = past
    forced = stream.enter(words, is_padding, x.transpose(0, 1))
    real = ~is_padding.T
    assert h.difference(torch.cat(steps)[real], forced[real]) <= 1e-5


STARTS = {
    "conv": ("conv", {}),
    "token-rnn": ("token-rnn", {"token_rnn_residual": True}),
    "complex-word": ("complex", {"complex_omega": "word"}),
    "complex-shared": ("complex", {"complex_omega": "shared"}),
}


@pytest.mark.parametrize(("encoder", "options"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("blocks", ["all", "input"])
def test_without_the_sinusoid_a_stage_tells_order_from_the_start(encoder, options, blocks):
    model = h.build(encoder, blocks, "stage", **options).eval()
    source, target_in = h.sentence(9), h.shifted(h.sentence(7, seed=1))
    swapped = source[:, [0, 4, 2, 3, 1, 5, 6, 7, 8]]
    ours, others = (h.log_probs(model, words, target_in) for words in (source, swapped))
    assert h.difference(ours, others) > 1e-3


@h.every_stage
def test_the_base_is_dropped_unless_it_is_kept(encoder, blocks, target):
    assert h.build(encoder, blocks, target).encoder.embed_positions is None
    assert (
        h.build(encoder, blocks, target, position_base="keep").encoder.embed_positions is not None
    )
