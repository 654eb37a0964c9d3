"""Positions in documents whose sentences end in a separator: FLOATER's gaps in time, and BiPE."""

import forcing
import helpers as h
import one_attention as one
import pytest
import torch
from attention_oracles import sinusoid
from input_oracles import fairseqs_sinusoid, largest_difference, passages
from test_oracles import assert_attention

from fairseq_floater.position_encoders.segments import Segments

SEPARATOR = h.dictionary().index("w8")
SEGMENTS = {"position_separator": "w8", "position_segments": True}
ALONE = {"position_separator": "w8", "no_token_positional_embeddings": True}
RK4 = {"floater_solver": "rk4", "floater_step_size": 0.05}
CASES = {
    "hidden": ("floater", "hidden", {**ALONE, "floater_gap": 0.35}),
    "qkv": ("floater", "qkv", {**ALONE, "floater_gap": 1.0}),
    "sinusoid": ("sinusoidal", "hidden", SEGMENTS),
    "sinusoid-qkv": ("sinusoidal", "qkv", SEGMENTS),
    "rope": ("rope", "attention", {**SEGMENTS, "rope_values": True}),
}
every_use = pytest.mark.parametrize(("encoder", "target", "options"), CASES.values(), ids=CASES)


def documents(left=True):
    """A batch of sources and targets; tokens 1 and 2 + b % 2 of sentence b end a segment."""
    batch = h.source_batch(left), h.target_batch()
    for words in batch:
        for b, sentence in enumerate(words):
            real = sentence.ne(h.PAD).nonzero().flatten()
            sentence[real] = torch.where(sentence[real] == SEPARATOR, h.FIRST_WORD, sentence[real])
            sentence[real[[1, 2 + b % 2]]] = SEPARATOR
    return batch


def numbers(b, i):
    """The segment number of each token ``i`` of sentence b, and its position in the segment."""
    segments = (i > 1).long() + (i > 2 + b % 2).long()
    return segments, i - torch.tensor([0, 2, 3 + b % 2])[segments]


@pytest.mark.parametrize(("gap", "blocks"), [(1.0, "all"), (0.35, "all"), (0.123, "input")])
def test_time_moves_on_where_a_sentence_ends(gap, blocks):
    model = h.visible("floater", blocks, floater_gap=gap, dropout=0.0, **ALONE, **RK4)
    place = lambda b, i: i + gap / 0.1 * numbers(b, i)[0]  # noqa: E731
    assert largest_difference(model, *documents(), place) <= 2e-5
    if blocks == "all":  # training recomputes the rows, since the flow learns
        assert largest_difference(model.train(), *documents(), place) <= 2e-5


def test_without_a_gap_the_separator_is_a_word():
    models = [h.visible("floater", **options) for options in ({}, {"position_separator": "w8"})]
    plain, named = (h.log_probs(model, *documents()) for model in models)
    assert h.difference(plain, named) == 0


@pytest.mark.parametrize("encoder", ["sinusoidal", "rope"])
@torch.no_grad()
def test_the_place_in_the_segment_enters_the_input(encoder):
    target = {"sinusoidal": "hidden", "rope": "attention"}[encoder]
    batch = documents()
    model = h.visible(encoder, target=target, dropout=0.0, **SEGMENTS)
    for _, number, words, before, after in passages(model, *batch):
        for b, sentence in enumerate(words):
            real = sentence.ne(h.PAD)
            segment, inside = numbers(b, torch.arange(int(real.sum())))
            rows = torch.zeros_like(before[real, b])
            if encoder == "sinusoidal":
                rows += torch.cat([sinusoid(inside, 32), sinusoid(segment, 32)], dim=1)
                rows += fairseqs_sinusoid(torch.tensor(number + 1), 64)
            elif number == 0:
                rows += sinusoid(inside, 64)
            assert h.difference(after[real, b] - before[real, b], rows) <= 2e-5


@pytest.mark.parametrize("side", one.SIDES)
@torch.no_grad()
def test_queries_and_keys_are_turned_by_the_segments_number(side):
    stack = one.stack_of(side, "rope", **SEGMENTS)
    segments = torch.stack([numbers(b, torch.arange(one.LENGTH))[0] for b in (0, 1)])
    of = one.tokens(warp=Segments(segments, None))
    assert_attention(stack, one.stream(), lambda b, i: segments[b].double(), of)


@every_use
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_segments_keep_the_contract(encoder, target, options, left):
    """Padding changes nothing, decoding equals teacher forcing, and beams keep their segments."""
    model = h.visible(encoder, target=target, **options)
    source, target_in = documents(left)
    without = h.visible(encoder, target=target, **{**options, "position_separator": "w0"})
    found, other = (h.log_probs(m, source, target_in) for m in (model, without))
    assert all(h.difference(x, y) > 0.01 for x, y in zip(found, other))
    forcing.assert_padding_moves_nothing(model, source, target_in)
    forcing.assert_steps_equal_one_pass(model, source, target_in)
    forcing.assert_beams_keep_their_sentence(model, 2, left)
    h.loss_of(model.train(), source, target_in).backward()
    assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))
