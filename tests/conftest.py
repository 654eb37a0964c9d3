"""One thread per process: small matrices gain nothing from more, and sums keep their order."""

import gc
from pathlib import Path

import on_device
import pytest
import tally
import torch

torch.set_num_threads(1)

# The slowest files, slowest first. If they started last, one of them would run alone at the end.
LONGEST = (
    *("test_contract", "test_kept_tables", "test_precision", "test_fairseq_compat"),
    *("test_fairseq_options", "test_integration", "test_integration_training"),
    *("test_s2l_script", "test_roberta_training", "test_benchmark_command", "test_distributed"),
    *("test_question_answering_training", "test_scripts", "test_faults_disk", "test_faults"),
    *("test_registration", "test_compile", "test_oracles"),
)


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(Path(item.path).stem, len(LONGEST)))


def pytest_collection_finish():
    gc.freeze()  # else a collection reads all of torch, fairseq and the tests: half a second
    gc.set_threshold(10_000, 20, 50)  # as seldom as memory allows


@pytest.fixture(autouse=True)
def _seeded():
    # torch.manual_seed would write down the stack for each absent kind of device
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)


_CHOICES = {}


@pytest.fixture(autouse=True)
def measured_once(monkeypatch):
    """Choose an engine only once for equal flows: hundreds of tests start with the same few.

    The key holds everything that the choice depends on. tests/ode turns this off.
    """
    # Here, because it brings fairseq, which the first process of pytest-xdist does without.
    from fairseq_floater.ode import flow_solver

    def choose(dynamics, p0, times, training=True, measure=flow_solver.choose, **options):
        tensors = [*dynamics.state_dict().values(), p0.detach(), times]
        wanted = [p.requires_grad for p in (*dynamics.parameters(), p0)]
        values = [v for module in dynamics.modules() for v in vars(module).values()]
        settings = [v for v in values if isinstance(v, float | int | str)]
        key = (type(dynamics), training, repr(options), *wanted, *settings)
        bits = [t.cpu().double().numpy().tobytes() for t in tensors]
        key += tuple((t.device, t.dtype, t.shape, b) for t, b in zip(tensors, bits, strict=True))
        if key not in _CHOICES:
            _CHOICES[key] = measure(dynamics, p0, times, training, **options)
        return _CHOICES[key]

    monkeypatch.setattr(flow_solver, "choose", choose)


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Data and a donor, made once for all files."""
    import toy as toys  # brings fairseq

    return toys.shared(tmp_path_factory)


def pytest_addoption(parser):
    parser.addoption(
        "--tables", action="store_true", help="print the tables of docs/reliability.md"
    )
    parser.addoption("--device", help="where tests/contract has its models and tensors (cpu)")


def pytest_configure(config):
    if device := config.getoption("--device"):
        try:
            on_device.use(device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise pytest.UsageError(f"--device {device}: {error}") from None


@pytest.fixture(autouse=True)
def _counted(request):
    tally.take()
    yield
    request.node.user_properties += [("tally", counted) for counted in tally.take()]


def pytest_terminal_summary(terminalreporter, config):
    """Print the tables of what the tests counted."""
    if not config.getoption("--tables"):
        return
    failures = [r for kind in ("failed", "error") for r in terminalreporter.getreports(kind)]
    failed = {report.nodeid for report in failures}
    counts = [
        [*counted, report.nodeid in failed]
        for report in (*terminalreporter.getreports(""), *failures)
        if report.when == "teardown"
        for name, counted in report.user_properties
        if name == "tally"
    ]
    for line in tally.markdown(counts):
        terminalreporter.line(line)
