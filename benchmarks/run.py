"""Run a whole benchmark: `python -m benchmarks speed`."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import parts, solvers
from benchmarks.bench import Bench
from benchmarks.contestants import contestants
from benchmarks.flows import trained_flows
from benchmarks.records import Records, code_hash
from benchmarks.settings import Settings
from benchmarks.tables import BenchmarkResult
from benchmarks.timing import Row
from fairseq_floater.errors import UsageError, say
from fairseq_floater.requirements import cpu_name, versions


def run_benchmark(settings: Settings) -> BenchmarkResult:
    """Measure what ``settings`` ask for, with progress on stderr.

    Raises:
        UsageError: there is no such device, or fairseq-train refuses the options.
        UserError: an update or a translation failed.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("`--device` cuda needs a GPU, but torch sees none.")
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with tempfile.TemporaryDirectory() as save_dir, warnings.catch_warnings():
            # fairseq, Hydra and torch warn of deprecated calls by fairseq itself.
            warnings.filterwarnings("ignore", module=r"fairseq\.|hydra|torch\.nn")
            warnings.filterwarnings("ignore", message=r"\n'config' is validated")
            return _measure(settings, save_dir)
    finally:
        torch.set_num_threads(threads)


def _measure(settings: Settings, save_dir: str) -> BenchmarkResult:
    compared = contestants(settings, save_dir)
    trained = [] if settings.checkpoint is None else trained_flows(settings.checkpoint)
    machine = _machine(settings)
    bench = Bench(settings, compared, say, Records(_fixed(settings, machine), settings.resume))
    result = BenchmarkResult(machine, settings, bench.floor._asdict(), bench.failures)

    def measured(part: str, measure: Callable[..., list[Row]], *given: Any) -> list[Row]:
        # If the baseline or a timed turn fails, other parts go on.
        work = partial(measure, bench, *given)
        return (part in settings.parts and bench.attempt(part, "all models", work)) or []

    result.update = measured("update", parts.update_rows)
    result.memory = measured("memory", parts.memory_rows)
    result.launches = measured("launches", parts.launch_rows)
    for vocabulary in settings.vocabulary:
        result.generation += measured("generation", parts.generation_rows, vocabulary)
    result.step = measured("step", parts.step_rows)
    model = compared[0].cfg.model
    # A row for the q, k and v of every encoder block.
    size = model.encoder_embed_dim, 3 * model.encoder_layers
    result.solve = measured("solve", solvers.solve_rows, *size, trained)
    rows = measured("growth", parts.growth_rows)
    if "growth" in settings.parts:
        result.growth = {"tables": rows, "exponents": parts.exponents(rows, settings)}
    return result


def _fixed(settings: Settings, machine: dict[str, Any]) -> dict[str, Any]:
    """Return what must not differ between measurements that stand in one table.

    The other settings only say which measurements are made, so they may differ.
    """
    free = (
        "parts",
        "encoders",
        "together",
        "vocabulary",
        "batch_sizes",
        "step_positions",
        "decoding_weights",
        "resume",
    )
    fixed = {key: value for key, value in dataclasses.asdict(settings).items() if key not in free}
    named = {key: machine[key] for key in ("device", "cpu", "cores", "versions")}
    return {
        **fixed,
        "positions": settings.most_positions,
        "largest": settings.vocabulary[-1],
        "code": code_hash(),
        **named,
    }


def _machine(settings: Settings) -> dict[str, Any]:
    on_gpu = settings.device == "cuda"
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if on_gpu else cpu_name(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "system": platform.system(),
        "versions": versions(),
    }
