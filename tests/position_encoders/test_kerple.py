"""KERPLE's kernels beside their formulas, written out with numpy."""

import numpy as np
import pytest
import torch
from helpers import build, difference, loss_of, position_parameters, visible
from one_attention import (
    LENGTH,
    SIDES,
    attended,
    bias,
    causal_mask,
    heads_of,
    logits,
    logits_differ_by,
    stack_of,
    step_by_step,
    stream,
    stretched,
    tokens,
    written_out,
)

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS

KERNELS = ("log", "power")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_side = pytest.mark.parametrize("side", SIDES)


def stack_with(side, kernel, seed=5):
    """A stack whose numbers lie within the kernels' limits, but for one a side on each end."""
    stack = stack_of(side, "kerple", kerple_kernel=kernel)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        r = stack.positions.r
        r.copy_(0.1 + 1.8 * torch.rand(r.shape, generator=generator))
        r[0, :, 1], r[1, :, 1] = 2.7, 3.1  # an exponent must not be above 2, all else may
        r[0, :, 2], r[1, :, 3] = -0.4, 0.003
    return stack


def kernel_by_formula(stack, places):
    """[H, T, T], entry by entry; ``places`` in tokens."""
    r1, r2 = stack.positions.r.detach().double().numpy()  # [sides, H] each
    is_power = stack.positions.spec.options["kerple_kernel"] == "power"
    out = np.zeros((r1.shape[1], len(places), len(places)))
    for h in range(len(out)):
        for i, at in enumerate(places):
            for j, other in enumerate(places):
                side = 1 if other > at else 0
                if side >= len(r1):
                    continue  # a decoder hides it
                one, two = max(r1[side, h], 0.01), max(r2[side, h], 0.01)
                d = abs(at - other)
                falls = two * d ** min(one, 2.0) if is_power else one * np.log(1 + two * d)
                out[h, i, j] = -falls
    return torch.from_numpy(out).float()


@every_side
@every_kernel
@torch.no_grad()
def test_attention_is_that_with_the_kernel_written_out(side, kernel):
    stack, x = stack_with(side, kernel), stream()
    biases = kernel_by_formula(stack, np.arange(LENGTH))
    scores, output = written_out(stack, *heads_of(stack, x), biases)
    assert logits_differ_by(stack, logits(stack, x), scores) <= 1e-5 * float(biases.abs().max())
    for found in (attended(stack, x)[0], attended(stack, x, need_weights=True)[0]):
        assert difference(found, output) <= 1e-5
    if side == "decoder":
        assert difference(step_by_step(stack, x)[0], output) <= 1e-5


@every_side
@every_kernel
@torch.no_grad()
def test_stretched_kernels_are_those_of_real_distances(side, kernel):
    stack, factors = stack_with(side, kernel), (0.5, 1.3, 2.5)
    seen = causal_mask(stack) == 0
    for factor, found in zip(factors, bias(stack, stretched(*factors))):
        places = (4 * factor * np.arange(LENGTH)).round() / 4
        expected = kernel_by_formula(stack, places)
        assert difference(found[:, seen], expected[:, seen]) <= 1e-5 * float(expected.abs().max())


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


def test_gradients_are_stopped_outwards_alone():
    from fairseq_floater.position_encoders.kerple import ClampKeepingGradient

    x = torch.tensor([-1.0, -1.0, 1.0, 1.0, 3.0, 3.0], requires_grad=True)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    clamped = ClampKeepingGradient.apply(x, 0.0, 2.0)
    assert clamped.tolist() == [0, 0, 1, 1, 2, 2]
    (clamped * signs).sum().backward()
    assert x.grad.tolist() == [0, -1, 1, -1, 1, 0]


@every_kernel
def test_numbers_start_within_the_laws_of_the_paper(kernel):
    model = build(
        "kerple",
        target="attention",
        kerple_kernel=kernel,
        **{f"{s}_attention_heads": 64 for s in SIDES},
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
    found = bias(model.encoder, tokens(1000)).detach().float()
    assert found.isfinite().all()
    assert float(found.min()) >= HIDING_BIAS * 1.001
    half = model.encoder.positions(1000, [], torch.float16)
    assert half.dtype == torch.float16 and half.isfinite().all()


def test_the_parameters_are_a_pair_for_each_head_and_side():
    added = added_parameters("floater_transformer", "kerple", "all")
    assert added == {"encoder.positions.r": 32, "decoder.positions.r": 16}
    assert len(position_parameters(build("kerple", target="attention"))) == 2


def test_another_kernel_is_refused():
    words = "`--kerple-kernel` must be one of log, power, but is 'gauss' instead"
    with pytest.raises(ValueError, match=words):
        build("kerple", target="attention", kerple_kernel="gauss")
