"""SQuAD's scores: figures worked out by hand, the official rules one by one, and files that are refused."""

import json
import math

import pytest
from toy import floater

from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.evaluation.understanding.squad import best, exact_match, f1, score, words

GOLDS = {"q1": ["the Norman dukes", "Normans"], "q2": [], "q3": ["10th"], "q4": []}
ANSWERS = {"q3": "10TH!", "q1": "Norman dukes of", "q2": "", "q4": "x"}
NOTHING = {"q1": 0.2, "q2": 0.9, "q3": 0.4, "q4": 0.3}
# Exact match: q2 and q3. F1 of q1: precision 2/3, recall 1.
PLAIN = {"exact": 50.0, "f1": 70.0, "total": 4}
PLAIN |= {"HasAns_exact": 50.0, "HasAns_f1": 90.0, "HasAns_total": 2}
PLAIN |= {"NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2}


def official(golds, second=True):
    """Questions in the official form."""
    questions = [
        {
            "id": id_,
            "question": "Who?",
            "answers": [{"text": text, "answer_start": 0} for text in texts],
            **({"is_impossible": not texts} if second else {}),
        }
        for id_, texts in golds.items()
    ]
    paragraphs = [{"context": "Text.", "qas": questions}]
    version = "v2.0" if second else "1.1"
    return {"version": version, "data": [{"title": "T", "paragraphs": paragraphs}]}


@pytest.fixture
def files(write):
    return write("answers.json", ANSWERS), write("dev.json", official(GOLDS))


def test_the_scores_are_those_worked_out_by_hand(files):
    common = {"task": "SQuAD 2.0", "metric": "f1", "score": 70.0, "n": 4}
    assert score(*files).fields == pytest.approx({**common, **PLAIN}, abs=1e-12)


def test_a_threshold_and_the_best_ones(files, write):
    nothing = write("nothing.json", NOTHING)
    fields = score(*files, nothing).fields
    # Without any answer 2 are right. F1: q1 makes 2.8, q4 loses 1, q3 makes 2.8 again.
    best_ones = {"best_exact": 50.0, "best_exact_thresh": 0.0}
    best_ones |= {"best_f1": 70.0, "best_f1_thresh": 0.2}
    assert {name: fields[name] for name in best_ones} == best_ones
    cut = score(*files, nothing, 0.35).fields  # q2 and q3 count as without answer
    expected = {"exact": 25.0, "f1": 45.0, "HasAns_f1": 40.0, "NoAns_f1": 50.0, **best_ones}
    assert {name: cut[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_the_best_threshold_is_the_best_of_all(files, write):
    """If all probabilities differ, trying every threshold finds the same best one."""
    nothing = write("nothing.json", NOTHING)
    found = score(*files, nothing).fields
    for name in ("exact", "f1"):
        tried = [score(*files, nothing, limit).fields[name] for limit in (0, *NOTHING.values())]
        assert found[f"best_{name}"] == pytest.approx(max(tried), abs=1e-12)
        limit = found[f"best_{name}_thresh"]
        assert score(*files, nothing, limit).fields[name] == pytest.approx(max(tried), abs=1e-12)


def test_squad_1_has_no_part_without_answers(write):
    golds = {"a": ["one"], "b": ["two", "two or three"]}
    references = write("dev.json", official(golds, second=False))
    fields = score(write("answers.json", {"a": "One.", "b": "three"}), references).fields
    assert fields["task"] == "SQuAD 1.1" and not any(name.startswith("NoAns") for name in fields)
    # "three" of "two or three": F1 1/2
    assert (fields["exact"], fields["f1"], fields["HasAns_f1"]) == (50, 75, 75)


def test_text_and_json(files, tmp_path):
    out = tmp_path / "scores.json"
    done = floater("squad", "score", files[0], "--references", files[1], "--json", out)
    assert "exact                     50.0000\n" in done.stdout
    assert json.loads(out.read_text(encoding="utf-8")) == score(*files).fields


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  U.S.\tArmy's", ["us", "armys"]),
        ("A theory of an answer", ["theory", "of", "answer"]),
        ("the-best", ["thebest"]),
        ("«the best»", ["«", "best»"]),  # only ASCII punctuation goes
        ("É. Zola", ["é", "zola"]),
        ("$1,200.50", ["120050"]),
        ("a an the", []),
        (" . ", []),
    ],
)
def test_the_words_that_count(answer, expected):
    assert words(answer) == expected


def test_words_count_as_often_as_they_come():
    assert f1("new new york", "New York, New York") == pytest.approx(2 * 1 * 0.75 / 1.75)
    assert exact_match("new york", "york new") == 0
    assert f1("new york", "york new") == 1


def test_answers_without_words():
    assert f1("the", "") == exact_match("the", "") == 1
    assert f1("the", "x") == f1("x", "the") == 0
    assert best("", ["The", "."]) == (1, 1)  # right answers without words
    assert best("", ["The", "x"]) == (0, 0)
    assert best("x", []) == (0, 0)


def test_exact_match_and_f1_may_be_of_different_answers():
    assert best("a b c d", ["b c d", "x"]) == (1, 1)
    assert best("b c d e", ["b", "c d e f g"]) == (0, pytest.approx(2 * 0.75 * 0.6 / 1.35))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({**ANSWERS, "q1": "x", "q9": "x"}, r"but has 1 others, the first 'q9'\."),
        ({"q1": "x", "q2": "x", "q4": "x"}, r"must answer all 4 of .* lacks 1, the first 'q3'\."),
        ('{"q1": ', r"cannot be read as JSON: .*"),
        ([["q1", "x"]], r"the content must be of type dict, but is .* instead\."),
        ({**ANSWERS, "q1": None}, r"must have an answer as text .* has None for q1\."),
    ],
)
def test_predictions_that_cannot_be_scored(answers, message, write, files):
    with pytest.raises(UserError, match=message):
        score(write("answers.json", answers), files[1])


@pytest.mark.parametrize("value", [math.nan, "0.5", None])
def test_a_probability_must_be_a_number(value, write, files):
    nothing = write("nothing.json", {**NOTHING, "q2": value})
    with pytest.raises(UserError, match="must have a number for each question, but has .* for q2"):
        score(*files, nothing)


def test_a_threshold_needs_probabilities(files):
    with pytest.raises(UsageError, match="give both"):
        score(*files, None, 0.5)


def test_answers_to_everything_are_warned_of(files, write, capsys):
    nothing = write("nothing.json", NOTHING)
    score(*files)
    everything = write("answers.json", {**ANSWERS, "q2": "x"})
    score(everything, files[1], nothing, 0.5)
    assert capsys.readouterr().err == ""
    assert score(everything, files[1], nothing).fields["NoAns_exact"] == 0
    assert "every prediction is an answer" in capsys.readouterr().err
