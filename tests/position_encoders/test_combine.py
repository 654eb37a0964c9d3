"""How rows of a signal meet a block's input, written out in front of the blocks of fairseq's own model."""

import pytest
import torch
from forcing import assert_padding_moves_nothing, assert_steps_equal_one_pass
from helpers import (
    EOS,
    PAD,
    TOLERANCE,
    build,
    difference,
    log_probs,
    loss_of,
    parts,
    plain,
    position_parameters,
    randomise_positions,
    sentence,
    shifted,
    source_batch,
    tables,
    target_batch,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places

SIGNALS = [name for name, encoder in POSITION_ENCODERS.items() if encoder.combines]
COMBINED = ["multiply", "concat"]
every_signal = pytest.mark.parametrize("encoder", SIGNALS)
every_combined = pytest.mark.parametrize("combine", COMBINED)
both_blocks = pytest.mark.parametrize("blocks", ["all", "input"])


def combined(encoder, combine, blocks="all", **options):
    """In evaluation, with positions that nobody can overlook."""
    model = build(encoder, blocks, position_combine=combine, **options)
    return randomise_positions(model).eval()


def on_real_tokens(model):
    """Log-probabilities of a padded batch; in a padded slot fairseq's base adds nothing, a signal does."""
    return log_probs(model, source_batch(), target_batch())[target_batch().ne(PAD)]


def written_out(model, base=False):
    """fairseq's own Transformer with the parameters of ``model``; each block's input is changed before it.

    For sentences without padding: slot i is position i.
    """
    reference = plain(seed=7, no_token_positional_embeddings=not base).eval()
    reference.load_state_dict(model.state_dict(), strict=False)
    for ours, theirs in ((model.encoder, reference.encoder), (model.decoder, reference.decoder)):
        signal = ours.positions
        table = signal.rows(Places(40), parts(ours, "positions")).detach()  # [N, 1, L, C]
        for n in range(table.size(2)):
            rows = table[:, 0, n]

            def change(_, args, rows=rows, signal=signal):
                x, *rest = args
                return (by_hand(signal, x, rows[: len(x), None].expand_as(x)), *rest)

            theirs.layers[n].register_forward_pre_hook(change)
    return reference


def by_hand(signal, x, p):
    if signal.spec.combine == "multiply":
        return x * p
    joint = signal.joint
    return torch.cat([x, p], dim=-1) @ joint.weight.T + joint.bias


@every_signal
@every_combined
@both_blocks
def test_each_blocks_input_is_written_out(encoder, combine, blocks):
    model = combined(encoder, combine, blocks)
    reference = written_out(model, base=model.encoder.embed_positions is not None)
    source = torch.cat([sentence(9), sentence(9, seed=1)])
    target_in = torch.cat([shifted(sentence(12)), shifted(sentence(12, seed=1))])
    expected = log_probs(reference, source, target_in)
    assert difference(log_probs(model, source, target_in), expected) <= 1e-5


@every_signal
@both_blocks
def test_concat_starts_as_the_sum(encoder, blocks):
    """Where the sinusoid is combined itself, fairseq's base makes room: still the same sum."""
    models = [build(encoder, blocks, position_combine=c, seed=3).eval() for c in ("add", "concat")]
    assert difference(*(on_real_tokens(m) for m in models)) <= TOLERANCE
    has_base = [m.encoder.embed_positions is not None for m in models]
    assert has_base == ([True, False] if encoder == "sinusoidal" else [has_base[0]] * 2)


@every_combined
def test_the_base_underneath_stays_where_it_is_asked_for(combine):
    model = combined("sinusoidal", combine, "input", position_base="keep")
    assert model.encoder.embed_positions is not None
    rows = tables(model, 9)[0][:, 0, 0]
    torch.testing.assert_close(rows, sinusoid_rows(9, rows.size(1), PAD))  # and not zero


def test_concat_has_the_parameters_of_one_map_a_stack():
    for encoder in ("sinusoidal", "learned"):
        for blocks in ("all", "input"):
            added = added_parameters("floater_transformer", encoder, blocks)
            more = added_parameters(
                "floater_transformer", encoder, blocks, position_combine="concat"
            )
            assert sum(more.values()) - sum(added.values()) == 1_049_600
            assert {n: k for n, k in more.items() if "joint" not in n} == added


def test_learned_rows_that_multiply_start_close_to_one():
    model = build("learned", position_combine="multiply")
    for stack in (model.encoder, model.decoder):
        for part in parts(stack, "positions"):
            assert abs(part.weight.mean() - 1) < 1e-3
            assert abs(part.weight.std() - 0.02) < 1e-3


def test_a_flow_of_zero_multiplies_by_one():
    model = build("floater", position_combine="multiply", floater_init_scale=0.0, seed=4).eval()
    other = plain(seed=9).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    assert difference(on_real_tokens(model), on_real_tokens(other)) <= 1e-6


@every_signal
@every_combined
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_moves_no_position(encoder, combine, left):
    model = combined(encoder, combine)
    assert_padding_moves_nothing(model, source_batch(left), target_batch(left))


@every_signal
@every_combined
def test_step_by_step_equals_one_pass(encoder, combine):
    model = combined(encoder, combine)
    assert_steps_equal_one_pass(model, source_batch(), target_batch())


@every_signal
@every_combined
@pytest.mark.parametrize("length", [12, 1], ids=["sentences", "end-symbols"])
def test_every_parameter_gets_a_gradient(encoder, combine, length):
    model = randomise_positions(build(encoder, position_combine=combine)).train()
    batch = (source_batch(), target_batch()) if length > 1 else 2 * (torch.full((2, 1), EOS),)
    loss_of(model, *batch).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    if length > 1:
        assert all(float(p.grad.abs().max()) > 0 for p in position_parameters(model))


@every_combined
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_work(combine, dtype):
    model = combined("floater", combine)
    batch = source_batch(), target_batch()
    single = log_probs(model, *batch)
    other = log_probs(model.to(dtype), *batch)
    assert difference(other.float(), single) < (1e-5 if dtype == torch.float64 else 0.3)


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
        build(encoder, target=target, position_combine=combine)
