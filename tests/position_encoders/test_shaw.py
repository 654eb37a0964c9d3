"""Shaw's vectors of distances, against transformers' own."""

import helpers as h
import one_attention as one
import pytest
import torch

CLIP = 5


@one.every_side
@torch.no_grad()
def test_keys_are_those_of_wav2vec2_bert(side, monkeypatch):
    """Compared with transformers' Wav2Vec2BertSelfAttention, ``relative_key``."""
    transformers = pytest.importorskip("transformers")
    # PyPI's torchaudio, which fairseq wants, does not load beside a torch without CUDA.
    monkeypatch.setattr("transformers.utils.is_torchaudio_available", lambda: False)
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert

    stack, x = one.stack_of(side, "shaw", shaw_clip=CLIP, shaw_values="off"), one.stream()
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
    output, _ = theirs(x.transpose(0, 1), attention_mask=one.causal_mask(stack))
    assert h.difference(one.attended(stack, x)[0], output.transpose(0, 1)) <= 1e-5


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
def test_vectors_start_from_xaviers_law(per_head):
    model = h.build("shaw", target="attention", shaw_per_head=per_head, shaw_clip=60)
    for stack in (model.encoder, model.decoder):
        of_all = [v.detach() for p in h.parts(stack, "positions") for v in p.parameters()]
        assert len(of_all) == 2 * len(stack.layers)
        for vectors in of_all:
            bound = (6 / (vectors.size(0) + vectors.size(-1))) ** 0.5
            assert 0.97 * bound < float(vectors.abs().max()) <= bound
            assert float(vectors.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
        assert all(h.difference(one, of_all[0]) > 0 for one in of_all[1:])


@pytest.mark.parametrize(("value", "needed"), [(True, True), (False, False), ("off", False)])
def test_on_and_off_may_come_as_yaml_reads_them(value, needed):
    model = h.build("shaw", target="attention", shaw_values=value)
    assert all(part.needs_weights == needed for part in h.parts(model.encoder, "positions"))
