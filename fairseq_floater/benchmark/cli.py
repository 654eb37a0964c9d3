"""Add the verb benchmark."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_floater.benchmark.settings import DEVICES, DTYPES, PARTS, QUICK, Settings, length_range
from fairseq_floater.transformer.shapes import ARCHITECTURES
from fairseq_floater.verbs import add_verb, positive


def benchmark(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "benchmark",
        "floater benchmark --parts update memory --json benchmark.json --plot benchmark.png\n"
        "  floater benchmark --parts update -- --position-encoder rnn\n"
        "options of a position encoder after -- make one contestant in place of FLOATER with an\n"
        "update interval of 1 and of 8; other options of the model are given to fairseq's as well",
        _run,
        unknown="model_options",
    )
    # Only the options that were given reach `_run`: `--quick` has defaults of its own.
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    number: dict[str, Any] = {"type": positive, "metavar": "N"}
    add("--parts", nargs="+", choices=PARTS, help="what to measure (all)")
    add("--arch", choices=ARCHITECTURES, metavar="A", help=f"shape ({Settings.arch})")
    add("--tokens", help=f"fairseq's --max-tokens ({Settings.tokens})", **number)
    add("--length", type=length_range, metavar="LOW:HIGH", help="tokens of a sentence (16:256)")
    add("--vocabulary", help=f"entries ({Settings.vocabulary})", **number)
    add("--device", choices=DEVICES, help="(cuda, where torch sees a GPU)")
    add("--dtype", choices=DTYPES, help="not float32: GPU only (float32)")
    add("--threads", help=f"of torch on the CPU ({Settings.threads})", **number)
    add("--rounds", help=f"turns of each ({Settings.rounds}, or more)", **number)
    add("--batch-sizes", nargs="+", help="translated at once (1 64)", **number)
    add("--beam", help=f"({Settings.beam})", **number)
    add("--steps", help=f"tokens of a translation ({Settings.steps})", **number)
    add("--seed", type=int, metavar="N", help=f"({Settings.seed})")
    add("--checkpoint", metavar="FILE", help="a trained model whose flows are solved as well")
    add("--quick", action="store_true", help="tiny settings: whether it runs, not how fast")
    add("--plot", metavar="FILE", help="a figure as well: png, svg or pdf")


def _run(
    model_options: list[str], quick: bool = False, plot: str | None = None, **given: Any
) -> Any:
    # torch and fairseq take seconds: not for --help.
    import torch

    from fairseq_floater.benchmark.figure import check_plot, plot_benchmark
    from fairseq_floater.benchmark.run import run_benchmark

    chosen: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
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
