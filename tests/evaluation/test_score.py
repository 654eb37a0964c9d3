"""Scoring: nothing lost, doubled or shuffled on the way in, and sacreBLEU's own numbers out."""

import json
import os
import re
import subprocess
import sys

import pytest
import sacrebleu

from fairseq_floater.cli import main
from fairseq_floater.evaluation import metrics
from fairseq_floater.evaluation import score as scoring
from fairseq_floater.evaluation.hypotheses import BPE_MARKS, read_hypotheses, read_references
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.score import score

REFERENCES = [
    "Die Katze sitzt auf der Matte, und der Hund schläft.",
    "Das Berlin-Brandenburg-Projekt kostet 5.300 Euro mehr als geplant.",
    "Er sagte: „Wir kommen morgen früh mit dem E-Bike.“",
    "Der Außenminister reist heute nach Paris und morgen nach Rom.",
    "Es gibt keinen Grund zur Sorge.",
    "Die US-Regierung hat den EU-Vorschlag am Montag abgelehnt.",
]
HYPOTHESES = [
    "Die Katze sitzt auf der Matte und der Hund schläft.",
    "Das Berlin-Brandenburg-Projekt kostet 5.300 Euro mehr.",
    "Er sagte: „Wir kommen morgen mit dem E-Bike.“",
    "Der Minister reist heute nach Paris und nach Rom.",
    "",
    "Die US-Regierung hat am Montag den EU-Vorschlag abgelehnt.",
]


def generated(hypotheses, order=None, others=()):
    """What fairseq-generate prints; ``others`` are worse hypotheses of each sentence."""
    lines = ["2024-01-01 00:00:00 | INFO | fairseq_cli.generate | loading model(s)"]
    for i in order if order is not None else range(len(hypotheses)):
        lines += [f"S-{i}\tsource {i}", f"T-{i}\ttarget {i}"]
        for rank, text in enumerate([hypotheses[i], *others]):
            value = -0.25 - rank
            lines += [f"H-{i}\t{value}\t▁pieces ▁of {i}", f"D-{i}\t{value}\t{text}"]
            lines += [f"P-{i}\t-0.1 -0.2"]
    return "\n".join([*lines, "Generate test with beam=4: BLEU4 = 12.34, 40.0/20.0", ""])


@pytest.fixture
def write(tmp_path):
    def writer(name, content):
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return writer


def refused(message, function, *args, **options):
    """The call must fail, and its whole message must match."""
    with pytest.raises(ScoringError) as caught:
        function(*args, **options)
    assert re.fullmatch(message, str(caught.value)), str(caught.value)


# Reading


def test_generated_hypotheses_come_back_in_corpus_order(write):
    path = write("out.txt", generated(HYPOTHESES, order=[4, 0, 5, 2, 1, 3]))
    assert read_hypotheses(path) == HYPOTHESES


@pytest.mark.parametrize("key", [None, lambda line: line[:1], lambda line: line.split("\t")[0]])
def test_d_lines_alone_and_sorted_files_read_the_same(write, key):
    lines = generated(HYPOTHESES, others=["schlechter"]).split("\n")
    lines = sorted(lines, key=key) if key else [line for line in lines if line.startswith("D-")]
    assert read_hypotheses(write("out.txt", "\n".join(lines) + "\n")) == HYPOTHESES


