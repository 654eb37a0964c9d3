"""Scores of whole test sets: sacreBLEU's own, paired over the same sentences, misfits refused by name."""

import json
import re
import shutil

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from scored_split import damaged, generated, sentence

from fairseq_floater.cli import main
from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.s2l.bin_scores import Rank
from fairseq_floater.evaluation.s2l.run_scores import score_runs
from fairseq_floater.evaluation.s2l.systems import known_seeds

SIZES = {"test": 120, "other": 40}


@pytest.fixture
def data(tmp_path):
    """What prepare_text.sh leaves of two test sets; a word is two pieces."""
    folder, generator = tmp_path / "data", np.random.default_rng(7)
    (folder / "raw").mkdir(parents=True)
    (folder / "spm").mkdir()
    for test, size in SIZES.items():
        for lang in ("en", "de"):
            lines = [sentence(generator, n) for n in generator.integers(4, 20, size)]
            pieces = (" ".join(f"\u2581{w[0]} {w[1:]}" for w in line.split()) for line in lines)
            (folder / "raw" / f"{test}.{lang}").write_text("".join(f"{line}\n" for line in lines))
            (folder / "spm" / f"{test}.{lang}").write_text("".join(f"{line}\n" for line in pieces))
    made = {"parameters": {"src": "en", "tgt": "de", "bpe": "sentencepiece", "max_len": 0}}
    dropped = {"empty": 0, "too_long": 9, "ratio": 300}
    made["splits"] = {"train": {"lines": 1500, "dropped": dropped}}
    (folder / "summary.json").write_text(json.dumps(made))
    (folder / "tests.json").write_text('{"test": "test", "other": "test1"}')
    return folder


def lines_of(data, test, lang):
    return (data / "raw" / f"{test}.{lang}").read_text().splitlines()


@pytest.fixture
def runs(data, tmp_path):
    """Two systems of two seeds each; `good` is clearly better than `bad`."""
    found = {}
    for name, share, loss in (("bad", 0.5, -2.0), ("good", 0.1, -1.0)):
        for seed in (1, 2):
            folder = tmp_path / f"seed-{seed}" / name
            folder.mkdir(parents=True)
            found.setdefault(name, []).append(folder)
            for test in SIZES:
                sources, references = (lines_of(data, test, lang) for lang in ("en", "de"))
                hypotheses = damaged(references, seed, share)
                generated(folder / f"generate.{test}.txt", sources, hypotheses)
                generated(folder / f"losses.{test}.txt", sources, references, loss * seed)
    return found


def test_a_test_set_has_sacrebleus_own_scores_and_means_over_seeds(data, runs):
    report = score_runs(data, runs, bootstrap=0)
    assert list(report.scores) == ["test", "other"] and report.sentences == SIZES
    for test in SIZES:
        references = lines_of(data, test, "de")
        hypotheses = [damaged(references, seed, 0.1) for seed in (1, 2)]
        expected = [BLEU().corpus_score(h, [references]).score for h in hypotheses]
        found = report.scores[test]["good"]
        assert found.bleu.per_seed == expected
        assert found.bleu.value == pytest.approx(np.mean(expected), abs=1e-12)
        chrf = [CHRF().corpus_score(h, [references]).score for h in hypotheses]
        assert found.chrf == pytest.approx(np.mean(chrf), abs=1e-12)
        # Each token has 1 bit under seed 1, 2 bits under seed 2.
        assert found.loss.per_seed == pytest.approx([1, 2])
        words = [len(line.split()) for line in lines_of(data, test, "en")]
        assert report.mean_length[test] == pytest.approx(2 * np.mean(words))
    assert report.main_group == "test" and "other holds only 40 sentences" in report.warnings[2]
    left_out = "300 of 1,500 training pairs were left out: over max-ratio."
    assert report.warnings[1] == left_out and "9 of 1,500" in report.warnings[0]


