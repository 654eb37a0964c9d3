"""TENER's logits, against the equations of its paper and of its authors' code."""

import pytest
import torch
from distance_terms import (
    HEADS,
    LENGTH,
    WIDTH,
    attended,
    heads_of,
    logits,
    sinusoid,
    slots,
    stack_of,
    stretched,
    written_out,
)
from forcing import assert_steps_equal_one_pass
from helpers import (
    build,
    difference,
    log_probs,
    source_batch,
    target_batch,
    visible,
)

from fairseq_floater.experiments.info import added_parameters

DIVISORS = {"none": 1.0, "sqrt": 4.0, "2sqrt": 8.0}  # a head has 16 channels


def vectors(distances):
    return sinusoid(distances, WIDTH // HEADS)[..., None, :].expand(-1, -1, -1, HEADS, -1)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("at", [slots(), stretched()], ids=["slots", "stretched"])
@pytest.mark.parametrize("key_term", [False, True], ids=["paper", "code"])
@pytest.mark.parametrize("scale", DIVISORS)
@torch.no_grad()
def test_logits_and_output_are_written_out(side, at, key_term, scale):
    stack, x = stack_of(side, "tener", tener_key_term=key_term, tener_scale=scale)
    scores, output = written_out(stack, x, at, vectors, DIVISORS[scale], key_term)
    torch.testing.assert_close(logits(stack, x, at), scores, rtol=0, atol=1e-5)
    for need_weights in (False, True):
        found, _ = attended(stack, x, at, need_weights=need_weights)
        assert difference(found, output) <= 1e-5


@torch.no_grad()
def test_with_the_key_term_the_logits_are_those_of_the_authors_code():
    """It has (q_i + v) R_(j-i) + k_j R_(i-j): ours, where every sine's channel is negated."""
    stack, x = stack_of("encoder", "tener", tener_key_term=True)
    found = logits(stack, x, slots())
    part = stack.layers[0].positions
    q, k, _ = heads_of(stack, x)
    signs = torch.tensor([-1.0, 1.0]).repeat(WIDTH // HEADS // 2)
    u, v, q, k = (signs * y for y in (part.u, part.v, q, k))
    places = torch.arange(LENGTH)
    rows = sinusoid(places[None] - places[:, None], WIDTH // HEADS)  # of j - i
    expected = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    expected += torch.einsum("bhid,ijd->bhij", q + v[:, None], rows)
    expected += torch.einsum("bhjd,jid->bhij", k, rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_step_by_step_the_key_term_is_that_of_one_pass():
    model = visible("tener", target="attention", tener_key_term=True, tener_scale="sqrt")
    assert_steps_equal_one_pass(model, source_batch(), target_batch())


def test_parameters():
    for options in ({}, {"tener_key_term": True, "tener_scale": "sqrt"}):
        added = added_parameters("floater_transformer", "tener", "all", **options)
        assert sum(added.values()) == 12_288
        assert all("layers" in name for name in added)  # each block owns u and v


CHANGES = [{"tener_scale": "sqrt"}, {"tener_scale": "2sqrt"}, {"tener_key_term": True}]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(*change.values()))
def test_each_option_changes_the_model(change):
    batch = source_batch(), target_batch()
    usual, changed = (visible("tener", target="attention", **o) for o in ({}, change))
    assert difference(log_probs(usual, *batch), log_probs(changed, *batch)) > 1e-3


def test_another_scale_is_refused():
    message = "`--tener-scale` must be one of none, sqrt, 2sqrt, but is 'half' instead"
    with pytest.raises(ValueError, match=message):
        build("tener", target="attention", tener_scale="half")


def test_an_odd_width_of_heads_is_refused():
    with pytest.raises(ValueError, match="tener needs an even number of channels .* a head has 9"):
        build("tener", target="attention", encoder_embed_dim=27, encoder_attention_heads=3)
