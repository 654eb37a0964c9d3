"""Add the parts of `python -m benchmarks`: speed and gpu-check."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_check
from benchmarks.settings import COMPARED, ON_GPU, QUICK, Settings
from fairseq_floater.cli import run_command
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.verbs import add_verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    add_speed(parts)
    add_gpu_check(parts)
    return run_command(parser, sys.argv[1:] if argv is None else argv)


def add_speed(parts: Any) -> None:
    parser = add_verb(
        parts,
        "speed",
        "python -m benchmarks speed --parts update,memory --json benchmark.json --plot benchmark.png\n"
        "  python -m benchmarks speed --parts update -- --position-encoder rnn\n"
        "  python -m benchmarks speed --encoders all --resume all.jsonl --json all.json --plot all.png\n"
        "  python -m benchmarks speed --parts update,generation --encoders rope,t5,alibi\n"
        "options of a position encoder after -- replace FLOATER (update interval 1 and 8) by one\n"
        "contestant; other options of the model also apply to fairseq's model",
        _run,
        summary="compares updates, translation, memory and solves with fairseq's Transformer, in one run",
        unknown="model_options",
    )
    # Only the options that were given reach `_run`: `--quick` has defaults of its own.
    parser.argument_default = argparse.SUPPRESS
    for option in dataclasses.fields(Settings):
        if option.metadata:
            parser.add_argument("--" + option.name.replace("_", "-"), **option.metadata)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: test that it runs, not its speed"
    )
    parser.add_argument("--plot", metavar="FILE", help="also draw a figure: png, svg or pdf")


def add_gpu_check(parts: Any) -> None:
    parser = add_verb(
        parts,
        "gpu-check",
        "CUDA_VISIBLE_DEVICES=0 bash scripts/gpu_check.sh",
        gpu_check.main,
        summary="tests the plugin on a GPU, then measures its speed (scripts/gpu_check.sh)",
        details="""
On one GPU: versions; contract tests of every encoder; short trainings in
float32, by --fp16, by --amp and in bf16; translations in two dtypes; every encoder's update, memory,
kernels and translation beside fairseq's Transformer (bfloat16, 25,000 tokens), and the flow's
engines. If a step fails, the others still run. The result is gpu_check.tar.gz: logs, tables, figures,
no weights. A second run repeats only the steps that did not succeed.""",
        json=False,
    )
    add = parser.add_argument
    text = "folder for all output (default: work/gpu_check)"
    add("--work", type=Path, default=Path("work/gpu_check"), metavar="DIR", help=text)
    text = f"encoders to train, separated by commas (default: {','.join(gpu_check.TRAINED)})"
    add("--encoders", type=encoder_names, metavar="NAMES", help=text)
    text = "cpu: a small rehearsal of the commands; it says nothing about a GPU"
    add("--device", choices=("cuda", "cpu"), default="cuda", help=text)
    add("--dry-run", action="store_true", help="print the commands, do not run them")


def _run(
    model_options: list[str], quick: bool = False, plot: str | None = None, **given: Any
) -> Any:
    # Imported here because torch and fairseq take seconds, which --help need not wait for.
    import torch

    from benchmarks.figure import check_plot, plot_benchmark
    from benchmarks.run import run_benchmark

    chosen: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    chosen |= {"parts": COMPARED} if "encoders" in given else {}
    chosen |= ON_GPU if given.get("device", chosen["device"]) == "cuda" else {}
    chosen |= QUICK if quick else {}
    chosen["model_options"] = model_options
    settings = Settings(**chosen | given)
    if plot is not None:
        check_plot(settings, plot)
    result = run_benchmark(settings)
    if plot is not None:
        plot_benchmark(result, plot)
    return result
