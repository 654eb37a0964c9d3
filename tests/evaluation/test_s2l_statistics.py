"""p-values, corrections and ranks of short to long: against closed forms and simulations."""

import numpy as np
import pytest
import sacrebleu.significance
from scipy.stats import ttest_ind, ttest_rel

from fairseq_floater.evaluation.s2l.statistics import (
    bootstrap_scores,
    difference_noise,
    holm,
    p_value,
    rank_ranges,
)


def test_paired_p_values_follow_their_definition():
    resampled = np.array([0.0, 1.0, 2.0, 3.0])  # around their mean: 1.5, 0.5, 0.5, 1.5
    noise = resampled - resampled.mean()
    assert p_value(1.0, noise) == (2 + 1) / 5
    assert p_value(-1.5, noise) == (2 + 1) / 5
    assert p_value(2.0, noise) == 1 / 5
    assert p_value(0.0, np.zeros(9)) == 1


def test_paired_p_values_are_two_to_three_times_sacrebleus():
    for difference in (0.1, 0.5, 1.0, 2.0):
        resampled = np.random.default_rng(3).normal(difference, 1, 20_000)
        stats = np.abs(resampled) - np.abs(resampled).mean()  # sacreBLEU's paired bootstrap
        theirs = sacrebleu.significance._compute_p_value(stats, difference)
        assert 1.9 < p_value(difference, resampled - resampled.mean()) / theirs < 3


def test_the_bootstrap_resamples_sentences():
    """The spread of a mean is known: standard deviation / sqrt(N)."""
    values = np.random.default_rng(1).normal(10, 3, (400, 1))

    def resampled(*runs):
        per_run = bootstrap_scores(runs, lambda sums: float(sums[0]) / 400, 2000, seed=5)
        return per_run.mean(axis=0)

    means = resampled(values)
    assert abs(means.mean() - values.mean()) < 0.02
    assert means.std() == pytest.approx(values.std() / 20, rel=0.06)
    low, high = np.percentile(means, [2.5, 97.5])
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.08)
    assert np.array_equal(means, resampled(values))
    assert resampled(values, 3 * values) == pytest.approx(2 * means)


def test_holm_multiplies_the_smallest_p_most_and_keeps_their_order():
    assert holm([], 0) == []
    assert holm([0.04], 1) == [0.04]
    assert holm([0.01, 0.04, 0.03, 0.005], 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6, 0.5], 3) == [1, 1, 1]
    # One of three is not known: it may have been the largest.
    assert holm([0.01, 0.04], 3) == pytest.approx([0.03, 0.08])


@pytest.mark.parametrize(
    ("ours", "base"),
    [([1, 2, 6], [0, 0, 0]), ([1, 2], [0, -3]), ([1, 2, 6], [0, -3]), ([4, 5], [0, 1, 0, -2, 1])],
)
def test_p_over_seeds_is_that_of_a_t_test_where_sentences_add_nothing(ours, base):
    """Three pairs make a paired t test; two pairs, or unequally many runs, Welch's."""
    is_paired = len(ours) == len(base) == 3
    expected = ttest_rel(ours, base) if is_paired else ttest_ind(ours, base, equal_var=False)
    rows = (np.tile(np.array(runs, float)[:, None], 40_000) for runs in (ours, base))
    noise = difference_noise(*rows, seed=1)
    assert p_value(np.mean(ours) - np.mean(base), noise) == pytest.approx(expected.pvalue, abs=0.01)
    assert difference_noise(np.ones((1, 9)), np.ones((3, 9)), seed=1) is None


@pytest.mark.parametrize("of_sentences", [0.01, 0.2, 1])
@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (3, 2), (5, 2)])
def test_chance_calls_at_most_a_twentieth_of_equal_systems_different(runs, of_sentences):
    """At most about 5 % of 400 equal systems get a p below 5 %, and 1 % below 1 %."""
    generator, found = np.random.default_rng(6), []
    for number in range(400):
        shift = generator.normal(0, of_sentences)  # from the sentences drawn: common to all runs
        ours, base = (generator.normal(0, 1, (count, 1)) + np.zeros((1, 1000)) for count in runs)
        ours = ours + shift + generator.normal(0, of_sentences, 1000)
        noise = difference_noise(ours, base, seed=number)
        found.append(p_value(ours.mean() - base.mean(), noise))
    shares = [np.mean(np.array(found) < level) for level in (0.05, 0.01, 0.0025)]
    # Two seeds and as much noise of sentences are on the safe side.
    assert 0.005 < shares[0] < 0.075 and shares[1] < 0.02 and shares[2] < 0.01


def test_places_are_those_that_chance_leaves():
    generator = np.random.default_rng(2)
    values = [3.0, 1.0, 1.1, 9.0]  # standard errors 0.2: the second and third are not told apart
    resampled = [value + generator.normal(0, 0.2, 1000) for value in values]
    assert rank_ranges(values, resampled) == [(3, 3), (1, 2), (1, 2), (4, 4)]
    assert rank_ranges([1.0, 1.0], [resampled[1]] * 2) == [(1, 2), (1, 2)]
    assert rank_ranges([5.0], resampled[:1]) == [(1, 1)]


def test_two_systems_are_told_apart_from_a_chance_of_five_percent_on():
    noise = np.random.default_rng(2).normal(0, 1, (2, 20_000))
    error = (noise[0] - noise[1]).std()
    for distance, apart in ((1.85, False), (2.07, True)):
        ranges = rank_ranges([0.0, distance * error], list(noise))
        assert (ranges == [(1, 1), (2, 2)]) == apart


def test_systems_that_do_not_differ_are_rarely_told_apart():
    """Of 100 bins with ten equal systems, about five tell any pair apart; uncorrected, nearly all would."""
    generator, wrong = np.random.default_rng(4), 0
    for _ in range(100):
        values = generator.normal(0, 1, 10)
        resampled = values[:, None] + generator.normal(0, 1, (10, 300))
        wrong += any(found != (1, 10) for found in rank_ranges(values, list(resampled)))
    assert wrong <= 12