def test_a_further_translation_stands_beside_the_system(data, runs):
    """As scripts/compare.sh --told-length leaves it in the folders of the system."""
    for folder in runs["good"]:
        references = lines_of(data, "test", "de")
        generated(
            folder / "generate.test.told_length.txt", lines_of(data, "test", "en"), references
        )
    found = score_runs(
        data, {**runs, "good.told_length": runs["good"]}, tests=["test"], bootstrap=0
    ).scores["test"]
    assert found["good.told_length"].bleu.value == pytest.approx(100)
    assert found["good"].bleu.value < 99
    assert found["good"].loss and found["good.told_length"].loss is None


def test_documents_are_scored_by_their_sentences(data, runs):
    """The separator does not count as a word: tables agree with each run's own scores."""
    sentences, separator = {lang: lines_of(data, "test", lang) for lang in ("en", "de")}, " <s2> "

    def documents(lines):
        return [separator.join(lines[i : i + 3]) for i in range(0, len(lines), 3)]

    summary = json.loads((data / "summary.json").read_text())
    summary["parameters"]["separator"] = "<s2>"
    (data / "summary.json").write_text(json.dumps(summary))
    for lang, lines in sentences.items():
        text = "".join(f"{line}\n" for line in documents(lines))
        (data / "raw" / f"test.{lang}").write_text(text)
        (data / "spm" / f"test.{lang}").write_text(text)
    hypotheses = damaged(sentences["de"], 1, 0.5)
    generated(
        runs["bad"][0] / "generate.test.txt", documents(sentences["en"]), documents(hypotheses)
    )
    (runs["bad"][0] / "losses.test.txt").unlink()
    few = {"bad": runs["bad"][:1]}
    ours = range(len(hypotheses))  # of another metric, one number a sentence
    (runs["bad"][0] / "comet.test.txt").write_text("".join(f"{number}\n" for number in ours))
    score = score_runs(
        data, few, tests=["test"], bootstrap=0, exact_match=True, scores="comet"
    ).scores["test"]["bad"]
    assert score.score.value == np.mean(ours)
    assert score.bleu.value == BLEU().corpus_score(hypotheses, [sentences["de"]]).score
    assert score.exact.value == np.mean([a == b for a, b in zip(hypotheses, sentences["de"])])


def test_the_seed_of_a_file_is_its_folders_or_its_records(tmp_path):
    files = [tmp_path / f"rope-{seed}" / "generate.test.txt" for seed in (3, 1)]
    for file, seed in zip(files, "31"):
        file.parent.mkdir()
        (file.parent / "run.json").write_text(json.dumps({"settings": {"seed": seed}}))
    assert known_seeds(files) == ["3", "1"]
    assert known_seeds([f"seed-study/seed-{seed}/x" for seed in (2, 1)]) == ["2", "1"]
    assert known_seeds([*files, tmp_path / "x"]) is known_seeds(files[:1] * 2) is None


