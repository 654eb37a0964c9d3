"""Attention calls each hook as its docstring says: fused, with explicit weights, step by step."""

import pytest
import torch
from helpers import build, difference, randomise_positions, source_batch, target_batch

from fairseq_floater.position_encoders.hooks import AttentionHooks
from fairseq_floater.transformer.attention import PositionBiasedAttention

HEADS, WIDTH, LENGTH, SENTENCES = 4, 32, 7, 3
SCALE = 0.3
FACTORS = {"q": 0.7, "k": -1.3, "v": 1.9}


class EveryHook(AttentionHooks):
    """Let each hook change the output; tables: turns [T, D], a bias [1, H, T, S], vectors [S, D]."""

    def scaling(self, head_dim):
        return SCALE

    def project(self, stream, projection, x):
        return projection(x) + FACTORS[stream]

    def turn(self, x, stream, tables):
        return FACTORS[stream] * x * tables[0]

    def bias(self, q, k, tables):
        return tables[1] + 0.1 * q @ k.transpose(2, 3)

    def values(self, weights, tables):
        return weights @ tables[2]


class WithValues(EveryHook):
    needs_weights = True


class WithBetween(EveryHook):
    """Add the sum of the notes on all tokens that a query sees, times tanh(q k)."""

    needs_between = True

    def note(self, x):
        return x[..., :1].permute(1, 2, 0)

    def between(self, q, k, notes, hidden, tables):
        seen = notes[:, :, None] if hidden is None else notes[:, :, None].masked_fill(hidden, 0.0)
        return seen.sum(-1, keepdim=True) * torch.tanh(q @ k.transpose(2, 3))


every_hook = pytest.mark.parametrize(
    "hooks", [EveryHook(), WithValues(), WithBetween()], ids=["fused", "values", "between"]
)


@pytest.fixture
def attention():
    made = PositionBiasedAttention(WIDTH, HEADS, dropout=0.5, self_attention=True).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=WIDTH**-0.5)  # so that outputs are of size 1
    return made


def tables():
    head = WIDTH // HEADS
    return (
        torch.randn(LENGTH, head),
        torch.randn(1, HEADS, LENGTH, LENGTH),
        torch.randn(LENGTH, head),
    )


def written_out(attention, x, of_tables, hidden, hooks):
    """Weights [H, B, T, S] and output [T, B, C] as the hooks' docstrings define them."""
    turns, bias, vectors = of_tables
    projections = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}
    plain, turned = {}, {}
    for stream, projection in projections.items():
        heads = (projection(x) + FACTORS[stream]).unflatten(2, (HEADS, -1)).permute(1, 2, 0, 3)
        plain[stream], turned[stream] = heads, FACTORS[stream] * heads * turns
    scores = SCALE * turned["q"] @ turned["k"].transpose(2, 3)
    products = plain["q"] @ turned["k"].transpose(2, 3)
    scores = scores + bias + 0.1 * products
    if hooks.needs_between:
        notes = x[..., 0].T[:, None, None].masked_fill(hidden, 0.0)  # [B, 1, T, S]
        scores = scores + notes.sum(-1, keepdim=True) * products.tanh()
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    read = weights @ turned["v"]
    read = read + weights @ vectors if hooks.needs_weights else read
    return weights.transpose(0, 1), attention.out_proj(read.permute(2, 0, 1, 3).flatten(2))


@every_hook
@torch.no_grad()
def test_hooks_enter_where_their_docstrings_say(attention, hooks):
    x, of_tables = torch.randn(LENGTH, SENTENCES, WIDTH), tables()
    padding = torch.zeros(SENTENCES, LENGTH, dtype=torch.bool)
    padding[1, -2:] = True
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    hidden = causal | padding[:, None, None]
    weights, output = written_out(attention, x, of_tables, hidden, hooks)
    options = {
        "key_padding_mask": padding,
        "attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(causal, float("-inf")),
        "hooks": hooks,
        "tables": of_tables,
    }
    fused, none = attention(x, x, x, need_weights=False, **options)
    explicit, found = attention(x, x, x, need_head_weights=True, **options)
    mean = attention(x, x, x, need_weights=True, **options)[1]
    assert none is None
    assert difference(fused, output) <= 1e-5
    assert difference(explicit, output) <= 1e-5
    assert difference(found, weights) <= 1e-5
    assert difference(mean, weights.mean(0)) <= 1e-5


@every_hook
@torch.no_grad()
def test_a_step_asks_the_hooks_of_the_new_token_and_of_all_keys(attention, hooks):
    x, (turns, bias, vectors) = torch.randn(LENGTH, SENTENCES, WIDTH), tables()
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    _, output = written_out(attention, x, (turns, bias, vectors), causal, hooks)
    state = {}
    for t in range(LENGTH):
        step = turns[t : t + 1], bias[:, :, t : t + 1, : t + 1], vectors[: t + 1]
        new = x[t : t + 1]
        found, _ = attention(
            new, new, new, incremental_state=state, need_weights=False, hooks=hooks, tables=step
        )
        assert difference(found[0], output[t]) <= 1e-5


@torch.no_grad()
def test_notes_are_kept_and_reordered_with_their_keys(attention):
    x, (turns, bias, vectors) = torch.randn(LENGTH, SENTENCES, WIDTH), tables()
    hooks, order, state = WithBetween(), torch.tensor([2, 0, 0]), {}
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.zeros(SENTENCES, 1, dtype=torch.bool)
    for t in range(LENGTH):
        if t == 3:
            attention.reorder_incremental_state(state, order)
            x = x[:, order]
        step = turns[t : t + 1], bias[:, :, t : t + 1, : t + 1], vectors[: t + 1]
        new = x[t : t + 1]
        found, _ = attention(
            *(new, new, new, padding), incremental_state=state, hooks=hooks, tables=step
        )
        expected = written_out(attention, x, (turns, bias, vectors), causal, hooks)[1][t]
        assert difference(found[0], expected) <= 1e-5


@pytest.mark.parametrize("lengths", [(7, 12, 5), (9, 9, 9)], ids=["padded", "whole"])
def test_rows_with_the_projections_own_bias_do_what_each_projection_does(lengths):
    model = randomise_positions(build("floater", target="qkv", dropout=0.0)).train()
    source, target = source_batch(lengths=lengths), target_batch(lengths=lengths)

    def logits_and_gradient():
        logits = model(source, source.ne(1).sum(1), target)[0][target.ne(1)]
        parameter = model.decoder.layers[0].encoder_attn.v_proj.bias
        return logits, torch.autograd.grad(logits.square().sum(), parameter)[0]

    logits, gradient = logits_and_gradient()
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.register_forward_hook(lambda *_: None)  # a hook sees the projection alone
    expected, reference = logits_and_gradient()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-4)
