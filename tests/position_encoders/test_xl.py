"""Transformer-XL's logits in XLNet's form, against the equations, fairseq's and transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from distance_terms import (
    HEADS,
    LENGTH,
    WIDTH,
    Largest,
    attended,
    causal_mask,
    slots,
    stack_of,
    stretched,
    tables,
)
from helpers import (
    TOLERANCE,
    build,
    difference,
    log_probs,
    loss_of,
    parts,
    source_batch,
    target_batch,
)

from fairseq_floater.position_encoders.xl import distinct

every_stack = pytest.mark.parametrize("side", ["encoder", "decoder"])


@every_stack
@torch.no_grad()
def test_both_stacks_are_xlnets_attention(side):
    """Class compared with: transformers' XLNetRelativeAttention, ``attn_type`` bi and uni."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    stack, x = stack_of(side, "xl")
    block, causal = stack.layers[0], side == "decoder"
    config = transformers.XLNetConfig(d_model=WIDTH, n_head=HEADS, dropout=0.0)
    theirs = XLNetRelativeAttention(config).eval()
    theirs.r_w_bias.copy_(block.positions.u)
    theirs.r_r_bias.copy_(block.positions.v)
    q, k, v = (
        projection(x).unflatten(2, (HEADS, -1))
        for projection in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
    )
    model = SimpleNamespace(
        d_model=WIDTH,
        attn_type="uni" if causal else "bi",
        bi_data=False,
        clamp_len=-1,
        positional_embedding=XLNetModel.positional_embedding,
    )
    rows = XLNetModel.relative_positional_encoding(model, LENGTH, LENGTH, bsz=2)
    # Its sines come first, then its cosines.
    weight = block.positions.projection.weight.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1)
    projected = (rows @ weight.T).unflatten(2, (HEADS, -1))
    hidden = causal_mask(stack).lt(0).float()[:, :, None, None].expand(-1, -1, 2, -1)
    read, weights = theirs.rel_attn_core(
        q, k, v, projected, attn_mask=hidden, output_attentions=True
    )
    found, ours = attended(stack, x, slots(), need_head_weights=True)
    assert difference(ours, weights.permute(3, 2, 0, 1)) <= 1e-5
    assert difference(found, block.self_attn.out_proj(read.flatten(2))) <= 1e-5


def test_parameters_start_from_xaviers_law():
    model = build("xl", target="attention", encoder_embed_dim=256, encoder_attention_heads=8)
    for part in parts(model.encoder, "positions"):
        for vectors in (p.detach() for p in part.parameters()):
            bound = (6 / sum(vectors.shape)) ** 0.5
            assert 0.97 * bound < float(vectors.abs().max()) <= bound
            assert float(vectors.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert difference(part.u.detach(), part.v.detach()) > 0


def test_learned_frequencies_start_as_the_fixed_ones_and_are_learned():
    models = [
        build("xl", target="attention", xl_learned=learned).eval() for learned in (False, True)
    ]
    assert difference(*(log_probs(m, source_batch(), target_batch()) for m in models)) <= TOLERANCE
    loss_of(models[1]).backward()
    for stack in (models[1].encoder, models[1].decoder):
        assert float(stack.positions.frequencies.grad.abs().min()) > 0


def test_the_rows_that_occur_are_found_again():
    rows = torch.tensor([[[7, 2], [2, 5]], [[9, 9], [0, 9]]])
    used, places = distinct(rows, 10)
    assert used.tolist()[0] == [2, 5, 7]
    assert used.tolist()[1][:2] == [0, 9]
    assert used.gather(1, places.flatten(1)).tolist() == rows.flatten(1).tolist()


def test_a_stretched_sentence_meets_its_own_distances_only():
    stack, _ = stack_of("encoder", "xl")
    at = stretched()
    rows, columns = tables(stack, at)
    occur = [len(of_one.unique()) for of_one in at.distances]
    assert len(rows) == 2 and rows.size(1) == max(occur)
    assert [len(of_one.unique()) for of_one in columns] == occur
    two = slots()._replace(keys=slots().keys.expand(2, -1))
    assert len(tables(stack, two)[0]) == 1  # unstretched, one table serves all sentences


@every_stack
@pytest.mark.parametrize(("encoder", "products"), [("xl", 2), ("tener", 1)])
def test_no_vector_is_formed_for_a_pair_of_tokens(side, encoder, products):
    stack, _ = stack_of(side, encoder, tener_key_term=True)
    length = 60
    x = torch.randn(length, 2, WIDTH)
    with Largest() as largest:
        attended(stack, x, slots(length))[0].sum().backward()
    of_logits = 2 * HEADS * length * length
    assert of_logits <= largest.elements <= products * of_logits
