"""Numbers of another metric, one a sentence: means, intervals and p-values like those of BLEU."""

import json
import re

import numpy as np
import pytest
import scipy.stats
from scored_split import text

from fairseq_floater.cli import main

RESAMPLES = 2000


@pytest.fixture
def numbers(folder, write):
    """A file of numbers for each of two systems of two seeds, in no order by quality."""
    size, generator = len(text(folder, "test")), np.random.default_rng(11)
    difficulty = generator.normal(size=size)
    values, files = {}, {}
    for name, mean in (("bad", 0.70), ("good", 0.705)):
        values[name] = mean + 0.05 * difficulty + 0.02 * generator.normal(size=(2, size))
        values[name] += np.outer([1, -1], 0.2 * generator.normal(size=size))  # cancels in the mean
        files[name] = [
            write(f"{name}{seed}.comet", "".join(f"{x:.6f}\n" for x in of_seed))
            for seed, of_seed in enumerate(values[name])
        ]
    return values, files


def argv_of(folder, systems, scores):
    argv = ["s2l", "score", folder, "--baseline", "bad", "--bootstrap", RESAMPLES]
    for files in systems:
        for path in files.hypotheses:
            argv += ["--hypotheses", f"{files.name}={path}"]
    for name, paths in scores.items():
        for path in paths:
            argv += ["--scores", f"{name}={path}"]
    return [str(word) for word in argv]


def test_bins_have_means_intervals_and_p_values(folder, systems, numbers, tmp_path, capsys):
    values, files = numbers
    target = tmp_path / "scores.json"
    assert main([*argv_of(folder, systems, files), "--json", str(target)]) == 0
    table = capsys.readouterr().out
    bins = [row.split("\t")[1] for row in (folder / "test.tsv").read_text().split("\n")[1:-1]]
    for name, group in json.loads(target.read_text())["bins"].items():
        members = np.array([name in (bin, "all") for bin in bins])
        seed_means = {system: values[system][:, members].mean(axis=1) for system in values}
        scores = {system: group["systems"][system]["score"] for system in values}
        for system, score in scores.items():
            assert score["per_seed"] == pytest.approx(seed_means[system], abs=1e-6)
            of_sentences = values[system][:, members].mean(axis=0)
            half = 1.96 * of_sentences.std() / members.sum() ** 0.5
            assert score["high"] - score["low"] == pytest.approx(2 * half, rel=0.15)
        gain = group["systems"]["good"]["score_against_baseline"]
        means = {system: values[system][:, members].mean(axis=0) for system in values}
        expected = scipy.stats.ttest_rel(means["good"], means["bad"]).pvalue
        assert gain["p_value"] == pytest.approx(expected, abs=0.05)
        assert re.search(rf"\| good .* \| {scores['good']['value']:.3f} ±", table)
    assert "score: the mean of the numbers of `--scores`." in table


def test_one_file_has_a_mean_and_its_lines_are_those_that_were_scored(
    folder, systems, numbers, tmp_path, capsys
):
    values, files = numbers
    references = tmp_path / "references"
    references.write_text("".join(f"{line}\n" for line in text(folder, "test")))
    lines, target = tmp_path / "lines.txt", tmp_path / "score.json"
    argv = ["score", systems[0].hypotheses[0], "--references", references, "--target-lang", "en"]
    argv += ["--scores", files["bad"][0], "--lines", lines, "--json", target]
    assert main([str(word) for word in argv]) == 0
    score = json.loads(target.read_text())["scores"]
    assert score["name"] == "bad0.comet"
    assert score["score"] == pytest.approx(values["bad"][0].mean(), abs=1e-6)
    half = 1.96 * values["bad"][0].std() / len(values["bad"][0]) ** 0.5
    assert score["half_width"] == pytest.approx(half, rel=0.15)
    assert re.search(rf"^bad0.comet +{score['score']:.4f} ", capsys.readouterr().out, re.MULTILINE)
    # The lines are in the references' order: scored as plain text they have the same BLEU.
    again = tmp_path / "again.json"
    argv = ["score", lines, "--references", references, "--target-lang", "en", "--json", again]
    assert main([str(word) for word in argv]) == 0
    bleu = [json.loads(path.read_text())["bleu"] for path in (target, again)]
    assert bleu[0] == bleu[1] and 0 < bleu[0]["score"] < 99


@pytest.mark.parametrize(
    "content, fault",
    [
        ("0.5\n", "must have one number for each of 120 sentences, but has 1 lines instead."),
        ("0.5\n" * 119 + "nan\n", "on each line, but line 120 has 'nan' instead."),
        ("Segment 0 0.5\n" * 120, "on each line, but line 1 has 'Segment 0 0.5' instead."),
    ],
)
def test_a_file_that_is_not_one_number_a_sentence_is_refused(
    folder, systems, write, capsys, content, fault
):
    path = write("comet", content)
    assert main(argv_of(folder, systems, {"bad": [path, path]})) == 2
    assert main(argv_of(folder, systems, {"bad": [path]})) == 1
    err = capsys.readouterr().err
    assert "is given twice" in err and "bad has 2 files of hypotheses, but 1 of scores" in err
    other = write("comet2", content)
    assert main(argv_of(folder, systems, {"bad": [path, other]})) == 1
    assert fault in capsys.readouterr().err
    assert main(argv_of(folder, systems, {"other": [path]})) == 2
    assert "names a system without hypotheses" in capsys.readouterr().err
