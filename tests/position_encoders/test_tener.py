"""TENER's logits, against the equations of its paper and of its authors' code."""

import torch
from distance_terms import (
    HEADS,
    LENGTH,
    WIDTH,
    logits,
    sinusoid,
    slots,
    stack_of,
)
from one_attention import heads_of


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
