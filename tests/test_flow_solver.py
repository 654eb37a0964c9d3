"""Which engine FLOATER's options mean, when it is chosen, and what the training log hears."""

import logging

import pytest
import torch
from fairseq.logging import metrics
from helpers import PAD, build, source_batch, target_batch

from fairseq_floater.ode import choice as choice_module
from fairseq_floater.ode import solve
from fairseq_floater.position_encoders import flow_solver

LENGTHS = (7, 12, 5)


def model(**options):
    return build(**{"encoder": "floater", "target": "qkv", "dropout": 0.0, **options}).train()


def step(trained, lengths=LENGTHS, update=0):
    trained.set_num_updates(update)
    source, target = source_batch(lengths=lengths), target_batch(lengths=lengths)
    return trained(source, source.ne(PAD).sum(1), target)[0]


@pytest.fixture
def measured(monkeypatch):
    """Counts the choices that are made."""
    count = []

    def counted(*args, **kwargs):
        count.append(1)
        return choice_module.choose(*args, **kwargs)

    monkeypatch.setattr(flow_solver, "choose", counted)
    return count


def test_each_flow_is_measured_at_the_first_update_and_every_thousand(measured):
    trained = model()
    for update in (0, 1, 999):
        step(trained, update=update)
    assert len(measured) == 3  # encoder, decoder, cross-attention
    step(trained, update=1000)
    step(trained, update=1001)
    assert len(measured) == 6


def test_a_flow_is_measured_again_after_validation_and_after_loading(measured):
    trained = model()
    step(trained)
    trained.eval()
    with torch.no_grad():
        step(trained)
    assert len(measured) == 6
    trained.train()
    step(trained)
    assert len(measured) == 9
    trained.load_state_dict(trained.state_dict())
    step(trained)
    assert len(measured) == 12


def test_the_engine_does_not_depend_on_the_batch(monkeypatch):
    measured = []

    def noted(dynamics, p0, times, gradients):
        measured.append(times)
        return choice_module.choose(dynamics, p0, times, gradients)

    monkeypatch.setattr(flow_solver, "choose", noted)
    for lengths in ((5,), (300, 3)):
        step(model(), lengths)
    assert len(measured) == 6
    assert all(torch.equal(times, measured[0]) and len(times) == 256 for times in measured)


@pytest.mark.parametrize(
    ("options", "device", "engine"),
    [
        ({}, "cpu", ("adams", None)),
        ({"floater_step_size": 0.3}, "cpu", ("adams", 0.3)),
        ({"floater_step_size": 0.3}, "cuda", ("collocation", 0.3)),
        ({"floater_step_size": 1.6}, "cuda", ("rk4_hermite", 1.6)),
        ({"floater_solver": "rk4"}, "cuda", ("rk4", None)),
        ({"floater_solver": "collocation", "floater_step_size": 0.1}, "cpu", ("collocation", 0.1)),
    ],
)
def test_what_options_mean(options, device, engine):
    spec = model(**options).encoder.positions.spec
    assert flow_solver._engine(spec.options, device) == engine


@pytest.mark.parametrize("solver", ["auto", "adams", "collocation", "rk4_hermite"])
def test_the_table_is_the_solution_whatever_the_engine(solver):
    torch.manual_seed(0)
    trained = model(floater_solver=solver, target="hidden")
    signal, parts = trained.encoder.positions, [b.positions for b in trained.encoder.layers]
    table = signal(40, parts, torch.float32)
    p0 = torch.stack([part.initial() for part in parts], dim=1)
    exact = solve(signal.dynamics, p0, signal.times(40), step_size=0.02)
    torch.testing.assert_close(
        table, exact, rtol=2e-3, atol=2e-3 * float(exact.detach().abs().max())
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "adams, step 0.4, estimated relative error of the solve"),
        ({"floater_solver": "rk4_hermite"}, "rk4_hermite, step 0.2, estimated relative error"),
        ({"floater_solver": "dopri5"}, "dopri5, step adaptive, estimated relative error"),
    ],
)
def test_the_log_names_engine_and_error_once(options, words, caplog):
    trained = model(**options)
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        step(trained)
        said = [r.getMessage() for r in caplog.records if "estimated" in r.getMessage()]
        assert len(said) == 3 and all(words in line for line in said)
        assert "over 256 tokens" in said[0] and "q/k/v (source positions)" in said[0]
        trained.eval().train()
        step(trained, update=1000)
        assert len([r for r in caplog.records if "estimated" in r.getMessage()]) == 3


def test_a_warning_where_no_engine_is_exact_enough(caplog, monkeypatch):
    monkeypatch.setattr(choice_module, "VALUE_TOLERANCE", 1e-12)
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        step(model())
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert all("rk4_hermite, step 0.05" in w and "--floater-time-scale" in w for w in warnings)


def test_an_error_too_large_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(choice_module, "VALUE_TOLERANCE", 1e-12)
    trained = model()
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        for update in (0, 1000, 2000):
            step(trained, update=update)
    assert len(caplog.records) == 3


def test_a_solve_that_rk4_did_over_is_said_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr("fairseq_floater.ode.collocation.MAX_ITERATIONS", 0)
    trained = model(floater_solver="collocation")
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        step(trained)
        with metrics.aggregate() as found:
            step(trained, update=1)
    said = [r.getMessage() for r in caplog.records if "RK4 stands in" in r.getMessage()]
    assert len(said) == 3  # once a flow; then they are counted
    assert found.get_smoothed_values()["flow_fallbacks"] == 3


def test_statistics_are_in_fairseqs_training_log():
    trained = model()
    with metrics.aggregate() as found:
        step(trained)
        step(trained, update=1)
    values = found.get_smoothed_values()
    assert values["flow_fallbacks"] == 0
    assert 0 < values["flow_error"] <= 1e-3
    # 12 tokens and an end symbol each way: 1.2 units of time, three steps of 0.4 by RK4.
    assert values["flow_evaluations"] > 4
    trained.eval()
    with metrics.aggregate() as found, torch.no_grad():
        step(trained)
    assert not found.get_smoothed_values()
    assert trained.encoder.positions.statistics() == {}  # nor with the first update after


def test_residuals_of_the_parallel_engine_are_logged():
    with metrics.aggregate() as found:
        step(model(floater_solver="collocation"))
    assert 0 < float(found.get_smoothed_values()["flow_residual"]) <= 1e-5


def test_encoders_without_a_flow_log_nothing():
    with metrics.aggregate() as found:
        step(build(encoder="learned", dropout=0.0).train())
    assert not found.get_smoothed_values()


def test_a_frozen_flow_is_chosen_by_its_values(caplog):
    trained = model(floater_freeze=True)
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        step(trained)
    said = [r.getMessage() for r in caplog.records if "estimated" in r.getMessage()]
    assert len(said) == 3 and not any("gradient" in line for line in said)
