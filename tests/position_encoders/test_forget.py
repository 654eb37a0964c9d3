"""The forget gate against x-transformers' data-dependent ALiBi."""

import helpers as h
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.masks import additive_mask


def oracles_bias(stack, x):
    """x-transformers' bias [B, H, T, T] with the first block's gate, for ``x`` [T, B, C]."""
    package = pytest.importorskip("x_transformers.x_transformers")
    part, causal = stack.layers[0].positions, stack.positions.spec.causal
    oracle = package.DataDependentAlibi(one.WIDTH, 4, causal=causal)
    oracle.to_forget_gates[0].load_state_dict(part.forget.state_dict())
    found = oracle(x.transpose(0, 1))
    return found.tril() if causal else found


@one.every_side
@pytest.mark.parametrize("padded", [[0, 1, 2], [11, 12], [0, 5, 6, 9, 12]], ids=str)
@torch.no_grad()
def test_padding_forgets_nothing(side, padded):
    """Padding anywhere, even with shut gates, changes nothing for real tokens."""
    stack, x = one.stack_of(side, "forget"), one.stream()
    is_padding = torch.zeros(x.size(1), one.LENGTH, dtype=torch.bool)
    is_padding[1, padded] = True
    real = ~is_padding[1]
    of, mask = Tokens.read(is_padding), one.causal_mask(stack)
    alone = one.attended(stack, x[real, 1:])[0][:, 0]
    expected = one.written_out(stack, *one.heads_of(stack, x), oracles_bias(stack, x))[1][:, 0]
    x = x.masked_fill(is_padding.T[..., None], -40.0)
    merged = {"mask": mask + additive_mask(is_padding[:, None, None], x.dtype)}
    for how in (merged, {"mask": mask, "key_padding_mask": is_padding}):
        found = one.attended(stack, x, of, **how)[0]
        assert h.difference(found[real, 1], alone) <= 1e-5
        assert h.difference(found[:, 0], expected) <= 1e-5


def test_nearly_all_is_remembered_at_first():
    model = h.build("forget", target="attention")
    for stack in (model.encoder, model.decoder):
        assert (stack.layers[0].positions.forget.bias == 5).all()


def test_half_precision_sums_in_float32():
    """The sum of 600 log gates of -1 would stop at -256 in bfloat16."""
    part = one.stack_of("decoder", "forget").to(torch.bfloat16).layers[0].positions
    with torch.no_grad():
        part.forget.weight.zero_()
        part.forget.bias.fill_(-0.5414)  # ln sigmoid = -1
        notes = part.note(torch.zeros(600, 1, one.WIDTH, dtype=torch.bfloat16))
        distances = torch.arange(600)[:, None] - torch.arange(600)
        q = torch.zeros(1, 4, 600, 16, dtype=torch.bfloat16)
        own = torch.arange(600)[None, None]
        found = part.between(q, q, notes, None, (distances[None, None], own))
    assert found.dtype == torch.bfloat16
    assert float(found[0, 0, 599, 0]) == pytest.approx(-599, rel=0.01)


@one.every_side
@torch.no_grad()
def test_shut_gates_stay_within_float16(side):
    stack = one.stack_of(side, "forget").half()
    stack.layers[0].positions.forget.bias.fill_(-300.0)
    x = one.stream(length=300).half()
    mask = one.causal_mask(stack, 300).half()
    for output, _ in (one.attended(stack, x, mask=mask, need_weights=w) for w in (False, True)):
        assert output.isfinite().all()
    values = one.heads_of(stack, x)[2].permute(2, 0, 1, 3).flatten(2)
    expected = stack.layers[0].self_attn.out_proj(values)  # each token sees itself alone
    assert h.difference(output.float(), expected.float()) <= 0.02
