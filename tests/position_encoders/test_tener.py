"""TENER's logits, against the equations of its authors' code."""

import helpers as h
import one_attention as one
import torch
from attention_oracles import sinusoid


@torch.no_grad()
def test_with_the_key_term_the_logits_are_those_of_the_authors_code():
    """It has (q_i + v) R_(j-i) + k_j R_(i-j), which is ours with every sine channel negated."""
    stack, x = one.stack_of("encoder", "tener", tener_key_term=True), one.stream()
    part, (q, k, _) = stack.layers[0].positions, one.heads_of(stack, x)
    signs = torch.tensor([-1.0, 1.0]).repeat(8)
    u, v, q, k = (signs * y for y in (part.u, part.v, q, k))
    places = torch.arange(one.LENGTH)
    rows = sinusoid(places[None] - places[:, None], 16)  # of j - i
    expected = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    expected += torch.einsum("bhid,ijd->bhij", q + v[:, None], rows)
    expected += torch.einsum("bhjd,jid->bhij", k, rows)
    size = float(expected.abs().max())
    assert h.difference(one.logits(stack, x), expected) <= 1e-6 * size
