"""`choose` takes the coarsest engine and step that are exact enough for the flow."""

import copy

import pytest
import torch
from flows import FLOWS, TIMES, named_flow, values_and_gradient

from fairseq_floater.ode import PositionDynamics, SolveRecord, choose, solve
from fairseq_floater.ode import auto as choice_module
from fairseq_floater.ode.solve import row_errors


def test_an_iteration_that_fails_is_no_choice(monkeypatch):
    candidates = {"cpu": (("collocation", 0.4), ("rk4_hermite", 0.05))}
    monkeypatch.setattr(choice_module, "CANDIDATES", candidates)
    monkeypatch.setattr("fairseq_floater.ode.engines.segment.MAX_ITERATIONS", 1)
    choice = choose(*named_flow("attracted"), TIMES)
    assert choice.solver == "rk4_hermite" and choice.record.iterations_needed == 0


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_choice_is_exact_enough_and_the_coarsest_that_is(name, device, monkeypatch):
    candidates = choice_module.CANDIDATES[device]
    monkeypatch.setattr(choice_module, "CANDIDATES", {"cpu": candidates})
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES)
    assert choice.is_exact_enough()
    exact = copy.deepcopy(dynamics).double()
    truth = solve(exact, p0.detach().double(), TIMES, step_size=0.0125).detach()
    values = solve(dynamics, p0, TIMES, **choice.options).detach()
    assert float(row_errors(values, truth).max()) < 1e-3
    coarser = candidates[: candidates.index((choice.solver, choice.step_size))]
    for solver, step in coarser:
        monkeypatch.setattr(choice_module, "CANDIDATES", {"cpu": ((solver, step),)})
        assert not choose(dynamics, p0, TIMES).is_exact_enough()


def test_a_strong_flow_takes_few_evaluations_in_a_row_on_a_gpu(monkeypatch):
    monkeypatch.setattr(choice_module, "CANDIDATES", {"cpu": choice_module.CANDIDATES["cuda"]})
    dynamics, p0 = named_flow("linear", dim=64)
    with torch.no_grad():
        dynamics.weight1.mul_(4)
    choice = choose(dynamics, p0, TIMES)
    assert (choice.solver, choice.step_size) == ("collocation", 0.05)
    record = SolveRecord(check_each=True)
    solve(dynamics, p0, TIMES, **choice.options, record=record)
    assert record.evaluations < 60  # adams at 0.025 takes 390


@pytest.mark.parametrize("name", FLOWS)
def test_the_gradient_of_short_sentences_is_as_good_as_that_of_long_ones(name):
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES)
    exact, exact_p0 = copy.deepcopy(dynamics).double(), p0.detach().double().requires_grad_()
    for rows in (32, 48, 64, 96):
        weights = torch.zeros(len(TIMES), *p0.shape)
        weights[:rows] = torch.randn(rows, *p0.shape, generator=torch.Generator().manual_seed(5))
        _, gradient = values_and_gradient(dynamics, p0, weights, **choice.options)
        _, truth = values_and_gradient(exact, exact_p0, weights, step_size=0.0125)
        assert float((gradient - truth).norm() / truth.norm()) < 1e-2


def test_late_rows_do_not_hide_the_errors_of_the_first():
    dynamics, p0 = named_flow("linear", dim=64)
    with torch.no_grad():
        dynamics.weight1.mul_(4)
    exact = copy.deepcopy(dynamics).double()
    truth = solve(exact, p0.detach().double(), TIMES, step_size=0.0125).detach()
    assert float(truth[-1].norm() / truth[0].norm()) > 1e3
    choice = choose(dynamics, p0, TIMES)
    values = solve(dynamics, p0, TIMES, **choice.options).detach()
    assert float(row_errors(values, truth).max()) < 1e-3


def test_the_error_of_the_gradient_is_that_of_the_worst_window():
    dynamics, p0 = named_flow("linear", dim=64)
    with torch.no_grad():
        dynamics.weight1.mul_(4)
    step = (("collocation", 0.05),)
    of_32, of_64, of_96 = (
        choose(dynamics, p0, TIMES[:rows], candidates=step).gradient_error for rows in (32, 64, 96)
    )
    assert of_32 <= of_64 <= of_96


@pytest.mark.parametrize("name", FLOWS)
def test_evaluation_is_finer_and_the_same_on_every_device(name, monkeypatch):
    monkeypatch.setattr(choice_module, "CANDIDATES", {})  # evaluation does not use them
    dynamics, p0 = named_flow(name, dim=64)
    choice = choose(dynamics, p0, TIMES, training=False)
    truth = solve(copy.deepcopy(dynamics).double(), p0.detach().double(), TIMES, step_size=0.005)
    values = solve(dynamics, p0, TIMES, **choice.options)
    assert float(row_errors(values.detach(), truth.detach()).max()) < 1e-4


def test_without_gradients_only_values_count():
    dynamics, p0 = named_flow("linear")
    with torch.no_grad():
        choice = choose(dynamics, p0, TIMES, training=False)
    assert choice.gradient_error is None
    assert choose(dynamics.requires_grad_(False), p0.detach(), TIMES).gradient_error is None
    assert all(p.grad is None for p in dynamics.parameters())


def test_a_choice_leaves_gradients_and_random_numbers_alone():
    dynamics, p0 = named_flow("small")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    choose(dynamics, p0, TIMES)
    assert torch.equal(torch.rand(1), expected)
    assert p0.grad is None and all(p.grad is None for p in dynamics.parameters())


def test_a_flow_in_half_precision_is_measured_in_float32():
    dynamics, p0 = named_flow("small", dim=64)
    choice = choose(dynamics.half(), p0, TIMES)
    assert choice.is_exact_enough() and choice.gradient_error is not None


def test_a_flow_that_leaves_the_range_is_measured_as_far_as_it_goes():
    dynamics = PositionDynamics(4)
    with torch.no_grad():
        for parameter in dynamics.parameters():
            parameter.zero_()
        dynamics.weight1[:, :4] = dynamics.weight2[:, :4] = 10 * torch.eye(
            4
        )  # p grows as e^(100 t)
    choice = choose(dynamics, torch.ones(1, 4), 0.1 * torch.arange(128, dtype=torch.float64))
    assert choice.num_times < 128
    assert choice.solver == "rk4_hermite"
