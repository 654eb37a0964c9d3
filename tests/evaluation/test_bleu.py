"""Scoring: nothing lost, doubled or shuffled on the way in, and sacreBLEU's own numbers out."""

import json
import os
import re
import subprocess
import sys
import urllib.error
from unittest.mock import Mock

import pytest
import sacrebleu
from scored_text import HYPOTHESES, REFERENCES, generated, refused

from fairseq_floater.cli import main
from fairseq_floater.evaluation import bleu, metrics
from fairseq_floater.evaluation.bleu import score


@pytest.fixture(scope="module")
def report():
    return score(HYPOTHESES, REFERENCES, target_language="de", test_set="toy", bootstrap=100)


def test_scores_are_those_of_sacrebleu(report):
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    assert report.bleu.score == bleu.score
    assert report.chrf.score == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert report.length_ratio == bleu.sys_len / bleu.ref_len
    assert 30 < report.bleu.score < 90


def test_score_signature_and_interval_are_those_of_the_sacrebleu_command(write):
    names = [write("hyp", "\n".join(HYPOTHESES) + "\n"), write("ref", "\n".join(REFERENCES) + "\n")]
    command = [sys.executable, "-m", "sacrebleu", str(names[1]), "-i", str(names[0]), "-w", "6"]
    command += ["-m", "bleu", "chrf", "--confidence", "--confidence-n", "200"]
    output = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "SACREBLEU_SEED": "7"}
    )
    report = bleu.score_files(*names, target_language="de", bootstrap=200, seed=7)
    for theirs, ours in zip(json.loads(output.stdout), (report.bleu, report.chrf)):
        assert theirs["score"] == pytest.approx(ours.score, abs=1e-6)
        assert theirs["signature"] == ours.signature
        assert theirs["confidence_mean"] == ours.mean
        assert theirs["confidence_var"] == ours.half_width


