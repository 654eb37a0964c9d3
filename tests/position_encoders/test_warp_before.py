"""Places before the first token, where a shift or a jitter may put it."""

import pytest
import torch
from helpers import PAD, TOLERANCE, difference, parts, signals, source_batch, target_batch
from warped import model_of, training_log_probs

from fairseq_floater.ode import solve
from fairseq_floater.position_encoders.transforms import Places, Tokens


@pytest.mark.parametrize("target", ["hidden", "qkv"])
@pytest.mark.parametrize("encoder", ["floater", "sinusoidal", "rotation_flow"])
def test_rows_before_the_first_lie_on_the_same_curve(encoder, target):
    for stack, name, signal in signals(model_of(encoder, target).eval()):
        blocks = parts(stack, name)
        with torch.no_grad():
            rows = signal(30 + 40, blocks, torch.float32, 8, 30)
            assert difference(rows[30:], signal.rows(Places(40, 8), blocks)) == 0
        # What is smooth has third differences that are small everywhere, at the seam too.
        third = rows.diff(n=3, dim=0).flatten(1).norm(dim=1)
        assert third[26:31].max() <= 2 * max(third[:26].max(), third[31:].max()) + 1e-4


def test_the_flow_before_the_first_token_is_solved_backwards():
    for stack, name, signal in signals(model_of("floater", "qkv").eval()):
        blocks = parts(stack, name)
        with torch.no_grad():
            before = signal.rows(Places(40, 8, before=40), blocks)
            # From the row before, the flow itself arrives at p(0).
            start, times = before[0].double(), torch.tensor([0.0, 0.5], dtype=torch.float64)
            h = signal.dynamics.double()
            arrived = solve(lambda t, p, h=h: h(t - 0.5, p), start, times, solver="rk4")[-1]
            p0 = torch.stack([b.initial() for b in blocks], dim=1).double()
        assert difference(arrived, p0) <= 5e-4
        assert difference(before[-1].double(), p0) > 1e-2


def test_turned_values_stand_before_the_first_too():
    model = model_of("rope", "attention", rope_values=True)
    signal = model.encoder.positions
    rows = signal(30 + 9, [], torch.float32, 8, 30)
    angles = (torch.arange(-30, 9) / 8)[:, None] * signal._initial_frequencies().float()
    assert difference(rows, torch.stack([angles.cos(), angles.sin()], dim=1)) <= 1e-5


@pytest.mark.parametrize(
    ("encoder", "target", "options"),
    [
        ("sinusoidal", "hidden", {}),
        ("rotation_flow", "qkv", {}),
        ("floater", "qkv", {}),
        ("rope", "attention", {"rope_values": True}),
        ("deberta", "attention", {"deberta_absolute": 2}),
        ("complex", "stage", {}),
        ("fire", "attention", {"fire_threshold": 3}),
    ],
)
def test_a_shift_and_its_opposite_are_two_places(encoder, target, options, monkeypatch):
    """Three tokens up is where a plain model's fourth token stands; three down is elsewhere."""
    model = model_of(encoder, target, position_shift="-5:5", **options)
    plain = model_of(encoder, target, **options)
    plain.load_state_dict(model.state_dict())
    batch = source_batch(), target_batch()
    real = batch[1].ne(PAD)
    found = {}
    for shift in (3.0, -3.0, 0.0):
        monkeypatch.setattr(
            "fairseq_floater.position_encoders.warp.drawn_shifts",
            lambda law, sentences, device, shift=shift: torch.full((sentences, 1), shift),
        )
        found[shift] = training_log_probs(model, *batch)[real]
    assert difference(found[0.0], training_log_probs(plain, *batch)[real]) <= TOLERANCE
    at = Tokens.at

    def moved(tokens, slots_do):
        places = at(tokens, slots_do)
        return places._replace(
            queries=places.queries + 3, keys=places.keys + 3, num_rows=places.num_rows + 3
        )

    monkeypatch.setattr(Tokens, "at", moved)
    # A flow comes there by sixteen times as many products.
    assert difference(found[3.0], training_log_probs(plain, *batch)[real]) <= 3 * TOLERANCE
    assert min(difference(found[-3.0], found[s]) for s in (0.0, 3.0)) > 1e-3
