"""Transformer-XL's logits against transformers' XLNet, initialisation, and stretched distances."""

from types import SimpleNamespace

import helpers as h
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders.xl import distinct


@one.every_side
@torch.no_grad()
def test_both_stacks_are_xlnets_attention(side):
    """Compared with transformers' XLNetRelativeAttention, ``attn_type`` bi and uni."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    stack, x = one.stack_of(side, "xl"), one.stream()
    block, causal = stack.layers[0], side == "decoder"
    config = transformers.XLNetConfig(d_model=one.WIDTH, n_head=4, dropout=0.0)
    theirs = XLNetRelativeAttention(config).eval()
    theirs.r_w_bias.copy_(block.positions.u)
    theirs.r_r_bias.copy_(block.positions.v)
    q, k, v = (
        projection(x).unflatten(2, (4, -1))
        for projection in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
    )
    model = SimpleNamespace(
        d_model=one.WIDTH,
        attn_type="uni" if causal else "bi",
        bi_data=False,
        clamp_len=-1,
        positional_embedding=XLNetModel.positional_embedding,
    )
    rows = XLNetModel.relative_positional_encoding(model, one.LENGTH, one.LENGTH, bsz=2)
    # XLNet puts all sines before the cosines.
    weight = block.positions.projection.weight.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1)
    projected = (rows @ weight.T).unflatten(2, (4, -1))
    hidden = one.causal_mask(stack).lt(0).float()[:, :, None, None].expand(-1, -1, 2, -1)
    read, weights = theirs.rel_attn_core(
        q, k, v, projected, attn_mask=hidden, output_attentions=True
    )
    found, ours = one.attended(stack, x, need_head_weights=True)
    assert h.difference(ours, weights.permute(3, 2, 0, 1)) <= 1e-5
    assert h.difference(found, block.self_attn.out_proj(read.flatten(2))) <= 1e-5


def test_parameters_start_from_xaviers_law():
    model = h.build("xl", target="attention", encoder_embed_dim=256, encoder_attention_heads=8)
    for part in h.parts(model.encoder, "positions"):
        for vectors in (p.detach() for p in part.parameters()):
            bound = (6 / sum(vectors.shape)) ** 0.5
            assert 0.97 * bound < float(vectors.abs().max()) <= bound
            assert float(vectors.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert h.difference(part.u.detach(), part.v.detach()) > 0


def test_the_rows_that_occur_are_found_again():
    rows = torch.tensor([[[7, 2], [2, 5]], [[9, 9], [0, 9]]])
    used, places = distinct(rows, 10)
    assert used.tolist()[0] == [2, 5, 7]
    assert used.tolist()[1][:2] == [0, 9]
    assert used.gather(1, places.flatten(1)).tolist() == rows.flatten(1).tolist()


def tables(stack, at):
    return stack.positions.prepare(at, h.parts(stack, "positions"), torch.float32)[0]


def test_a_stretched_sentence_meets_its_own_distances_only():
    stack = one.stack_of("encoder", "xl")
    at = one.moved((0.6, 2.3)).at(True)
    rows, columns = tables(stack, at)
    occur = [len(of_one.unique()) for of_one in at.distances]
    assert len(rows) == 2 and rows.size(1) == max(occur)
    assert [len(of_one.unique()) for of_one in columns] == occur
    unmoved = one.tokens().at(True)
    two = unmoved._replace(keys=unmoved.keys.expand(2, -1))
    assert len(tables(stack, two)[0]) == 1  # unstretched, one table serves all sentences
