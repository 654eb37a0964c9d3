"""DeBERTa's attention against both versions in transformers, shared projections, late positions."""

import copy

import helpers as h
import one_attention as one
import pytest
import torch
from oracles import transformers_module

from fairseq_floater.position_encoders.deberta import signed_log_buckets
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.position_encoders.transforms import Positions

SHAPE = {
    "hidden_size": one.WIDTH,
    "num_attention_heads": 4,
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
}


def deberta(**options):
    return h.visible("deberta", target="attention", **options)


def assert_equals_oracle(stack, oracle, relative_pos, vectors, length):
    """Compared with transformers' ``DisentangledSelfAttention``, which has no output projection."""
    stack.layers[0].self_attn.out_proj = torch.nn.Identity()
    x = one.stream(length=length)
    expected, probabilities = oracle.eval()(
        x.transpose(0, 1),
        one.causal_mask(stack, length).eq(0)[None, None],
        output_attentions=True,
        relative_pos=relative_pos,
        rel_embeddings=vectors,
    )
    output, weights = one.attended(stack, x, need_head_weights=True)
    assert h.difference(weights.transpose(0, 1), probabilities) <= 1e-5
    for found in (output, one.attended(stack, x)[0]):
        assert h.difference(found.transpose(0, 1), expected) <= 1e-5


@torch.no_grad()
@one.every_side
@pytest.mark.parametrize(("distance", "length"), [(4, 12), (20, 7)])
def test_own_projections_are_transformers_deberta(side, distance, length):
    theirs = transformers_module("deberta.modeling_deberta")
    stack = one.stack_of(side, "deberta", deberta_distance=distance)
    part, attention = stack.layers[0].positions, stack.layers[0].self_attn
    attention.k_proj.bias.zero_()  # transformers' has no such bias
    oracle = theirs.DisentangledSelfAttention(
        theirs.DebertaConfig(**SHAPE, max_relative_positions=distance)
    )
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    by_head = [p.weight.unflatten(0, (4, -1)) for p in projections]
    oracle.in_proj.weight.copy_(torch.stack(by_head, dim=1).flatten(0, 2))
    oracle.q_bias.copy_(attention.q_proj.bias)
    oracle.v_bias.copy_(attention.v_proj.bias)
    oracle.pos_proj.load_state_dict(part.key_projection.state_dict())
    oracle.pos_q_proj.load_state_dict(part.query_projection.state_dict())
    tokens = torch.zeros(1, 2, length, 32)
    relative_pos = theirs.build_relative_position(tokens, tokens)
    assert_equals_oracle(stack, oracle, relative_pos, stack.positions.vectors, length)


@torch.no_grad()
@one.every_side
@pytest.mark.parametrize(
    ("buckets", "distance", "length"), [(0, 4, 12), (0, 20, 7), (8, 20, 30), (6, 6, 12)]
)
def test_shared_projections_are_transformers_deberta_v2(side, buckets, distance, length):
    theirs = transformers_module("deberta_v2.modeling_deberta_v2")
    options = {"deberta_share": True, "deberta_buckets": buckets, "deberta_distance": distance}
    stack = one.stack_of(side, "deberta", **options)
    shape = {"max_relative_positions": distance, "position_buckets": buckets or -1}
    oracle = theirs.DisentangledSelfAttention(
        theirs.DebertaV2Config(**SHAPE, **shape, share_att_key=True)
    )
    for name in ("query", "key", "value"):
        ours = getattr(stack.layers[0].self_attn, f"{name[0]}_proj")
        getattr(oracle, f"{name}_proj").load_state_dict(ours.state_dict())
    tokens = torch.zeros(1, 2, length, 32)
    relative_pos = theirs.build_relative_position(tokens, tokens, buckets or -1, distance)
    vectors = stack.positions.norm(stack.positions.vectors)
    assert_equals_oracle(stack, oracle, relative_pos, vectors, length)


@pytest.mark.parametrize(("count", "furthest"), [(256, 512), (16, 64), (8, 8), (4, 100), (6, 33)])
def test_buckets_are_transformers(count, furthest):
    """Compared with `transformers.models.deberta_v2.modeling_deberta_v2.make_log_bucket_position`."""
    theirs = transformers_module("deberta_v2.modeling_deberta_v2")
    distances = torch.arange(-600, 601)
    expected = theirs.make_log_bucket_position(distances, count, furthest).long()
    assert torch.equal(signed_log_buckets(distances, count, furthest), expected)
    assert torch.equal(signed_log_buckets(distances.float(), count, furthest), expected)
    assert int(expected[600 + furthest - 1]) == count - 1


