"""Attention with position biases: the cost of a decoding step, padding, masks, refused options."""

import pytest
import torch
from fairseq.modules import MultiheadAttention
from fairseq.utils import fill_with_neg_inf
from helpers import VOCABULARY, build, difference, every_target, parts, sentence, signals
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_floater.transformer.attention import PositionBiasedAttention


class WrittenElements(TorchDispatchMode):
    """Counts the floating-point elements that operations write; views write none."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        read = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _is_float(t)}
        for result in filter(_is_float, tree_leaves(results)):
            if result.untyped_storage().data_ptr() not in read:
                self.count += result.numel()
        return results


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@every_target
def test_a_decoding_step_costs_the_same_at_every_position(target):
    model = build("floater", target=target, floater_time_scale=100.0).eval()
    costs = {}
    with torch.no_grad():
        encoder_out = model.encoder(sentence(6), src_lengths=torch.tensor([6]))
        for stack, name, signal in signals(model):  # keeps the tables, as a search does
            signal(1000, parts(stack, name), torch.float32)
        for length in (32, 1000):
            prefix = torch.randint(4, VOCABULARY, (1, length))
            with WrittenElements() as written:  # no cached keys: only the new token's
                model.decoder(prefix, encoder_out=encoder_out, incremental_state={})
            costs[length] = written.count
    assert costs[32] == costs[1000]


def test_attention_that_plans_anew_for_each_shape_is_off():
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_padding_in_front_is_finite_where_weights_are_formed():
    """As in fused attention, where a query that sees no key reads zeros."""
    attention = PositionBiasedAttention(8, 2, self_attention=True).eval()
    x = torch.randn(5, 3, 8, requires_grad=True)
    padding = torch.arange(5) < torch.tensor([[2], [0], [4]])
    causal = fill_with_neg_inf(torch.zeros(5, 5)).triu(1)
    masks = {"key_padding_mask": padding, "attn_mask": causal}
    fused, _ = attention(x, x, x, need_weights=False, **masks)
    output, weights = attention(x, x, x, need_weights=True, **masks)
    real = ~padding.T
    assert difference(output[real].detach(), fused[real].detach()) < 1e-6
    assert float(weights.masked_select(padding[:, None] & ~padding[:, :, None]).abs().max()) == 0
    output.sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_key_without_a_position_is_refused(option):
    with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn must be off"):
        PositionBiasedAttention(8, 2, self_attention=True, **{option: True})


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_boolean_mask_hides_as_it_does_for_fairseq(need_weights):
    attention = PositionBiasedAttention(8, 2, self_attention=True).eval()
    x, mask = torch.randn(5, 3, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
    options = {"need_weights": need_weights, "attn_mask": mask}
    found, _ = attention(x, x, x, **options)
    expected, _ = MultiheadAttention.forward(attention, x, x, x, **options)
    assert difference(found, expected) < 1e-6
