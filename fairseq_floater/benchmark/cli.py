"""Add the verb benchmark."""

from __future__ import annotations

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
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="what to measure (all)")
    parser.add_argument(
        "--arch", choices=ARCHITECTURES, metavar="A", help=f"shape ({Settings.arch})"
    )
    parser.add_argument(
        "--tokens", type=positive, metavar="N", help=f"fairseq's --max-tokens ({Settings.tokens})"
    )
    parser.add_argument(
        "--length", type=length_range, metavar="LOW:HIGH", help="tokens of a sentence (16:256)"
    )
    parser.add_argument(
        "--vocabulary", type=positive, metavar="N", help=f"entries ({Settings.vocabulary})"
    )
    parser.add_argument("--device", choices=DEVICES, help="(cuda, where torch sees a GPU)")
    parser.add_argument("--dtype", choices=DTYPES, help="not float32: GPU only (float32)")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help=f"of torch on the CPU ({Settings.threads})"
    )
    parser.add_argument(
        "--rounds", type=positive, metavar="N", help=f"turns of each ({Settings.rounds}, or more)"
    )
    parser.add_argument(
        "--batch-sizes", type=positive, nargs="+", metavar="N", help="translated at once (1 64)"
    )
    parser.add_argument("--beam", type=positive, metavar="N", help=f"({Settings.beam})")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help=f"tokens of a translation ({Settings.steps})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help=f"({Settings.seed})")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="a trained model whose flows are solved as well"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny settings: whether it runs, not how fast"
    )
    parser.add_argument("--plot", metavar="FILE", help="a figure as well: png, svg or pdf")


def _run(quick: bool, plot: str | None, model_options: list[str], **given: Any) -> Any:
    # torch and fairseq take seconds: not for --help.
    import torch

    from fairseq_floater.benchmark.figure import check_plot, plot_benchmark
    from fairseq_floater.benchmark.run import run_benchmark

    chosen: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    chosen |= QUICK if quick else {}
    for name, value in given.items():
        if value is not None:
            chosen[name] = tuple(value) if isinstance(value, list) else value
    # argparse leaves the `--` in front of the options that it does not know.
    chosen["model_options"] = tuple(word for word in model_options if word != "--")
    settings = Settings(**chosen)
    if plot is not None:
        check_plot(settings, plot)
    result = run_benchmark(settings)
    if plot is not None:
        plot_benchmark(result, plot)
    return result