def test_signatures_say_all_that_was_chosen(report):
    version = sacrebleu.__version__
    assert report.bleu.signature == (
        f"nrefs:1|bs:100|seed:12345|test:toy|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )
    assert "nc:6|nw:0" in report.chrf.signature
    for metric, split in ((report.tokenised_bleu, "no"), (report.compound_split_bleu, "yes")):
        assert "|tok:moses-a-de|" in metric.signature and "|sacremoses:" in metric.signature
        assert f"|split:{split}|" in metric.signature
        assert "bs:" not in metric.signature


@pytest.mark.parametrize("code", ["pt_BR", "pt-BR", "pt_Latn-PT"])
def test_a_language_can_have_a_country_or_script(code):
    found = score(["o gato"], ["o gato"], target_language=code, bootstrap=0)
    assert "|tok:moses-a-pt|" in found.tokenised_bleu.signature
    assert found.target_language == code
    assert score(["x"], ["x"], target_language="de_AT", bootstrap=0).compound_split_bleu is not None


def test_tokenize_reaches_the_score_and_the_signature():
    hypotheses, references = ["中国的首都是北京。"], ["中国首都是北京市。"]
    report = score(hypotheses, references, target_language="zh", tokenize="zh", bootstrap=0)
    assert "tok:zh" in report.bleu.signature
    assert report.bleu.score == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert report.bleu.score > 0


@pytest.mark.parametrize(
    ("language", "tokenizer"), [("zh", "zh"), ("zh-Hans", "zh"), ("fr", "13a")]
)
def test_the_tokenizer_is_sacrebleus_choice_for_the_language(language, tokenizer):
    report = score(["中国 A"], ["中国 B"], target_language=language, bootstrap=0)
    assert f"|tok:{tokenizer}|" in report.bleu.signature
    # Moses does not cut Chinese: its BLEU of a right sentence would be 0.
    assert ("BLEU, tokenised" in report.format_text()) == (tokenizer == "13a")


@pytest.mark.parametrize(("language", "told"), [("zho", True), ("ZH", False), ("de", False)])
def test_text_without_spaces_is_told_if_the_tokenizer_divides_at_spaces(
    write, language, told, capsys
):
    text = write("text", "Wasser läuft\n" if language == "de" else "中国首都是北京市吗不是。\n")
    bleu.score_files(text, text, target_language=language, bootstrap=0)
    assert ("references have no spaces" in capsys.readouterr().err) == told


def test_output_of_which_nearly_nothing_is_right_has_an_interval():
    # Resamples without the one hypothesis score 0, which sacreBLEU's mean cannot take beside others.
    references = [f"Zeile {i}" for i in range(100)]
    found = score(["Zeile 0", *[""] * 99], references, target_language="de", bootstrap=100)
    expected = sacrebleu.corpus_chrf(["Zeile 0", *[""] * 99], [references])
    assert found.chrf.score == expected.score > 0
    assert 0 <= found.chrf.mean < 3 and found.chrf.half_width > 0


@pytest.mark.parametrize(("language", "water"), [("de", "l ' eau"), ("fr", "l' eau")])
def test_tokenised_bleu_is_that_of_the_languages_moses_tokens(language, water):
    hypotheses = ["Elle boit, dit-il, de l'eau."]
    references = ["Elle boit, disait-il, de l’eau."]  # the data's ’ becomes ' in test text
    report = score(hypotheses, references, target_language=language, bootstrap=0)
    expected = sacrebleu.corpus_bleu(
        [f"Elle boit , dit @-@ il , de {water} ."],
        [[f"Elle boit , disait @-@ il , de {water} ."]],
        tokenize="none",
        force=True,
    )
    assert report.tokenised_bleu.score == expected.score > 0
    assert f"|tok:moses-a-{language}|" in report.tokenised_bleu.signature


def test_compound_split_takes_hyphens_apart_on_both_sides():
    hypotheses = ["heute kam die US-Regierung mit a-b-c an"]
    references = ["heute kam die EU-Regierung mit a-b-c an"]
    report = score(hypotheses, references, target_language="de", bootstrap=0)
    mark = "@ ##AT##-##AT## @"  # fairseq's recipe makes this of Moses' @-@
    tail = f"{mark} Regierung mit a {mark} b {mark} c an"
    expected = sacrebleu.corpus_bleu(
        [f"heute kam die US {tail}"],
        [[f"heute kam die EU {tail}"]],
        tokenize="none",
        force=True,
    )
    assert report.compound_split_bleu.score == expected.score
    assert report.compound_split_bleu.score > report.tokenised_bleu.score


def test_compound_split_is_for_german_alone(monkeypatch):
    texts = ["un deux trois quatre cinq"]
    options = {"bootstrap": 0}
    assert score(texts, texts, target_language="fr", **options).compound_split_bleu is None
    report = score(texts, texts, target_language="de", compound_split=True, **options)
    assert report.compound_split_bleu is not None
    with monkeypatch.context() as without:
        without.setattr(bleu, "version_of", lambda package: None)
        without.setitem(sys.modules, "sacremoses", None)
        assert score(texts, texts, target_language="de", **options).compound_split_bleu is None
        with pytest.raises(ModuleNotFoundError):
            score(texts, texts, target_language="de", compound_split=True, **options)
    message = r"`target_language` must be de for a compound split, but is 'fr' instead\."
    refused(message, score, texts, texts, target_language="fr", compound_split=True)


def test_bootstrap_is_reproducible_and_depends_on_the_seed_alone(report, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    options = {"target_language": "de", "test_set": "toy", "bootstrap": 100}
    assert score(HYPOTHESES, REFERENCES, **options) == report
    assert os.environ["SACREBLEU_SEED"] == "99"
    other = score(HYPOTHESES, REFERENCES, seed=2, **options)
    assert other.bleu.score == report.bleu.score
    assert other.bleu.mean != report.bleu.mean
    monkeypatch.delenv("SACREBLEU_SEED")
    score(HYPOTHESES, REFERENCES, **options)
    assert "SACREBLEU_SEED" not in os.environ


def test_empty_lines_are_counted_and_without_a_bootstrap_there_is_no_interval():
    references = [*REFERENCES[:4], " ", ""]
    report = score(HYPOTHESES, references, target_language="de", bootstrap=0)
    assert (report.sentences, report.empty_hypotheses, report.empty_references) == (6, 1, 2)
    assert report.bleu.mean is report.bleu.half_width is None
    assert "bs:" not in report.bleu.signature and "±" not in report.format_text()


def test_a_score_of_zero_is_reported():
    report = score(["ja"], ["nein"], target_language="de", bootstrap=40)
    assert (report.bleu.score, report.bleu.mean) == (0, None)
    assert " 0.00" in report.format_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_language": "en de"}, r"`target_language` must be a code .* is 'en de' instead\."),
        ({"tokenize": "14a"}, r"`tokenize` must be one of none, zh, 13a, .* is '14a' instead\."),
        ({"bootstrap": 1}, r"`bootstrap` must be 0 .* at least 40, but is 1 instead\."),
        ({"seed": -1}, r"`seed` must not be negative, but is -1 instead\."),
        ({"test_set": "a|b:c"}, r"`test_set` must consist of letters, .* is 'a\|b:c' instead\."),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    refused(message, score, ["a"], ["a"], **{"target_language": "de", **options})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("\nneeds more:\n  pip install it\n"), r"needs more: pip install it"),
        (urllib.error.URLError("no network"), r"sacreBLEU could not download .*no network.*"),
    ],
)
def test_a_tokenizer_that_is_not_here_is_refused_in_one_line(monkeypatch, error, message):
    monkeypatch.setattr(metrics, "BLEU", Mock(side_effect=error))
    message = rf"`tokenize` must .* installed, but is 'ja-mecab' instead: {message}\."
    refused(message, score, ["a"], ["a"], target_language="ja", tokenize="ja-mecab")


