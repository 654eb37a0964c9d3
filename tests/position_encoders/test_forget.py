"""The forget gate beside x-transformers' data-dependent ALiBi."""

import pytest
import torch
from helpers import (
    PAD,
    build,
    difference,
    log_probs,
    sentence,
    shifted,
    source_batch,
    stepwise_log_probs,
    visible,
)
from one_attention import (
    LENGTH,
    SIDES,
    WIDTH,
    attended,
    causal_mask,
    heads_of,
    logits,
    logits_differ_by,
    stack_of,
    step_by_step,
    stream,
    written_out,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.masks import additive_mask

every_side = pytest.mark.parametrize("side", SIDES)


def oracles_bias(stack, x):
    """[B, H, T, T] of the stack's first block for ``x`` [T, B, C]."""
    package = pytest.importorskip("x_transformers.x_transformers")
    part, causal = stack.layers[0].positions, stack.positions.spec.causal
    oracle = package.DataDependentAlibi(WIDTH, 4, causal=causal)
    oracle.to_forget_gates[0].load_state_dict(part.forget.state_dict())
    found = oracle(x.transpose(0, 1))
    return found.tril() if causal else found


@torch.no_grad()
def test_decoding_keeps_the_gate_of_each_token():
    stack, x = stack_of("decoder", "forget"), stream()
    found, state = step_by_step(stack, x)
    expected = written_out(stack, *heads_of(stack, x), oracles_bias(stack, x))[1]
    assert difference(found, expected) <= 1e-5
    notes = stack.layers[0].self_attn._get_input_buffer(state)["prev_notes"]
    gates = torch.nn.functional.logsigmoid(stack.layers[0].positions.forget(x))
    assert notes.shape == (2, 4, LENGTH) and notes.dtype == torch.float32
    assert difference(notes, gates.permute(1, 2, 0)) <= 1e-5


@every_side
@pytest.mark.parametrize("padded", [[0, 1, 2], [11, 12], [0, 5, 6, 9, 12]], ids=str)
@torch.no_grad()
def test_padding_forgets_nothing(side, padded):
    """Wherever it stands, with its words' gates shut: as if it were not there."""
    stack, x = stack_of(side, "forget"), stream()
    is_padding = torch.zeros(x.size(1), LENGTH, dtype=torch.bool)
    is_padding[1, padded] = True
    real = ~is_padding[1]
    of, mask = Tokens.read(is_padding), causal_mask(stack)
    alone = attended(stack, x[real, 1:])[0][:, 0]
    expected = written_out(stack, *heads_of(stack, x), oracles_bias(stack, x))[1][:, 0]
    x = x.masked_fill(is_padding.T[..., None], -40.0)
    merged = {"mask": mask + additive_mask(is_padding[:, None, None], x.dtype)}
    for how in (merged, {"mask": mask, "key_padding_mask": is_padding}):
        found = attended(stack, x, of, **how)[0]
        assert difference(found[real, 1], alone) <= 1e-5
        assert difference(found[:, 0], expected) <= 1e-5


@torch.no_grad()
def test_padding_in_front_of_a_target_is_not_remembered_either():
    model = visible("forget", target="attention")
    target, padded = shifted(sentence(8)), torch.full((1, 3), PAD)
    source = source_batch()[:1]
    for decode in (log_probs, stepwise_log_probs):
        alone = decode(model, source, target)
        behind = decode(model, source, torch.cat([padded, target], dim=1))[:, 3:]
        assert difference(behind, alone) <= 2e-5


@every_side
@torch.no_grad()
def test_a_shut_gate_hides_what_lies_beyond_its_token(side):
    stack, x = stack_of(side, "forget"), stream()
    part = stack.layers[0].positions
    part.forget.weight.zero_()
    part.forget.bias.fill_(40.0)
    part.forget.weight[:, 0] = -100.0
    x[..., 0] = 0.0
    x[6, :, 0] = 1.0  # the gates of token 6 are shut, all others open
    weights = attended(stack, x, need_head_weights=True)[1]  # [H, B, T, S]
    assert (
        float(weights[:, :, 6:, :6].max()) < 1e-6
    )  # it is forgotten by those after it, and by itself
    if side == "encoder":
        assert float(weights[:, :, :6, 6:].max()) < 1e-6
    bias = logits(stack, x) - written_out(stack, *heads_of(stack, x))[0]
    assert float(bias[:, :, 3, :4].abs().max()) < 1e-5
    assert float(bias[:, :, 12, 6:].abs().max()) < 1e-5


@every_side
@torch.no_grad()
def test_where_the_base_stays_a_gate_scales_the_bias(side):
    x = stream()
    gated, open_ = (stack_of(side, "forget", position_base=base) for base in ("keep", "drop"))
    open_.load_state_dict(gated.state_dict(), strict=False)
    gated.layers[0].positions.gate.weight.fill_(0.3)
    plain = written_out(gated, *heads_of(gated, x))[0]
    scores = plain + 0.3 * (oracles_bias(open_, x))
    assert logits_differ_by(gated, logits(gated, x), scores) <= 1e-5


def test_parameters_and_their_start():
    added = added_parameters("floater_transformer", "forget", "all")
    assert sum(added.values()) == 73_872
    assert added["encoder.layers.0.positions.forget.weight"] == 2 * 8 * 512
    kept = added_parameters("floater_transformer", "forget", "all", position_base="keep")
    assert sum(kept.values()) == 73_872 + 12
    model = build("forget", target="attention")
    for stack in (model.encoder, model.decoder):
        assert (stack.layers[0].positions.forget.bias == 5).all()


def test_half_precision_sums_in_float32():
    """Of 600 gates of e^-1 bfloat16 would sum to 256 at most."""
    part = stack_of("decoder", "forget").to(torch.bfloat16).layers[0].positions
    with torch.no_grad():
        part.forget.weight.zero_()
        part.forget.bias.fill_(-0.5414)  # ln sigmoid = -1
        notes = part.note(torch.zeros(600, 1, WIDTH, dtype=torch.bfloat16))
        distances = torch.arange(600)[:, None] - torch.arange(600)
        q = torch.zeros(1, 4, 600, 16, dtype=torch.bfloat16)
        own = torch.arange(600)[None, None]
        found = part.between(q, q, notes, None, (distances[None, None], own))
    assert found.dtype == torch.bfloat16
    assert float(found[0, 0, 599, 0]) == pytest.approx(-599, rel=0.01)


@every_side
@torch.no_grad()
def test_shut_gates_stay_within_float16(side):
    stack = stack_of(side, "forget").half()
    stack.layers[0].positions.forget.bias.fill_(-300.0)
    x = stream(length=300).half()
    mask = causal_mask(stack, 300).half()
    for output, _ in (attended(stack, x, mask=mask, need_weights=w) for w in (False, True)):
        assert output.isfinite().all()
    values = heads_of(stack, x)[2].permute(2, 0, 1, 3).flatten(2)
    expected = stack.layers[0].self_attn.out_proj(values)  # each token sees itself alone
    assert difference(output.float(), expected.float()) <= 0.02
