"""fairseq's sinusoid, and `--floater-start sinusoid`: the flow is the sinusoid until it learns."""

import helpers as h
import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding

from fairseq_floater.ode import ENGINES
from fairseq_floater.position_encoders.sinusoidal import sinusoid_at, sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places

# Largest difference over 64 tokens: the fastest channel turns by a radian a token, and the errors of an
# engine's steps add up. dopri5 is limited by its tolerance, collocation by its finest step.
ERRORS = {"dopri5": 1e-2, "midpoint": 5e-3, "collocation": 5e-3}


def started(**options):
    return h.build("floater", target="hidden", floater_start="sinusoid", **options)


SOLVERS = [(solver, {}) for solver in ("auto", *ENGINES)]
SOLVERS.append(("adams", {"floater_delta": 0.5, "floater_lr_scale": 4.0}))


@pytest.mark.parametrize("width", [5, 32, 512])
@pytest.mark.parametrize("padding", [0, 1])
def test_our_sinusoid_is_fairseqs_bit_for_bit(width, padding):
    table = SinusoidalPositionalEmbedding.get_embedding(600, width, padding)
    assert torch.equal(sinusoid_rows(599 - padding, width, padding), table[padding + 1 :])


@pytest.mark.parametrize(("solver", "options"), SOLVERS)
def test_every_engine_follows_the_sinusoid(solver, options):
    model = started(floater_solver=solver, **options).eval()
    for table in h.tables(model, 64):
        expected = sinusoid_rows(64, 64, h.PAD)
        assert h.difference(table[:, 0, 0], expected) <= ERRORS.get(solver, 1e-4)
        assert not table[:, :, 1:].any()  # the sinusoid is added once


def test_the_first_of_the_chosen_blocks_begins_as_it():
    model = started(floater_solver="rk4_hermite", position_blocks="1").eval()
    (table, *_) = h.tables(model, 20)
    assert h.difference(table[:, 0, 0], sinusoid_rows(20, 64, h.PAD)) <= 1e-4


def test_a_thousand_positions_keep_to_it():
    """fairseq's own rows in float32 are off by 6e-5 at that length."""
    model = started(floater_solver="rk4_hermite", position_blocks="input").eval()
    with torch.no_grad():
        parts = h.parts(model.encoder, "positions")
        table = model.encoder.positions(1000, parts, torch.float32)
    assert h.difference(table[:, 0, 0], sinusoid_rows(1000, 64, h.PAD)) <= 2e-4


def test_it_goes_on_before_and_between_tokens():
    model = started(floater_solver="rk4_hermite").eval()
    places = Places(40, per_token=4, before=12)
    with torch.no_grad():
        rows = model.encoder.positions.rows(places, h.parts(model.encoder, "positions"))
    assert h.difference(rows[:, 0, 0], sinusoid_at(places.in_tokens(), 64, h.PAD)) <= 1e-5


def test_it_takes_the_place_of_the_base_and_is_learned():
    model = started().train()
    assert model.encoder.embed_positions is None
    assert started(position_base="keep").encoder.embed_positions is not None
    h.loss_of(model).backward()
    assert all(p.grad.any() for p in h.position_parameters(model))
