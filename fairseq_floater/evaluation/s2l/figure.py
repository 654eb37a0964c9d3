"""Draw the scores of a short-to-long evaluation as bars, bin by bin."""

from __future__ import annotations

import os

from fairseq_floater.evaluation.s2l.score_report import Measure, S2LScores
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure


def plot_s2l(scores: S2LScores, path: str | os.PathLike[str]) -> None:
    """Draw BLEU, and below it the teacher-forced loss where there is one, by bin of source length.

    Bars are means over seeds with the bootstrap interval of the mean, dots are seeds. The ending of
    ``path``, one of :data:`FORMATS`, chooses the format.
    """
    panels = {"BLEU": "bleu", "loss, bits a token": "loss"}
    if not any(f.loss for found in scores.scores.values() for f in found.values()):
        del panels["loss, bits a token"]
    groups = {name: f"{name}\n{scores.sentences[name]:,} sentences" for name in scores.bins}
    with new_figure(path, len(panels), len(scores.systems) * len(groups)) as (figure, panel_axes):
        for axes, (title, attribute) in zip(panel_axes, panels.items()):
            bars = {
                (groups[name], scores.labels[system]): _bar_of(getattr(found, attribute))
                for name, by_system in scores.scores.items()
                for system, found in by_system.items()
                if getattr(found, attribute) is not None
            }
            grouped_bars(axes, list(groups.values()), list(scores.labels.values()), bars)
            axes.set_ylabel(title)
        panel_axes[-1].set_xlabel(f"{scores.length}\n{scores.signature}", fontsize=8)
        legend(figure, panel_axes[0])


def _bar_of(measure: Measure) -> Bar:
    interval = None
    if measure.low is not None and measure.high is not None:
        interval = (measure.low, measure.high)
    return Bar(measure.value, interval, measure.per_seed)
