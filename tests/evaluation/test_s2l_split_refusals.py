"""Splits that are refused: every fault of the text by file and line, and wrong options."""

import json
import re

import pytest
from split_text import line, options
from toy import floater

from fairseq_floater.cli import main
from fairseq_floater.data.number_words import write_numbers
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.evaluation.s2l.options import Bins, SplitOptions
from fairseq_floater.evaluation.s2l.split import split

LANGUAGES = ("--src", "en", "--tgt", "de")


def test_a_record_that_lacks_a_field_is_refused(raw, tmp_path):
    split(raw, tmp_path / "out", options())
    record = tmp_path / "out" / "split.json"
    fields = json.loads(record.read_text())
    del fields["lines"]
    record.write_text(json.dumps(fields))
    with pytest.raises(ReportError, match=r"split\.json: .*`lines`"):
        split(raw, tmp_path / "out", options())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.en", line(3) + "\n", r"train\.en has 1 lines, but .*train\.de has 6"),
        ("test.de", "no pieces here\n" * 4, r"test\.de is not in subwords \(line 1"),
    ],
)
def test_faults_of_the_text_are_named(raw, tmp_path, capsys, name, content, message):
    (raw / name).write_text(content)
    words = [*LANGUAGES, "--encoded", "--threshold", "8", "--edges", "12,16"]
    assert main(["s2l", "split", str(raw), str(tmp_path / "out"), *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("floater s2l split: ")
    assert re.search(message, error), error


def test_encoded_text_where_raw_was_promised(raw, tmp_path):
    with pytest.raises(TextDataError, match=r"train\.en is in subwords \(line 1\)"):
        split(raw, tmp_path / "out", options(encoded=False, vocab=50))


def test_no_long_pair_and_empty_bins_name_the_longest(raw, tmp_path):
    with pytest.raises(
        TextDataError, match=r"26 tokens or more: .* 25 tokens \(test\.en, line 4\)"
    ):
        split(raw, tmp_path / "out", options(edges=(26,)))
    with pytest.raises(TextDataError, match=r"bin \[18, 20\) holds no pair: .*line 4"):
        split(raw, tmp_path / "out", options(edges=(8, 18, 20)))
    with pytest.raises(TextDataError, match=r"valid\.en has no pair of fewer than 2 source tokens"):
        split(raw, tmp_path / "out", options(edges=(2,)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "80", "--edges", "100", "90", "--encoded"], "`--edges` must increase"),
        (["--threshold", "80"], "--vocab --spm-model --encoded --subwords is required"),
    ],
)
def test_bad_usage_exits_with_2(raw, tmp_path, words, message):
    done = floater("s2l", "split", raw, tmp_path / "out", *LANGUAGES, *words, code=2)
    assert message in done.stderr


def test_the_input_is_never_replaced(raw, tmp_path):
    before = {p.name: p.read_text() for p in raw.iterdir()}
    for out in (raw, tmp_path):
        with pytest.raises(UsageError, match="OUT_DIR must not hold the input"):
            split(raw, out, options(), force=True)
    assert {p.name: p.read_text() for p in raw.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "en"}, "`--src` and `--tgt` must differ, but both are 'en'"),
        ({"source": "en/US"}, "then letters, digits, _ or -, but is 'en/US'"),
        ({"vocab": 5}, "give exactly one of"),
    ],
)
def test_options_that_make_no_sense(changes, message):
    with pytest.raises(UsageError, match=message):
        options(**changes)


def test_a_threshold_below_every_sentence_and_a_model_that_is_none(tmp_path):
    write_numbers(tmp_path / "raw", train=100, valid=20, test=20, test_long=20)
    with pytest.raises(TextDataError, match="no training pair of fewer than 1 source tokens"):
        split(tmp_path / "raw", tmp_path / "out", SplitOptions("en", "de", (1,), vocab=80))
    nowhere = SplitOptions("en", "de", (20,), spm_model=tmp_path / "nowhere")
    with pytest.raises(TextDataError, match="There is no sentencepiece model"):
        split(tmp_path / "raw", tmp_path / "out", nowhere)
    assert Bins.from_options(2, None).edges == (2, 3, 4)
