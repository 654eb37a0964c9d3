"""Positions are computed in float32 and cast last; those that the model's dtype cannot hold raise."""

import contract_cases as cases
import helpers as h
import on_device
import pytest
import torch

from fairseq_floater.position_encoders.kept_table import PositionRangeError
from fairseq_floater.position_encoders.transforms import Places


@cases.every_kept_table
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_half_precision_computes_in_float32_and_casts_last(
    encoder, blocks, target, dtype, monkeypatch
):
    model = h.visible(encoder, blocks, target).to(dtype)
    exact = h.build(encoder, blocks, target, seed=5).eval()
    exact.load_state_dict(model.state_dict())  # the rounded parameters, in float32
    calls = h.recorded(model, monkeypatch)
    rounded = h.tables(model, dtype=dtype)
    assert {call.dtype for call in calls} == {torch.float32}
    for actual, expected in zip(rounded, h.tables(exact)):
        assert actual.dtype == dtype
        assert torch.equal(actual, expected.to(dtype))
    batch = h.source_batch(), h.target_batch()
    assert h.log_probs(model, *batch).isfinite().all()
    assert h.difference(h.log_probs(model, *batch), h.log_probs(exact, *batch)) < 0.2


@h.every_encoder
def test_double_precision_works(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    with torch.backends.cudnn.flags(enabled=False):  # rounding in its GRU alone makes 2.1e-5
        single = h.log_probs(model, *batch)
    assert h.difference(h.log_probs(model.double(), *batch), single) <= h.TOLERANCE


@cases.every_kept_table
def test_autocast_leaves_the_table_alone(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    expected = h.tables(model)
    batch = h.source_batch(), h.target_batch()
    exact = h.log_probs(model, *batch)
    model.train().eval()
    with torch.autocast(on_device.DEVICE.type, dtype=torch.bfloat16):
        for actual, table in zip(h.tables(model), expected, strict=True):
            assert torch.equal(actual, table)
        assert 0 < h.difference(h.log_probs(model, *batch), exact) < 0.2
        h.loss_of(model.train(), *batch).backward()


@cases.every_endless_table
def test_ten_thousand_positions_with_a_bounded_time(encoder, blocks, target):
    """Rows are finite in float16 and equal those of a short sentence."""
    bounds = {"floater_init_scale": 0.01, "xpos_scale_base": 8192.0}
    if "floater_autonomous" not in h.options_of(target):
        bounds["floater_time_scale"] = 1000.0
    model = h.build(encoder, blocks, target, **bounds)
    short = h.tables(model.eval(), 256)
    lengths = [signal.table_length or 10_000 for _, _, signal in h.signals(model)]
    for length, long, few in zip(
        lengths, h.tables(model, 10_000, torch.float16), short, strict=True
    ):
        assert long.shape[0] == length
        assert long.isfinite().all()
        torch.testing.assert_close(long[:256].float(), few, atol=2e-3, rtol=2e-3)
        if encoder == "floater":  # a recurrence converges
            assert len(long[::1000].flatten(1).unique(dim=0)) == 10


@h.every_target
@pytest.mark.parametrize("encoder", ["floater", "learned"])
def test_a_position_out_of_range_is_an_error(encoder, target):
    model = h.visible(encoder, "all", target)
    with torch.no_grad():
        for stack, name, _ in h.signals(model):
            for parameter in h.parts(stack, name)[0].parameters():
                parameter.fill_(1e5)
    assert h.tables(model, dtype=torch.bfloat16)[0].isfinite().all()
    with pytest.raises(PositionRangeError, match=f"Position 0 of {encoder} reaches 1e.05.*float16"):
        h.tables(model, dtype=torch.float16)


@cases.every_signal
@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_the_model_would_overflow_at_is_an_error(
    encoder, blocks, target, products, monkeypatch
):
    """A finite table can still give NaN: LayerNorm squares its rows, and products cast them."""
    model = h.visible(encoder, blocks, target)
    largest = 7e4 if products == torch.float16 else 1.2e18
    for stack, name, signal in h.signals(model):
        rows = torch.zeros_like(signal.rows(Places(64), h.parts(stack, name)).detach())
        rows[5, 0, 0, 3] = largest
        monkeypatch.setattr(signal, "rows", lambda at, _, rows=rows: rows[: at.count])
    with torch.autocast(on_device.DEVICE.type, dtype=products, enabled=products != torch.float32):
        with pytest.raises(PositionRangeError, match=f"Position 5 of {encoder} (reaches|has norm)"):
            h.log_probs(model, h.source_batch(), h.target_batch())
        short = [h.sentence(5), h.shifted(h.sentence(4))]
        assert h.log_probs(model, *short).isfinite().all()


def test_a_search_ends_with_the_error_and_no_hypothesis_of_nan():
    model = h.visible("floater", target="hidden")
    with torch.no_grad():
        for parameter in h.position_parameters(model):
            parameter.zero_()
        for _, _, signal in h.signals(model):
            signal.dynamics.bias2.fill_(1e18)  # each of the 64 entries of row i is 1e17 i
    with pytest.raises(
        PositionRangeError, match="Position 2 of floater has norm .*--floater-delta"
    ):
        h.generated([model], h.source_batch())


def test_a_position_out_of_range_that_nobody_asked_for_is_none():
    model = h.visible("floater")
    with torch.no_grad():
        for parameter in h.position_parameters(model):
            parameter.zero_()
        for _, _, signal in h.signals(model):
            signal.dynamics.bias2.fill_(2e4)  # row i is 2,000 i
    assert all(t[-1].max() == 22_000 for t in h.tables(model, 12, torch.float16))
    with pytest.raises(PositionRangeError, match=r"Position 33 of floater reaches 6\.6e\+04"):
        h.tables(model, 40, torch.float16)


@cases.every_encoder_without_a_table
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_half_precision_without_a_table(encoder, blocks, target, dtype):
    """Close to float32 with the same rounded parameters, step by step and in one pass."""
    model = h.visible(encoder, blocks, target).to(dtype)
    exact = h.build(encoder, blocks, target, seed=5).eval()
    exact.load_state_dict(model.state_dict())
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    expected = h.log_probs(exact, *batch)[real]
    allowed = 0.05 if dtype == torch.float16 else 0.4
    for run in (h.log_probs, h.stepwise_log_probs):
        assert h.difference(run(model, *batch)[real].float(), expected) < allowed


@cases.every_encoder_without_a_table
def test_autocast_without_a_table(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    exact = h.log_probs(model, *batch)[real]
    with torch.autocast(on_device.DEVICE.type, dtype=torch.bfloat16):
        for run in (h.log_probs, h.stepwise_log_probs):
            assert 0 < h.difference(run(model, *batch)[real].float(), exact) < 0.4
        h.loss_of(model.train(), *batch).backward()
    assert all(p.grad.isfinite().all() for p in h.position_parameters(model))
