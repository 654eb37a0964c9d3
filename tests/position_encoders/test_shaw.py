"""Shaw's vectors of distances, against the equations and against transformers' own."""

import pytest
import torch
from distance_terms import LENGTH, Largest, attended, logits, slots
from distance_terms import stack_of as any_stack_of
from helpers import (
    PAD,
    TOLERANCE,
    build,
    difference,
    log_probs,
    parts,
    raw_log_probs,
    source_batch,
    target_batch,
    visible,
)
from one_attention import causal_mask
from shaws_form import stretched, written_out

from fairseq_floater.experiments.info import added_parameters

every_stack = pytest.mark.parametrize("side", ["encoder", "decoder"])
CLIP = 5


def stack_of(side, encoder="shaw", **options):
    """A stack with random vectors, and an input [T, B, C] for its first block."""
    return any_stack_of(side, encoder, **{"shaw_clip": CLIP, **options})


def of_pairs(vectors, offsets, furthest_behind):
    """Vectors [R, (H,) D] of the pairs: [(H,) T, S, D]; ``offsets`` [T, S] are j - i."""
    rows = [[max(-CLIP, min(furthest_behind, o)) + CLIP for o in line] for line in offsets]
    found = vectors[torch.tensor(rows)]
    return found if found.dim() == 3 else found.permute(2, 0, 1, 3)


def expected(stack, x, offsets):
    """Logits and output of the equations."""
    part = stack.layers[0].positions
    behind = 0 if stack.positions.spec.causal else CLIP
    of_keys = of_pairs(part.key_vectors, offsets, behind)
    of_values = torch.zeros_like(of_keys)
    if part.value_vectors is not None:
        of_values = of_pairs(part.value_vectors, offsets, behind)
    return written_out(stack, x, of_keys, of_values)


@every_stack
@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
@pytest.mark.parametrize("values", ["on", "off"])
@torch.no_grad()
def test_logits_and_output_are_those_of_the_paper(side, per_head, values):
    stack, x = stack_of(side, shaw_per_head=per_head, shaw_values=values)
    offsets = [[j - i for j in range(LENGTH)] for i in range(LENGTH)]
    scores, output = expected(stack, x, offsets)
    torch.testing.assert_close(logits(stack, x), scores, rtol=0, atol=1e-5)
    assert difference(attended(stack, x)[0], output) <= 1e-5
    assert difference(attended(stack, x, need_weights=True)[0], output) <= 1e-5


