"""Shaw's vectors of distances, against the equations and against transformers' own."""

import pytest
import torch
from distance_terms import LENGTH, Largest, attended, logits, slots
from distance_terms import stack_of as any_stack_of
from helpers import (
    build,
    difference,
    parts,
)
from one_attention import causal_mask

every_stack = pytest.mark.parametrize("side", ["encoder", "decoder"])
CLIP = 5


def stack_of(side, encoder="shaw", **options):
    """A stack with random vectors, and an input [T, B, C] for its first block."""
    return any_stack_of(side, encoder, **{"shaw_clip": CLIP, **options})


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
