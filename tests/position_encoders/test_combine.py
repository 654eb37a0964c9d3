"""`--position-combine`: initialisation, the contract of positions, and refused options."""

import helpers as h
import pytest
import torch
from forcing import (
    assert_every_parameter_gets_a_gradient,
    assert_padding_moves_nothing,
    assert_steps_equal_one_pass,
)

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows

SIGNALS = [name for name, encoder in POSITION_ENCODERS.items() if encoder.combines]
COMBINED = ["multiply", "concat"]
every_signal = pytest.mark.parametrize("encoder", SIGNALS)
every_combined = pytest.mark.parametrize("combine", COMBINED)
both_blocks = pytest.mark.parametrize("blocks", ["all", "input"])


def on_real_tokens(model):
    """Log-probabilities without padded slots, where a signal adds a row and fairseq's base does not."""
    return h.log_probs(model, h.source_batch(), h.target_batch())[h.target_batch().ne(h.PAD)]


@every_signal
@both_blocks
def test_concat_starts_as_the_sum(encoder, blocks):
    """`sinusoidal` drops fairseq's base with concat, and the sum is still the same."""
    models = [
        h.build(encoder, blocks, position_combine=c, seed=3).eval() for c in ("add", "concat")
    ]
    assert h.difference(*(on_real_tokens(m) for m in models)) <= h.TOLERANCE
    has_base = [m.encoder.embed_positions is not None for m in models]
    assert has_base == ([True, False] if encoder == "sinusoidal" else [has_base[0]] * 2)


@every_combined
def test_the_base_underneath_stays_where_it_is_asked_for(combine):
    model = h.visible("sinusoidal", "input", position_combine=combine, position_base="keep")
    assert model.encoder.embed_positions is not None
    rows = h.tables(model, 9)[0][:, 0, 0]
    torch.testing.assert_close(rows, sinusoid_rows(9, rows.size(1), h.PAD))  # not zeros


def test_learned_rows_that_multiply_start_close_to_one():
    model = h.build("learned", position_combine="multiply")
    for stack in (model.encoder, model.decoder):
        for part in h.parts(stack, "positions"):
            assert abs(part.weight.mean() - 1) < 1e-3
            assert abs(part.weight.std() - 0.02) < 1e-3


def test_a_flow_of_zero_multiplies_by_one():
    model = h.build("floater", position_combine="multiply", floater_init_scale=0.0, seed=4).eval()
    other = h.plain(seed=9).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    assert h.difference(on_real_tokens(model), on_real_tokens(other)) <= 1e-6


@every_signal
@every_combined
def test_the_contract_holds(encoder, combine):
    model = h.visible(encoder, position_combine=combine)
    for left in (True, False):
        assert_padding_moves_nothing(model, h.source_batch(left), h.target_batch(left))
        assert_steps_equal_one_pass(model, h.source_batch(left), h.target_batch())


@every_signal
@every_combined
def test_every_parameter_gets_a_gradient(encoder, combine):
    model = h.randomise_positions(h.build(encoder, position_combine=combine)).train()
    assert_every_parameter_gets_a_gradient(model)


@every_combined
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_work(combine, dtype):
    model = h.visible("floater", position_combine=combine)
    batch = h.source_batch(), h.target_batch()
    single = h.log_probs(model, *batch)
    other = h.log_probs(model.to(dtype), *batch)
    assert h.difference(other.float(), single) < (1e-5 if dtype == torch.float64 else 0.3)


@pytest.mark.parametrize(
    ("encoder", "target"),
    [
        *((name, "qkv") for name in ("floater", "learned", "sinusoidal")),
        *((name, None) for name, encoder in POSITION_ENCODERS.items() if not encoder.combines),
    ],
)
@every_combined
def test_what_meets_no_blocks_input_is_refused(encoder, target, combine):
    words = rf"`--position-combine` must be add with --position-encoder {encoder} .*is {combine} instead"
    with pytest.raises(ValueError, match=words):
        h.build(encoder, target=target, position_combine=combine)
