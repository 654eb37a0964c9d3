"""The contract of a position encoder, one suite for every encoder of the registry.

A class added to the registry is tested by all of it without further code.
"""

import inspect

import contract_cases as cases
import forcing
import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.transforms import Places

# 1. Token positions, not slots.


@h.every_case
def test_a_sentence_alone_is_the_sentence_in_a_padded_batch(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    for left in (True, False):
        source, target_in = h.source_batch(left), h.target_batch(left)
        together = h.log_probs(model, source, target_in)
        forcing.assert_padding_moves_nothing(model, source, target_in)
        assert h.difference(together, h.log_probs(model, source, target_in)) == 0


@h.every_case
def test_the_order_of_source_tokens_matters_exactly_where_there_are_positions(
    encoder, blocks, target
):
    only_base = (encoder, blocks, target) == ("sinusoidal", "input", "hidden")
    model = h.visible(encoder, blocks, target, no_token_positional_embeddings=not only_base)
    source, target_in = h.sentence(9), h.shifted(h.sentence(7, seed=1))
    swapped = source[:, [0, 4, 2, 3, 1, 5, 6, 7, 8]]
    change = h.difference(
        h.log_probs(model, source, target_in), h.log_probs(model, swapped, target_in)
    )
    if encoder == "none":
        assert change <= h.TOLERANCE  # without positions, attention sees a bag of words
    else:
        assert change > 0.01


@cases.every_signal
def test_every_stream_of_every_block_reaches_the_output(encoder, blocks, target, monkeypatch):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model, *batch)
    streams = 0
    for stack, name, signal in h.signals(model):
        rows = signal.rows(Places(64), h.parts(stack, name)).detach()
        assert len(rows[0, 0]) == (len(stack.layers) if blocks == "all" else 1)
        noise = torch.randn(rows[:, 0, 0].shape)
        for s in range(rows.size(1)):
            for block in range(rows.size(2)):
                bumped = rows.clone()
                bumped[:, s, block] += noise
                signal.drop_kept_table()
                with monkeypatch.context() as patch:
                    patch.setattr(signal, "rows", lambda at, _, bumped=bumped: bumped[: at.count])
                    assert h.difference(h.log_probs(model, *batch), before) > 1e-3
                streams += 1
        signal.drop_kept_table()
    assert streams == (9 if target == "qkv" else 2) * (2 if blocks == "all" else 1)


# 2. Step-by-step decoding equals teacher forcing.


@h.every_case
def test_step_by_step_equals_one_pass_when_beams_are_reordered_too(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    for left in (True, False):
        forcing.assert_steps_equal_one_pass(model, h.source_batch(), h.target_batch(left))
    for beam in (1, 2):  # keys are cached for each beam, and for each sentence
        forcing.assert_beams_keep_their_sentence(model, beam)


# 3. A row does not depend on the number of rows requested. Limits of length.


def rounding_of(table):
    """Tolerance for products of another shape: a few units in the last place of the largest entry."""
    return 1e-6 * max(1.0, float(table.detach().abs().max()))


@cases.every_table
def test_rows_do_not_depend_on_how_many_were_asked_for(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    for stack, name, signal in h.signals(model):
        for n in (1, 5, 16):
            short, long = (signal.rows(Places(m), h.parts(stack, name)) for m in (n, 2 * n))
            assert len(short) == (signal.table_length or n)
            if isinstance(signal, PositionSignal):
                shape = len(signal.spec.streams), len(h.parts(stack, name)), signal.spec.dim
                assert short.shape[1:] == shape  # [N, streams, blocks, C]
            assert h.difference(short, long[: len(short)]) <= rounding_of(long)
    small = h.tables(model, 9)
    lengths = [signal.table_length for _, _, signal in h.signals(model)]
    for length, before, long, after in zip(
        lengths, small, h.tables(model, 130), h.tables(model, 9), strict=True
    ):
        assert len(before) == len(after) == (length or 9)
        assert len(long) == (length or 130)
        assert h.difference(before, long[: len(before)]) <= rounding_of(long)
        assert h.difference(after, long[: len(after)]) == 0


@h.most_cases
def test_inductive_encoders_go_on_past_every_trained_length(encoder, blocks, target):
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    model = h.visible(encoder, blocks, target, **limits)
    if POSITION_ENCODERS[encoder].inductive:
        assert model.max_positions() == (UNLIMITED_POSITIONS, UNLIMITED_POSITIONS)
        assert h.log_probs(model, h.sentence(700), h.shifted(h.sentence(700))).isfinite().all()
        return
    assert model.max_positions() == (16, 16)
    fits, long = h.sentence(16), h.sentence(17)
    assert h.log_probs(model, fits, h.shifted(fits)).isfinite().all()
    for source, target_in, side in ((long, fits, "source"), (fits, long, "target")):
        words = rf"{side} sequence of 17 tokens.*16 positions.*--max-{side}-positions"
        with pytest.raises(ValueError, match=words):
            h.log_probs(model, source, target_in)
    with pytest.raises(ValueError, match="--max-target-positions"):
        h.stepwise_log_probs(model, fits, long)


@pytest.mark.parametrize(
    ("encoder", "target", "options"),
    [("learned", "hidden", {}), ("tupe", "attention", {"tupe_positions": "learned"})],
)
def test_a_limit_counts_tokens_and_not_padding(encoder, target, options):
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    model = h.visible(encoder, target=target, **options, **limits)
    assert model.max_positions() == (16, 16)
    source, target_in = h.sentence(16), h.shifted(h.sentence(16))
    wide = [torch.nn.functional.pad(x, (4, 0), value=h.PAD) for x in (source, target_in)]
    expected = h.log_probs(model, source, target_in)
    assert h.difference(h.log_probs(model, *wide)[:, 4:], expected) <= h.TOLERANCE
    with pytest.raises(ValueError, match="source sequence of 17 tokens.*--max-source-positions"):
        h.log_probs(model, h.sentence(17), target_in)


# 4. Parameters and their gradients, as checkpoints and DistributedDataParallel need them.


def tensors_in(value):
    """Return the tensors among ``value`` and the entries of its lists, tuples and dicts."""
    if isinstance(value, (list, tuple, dict)):
        entries = value.values() if isinstance(value, dict) else value
        return [tensor for entry in entries for tensor in tensors_in(entry)]
    return [value] if isinstance(value, torch.Tensor) else []


@h.every_case
def test_no_tensor_is_a_plain_attribute(encoder, blocks, target):
    """It would be neither trained nor saved, and stay on the CPU: use nn.Parameter or register_buffer."""
    for module in h.position_modules(h.build(encoder, blocks, target)):
        for part in module.modules():
            registered = {id(t) for t in (*part.parameters(), *part.buffers())}
            for name, value in inspect.getmembers_static(part):
                assert {id(t) for t in tensors_in(value)} <= registered, name


@h.every_case
def test_every_parameter_gets_a_gradient(encoder, blocks, target):
    model = h.randomise_positions(h.build(encoder, blocks, target)).train()
    forcing.assert_every_parameter_gets_a_gradient(model)