def test_systems_are_compared_with_the_baseline_on_each_test_set(data, runs, tmp_path, capsys):
    words = [f"--run={name}={folder}" for name, folders in runs.items() for folder in folders]
    places = [str(tmp_path / name) for name in ("compare.json", "compare.png")]
    words += ["--tests", "other", "test", "--baseline", "bad", "--label", "good=Good one"]
    words += ["--label", "bad=$\\q$"]  # no formula of matplotlib
    assert main(["compare", str(data), *words, "--json", places[0], "--figure", places[1]]) == 0
    printed = capsys.readouterr().out
    assert "other: 40 sentences" in printed and "| Good one" in printed
    found = json.loads((tmp_path / "compare.json").read_text())
    assert list(found["bins"]) == ["other", "test"]
    for of_test in found["bins"].values():
        gain = of_test["systems"]["good"]["loss_against_baseline"]
        assert gain["difference"] == pytest.approx(-1.5) and gain["p_value"] < 0.01
        assert of_test["systems"]["good"]["rank_by_loss"]["place"] == 1
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_runs_are_compared_seed_by_seed(data, runs):
    """Runs are paired by seed in any order; good is half a bit better per seed, seeds differ by two."""
    sides, generator = (
        [lines_of(data, "test", lang) for lang in ("en", "de")],
        np.random.default_rng(1),
    )
    for name, folders in runs.items():
        folders.append(folders[1].parents[1] / "seed-3" / name)
        shutil.copytree(folders[1], folders[2])
        for number, folder in enumerate(folders):
            mean = -1 - 2 * number + 0.5 * (name == "good")
            text = generated(folder / "losses.test.txt", *sides).read_text()
            noisy = re.sub(r"-1\.0000", lambda _: f"{mean + generator.normal(0, 0.1):.4f}", text)  # noqa: B023
            (folder / "losses.test.txt").write_text(noisy)

    def scored(bad, good):
        chosen = {"bad": [runs["bad"][i] for i in bad], "good": [runs["good"][i] for i in good]}
        report = score_runs(data, chosen, tests=["test"], baseline="bad", bootstrap=300)
        return report.scores["test"], any("different seeds" in w for w in report.warnings)

    (in_order, warned), (shuffled, warned_too) = (
        scored((0, 1, 2), (0, 1, 2)),
        scored((0, 1, 2), (2, 0, 1)),
    )
    assert in_order["good"].loss.gain.p_seeds < 0.02 and not (warned or warned_too)
    assert shuffled["good"].loss.gain.p_seeds == in_order["good"].loss.gain.p_seeds
    # Under their one common seed good is first; bad is first on average, by a seed that good lacks.
    others, warned = scored((0, 1), (1,))
    assert warned and [others[name].rank for name in ("bad", "good")] == [
        Rank(1, 1, 2),
        Rank(2, 1, 2),
    ]
    # Runs of unknown seeds are independent, so their order does not matter.
    for name, folders in runs.items():
        runs[name] = [f.rename(f.parents[1] / f"{name}-{i}") for i, f in enumerate(folders)]
    first, other = (scored((0, 1, 2), good)[0]["good"] for good in ((0, 1, 2), (2, 0, 1)))
    assert first.loss.gain.p_seeds > 0.2
    assert first.loss.gain.p_seeds == pytest.approx(other.loss.gain.p_seeds, abs=0.02)


def test_one_folder_is_one_seed_and_a_label_is_of_a_system(data, runs, capsys):
    folder = runs["good"][0]
    twice = [f"--run=good={folder}", f"--run=good={folder.parent}/./good"]
    assert main(["compare", str(data), *twice]) == 2
    assert "is given twice, but must differ for each seed" in capsys.readouterr().err
    assert main(["compare", str(data), twice[0], "--label", "god=Good"]) == 2
    assert "`--label` must name one of good, but names 'god'" in capsys.readouterr().err


def test_sentences_longer_than_any_trained_on_are_a_group_of_their_own(data, runs):
    made = json.loads((data / "summary.json").read_text())
    made["parameters"]["max_len"] = 30
    (data / "summary.json").write_text(json.dumps(made))
    report = score_runs(data, runs, tests=["test"], bootstrap=0)
    assert list(report.scores) == ["test", "test, up to 30", "test, longer than 30"]
    # Two pieces a word; a side of more than 15 words is left out of training.
    sides = [lines_of(data, "test", lang) for lang in ("en", "de")]
    short = [i for i in range(120) if all(len(side[i].split()) <= 15 for side in sides)]
    assert 0 < len(short) == report.sentences["test, up to 30"]
    assert report.sentences["test, longer than 30"] == 120 - len(short)
    references = [sides[1][i] for i in short]
    hypotheses = damaged(sides[1], 1, 0.1)
    expected = BLEU().corpus_score([hypotheses[i] for i in short], [references]).score
    assert report.scores["test, up to 30"]["good"].bleu.per_seed[0] == expected


