"""Add the verb benchmark."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from fairseq_floater.benchmark.settings import COMPARED, ON_GPU, QUICK, Settings
from fairseq_floater.verbs import add_verb


def add_benchmark(verbs: Any) -> None:
    """Add `floater benchmark`."""
    parser = add_verb(
        verbs,
        "benchmark",
        "floater benchmark --parts update,memory --json benchmark.json --plot benchmark.png\n"
        "  floater benchmark --parts update -- --position-encoder rnn\n"
        "  floater benchmark --encoders all --resume all.jsonl --json all.json --plot all.png\n"
        "  floater benchmark --parts update,generation --encoders rope,t5,alibi\n"
        "options of a position encoder after -- make one contestant in place of FLOATER with an\n"
        "update interval of 1 and of 8; other options of the model are given to fairseq's as well",
        _run,
        unknown="model_options",
    )
    # Only the options that were given reach `_run`: `--quick` has defaults of its own.
    parser.argument_default = argparse.SUPPRESS
    for option in dataclasses.fields(Settings):
        if option.metadata:
            parser.add_argument("--" + option.name.replace("_", "-"), **option.metadata)
    parser.add_argument(
        "--quick", action="store_true", help="tiny settings: whether it runs, not how fast"
    )
    parser.add_argument("--plot", metavar="FILE", help="a figure as well: png, svg or pdf")


def _run(
    model_options: list[str], quick: bool = False, plot: str | None = None, **given: Any
) -> Any:
    # torch and fairseq take seconds: not for --help.
    import torch

    from fairseq_floater.benchmark.figure import check_plot, plot_benchmark
    from fairseq_floater.benchmark.run import run_benchmark

    chosen: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    chosen |= {"parts": COMPARED} if "encoders" in given else {}
    chosen |= ON_GPU if given.get("device", chosen["device"]) == "cuda" else {}
    chosen |= QUICK if quick else {}
    # argparse leaves the `--` in front of the options that it does not know.
    chosen["model_options"] = [word for word in model_options if word != "--"]
    settings = Settings(**chosen | given)
    if plot is not None:
        check_plot(settings, plot)
    result = run_benchmark(settings)
    if plot is not None:
        plot_benchmark(result, plot)
    return result
