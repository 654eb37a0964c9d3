"""KERPLE's kernels: limits of their parameters, initial values, and range in float16."""

import one_attention as one
import pytest
import torch
from helpers import build, loss_of, visible

from fairseq_floater.position_encoders.in_attention import HIDING_BIAS

KERNELS = ("log", "power")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@every_kernel
def test_a_number_beyond_its_limit_acts_as_the_limit_and_finds_its_way_back(kernel):
    model = build("kerple", target="attention", kerple_kernel=kernel, dropout=0.0).train()
    encoder = model.encoder.positions
    low, highest = 0.01, 2.0 if kernel == "power" else float("inf")
    with torch.no_grad():
        encoder.r[0, 0] = torch.tensor([-3.0, 0.5])
        encoder.r[1, 1] = torch.tensor([0.7, low - 1e-3])
        if kernel == "power":
            encoder.r[0, 1, 0] = 2.5
    at_limit = build("kerple", target="attention", kerple_kernel=kernel, dropout=0.0).train()
    at_limit.load_state_dict(model.state_dict())
    with torch.no_grad():
        at_limit.encoder.positions.r[0].clamp_(low, highest)
        at_limit.encoder.positions.r[1].clamp_(low)
    losses = loss_of(model), loss_of(at_limit)
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    found, full = encoder.r.grad, at_limit.encoder.positions.r.grad
    assert full.ne(0).all()
    below = encoder.r.detach() < low
    above = encoder.r.detach()[0] > highest
    assert below.sum() == 2 and above.sum() == (kernel == "power")
    outwards = below & (full > 0)
    outwards[0] |= above & (full[0] < 0)
    assert torch.equal(found, full.masked_fill(outwards, 0.0))


@every_kernel
def test_numbers_start_within_the_laws_of_the_paper(kernel):
    model = build(
        "kerple",
        target="attention",
        kerple_kernel=kernel,
        **{f"{s}_attention_heads": 64 for s in one.SIDES},
    )
    for side, sides in (("encoder", 2), ("decoder", 1)):
        r = getattr(model, side).positions.r
        assert r.shape == (2, sides, 64)
        for numbers, highest in zip(r.detach(), (2, 1)):
            assert float(numbers.min()) >= 0 and 0.9 * highest < float(numbers.max()) <= highest


@every_kernel
def test_float16_holds_a_thousand_tokens(kernel):
    model = visible("kerple", target="attention", kerple_kernel=kernel).half()
    model.encoder.positions.r.data.fill_(2.0)
    found = one.bias(model.encoder, one.tokens(1000)).detach().float()
    assert found.isfinite().all()
    assert float(found.min()) >= HIDING_BIAS * 1.001
    half = model.encoder.positions(1000, [], torch.float16)
    assert half.dtype == torch.float16 and half.isfinite().all()