def test_the_first_of_several_hypotheses_is_taken(write):
    path = write("out.txt", generated(HYPOTHESES, others=["schlechter", "am schlechtesten"]))
    assert read_hypotheses(path) == HYPOTHESES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "D-0\t-0.5\teins\nD-0\t-0.4\tzwei\n",
            r"`.*out\.txt` must hold the best hypothesis of a sentence first, but line 2 has a "
            r"higher score for sentence 0 instead; are these two runs in one file\?",
        ),
        (
            "D-0\t-1\ta\nD-1\t-1\tb\nD-0\t-2\tc\nD-1\t-2\td\n",
            r"`.*out\.txt` must hold each sentence once, but line 3 brings sentence 0 of line 1 again "
            r"instead; are these two runs in one file\?",
        ),
        # The D lines alone would look like two hypotheses of one sentence.
        (
            2 * "S-0\tsource\nH-0\t-1\ta\nD-0\t-1\ta\n",
            r".*line 4 brings sentence 0 of line 1 again.*",
        ),
        (
            "".join(f"D-{i}\t-1\tx\n" for i in (0, 2, 4, 9, 10)),
            r"`.*out\.txt` must hold a hypothesis of each sentence from 0 to 10, but lacks 6 "
            r"\(1, 3, 5, 6, 7, \.\.\.\) instead; fairseq silently drops the sentences of batches "
            r"whose size is no multiple of 8 unless `--required-batch-size-multiple 1` is given\.",
        ),
        ("D-0\t-1\ta\nS-999999999999\tc\n", r".* lacks 999999999999 \(1, 2, 3, 4, 5, \.\.\.\).*"),
        ("D-0\t-1\ta\nD-1\tnur Text\n", r"`.*` must have a score, .* line 2 has 'nur Text' .*"),
        ("D-0\t-1\ta\nD-1\tx\tText\n", r"`.*` must have a score, .* line 2 has 'x\\tText' .*"),
        ("P-0\t-0.1 -0.2\nP-1\t-0.3\n", r".* must hold hypotheses \(D or H lines\).*"),
    ],
    ids=["order", "twice", "single twice", "gaps", "far", "no score", "no number", "losses"],
)
def test_output_that_is_not_one_whole_run_is_refused(write, content, message):
    refused(message, read_hypotheses, write("out.txt", content))


BROKEN_OFF = (
    r"`.*out\.txt` must be whole, but breaks off at line {} \({}\) instead; "
    r"was fairseq-generate stopped, or the disk full\? Generate it again\."
)


@pytest.mark.parametrize("last", ["S-1\tsource", "H-1\t-1\t▁a"])
def test_a_file_that_broke_off_before_the_last_hypothesis_is_refused(write, last):
    path = write("out.txt", f"S-0\ts\nH-0\t-1\t▁a\nD-0\t-1\ta\n{last}\n")
    refused(r".* each sentence from 0 to 1, but lacks 1 \(1\).*", read_hypotheses, path)


@pytest.mark.parametrize("cut", ["T-5", "\nP-5", "0.2\nS-1", "S-1"])
@pytest.mark.parametrize(
    ("start", "found"),
    [(0, "fairseq's closing lines are not there"), (1, "that line has no end")],
    ids=["whole output", "without the log"],
)
def test_a_file_cut_off_anywhere_is_refused(write, cut, start, found):
    text = "\n".join(generated(HYPOTHESES, order=[0, 5, 4, 1, 3, 2]).split("\n")[start:])
    left = text[: text.index(cut)]
    path = write("out.txt", left)
    if start and left.endswith("\n"):  # between two lines: what is not there is noticed
        refused(r".* must hold a hypothesis of each sentence .*", read_hypotheses, path)
    else:
        refused(BROKEN_OFF.format(len(left.splitlines()), found), read_hypotheses, path)


def test_the_sentences_of_whole_output_alone_are_whole(write):
    lines = generated(HYPOTHESES).splitlines(keepends=True)
    path = write("out.txt", "".join(line for line in lines if line[1] == "-"))
    assert read_hypotheses(path) == HYPOTHESES


def test_empty_text_and_tabs_in_text_survive(write):
    path = write("out.txt", "D-0\t-1\t\nD-1\t-inf\ta\tb\n")
    assert read_hypotheses(path) == ["", "a\tb"]


@pytest.mark.parametrize("content", ["", "S-0\tsource\nT-0\ttarget\n", "Kein Ergebnis.\n"])
def test_output_without_hypotheses_is_refused(write, content):
    path = write("out.txt", content)
    refused(r".* must hold hypotheses \(D or H lines\).*", read_hypotheses, path, format="generate")


def test_plain_lines_are_detected_and_can_be_forced(write):
    assert read_hypotheses(write("plain.txt", "D-Mark\nS-Bahn\n\n")) == [
        "D-Mark",
        "S-Bahn",
        "",
    ]
    path = write("looks_generated.txt", "D-0\t-1\ta\n")
    assert read_hypotheses(path) == ["a"]
    assert read_hypotheses(path, format="plain") == ["D-0\t-1\ta"]


