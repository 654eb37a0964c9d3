"""Figures. Colours are Okabe and Ito's, told apart by colour-blind eyes and in grey print."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from fairseq_floater.checkpoints import write_whole
from fairseq_floater.report import Results, confidence_interval

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")


def plot_scores(results: Results, path: str | os.PathLike[str]) -> None:
    """BLEU of every run on every test set as grouped bars with bootstrap intervals.

    Writes the format of ``path``'s ending (png, svg, pdf).
    """
    # fairseq lowers the root logger's level, and matplotlib's search for fonts is long-winded.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs, tests = results.rows, results.tests
    width = 0.8 / len(runs)
    figure, axes = pyplot.subplots(figsize=(max(7.0, 1.0 * len(runs) * len(tests)), 4.8))
    for i, row in enumerate(runs):
        for j, test in enumerate(tests):
            score = row.scores.get(test)
            if score is None:
                continue
            x = j + (i - (len(runs) - 1) / 2) * width
            bleu: float = score["bleu"]["score"]
            axes.bar(
                x,
                bleu,
                width * 0.9,
                color=_COLOURS[i % len(_COLOURS)],
                hatch=_HATCHES[i % len(_HATCHES)],
                edgecolor="white",
                label=row.name if j == 0 else None,
                yerr=_error_bar(score["bleu"]),
                error_kw={"elinewidth": 1.0, "capsize": 2.5, "ecolor": "#333333"},
            )
    axes.set_xticks(range(len(tests)), tests)
    axes.set_ylabel("BLEU (95 % bootstrap interval)")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.grid(True, linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)
    # Below the axes: any place inside would cover a bar in some experiment.
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    figure.set_layout_engine("constrained")
    suffix = Path(path).suffix.lstrip(".") or "png"
    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=160, format=suffix))
    pyplot.close(figure)


def _error_bar(bleu: dict[str, Any]) -> list[list[float]] | None:
    interval = confidence_interval(bleu)
    if interval is None:
        return None
    score = bleu["score"]
    return [[max(score - interval[0], 0.0)], [max(interval[1] - score, 0.0)]]
