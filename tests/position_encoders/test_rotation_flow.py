"""The rotation flow: its matrix exponential, far rows, initialisation, and overflow."""

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders.kept_table import PositionRangeError
from fairseq_floater.position_encoders.rotation_flow import rotation as exponential
from fairseq_floater.position_encoders.transforms import Places


def rotation(rows, **options):
    model = h.build("rotation_flow", target="hidden", **options).eval()
    stack, name, signal = h.signals(model)[0]
    with torch.no_grad():
        return signal, signal.rows(Places(rows), h.parts(stack, name))


def test_a_rotation_keeps_every_norm():
    _, rows = rotation(4096)
    norms = rows.norm(dim=-1)
    assert ((norms / norms[0]).sub(1).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.4, 3.0, 20.0])
def test_the_exponential_and_its_gradient_are_torchs(angle, dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    matrix, weights = torch.randn(2, 24, 24, generator=generator, dtype=torch.float64)
    skew = matrix - matrix.T
    skew = skew * (angle / torch.linalg.matrix_norm(skew, ord=2))

    def both(function, skew):
        skew = skew.clone().requires_grad_()
        power = function(skew)
        (power * weights.to(power)).sum().backward()
        return power.detach().double(), skew.grad.double()

    (ours, gradient), expected = both(exponential, skew.to(dtype)), both(torch.matrix_exp, skew)
    scale = 1 + angle  # rounding of the angles themselves
    assert h.difference(ours, expected[0]) < tolerance * scale
    assert h.difference(gradient, expected[1]) < tolerance * scale * float(expected[1].abs().max())


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 3e-4), (torch.float64, 1e-11)])
@pytest.mark.parametrize("frequency", [0.3, 30.0])
def test_rows_far_out_are_exact_up_to_rounding(frequency, dtype, rounding):
    """A wrong number of squarings in the exponential shows in these rows, but not at small angles."""
    model = h.build("rotation_flow", target="hidden", rotation_frequency=frequency).to(dtype)
    (stack, name, signal), last = h.signals(model)[0], 399
    with torch.no_grad():
        rows = signal.rows(Places(last + 1), h.parts(stack, name)).double()
        skew = (0.1 * (signal.generator - signal.generator.T)).double()
        expected = rows[0] @ torch.matrix_exp(last * skew)
    assert h.difference(rows[last], expected) < rounding * frequency


@pytest.mark.parametrize(("asked", "frequency"), [(0.1, 0.1), (None, 0.3)])
def test_the_initial_frequencies_are_those_asked_for(asked, frequency):
    signal, _ = rotation(2, rotation_frequency=asked, encoder_embed_dim=256)
    with torch.no_grad():
        skew = 0.1 * (signal.generator - signal.generator.T)
        largest = float(torch.linalg.eigvals(skew).imag.abs().max())
    assert largest == pytest.approx(frequency, rel=0.15)


@pytest.mark.parametrize(
    ("times", "dtype"), [(1e10, torch.float32), (1e25, torch.float32), (1e18, torch.float64)]
)
def test_a_rotation_that_diverged_is_out_of_range(times, dtype):
    model = h.build("rotation_flow", target="hidden").to(dtype).eval()
    with torch.no_grad():
        model.encoder.positions.generator.mul_(times)
    with pytest.raises(PositionRangeError, match="Position 1 of rotation_flow has norm nan"):
        h.log_probs(model, h.source_batch(), h.target_batch())