def test_only_line_feeds_end_a_line(write):
    odd = ["a\u2028b", "c\x0bd\x0ce", "f\x85g\x1ch", "i\rj", "\u2029"]
    assert read_hypotheses(write("plain.txt", "\n".join(odd) + "\n")) == odd
    assert read_hypotheses(write("out.txt", generated(odd))) == odd
    assert read_references(write("ref.txt", "\n".join(odd))) == odd


def test_carriage_returns_and_a_byte_order_mark_are_taken_off(write):
    text = "\ufeff" + "".join(line + "\r\n" for line in HYPOTHESES)
    assert read_hypotheses(write("plain.txt", text)) == HYPOTHESES
    path = write("out.txt", generated(HYPOTHESES).replace("\n", "\r\n"))
    assert read_hypotheses(path) == HYPOTHESES


@pytest.mark.parametrize("reader", [read_hypotheses, read_references])
def test_bad_utf8_is_refused_by_file_and_line(write, reader):
    message = r"`.*latin1\.txt` must be UTF-8, but line 2 holds the byte 0xfc instead\."
    refused(message, reader, write("latin1.txt", b"gut\ngr\xfcn\n"))


def test_references_that_are_not_there_are_refused(tmp_path, write):
    message = r"`.*none` must be a readable file, but gives 'No such file or directory' instead\."
    refused(message, read_references, tmp_path / "none")
    message = r"`.*ref` must hold one reference a line, but is empty instead\."
    refused(message, read_references, write("ref", ""))


# Pieces of words


def test_h_lines_alone_need_remove_bpe(write):
    path = write("h.txt", "H-0\t-1\t▁Das ▁ist ▁sch ön .\n")
    refused(
        r"`.*h\.txt` must hold D lines, but holds only H lines instead; say with `remove_bpe` "
        r"\(sentencepiece or subword_nmt\) which pieces of words they hold\.",
        read_hypotheses,
        path,
    )
    assert read_hypotheses(path, remove_bpe="sentencepiece") == ["Das ist schön."]


def test_subword_nmt_pieces_are_joined(write):
    path = write("h.txt", "H-1\t-1\tam En@@ de@@\nH-0\t-1\tDas ist sch@@ ö@@ n .\n")
    assert read_hypotheses(path, remove_bpe="subword_nmt") == ["Das ist schön .", "am Ende"]


def test_d_lines_that_fairseq_joined_are_left_alone(write):
    path = write("out.txt", generated(HYPOTHESES))
    for kind in BPE_MARKS:
        assert read_hypotheses(path, remove_bpe=kind) == HYPOTHESES


@pytest.mark.parametrize(
    ("kind", "text"), [("sentencepiece", "▁Das ▁is t"), ("subword_nmt", "Das is@@ t")]
)
def test_pieces_left_in_the_text_are_refused_or_joined(write, kind, text):
    for path in (write("d.txt", f"D-0\t-1\t{text}\n"), write("plain.txt", f"{text}\n")):
        refused(
            rf"`.*` must hold whole words, but holds pieces of {kind} instead; generate with "
            rf"`--remove-bpe` or score with `remove_bpe` {kind}\.",
            read_hypotheses,
            path,
        )
        assert read_hypotheses(path, remove_bpe=kind) == ["Das ist"]


def test_a_rare_mark_is_text(write):
    lines = ["ein Diff: @@ -1 +1 @@", "Block ▁", *["Satz"] * 60]
    assert read_hypotheses(write("plain.txt", "\n".join(lines))) == lines


# Scores


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
    report = scoring.run(*names, target_language="de", bootstrap=200, seed=7)
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
        assert "|tok:none|" in metric.signature
        assert "|moses:de|sacremoses:" in metric.signature
        assert f"|split:{split}|" in metric.signature
        assert "bs:" not in metric.signature


@pytest.mark.parametrize("language", ["", "d", "DE", "german", "1e9", "de|x", "de:x", "de\n"])
def test_a_language_is_a_code(language):
    message = r"`target_language` must be a code such as de, but is '.*' instead\."
    refused(message, score, ["a"], ["a"], target_language=language)