@every_stack
def test_gradients_are_those_of_the_equations(side):
    stack, x = stack_of(side)
    offsets = [[j - i for j in range(LENGTH)] for i in range(LENGTH)]
    block = stack.layers[0]
    parameters = [*block.positions.parameters(), *block.self_attn.parameters()]
    found, wanted = (
        torch.autograd.grad(output.square().sum(), parameters)
        for output in (attended(stack, x)[0], expected(stack, x, offsets)[1])
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@every_stack
@torch.no_grad()
def test_keys_are_those_of_wav2vec2_bert(side, monkeypatch):
    """Class compared with: transformers' Wav2Vec2BertSelfAttention, ``relative_key``."""
    transformers = pytest.importorskip("transformers")
    # PyPI's torchaudio, which fairseq wants, does not load beside a torch without CUDA.
    monkeypatch.setattr("transformers.utils.is_torchaudio_available", lambda: False)
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert

    stack, x = stack_of(side, shaw_values="off")
    attention = stack.layers[0].self_attn
    config = transformers.Wav2Vec2BertConfig(
        hidden_size=64,
        num_attention_heads=attention.num_heads,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=CLIP,
        right_max_position_embeddings=0 if side == "decoder" else CLIP,
        attn_implementation="eager",
    )
    theirs = modeling_wav2vec2_bert.Wav2Vec2BertSelfAttention(config).eval()
    for name in ("q", "k", "v", "out"):
        ours = getattr(attention, f"{name}_proj")
        getattr(theirs, f"linear_{name}").load_state_dict(ours.state_dict())
    theirs.distance_embedding.weight.copy_(stack.layers[0].positions.key_vectors)
    output, _ = theirs(x.transpose(0, 1), attention_mask=causal_mask(stack, LENGTH))
    assert difference(attended(stack, x)[0], output.transpose(0, 1)) <= 1e-5


@every_stack
@torch.no_grad()
def test_a_stretched_distance_goes_to_the_nearest_whole_one(side):
    stack, x = stack_of(side)
    offsets = [[round(3 * (j - i) / 4) for j in range(LENGTH)] for i in range(LENGTH)]
    scores, output = expected(stack, x, offsets)
    at = stretched(LENGTH, rows_per_token=4)
    torch.testing.assert_close(logits(stack, x, at), scores, rtol=0, atol=1e-5)
    assert difference(attended(stack, x, at)[0], output) <= 1e-5


@pytest.mark.parametrize("encoder", ["shaw", "nezha"])
@torch.no_grad()
def test_training_counts_in_stretched_tokens(encoder):
    batch = source_batch(), target_batch()
    found = []
    for stretch in (None, "1:1", "2:2"):
        model = visible(encoder, target="attention", position_stretch=stretch, dropout=0.0)
        found.append(raw_log_probs(model.train(), *batch)[batch[1].ne(PAD)])
    assert difference(found[0], found[1]) <= TOLERANCE
    assert difference(found[0], found[2]) > 0.01


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 38_400),
        ({"shaw_per_head": True}, 307_200),
        ({"shaw_values": "off"}, 19_200),
        ({"shaw_clip": 4}, (9 + 5) * 2 * 64 * 6),
    ],
)
def test_parameters(options, count):
    added = added_parameters("floater_transformer", "shaw", "all", **options)
    assert sum(added.values()) == count
    assert all("layers" in name for name in added)  # each block owns its tables


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
def test_vectors_start_from_xaviers_law(per_head):
    model = build("shaw", target="attention", shaw_per_head=per_head, shaw_clip=60)
    for stack in (model.encoder, model.decoder):
        of_all = [v.detach() for p in parts(stack, "positions") for v in p.parameters()]
        assert len(of_all) == 2 * len(stack.layers)
        for vectors in of_all:
            bound = (6 / (vectors.size(0) + vectors.size(-1))) ** 0.5
            assert 0.97 * bound < float(vectors.abs().max()) <= bound
            assert float(vectors.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
        assert all(difference(one, of_all[0]) > 0 for one in of_all[1:])


CHANGES = [{"shaw_values": "off"}, {"shaw_per_head": True}, {"shaw_clip": 3}]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_each_option_changes_the_model(change):
    batch = source_batch(), target_batch()
    usual, changed = (visible("shaw", target="attention", **o) for o in ({}, change))
    assert difference(log_probs(usual, *batch), log_probs(changed, *batch)) > 1e-3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"shaw_clip": 0}, "`--shaw-clip` must be at least 1, but is 0 .*--position-encoder none"),
        ({"shaw_clip": 1.5}, "`--shaw-clip` must be of type int, but is 1.5"),
        ({"shaw_per_head": "false"}, "`--shaw-per-head` must be of type bool, but is 'false'"),
        ({"shaw_clip": float("inf")}, "`--shaw-clip` must be of type int, but is inf"),
        ({"shaw_values": "both"}, "`--shaw-values` must be one of on, off, but is 'both'"),
    ],
)
def test_bad_options_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        build("shaw", target="attention", **bad)


@pytest.mark.parametrize(("value", "needed"), [(True, True), (False, False), ("off", False)])
def test_on_and_off_may_come_as_yaml_reads_them(value, needed):
    model = build("shaw", target="attention", shaw_values=value)
    assert all(part.needs_weights == needed for part in parts(model.encoder, "positions"))


@torch.no_grad()
def test_beyond_the_clip_all_distances_look_alike():
    stack, x = stack_of("encoder")
    at = slots(LENGTH)
    nearer, near, far = (
        logits(stack, x, at._replace(queries=at.queries + LENGTH - 1 + smallest))
        for smallest in (CLIP - 1, CLIP, CLIP + 50)
    )
    assert difference(near, far) == 0
    assert difference(nearer, far) > 1e-3


@every_stack
@pytest.mark.parametrize("encoder", ["shaw", "nezha"])
def test_no_vector_is_formed_for_a_pair_of_tokens(encoder, side):
    stack, _ = stack_of(side, encoder, nezha_clip=CLIP)
    x = torch.randn(60, 2, 64)
    with Largest() as largest:
        attended(stack, x)[0].sum().backward()
    heads = stack.layers[0].self_attn.num_heads
    assert largest.elements == 2 * heads * 60 * 60  # of logits, where D = 16 vectors would be more
