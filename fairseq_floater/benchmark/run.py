"""Run a whole benchmark: `floater benchmark`."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from fairseq_floater.benchmark import growth, parts, solvers
from fairseq_floater.benchmark.contestants import contestants
from fairseq_floater.benchmark.settings import Settings
from fairseq_floater.benchmark.tables import BenchmarkResult
from fairseq_floater.errors import UsageError
from fairseq_floater.requirements import versions

VERSIONS = ("python", "torch", "fairseq-fixed", "fairseq", "torchdiffeq", "fairseq_floater")


def run_benchmark(settings: Settings) -> BenchmarkResult:
    """Measure what ``settings`` ask for, with progress on stderr.

    Raises:
        UsageError: a device that is not there, or options that fairseq-train refuses.
        UserError: an update or a translation that failed.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("`--device` cuda needs a GPU that torch sees, but there is none.")
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with tempfile.TemporaryDirectory() as save_dir, warnings.catch_warnings():
            # fairseq, Hydra and torch warn of what fairseq itself does in an old way.
            warnings.filterwarnings("ignore", module=r"fairseq\.|hydra|torch\.nn")
            return _measure(settings, save_dir)
    finally:
        torch.set_num_threads(threads)


def _measure(settings: Settings, save_dir: str) -> BenchmarkResult:
    found = contestants(settings, save_dir)
    bench = parts.Bench(settings, found, progress=lambda message: print(message, file=sys.stderr))
    result = BenchmarkResult(_machine(settings), settings)
    if "update" in settings.parts:
        result.update = parts.update_rows(bench, settings.tokens, settings.rounds)
    if "generation" in settings.parts:
        for sentences in settings.batch_sizes:
            result.generation += parts.generation_rows(bench, sentences, settings.rounds)
    if "memory" in settings.parts:
        result.memory = parts.memory_rows(bench)
    if "solve" in settings.parts:
        # The q, k and v of every encoder block.
        rows = 3 * bench.baseline.cfg.model.encoder_layers
        result.solve = solvers.solve_rows(bench, bench.baseline.cfg.model.encoder_embed_dim, rows)
    if "growth" in settings.parts:
        tables = growth.table_rows(bench)
        result.growth = {
            "tables": tables,
            "exponents": growth.exponents(tables, settings),
            "updates": growth.update_rows_by_tokens(bench, result.update),
        }
    return result


def _machine(settings: Settings) -> dict[str, Any]:
    on_gpu = settings.device == "cuda"
    installed = versions()
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if on_gpu else cpu_name(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "system": platform.system(),
        "versions": {name: installed[name] for name in VERSIONS if name in installed},
    }


def cpu_name() -> str:
    """Return the processor's name for people, or its kind where the system tells no more."""
    described = Path("/proc/cpuinfo")
    if described.exists():
        for line in described.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