def test_only_rows_within_reach_are_multiplied():
    model = deberta()
    widths = {"encoder": 2 * 5 - 1, "decoder": 5}
    for side, width in widths.items():
        stack = getattr(model, side)
        whole = torch.arange(5)[None]
        for at in (Positions(whole, whole, 5), Positions(4 * whole, 4 * whole, 18, 4)):
            with torch.no_grad():
                tables = stack.positions.prepare(at, h.parts(stack, "positions"), torch.float32)[0]
            assert [t.size(-1) for t in tables[:2]] == [width, width]


# Projections shared with the content.


def test_shared_projections_are_saved_once_and_learn_from_both_uses():
    model = deberta(deberta_share=True, dropout=0.0)
    assert not [n for n in model.state_dict() if "positions" in n and "proj" in n]
    weight = model.encoder.layers[0].self_attn.q_proj.weight
    of_both, of_content = (gradient(model, weight, keep) for keep in (True, False))
    assert h.difference(of_both, of_content) > 1e-3


def gradient(model, weight, through_table):
    """The gradient of ``weight``, with or without its part through the encoder's table."""
    encoder = model.encoder.positions
    with pytest.MonkeyPatch.context() as patch:
        if not through_table:
            compute = encoder.rows
            patch.setattr(encoder, "rows", lambda *args: compute(*args).detach())
        return torch.autograd.grad(h.loss_of(model), weight)[0]


@pytest.mark.parametrize("name", ["layers.0.self_attn.q_proj", "layers.1.self_attn.k_proj", ""])
def test_whatever_the_table_comes_from_is_noticed_where_a_batch_begins(name):
    model = deberta(deberta_share=True)
    batch = h.source_batch(), h.target_batch()
    h.log_probs(model, *batch)
    for stack in (model.encoder, model.decoder):
        changed = stack.get_submodule(name).weight if name else stack.positions.vectors
        changed.data.mul_(1.5)
    fresh = h.build("deberta", target="attention", deberta_share=True, seed=5).eval()
    fresh.load_state_dict(model.state_dict())
    assert h.difference(h.log_probs(model, *batch), h.log_probs(fresh, *batch)) == 0


def test_a_copy_has_projections_of_its_own():
    model = deberta(deberta_share=True)
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model, *batch)
    twin = copy.deepcopy(model)
    for stack, _, _ in h.signals(twin):
        for block in stack.layers:
            assert block.positions.projections[1] is block.self_attn.q_proj
            block.self_attn.q_proj.weight.data.zero_()
    assert h.difference(h.log_probs(model, *batch), before) == 0
    assert h.difference(h.log_probs(twin, *batch), before) > 1e-3


# Absolute positions before the last blocks.


@pytest.mark.parametrize("late", [1, 2])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_the_sinusoid_enters_before_the_last_blocks(late, left):
    model, plain = deberta(deberta_absolute=late), deberta()
    assert model.state_dict().keys() == plain.state_dict().keys()
    source = h.source_batch(left)
    places = (source.ne(h.PAD).cumsum(1) - 1).clamp(min=0)
    rows = sinusoid_rows(12, 64, h.PAD)[places].transpose(0, 1)
    plain.encoder.layers[2 - late].register_forward_pre_hook(
        lambda block, words: (words[0] + rows, *words[1:])
    )
    lengths = source.ne(h.PAD).sum(1)
    with torch.no_grad():
        found, expected = (m.encoder(source, lengths)["encoder_out"][0] for m in (model, plain))
    real = source.ne(h.PAD).T
    assert h.difference(found[real], expected[real]) <= h.TOLERANCE
    assert model.decoder.positions.sinusoid is None


def test_the_sinusoid_is_stretched_with_the_positions():
    torch.manual_seed(0)
    model = h.randomise_positions(
        h.build("deberta", target="attention", deberta_absolute=1, position_stretch="2:2")
    )
    at = Positions(8 * torch.arange(5)[None], 8 * torch.arange(5)[None], 34, 4)
    blocks = h.parts(model.encoder, "positions")
    rows = model.encoder.positions.input_rows(at, blocks, torch.float32)
    assert list(rows) == [1]
    assert h.difference(rows[1][:, 0], sinusoid_rows(9, 64, h.PAD)[::2]) <= 1e-5