def test_groups_that_the_data_name_are_scored_as_well(data, runs):
    names = ["9" if i % 3 else "10-12" for i in range(120)]
    (data / "raw" / "test.groups").write_text("".join(f"{name}\n" for name in names))
    report = score_runs(data, runs, bootstrap=0)
    assert list(report.scores) == ["test", "test, 9", "test, 10-12", "other"]
    references = lines_of(data, "test", "de")
    members = [i for i, name in enumerate(names) if name == "9"]
    hypotheses = damaged(references, 1, 0.1)
    lists = [hypotheses[i] for i in members], [[references[i] for i in members]]
    found = report.scores["test, 9"]["good"].bleu.per_seed[0]
    assert found == BLEU().corpus_score(*lists).score and report.sentences["test, 9"] == 80


def test_groups_are_in_the_order_of_their_names_then_of_their_numbers(data, runs):
    names = ["walk 1", "jump 10", "jump 9"]
    (data / "raw" / "test.groups").write_text("".join(f"{names[i % 3]}\n" for i in range(120)))
    found = list(score_runs(data, runs, tests=["test"], bootstrap=0).scores)
    assert found == ["test", "test, jump 9", "test, jump 10", "test, walk 1"]


def test_whole_words_are_scored_by_exact_match_unasked(data, runs):
    assert score_runs(data, runs, bootstrap=0).kinds == ["bleu", "loss"]
    made = json.loads((data / "summary.json").read_text())
    made["parameters"]["bpe"] = "none"
    (data / "summary.json").write_text(json.dumps(made))
    shutil.copytree(data / "raw", data / "words")
    assert score_runs(data, runs, bootstrap=0).kinds == ["bleu", "exact", "loss"]


def test_a_loss_that_one_seed_lacks_is_left_out(data, runs):
    (runs["good"][1] / "losses.test.txt").unlink()
    report = score_runs(data, runs, tests=["test"], bootstrap=0)
    assert report.scores["test"]["good"].loss is None
    assert report.scores["test"]["bad"].loss is not None


def test_what_does_not_fit_is_refused(data, runs, tmp_path):
    with pytest.raises(UsageError, match="must be some of test, other, but names 'tset'"):
        score_runs(data, runs, tests=["tset"])
    with pytest.raises(UsageError, match="At least one system"):
        score_runs(data, {})
    with pytest.raises(ScoringError, match=r"prepare_text.sh`: summary\.json is missing"):
        score_runs(tmp_path, runs)
    whole = (data / "summary.json").read_text()
    (data / "summary.json").write_text("{}")
    with pytest.raises(ReportError, match=r"summary\.json: the content, `parameters` must be"):
        score_runs(data, runs)
    (data / "summary.json").write_text(whole)
    (data / "spm" / "other.en").write_text("\u2581a\n")
    with pytest.raises(
        ScoringError, match="raw/other must have as many lines .* has 40, 40, 1, 40"
    ):
        score_runs(data, runs)
    (runs["bad"][0] / "generate.test.txt").write_text("only one\n")
    with pytest.raises(ScoringError, match="must have 120 sentences, as the test set, but has 1"):
        score_runs(data, runs)


def test_the_numbers_of_another_metric_lie_beside_the_translations(data, runs, capsys):
    for name, folders in runs.items():
        for folder in folders:
            for test, size in SIZES.items():
                (folder / f"comet.{test}.txt").write_text(f"{len(name)}\n" * size)
    scores = score_runs(data, runs, scores="comet", bootstrap=0).scores
    assert [scores[test][name].score.value for test in SIZES for name in runs] == [3, 4, 3, 4]
    (runs["bad"][1] / "comet.other.txt").unlink()
    with pytest.raises(ScoringError, match="There is no file .*other.txt"):
        score_runs(data, runs, scores="comet", bootstrap=0)
