"""The engine that FLOATER's options select, when it is chosen, and what training logs."""

import logging

import pytest
import torch
from fairseq.logging import metrics
from fairseq.utils import move_to_cpu
from helpers import PAD, build, log_probs, signals, source_batch, target_batch
from roberta_models import logits, roberta

from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.ode import auto as choice_module

LENGTHS = (7, 12, 5)


def model(**options):
    return build(**{"encoder": "floater", "target": "qkv", "dropout": 0.0, **options}).train()


def step(trained, lengths=LENGTHS, update=0):
    trained.set_num_updates(update)
    source, target = source_batch(lengths=lengths), target_batch(lengths=lengths)
    return trained(source, source.ne(PAD).sum(1), target)[0]


def test_each_flow_is_measured_often_in_the_first_updates_and_then_every_thousand(measured):
    trained = model()
    moments = [0]
    for update in (*range(20), 255, 256, 511, 512, 513, 999, 1000, 1001, 1999, 2000):
        before = len(measured)
        step(trained, lengths=(2,), update=update)
        if len(measured) > before:
            assert len(measured) == before + 3  # encoder, decoder, cross-attention
            moments.append(update)
    assert moments == [0, 0, 1, 2, 4, 8, 16, 255, 256, 512, 1000, 2000]


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
    trained.load_state_dict(dict(trained.state_dict()))
    step(trained)
    assert len(measured) == 12


@pytest.mark.parametrize("target", ["qkv", "relative"])
def test_a_resumed_training_keeps_its_engine_unless_options_change(measured, tmp_path, target):
    trained = model(target=target)
    step(trained, (100, 3), update=300)
    before = len(measured)
    torch.save(move_to_cpu({"model": trained.state_dict()}), tmp_path / "saved.pt")
    state = load_checkpoint(tmp_path / "saved.pt")["model"]
    assert state.keys() == trained.state_dict().keys()
    resumed, changed = model(target=target), model(target=target, floater_time_scale=2.0)
    for run in (resumed, changed):
        run.load_state_dict(state)
    step(trained, (90, 3), update=301)
    step(resumed, (90, 3), update=301)
    assert len(measured) == before
    assert torch.equal(step(trained, (90, 3), update=302), step(resumed, (90, 3), update=302))
    changed.set_num_updates(0)  # a training with other positions begins anew
    step(changed, (90, 3), update=301)
    assert len(measured) == 2 * before


def tokens(measured):
    return [len(times) for times in measured]


def test_an_evaluation_does_not_take_the_engine_of_a_training(measured):
    trained, evaluated = model(), model().eval()
    step(trained)
    before = len(measured)
    evaluated.load_state_dict(trained.state_dict())
    with torch.no_grad():
        step(evaluated)
    assert len(measured) == before + 3


def test_in_training_errors_are_measured_as_far_as_sentences_have_gone(measured):
    trained = model()
    for longest in (5, 60, 100, 90, 5):
        step(trained, (longest, 3))
    assert tokens(measured) == [64] * 3 + [128] * 3  # encoder, decoder, cross-attention


def test_after_validation_errors_are_measured_as_in_a_run_that_is_resumed_there(measured):
    trained = model()
    step(trained, (300, 3))
    trained.eval().train()
    resumed = model()
    resumed.load_state_dict(trained.state_dict())
    found = []
    for run in (trained, resumed):
        measured.clear()
        for longest in (12, 100, 5):
            step(run, (longest, 3))
        found.append(tokens(measured))
    assert found[0] == found[1] == [64] * 3 + [128] * 3


@pytest.mark.parametrize(
    ("engine", "size"), [("collocation", 0.055), ("adams", 0.055), ("rk4", 0.11)]
)
def test_what_a_translation_in_inference_mode_leaves_behind_is_trained_with(engine, size):
    """Times, grids and quadratures are cached; a backward pass refuses tensors of inference mode."""
    trained = model(floater_solver=engine, floater_delta=0.11, floater_step_size=size)
    with torch.inference_mode():
        step(trained.eval(), (20, 3))
    step(trained.train(), (64, 3)).sum().backward()
    flow = [p for n, p in trained.named_parameters() if ".dynamics." in n]
    assert flow and all(p.grad is not None and p.grad.isfinite().all() for p in flow)