def test_a_language_can_have_a_country():
    found = score(["o gato"], ["o gato"], target_language="pt_BR", bootstrap=0)
    assert "|moses:pt|" in found.tokenised_bleu.signature
    assert found.target_language == "pt_BR"
    assert score(["x"], ["x"], target_language="de_AT", bootstrap=0).compound_split_bleu is not None


def test_tokenize_reaches_the_score_and_the_signature():
    hypotheses, references = ["中国的首都是北京。"], ["中国首都是北京市。"]
    report = score(hypotheses, references, target_language="zh", tokenize="zh", bootstrap=0)
    assert "tok:zh" in report.bleu.signature
    assert report.bleu.score == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert report.bleu.score > 0


@pytest.mark.parametrize(("language", "water"), [("de", "l ' eau"), ("fr", "l' eau")])
def test_tokenised_bleu_is_that_of_the_languages_moses_tokens(language, water):
    hypotheses = ["Elle boit, dit-il, de l'eau."]
    references = ["Elle boit, disait-il, de l'eau."]
    report = score(hypotheses, references, target_language=language, bootstrap=0)
    expected = sacrebleu.corpus_bleu(
        [f"Elle boit , dit-il , de {water} ."],
        [[f"Elle boit , disait-il , de {water} ."]],
        tokenize="none",
        force=True,
    )
    assert report.tokenised_bleu.score == expected.score > 0
    assert f"|moses:{language}|" in report.tokenised_bleu.signature


def test_compound_split_takes_hyphens_apart_on_both_sides():
    hypotheses = ["heute kam die US-Regierung mit a-b-c an"]
    references = ["heute kam die EU-Regierung mit a-b-c an"]
    report = score(hypotheses, references, target_language="de", bootstrap=0)
    tail = "##AT##-##AT## Regierung mit a ##AT##-##AT## b-c an"
    expected = sacrebleu.corpus_bleu(
        [f"heute kam die US {tail}"],
        [[f"heute kam die EU {tail}"]],
        tokenize="none",
        force=True,
    )
    assert report.compound_split_bleu.score == expected.score
    assert report.compound_split_bleu.score > report.tokenised_bleu.score


def test_compound_split_is_for_german_alone():
    texts = ["un deux trois quatre cinq"]
    options = {"bootstrap": 0}
    assert score(texts, texts, target_language="fr", **options).compound_split_bleu is None
    report = score(texts, texts, target_language="de", compound_split=False, **options)
    assert report.compound_split_bleu is None
    report = score(texts, texts, target_language="de", compound_split=True, **options)
    assert report.compound_split_bleu is not None
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


def test_the_interval_holds_the_score(report):
    for metric in (report.bleu, report.chrf):
        assert 0 < metric.half_width < 50
        assert abs(metric.mean - metric.score) < metric.half_width
    assert report.tokenised_bleu.mean is None


def test_no_bootstrap_no_interval():
    report = score(HYPOTHESES, REFERENCES, target_language="de", bootstrap=0)
    assert report.bleu.mean is None
    assert report.bleu.half_width is None
    assert "bs:" not in report.bleu.signature
    assert "±" not in report.format_text()


def test_empty_lines_are_counted():
    references = [*REFERENCES[:4], " ", ""]
    report = score(HYPOTHESES, references, target_language="de", bootstrap=0)
    assert (report.sentences, report.empty_hypotheses, report.empty_references) == (6, 1, 2)


def test_a_score_of_zero_is_reported():
    report = score(["ja"], ["nein"], target_language="de", bootstrap=40)
    assert (report.bleu.score, report.bleu.mean) == (0, None)
    assert " 0.00" in report.format_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_language": "en-de"}, r"`target_language` must be a code .* is 'en-de' instead\."),
        ({"tokenize": "14a"}, r"`tokenize` must be one of none, zh, 13a, .* is '14a' instead\."),
        ({"bootstrap": 1}, r"`bootstrap` must be 0 .* at least 40, but is 1 instead\."),
        ({"bootstrap": -1}, r"`bootstrap` must be 0 .* at least 40, but is -1 instead\."),
        ({"seed": -1}, r"`seed` must not be negative, but is -1 instead\."),
        ({"test_set": "a|b:c"}, r"`test_set` must be of letters, .* is 'a\|b:c' instead\."),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    refused(message, score, ["a"], ["a"], **{"target_language": "de", **options})


