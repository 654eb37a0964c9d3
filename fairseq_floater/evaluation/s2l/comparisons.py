"""Compare the systems of a group with its baseline, and rank them: what is chance, what is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairseq_floater.evaluation.s2l.report import BinScore, Comparison, Measure, Rank
from fairseq_floater.evaluation.s2l.statistics import difference_noise, holm, p_value, places


def compare(scores: Mapping[str, BinScore], baseline: str, seed: int) -> None:
    """Set the gains of a bin's systems on its baseline, p-values corrected for their number.

    Args:
        scores: by system.
        baseline: one of them.
        seed: of the draws that stand for training seeds.
    """
    # The baseline is compared with itself for the record, which is no comparison.
    others = [name for name in scores if name != baseline]
    for attribute in ("bleu", "loss"):
        base = getattr(scores[baseline], attribute)
        measures = {name: getattr(found, attribute) for name, found in scores.items()}
        found = {
            name: _comparison(measure, base, seed)
            for name, measure in measures.items()
            if measure is not None and base is not None
        }
        for kind in ("p_value", "p_seeds"):
            p_values = {
                n: p for n in others if (p := getattr(found.get(n), kind, None)) is not None
            }
            for name, corrected in zip(p_values, holm(list(p_values.values()), len(others))):
                found[name] = replace(found[name], **{f"{kind}_holm": corrected})
        for name, comparison in found.items():
            setattr(scores[name], f"{attribute}_gain", comparison)


def _comparison(ours: Measure, base: Measure, seed: int) -> Comparison:
    difference = ours.value - base.value
    if not base.resampled.size:
        return Comparison(difference, None)
    of_sentences = ours.resampled.mean(axis=0) - base.resampled.mean(axis=0)
    with_seeds = difference_noise(ours.resampled, base.resampled, seed)
    return Comparison(
        difference,
        p_value(difference, of_sentences - of_sentences.mean()),
        p_seeds=None if with_seeds is None else p_value(difference, with_seeds),
    )


def rank(scores: Mapping[str, BinScore]) -> None:
    """Rank the systems of a bin by loss, with the places that sentences leave under any common seed."""
    losses = {name: found.loss for name, found in scores.items() if found.loss is not None}
    if not losses or not next(iter(losses.values())).resampled.size:
        return
    values = [measure.value for measure in losses.values()]
    left = [
        places(*zip(*((m.per_seed[run], m.resampled[run]) for m in losses.values())))
        for run in range(min(len(measure.per_seed) for measure in losses.values()))
    ]
    for name, value, of_seeds in zip(losses, values, zip(*left)):
        place = 1 + sum(other < value for other in values)
        best, worst = zip(*of_seeds)
        scores[name].rank = Rank(place, min(place, *best), max(place, *worst))