def test_in_evaluation_the_engine_does_not_depend_on_the_batch(measured):
    for lengths in ((5,), (300, 3)):
        with torch.no_grad():
            step(model().eval(), lengths)
    assert tokens(measured) == [256] * 6


@pytest.mark.parametrize("target", ["qkv", "hidden", "relative"])
def test_a_roberta_is_measured_as_far_as_it_reads(measured, target):
    for positions in (24, 300):
        logits(roberta("floater", target=target, max_positions=positions).eval(), source_batch())
    assert tokens(measured) == [256, 300]


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
        assert "over 64 tokens" in said[0] and "q/k/v (source positions)" in said[0]
        trained.eval().train()
        step(trained, update=1000)
        assert len([r for r in caplog.records if "estimated" in r.getMessage()]) == 3


def test_an_error_too_large_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(choice_module, "VALUE_TOLERANCE", 1e-12)
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        trained = model()  # logged too, if an earlier test enabled the logs of fairseq's commands
        for update in (0, 1000, 2000):
            step(trained, update=update)
    assert len(caplog.records) == 3  # one for each flow
    assert all("--floater-time-scale" in record.getMessage() for record in caplog.records)


def test_a_solve_that_rk4_did_over_is_said_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr("fairseq_floater.ode.engines.segment.MAX_ITERATIONS", 0)
    trained = model(floater_solver="collocation")
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        step(trained)
        with metrics.aggregate() as found:
            step(trained, update=1)
    said = [r.getMessage() for r in caplog.records if "RK4 stands in" in r.getMessage()]
    assert len(said) == 3  # once for each flow; later ones are only counted
    assert "relative error of the solve inf" in caplog.text  # the error measured would be RK4's
    assert found.get_smoothed_values()["flow_fallbacks"] == 3


def test_a_flow_that_rk4_did_over_is_measured_before_the_next_update(monkeypatch):
    trained = model(floater_solver="collocation")
    for update in (4, 5, 6):
        if update == 5:
            monkeypatch.setattr("fairseq_floater.ode.engines.segment.MAX_ITERATIONS", 0)
        with metrics.aggregate() as found:
            step(trained, update=update)
    assert found.get_smoothed_values()["flow_error_age"] == 0  # measured at 6, out of turn


def test_statistics_are_in_fairseqs_training_log():
    trained = model()
    with metrics.aggregate() as found:
        step(trained)
        step(trained, update=1)
    values = found.get_smoothed_values()
    assert values["flow_fallbacks"] == 0
    assert 0 < values["flow_error"] <= 1e-3
    assert values["flow_error_age"] == 0  # measured at both updates
    # 12 tokens and an end symbol take 1.2 units of time: three steps of 0.4 by RK4.
    assert values["flow_evaluations"] > 4
    trained.eval()
    with metrics.aggregate() as found, torch.no_grad():
        step(trained)
    assert not found.get_smoothed_values()
    assert trained.encoder.positions.statistics() == {}  # nor at the next update


def test_the_log_says_how_many_updates_ago_the_error_was_measured():
    trained = model()
    for update in (0, 512, 700):
        with metrics.aggregate() as found:
            step(trained, update=update)
    assert found.get_smoothed_values()["flow_error_age"] == 700 - 512


def test_residuals_of_the_parallel_engine_are_logged():
    with metrics.aggregate() as found:
        step(model(floater_solver="collocation"))
    assert 0 < float(found.get_smoothed_values()["flow_residual"]) <= 1e-5


def test_encoders_without_a_flow_log_nothing():
    with metrics.aggregate() as found:
        step(build(encoder="learned", dropout=0.0).train())
    assert not found.get_smoothed_values()


def test_a_frozen_flow_is_solved_in_training_as_in_evaluation():
    frozen = model(floater_freeze=True)
    step(frozen)
    chosen = [encoder.solvers[""]._chosen for _, _, encoder in signals(frozen)]
    tables = [encoder._kept[torch.float32, 1] for _, _, encoder in signals(frozen)]
    with torch.no_grad():
        log_probs(frozen.eval(), source_batch(), target_batch())
    assert chosen == [encoder.solvers[""]._chosen for _, _, encoder in signals(frozen)]
    for before, (_, _, encoder) in zip(tables, signals(frozen)):
        assert torch.equal(before, encoder._kept[torch.float32, 1])