def test_a_tokenizer_that_is_not_installed_is_refused_in_one_line(monkeypatch):
    def missing(**_):
        raise RuntimeError("\nneeds more:\n  pip install it\n")

    monkeypatch.setattr(metrics, "BLEU", missing)
    message = (
        r"`tokenize` must .* installed, but is 'ja-mecab' instead: needs more: pip install it\."
    )
    refused(message, score, ["a"], ["a"], target_language="ja", tokenize="ja-mecab")


def test_unequal_line_counts_name_both_files_and_counts(write):
    hypotheses, references = write("hyp", "a\nb\n"), write("ref", "a\nb\nc\n")
    message = (
        r"`.*hyp` must have as many sentences as `.*ref`, 3, but has 2 instead; if they are "
        r"fairseq's, .*--required-batch-size-multiple 1.*"
    )
    refused(message, scoring.run, hypotheses, references, target_language="de")
    message = r"`.*ref` must have as many sentences as `.*hyp`, 2, but has 3 instead\."
    refused(message, scoring.run, references, hypotheses, target_language="de")


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


# Report, run


def test_references_against_themselves_score_a_hundred():
    report = score(REFERENCES, REFERENCES, target_language="de", bootstrap=0)
    for metric in (report.bleu, report.chrf, report.tokenised_bleu, report.compound_split_bleu):
        assert f"{metric.score:.2f}" == "100.00"


def test_report_goes_through_json_unchanged(report):
    values = report.to_json_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["bleu"]["score"] == report.bleu.score
    assert values["compound_split_bleu"]["signature"] == report.compound_split_bleu.signature
    assert values["versions"]["sacrebleu"] == sacrebleu.__version__
    assert (values["seed"], values["bootstrap"], values["sentences"]) == (12345, 100, 6)


def test_text_shows_every_score_and_signature(report):
    text = report.format_text()
    for metric in (report.bleu, report.chrf, report.tokenised_bleu, report.compound_split_bleu):
        assert re.search(rf"^{metric.name} +{metric.score:.2f}\b", text, re.MULTILINE)
        assert re.search(rf"^{metric.name} +{re.escape(metric.signature)}$", text, re.MULTILINE)
    assert f"{report.bleu.mean:.2f} ± {report.bleu.half_width:.2f}" in text
    assert "(1 empty)" in text
    assert max(len(line) for line in text.split("\n")) < 160


def test_run_scores_shuffled_output_like_the_plain_lines(write):
    references = write("ref.de", "\n".join(REFERENCES) + "\n")
    shuffled = write("out.txt", generated(HYPOTHESES, order=[5, 3, 1, 0, 2, 4], others=["Nein."]))
    options = {"target_language": "de", "bootstrap": 0}
    report = scoring.run(shuffled, references, **options)
    plain = scoring.run(write("plain.txt", "\n".join(HYPOTHESES) + "\n"), references, **options)
    assert report.bleu == plain.bleu
    assert report.hypotheses_name == str(shuffled)


def test_the_command_writes_the_report_as_json(write, tmp_path, capsys):
    references = write("ref.de", "\n".join(REFERENCES) + "\n")
    hypotheses = write("out.txt", generated(HYPOTHESES))
    target = tmp_path / "new" / "score.json"
    words = ["score", str(hypotheses), "--references", str(references), "--target-lang", "de"]
    assert main([*words, "--bootstrap", "50", "--json", str(target)]) == 0
    report = scoring.run(hypotheses, references, target_language="de", bootstrap=50)
    assert capsys.readouterr().out == report.format_text() + "\n"
    text = target.read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == report.to_json_dict()


def test_the_command_writes_nothing_after_an_error(write, tmp_path, capsys):
    path = str(write("ref.de", "ein Haus\n"))
    target = tmp_path / "score.json"
    words = ["score", path, "--references", path, "--target-lang", "de", "--test-set", "wmt14"]
    assert main([*words, "--json", str(target)]) == 1
    assert "wmt14 has 2737" in capsys.readouterr().err
    assert not target.exists()
