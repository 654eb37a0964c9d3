"""Measure the peak memory of tensors during a piece of work."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Subject = TypeVar("Subject")
_MEASURED = "benchmarks: measured"


def peak_bytes(
    prepare: Callable[[], Subject], work: Callable[[Subject], object], device: str
) -> int:
    """Return the largest number of bytes in tensors during ``work(prepare())``.

    Only memory that was allocated since ``prepare`` began counts. On a GPU torch's caching allocator
    reports it. On the CPU it is exact, from each call of torch's allocator, but memory that libraries
    allocate without it, such as packed matrices, is missed.
    """
    gc.collect()
    return (_cuda_peak if device == "cuda" else _cpu_peak)(prepare, work)


def _cuda_peak(prepare: Callable[[], Subject], work: Callable[[Subject], object]) -> int:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    subject = prepare()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work(subject)
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(prepare: Callable[[], Subject], work: Callable[[Subject], object]) -> int:
    # The profiler knows only blocks allocated while it runs, so `prepare` must run there too.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        subject = prepare()
        with record_function(_MEASURED):
            work(subject)
        del subject
        gc.collect()
    results: Any = profiler.profiler
    return _peak(results.kineto_results.events())


def _peak(events: Any) -> int:
    start, end = next((e.start_ns(), e.end_ns()) for e in events if e.name() == _MEASURED)
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = peak = sum(change for time, change in changes if time < start)
    for _, change in sorted((c for c in changes if start <= c[0] <= end), key=lambda c: c[0]):
        held += change
        peak = max(peak, held)
    return peak