def test_unequal_line_counts_name_both_files_and_counts(write):
    hypotheses, references = write("hyp", "a\nb\n"), write("ref", "a\nb\nc\n")
    message = (
        r"`.*hyp` must have as many sentences as `.*ref`, 3, but has 2 instead; if they are "
        r"from fairseq: .*--required-batch-size-multiple 1.*"
    )
    refused(message, bleu.score_files, hypotheses, references, target_language="de")
    message = r"`.*ref` must have as many sentences as `.*hyp`, 2, but has 3 instead\."
    refused(message, bleu.score_files, references, hypotheses, target_language="de")


def test_references_without_text_are_refused():
    message = r"`references` must hold text, but has 2 lines, all of them empty instead\."
    refused(message, score, ["a", "b"], ["", " "], target_language="de")
    refused(r".*has 0 lines.*", score, [], [], target_language="de")


@pytest.mark.parametrize(("test_set", "lines"), [("wmt14", 2737), ("wmt14/full", 3003)])
def test_newstest2014_must_have_its_size(test_set, lines):
    options = {"target_language": "de", "test_set": test_set, "bootstrap": 0}
    texts = ["eins zwei drei vier"] * lines
    report = score(texts, texts, **options)
    assert report.to_json_dict()["test_set"] == test_set
    assert f"|test:{test_set}|" in report.bleu.signature
    assert f"sentences   {lines} of {test_set}\n" in report.format_text()
    other = 5740 - lines
    texts = ["eins zwei drei vier"] * other
    message = (
        rf"`references` must have {lines} lines as {test_set}, but has {other} instead; wmt14 has "
        r"2737, wmt14/full has 3003\."
    )
    refused(message, score, texts, texts, **options)


def test_text_shows_every_score_and_signature(report):
    text = report.format_text()
    for metric in (report.bleu, report.chrf, report.tokenised_bleu, report.compound_split_bleu):
        assert re.search(rf"^{metric.name} +{metric.score:.2f}\b", text, re.MULTILINE)
        assert re.search(rf"^{metric.name} +{re.escape(metric.signature)}$", text, re.MULTILINE)
    assert f"{report.bleu.mean:.2f} ± {report.bleu.half_width:.2f}" in text
    assert "(1 empty)" in text
    assert max(len(line) for line in text.split("\n")) < 160


def test_the_command_writes_the_report_as_json(write, tmp_path, capsys):
    references = write("ref.de", "\n".join(REFERENCES) + "\n")
    hypotheses = write("out.txt", generated(HYPOTHESES))
    target = tmp_path / "new" / "score.json"
    words = ["score", str(hypotheses), "--references", str(references), "--target-lang", "de"]
    assert main([*words, "--bootstrap", "50", "--json", str(target)]) == 0
    report = bleu.score_files(hypotheses, references, target_language="de", bootstrap=50)
    assert capsys.readouterr().out == report.format_text() + "\n"
    text = target.read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == report.to_json_dict()

    target.unlink()
    assert main([*words, "--test-set", "wmt14", "--json", str(target)]) == 1
    assert "wmt14 has 2737" in capsys.readouterr().err
    assert not target.exists()
