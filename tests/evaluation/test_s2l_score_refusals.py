"""Hypotheses, losses and tables that do not fit a short-to-long test set are refused by name."""

import re
import shutil
from dataclasses import replace

import pytest
from scored_split import generated, text

from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.s2l.run_scores import score_split
from fairseq_floater.evaluation.s2l.systems import SystemFiles


def spoilt(folder, tmp_path, change):
    """Return a system whose lines of fairseq-generate went through ``change``."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    path = generated(tmp_path / "spoilt.txt", sources, references)
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    return SystemFiles("x", [path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ls: [x for x in ls if x[2:].split("\t")[0] != "7"], r"lacks 1 \(7\)"),
        (lambda ls: ls + [x for x in ls if x[1:4] == "-7\t"], r"line \d+ repeats sentence 7 of"),
        (
            lambda ls: [x for x in ls if int(x[2:].split("\t")[0]) < 100],
            r"spoilt\.txt` must have 120 sentences, as the test set, but has 100",
        ),
        (
            lambda ls: [re.sub(r"^(S-\d+\t).*", r"\1another text", x) for x in ls],
            r"must translate the test set's sentences, but line 1 has another source",
        ),
        (
            lambda ls: [re.sub(r"^(S-7\t).*", "\\1\u2581th e \u2581x", x) for x in ls],
            r"must be in the test set's tokens, \d+ in sentence 7, but line \d+ has 3",
        ),
        (
            lambda ls: [re.sub(r"^(D-\d+\t-0.5\t)(.*)", "\\1\u2581\\2", x) for x in ls],
            r"must hold whole words",
        ),
    ],
    ids=["missing", "repeated", "too few", "other text", "other tokens", "pieces"],
)
def test_hypotheses_that_do_not_fit_are_refused(folder, tmp_path, change, message):
    with pytest.raises(ScoringError, match=message):
        score_split(folder, [spoilt(folder, tmp_path, change)], bootstrap=0)


@pytest.mark.parametrize("mark", ["\u200c", "\u2019", " ", "&apos; &quot;", " <unk>"], ids=ascii)
def test_marks_that_subwords_change_do_not_make_another_text(folder, systems, tmp_path, mark):
    # sentencepiece turns a joiner into a space, Moses an apostrophe into another, or escapes it.
    files = spoilt(
        folder, tmp_path, lambda ls: [re.sub(r"^([SHD]-\d+\t.+)", rf"\1{mark}", x) for x in ls]
    )
    assert mark in files.hypotheses[0].read_text()
    files.losses.append(files.hypotheses[0])  # it has P lines as well
    report = score_split(folder, [files], bootstrap=0)
    assert all(found["x"].loss is not None for found in report.scores.values())


def test_losses_that_do_not_fit_are_refused(folder, systems, tmp_path):
    bad, _ = systems
    lines = bad.losses[0].read_text().splitlines(keepends=True)
    missing = tmp_path / "missing"
    missing.write_text("".join(x for x in lines if not x.startswith("P-3\t")))
    broken = tmp_path / "broken"
    broken.write_text("".join(re.sub(r"^(P-3\t).*", r"\1none", x) for x in lines))
    cut = tmp_path / "cut"
    cut.write_text("".join(re.sub(r"^(P-3\t\S+) .*", r"\1", x) for x in lines))
    double = tmp_path / "double"
    double.write_text("".join([*lines, *lines]))
    for path, message in (
        (double, r"line \d+ repeats sentence \d+ of line \d+"),
        (bad.hypotheses[0], "must come from fairseq-generate --score-reference, but sentence"),
        (missing, r"P line for each of 120 sentences, but has 119 \(none for 3\)"),
        (broken, r"finite numbers on P lines, but line \d+ has 'none'"),
    ):
        with pytest.raises(ScoringError, match=message):
            score_split(folder, [SystemFiles("x", bad.hypotheses[:1], [path])], bootstrap=0)
    files = SystemFiles("x", bad.hypotheses, [bad.losses[0], cut])
    with pytest.raises(ScoringError, match="losses of x count 1 tokens in sentence 3, those of x"):
        score_split(folder, [files], bootstrap=0)
    with pytest.raises(ScoringError, match="x has 2 files of hypotheses, but 1 of losses"):
        score_split(folder, [SystemFiles("x", bad.hypotheses, bad.losses[:1])], bootstrap=0)


def test_wrong_usage_is_told(folder, systems):
    with pytest.raises(UsageError, match="`--short` names ugly"):
        score_split(folder, systems, short_systems=[SystemFiles("ugly", ["f"])])
    with pytest.raises(UsageError, match="must not be negative"):
        score_split(folder, systems, length_limit=(-1, 3))
    with pytest.raises(UsageError, match="At least one system"):
        score_split(folder, [])
    name = f"x={systems[0].hypotheses[0]}"
    words = ["s2l", "score", str(folder), "--hypotheses", name]
    assert main([*words, "--losses", "y=file"]) == 2
    assert main([*words, "--max-len-a", "2"]) == 2
    with pytest.raises(SystemExit) as exit:
        main(["s2l", "score", str(folder), "--hypotheses", "nameless"])
    assert exit.value.code == 2


def test_a_table_of_origins_of_another_form_or_length_is_refused(folder, systems, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "split")
    lines = (copy / "test.tsv").read_text().split("\n")
    (copy / "test.tsv").write_text("\n".join([*lines[:5], "5\tbin\tnine", *lines[6:]]))
    with pytest.raises(ScoringError, match=r"test\.tsv is not a table of `floater s2l split`"):
        score_split(copy, systems)
    (copy / "test.tsv").write_text("\n".join(lines[:50]) + "\n")
    with pytest.raises(
        ScoringError, match=r"test\.en has 120 lines, but test\.tsv beside it has 49"
    ):
        score_split(copy, systems)


def test_losses_in_another_order_of_seeds_are_refused(folder, systems):
    for files in (systems[0].hypotheses, systems[0].losses):
        for seed, path in enumerate(files, 1):
            place = path.parent / f"seed-{seed}"
            place.mkdir(exist_ok=True)
            files[seed - 1] = path.rename(place / path.name)
    score_split(folder, systems, bootstrap=0)
    systems[0].losses.reverse()
    with pytest.raises(
        ScoringError, match="of the seeds 1, 2, but losses of 2, 1; name them in one"
    ):
        score_split(folder, systems, bootstrap=0)


def test_a_warm_start_is_no_baseline(folder, systems):
    before = replace(systems[0], name="good-before")
    with pytest.raises(
        UsageError, match="`--baseline` must be a trained model, but good-before is"
    ):
        score_split(folder, [*systems, before], baseline="good-before", bootstrap=0)
