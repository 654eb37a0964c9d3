"""The benchmark's part `solve`: its named flows, and the errors of every engine."""

import pytest
import roberta_toy
import torch
from helpers import save_model

from benchmarks import solvers
from benchmarks.flows import standard_flows, trained_flows
from benchmarks.parts import Bench
from benchmarks.settings import Settings
from benchmarks.tables import BenchmarkResult
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.ode import solve

MACHINE = {"date": "2026-11-21", "device": "x", "cpu": "x", "cores": 1, "threads": 1, "load": 0.0}
MACHINE["versions"] = {}
TIMES = 0.1 * torch.arange(128, dtype=torch.float64)


def norms(name, dim=64):
    flow = next(f for f in standard_flows(dim, 4, seed=0) if f.name == name)
    with torch.no_grad():
        rows = solve(flow.dynamics, flow.p0, TIMES, step_size=0.05)
    return rows.norm(dim=-1).mean(dim=1), rows


@pytest.mark.parametrize("name", ["attracted", "oscillating"])
def test_fitted_flows_keep_to_their_sinusoids(name):
    """Their norm is sqrt(C / 2), as for C / 2 sines and cosines, and they never stop moving."""
    size, rows = norms(name)
    expected = 32**0.5
    assert 0.7 * expected < float(size[:64].min()) and float(size[:64].max()) < 1.4 * expected
    assert float((rows[40] - rows[20]).norm(dim=-1).min()) > 0.1 * expected


def test_flows_are_the_same_for_the_same_seed():
    first, again, other = (next(standard_flows(8, 2, seed)).dynamics.weight1 for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_checkpoints_flows_have_its_parameters_and_initial_values(tmp_path):
    def change(parameters):
        for name, value in parameters.items():
            if name.endswith("positions.values"):
                value.fill_(0.25)

    path = save_model(tmp_path / "model.pt", "floater", "all", "qkv", change, floater_delta=0.2)
    flows = trained_flows(str(path))
    assert [flow.name for flow in flows] == [
        "trained: encoder q/k/v",
        "trained: decoder q/k/v/cross_q",
        "trained: decoder cross_k/cross_v",
    ]
    state = torch.load(path, weights_only=True)["model"]
    for flow, prefix in zip(
        flows, ["encoder.positions", "decoder.positions", "decoder.source_positions"]
    ):
        assert flow.clock.delta == 0.2
        assert torch.equal(flow.dynamics.weight1, state[f"{prefix}.dynamics.weight1"])
        assert torch.equal(flow.p0, torch.full_like(flow.p0, 0.25))


def test_a_checkpoint_without_a_flow_is_refused(tmp_path):
    path = save_model(tmp_path / "model.pt", "learned")
    with pytest.raises(CheckpointError, match="has no flow over positions"):
        trained_flows(str(path))


def test_with_a_theta_for_each_block_every_block_has_a_flow(tmp_path):
    path = save_model(tmp_path / "model.pt", "floater", "all", "hidden", floater_theta="block")
    flows = trained_flows(str(path))
    assert [flow.name for flow in flows] == [
        f"trained: {stack} hidden, block {block}"
        for stack in ("encoder", "decoder")
        for block in (0, 1)
    ]


def test_a_robertas_flow_is_read(tmp_path):
    path = roberta_toy.save_model(tmp_path / "model.pt", arch="floater_roberta_tiny")
    assert [flow.name for flow in trained_flows(str(path))] == [
        "trained: encoder.sentence_encoder q/k/v"
    ]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = save_model(tmp_path_factory.mktemp("model") / "model.pt", "floater", "all", "qkv")
    settings = Settings(rounds=1, solve_length=24)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(solvers, "COMPARED", (("rk4", 0.05), ("rk4_hermite", 0.2), ("adams", 0.4)))
        patched.setattr(solvers, "REFERENCE", "rk4 0.05")
        bench = Bench(settings, [], progress=lambda message: None)
        return solvers.solve_rows(bench, dim=16, rows=4, trained=trained_flows(str(path)))


def test_every_engine_has_its_errors_on_every_flow(rows):
    by_flow = {}
    for row in rows:
        by_flow.setdefault(row["flow"], {})[row["engine"]] = row
    assert len(by_flow) == 5 + 3
    for name, engines in by_flow.items():
        auto = [engine for engine in engines if engine.startswith("auto: ")]
        assert len(auto) == 1 and len(engines) == 4
        assert engines["rk4 0.05"]["speedup"] == 1
        # 23 tokens, two steps of four evaluations each; rounding may cost torchdiffeq one more.
        assert engines["rk4 0.05"]["evaluations"] in (184, 188)
        if name != "fast":
            assert engines["rk4 0.05"]["value_error"] < 1e-4
            assert engines[auto[0]]["value_error"] < 1e-3
        assert engines["rk4 0.05"]["value_error"] <= engines["adams 0.4"]["value_error"] + 1e-5


def test_the_table_names_flow_engine_and_speed(rows):
    text = BenchmarkResult(MACHINE, Settings(), solve=rows).format_text()
    assert "| oscillating | `rk4_hermite 0.2` |" in text
    assert "trained: encoder q/k/v" in text and "times faster than `rk4`" in text
