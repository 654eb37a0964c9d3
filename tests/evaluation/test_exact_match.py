"""Exact match: asked for, counted word for word, with intervals and p-values; no column where it is not."""

import json
import re

import numpy as np
import pytest
import scipy.stats
from scored_split import generated, text

from fairseq_floater.cli import main
from fairseq_floater.evaluation.metrics import exact_matches
from fairseq_floater.results.page.measures import EXACT, measure_table
from fairseq_floater.results.page.work import Group, ScoredSystem, Work

SHARES = {"bad": 0.55, "good": 0.85}


@pytest.fixture
def answers(folder, tmp_path):
    """Two systems of two seeds: which references each hits, and its file."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    generator, hits, files = np.random.default_rng(2), {}, {}
    for name, share in SHARES.items():
        hits[name] = generator.random((2, len(references))) < share
        for seed, of_seed in enumerate(hits[name]):
            lines = [r if hit else f"{r} more" for r, hit in zip(references, of_seed)]
            path = generated(tmp_path / f"{name}{seed}", sources, lines)
            files.setdefault(name, []).append(path)
    return hits, files


def test_words_decide_and_spaces_do_not():
    ours = ["a b", "a  b ", "a B", "a", "ab", ""]
    assert exact_matches(ours, ["a b"] * 5 + [""]) == [True, True, False, False, False, True]


def test_bins_have_shares_intervals_and_p_values(folder, answers, tmp_path, capsys):
    hits, files = answers
    target = tmp_path / "scores.json"
    argv = ["s2l", "score", str(folder), "--baseline", "bad", "--json", str(target)]
    argv += ["--bootstrap", "2000", "--figure", str(tmp_path / "bars.png")]
    argv += [f"--hypotheses={name}={path}" for name, paths in files.items() for path in paths]
    assert main(argv) == 0
    assert "exact match" not in capsys.readouterr().out
    assert main([*argv, "--exact-match"]) == 0
    printed = capsys.readouterr().out
    bins = [row.split("\t")[1] for row in (folder / "test.tsv").read_text().split("\n")[1:-1]]
    groups = json.loads(target.read_text())["bins"]
    for name, group in groups.items():
        members = np.array([name in (bin, "all") for bin in bins])
        for system, of_system in hits.items():
            found, seeds = group["systems"][system]["exact_match"], of_system[:, members]
            assert found["per_seed"] == pytest.approx(seeds.mean(axis=1))
            half = 1.96 * seeds.mean(axis=0).std() / members.sum() ** 0.5
            assert found["high"] - found["low"] == pytest.approx(2 * half, rel=0.15)
        gain = group["systems"]["good"]["exact_match_against_baseline"]
        means = [hits[system][:, members].mean(axis=0) for system in ("good", "bad")]
        assert gain["difference"] == pytest.approx(means[0].mean() - means[1].mean())
        assert gain["p_value"] == pytest.approx(scipy.stats.ttest_rel(*means).pvalue, abs=0.03)
    heads = r"\| exact match \| \[8, 12\) \| \[12, 20\) \| \[20, inf\) \| all \|\n\|[-|]+\n\| (\w+)"
    assert re.search(heads, printed)[1] == "good"
    systems = [ScoredSystem(name, name) for name in SHARES]
    for system in systems:
        system.scores = {name: group["systems"][system.name] for name, group in groups.items()}
    work = Work(tmp_path, systems, [Group(name, 9) for name in groups], "bad")
    [(_, first), _] = measure_table(work, EXACT).rows
    assert first[-1].mark == "better" and first[-1].rank == 1
    for system in systems:
        system.scores = {name: {**of, "exact_match": None} for name, of in system.scores.items()}
    assert measure_table(work, EXACT) is None


def test_one_file_has_a_share_where_it_is_asked_for(folder, answers, tmp_path, capsys):
    hits, files = answers
    references, target = tmp_path / "references", tmp_path / "score.json"
    references.write_text("".join(f"{line}\n" for line in text(folder, "test")))
    argv = ["score", str(files["bad"][0]), "--references", str(references), "--target-lang", "en"]
    assert main([*argv, "--json", str(target)]) == 0
    assert "exact match" not in capsys.readouterr().out
    assert json.loads(target.read_text())["exact_match"] is None
    assert main([*argv, "--exact-match", "--json", str(target)]) == 0
    score, hit = json.loads(target.read_text())["exact_match"], hits["bad"][0]
    assert score["score"] == pytest.approx(hit.mean())
    half = 1.96 * hit.std() / len(hit) ** 0.5
    assert score["half_width"] == pytest.approx(half, rel=0.15)
    assert re.search(rf"^exact match +{hit.mean():.4f} ", capsys.readouterr().out, re.MULTILINE)
