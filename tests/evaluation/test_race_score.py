"""Scores of RACE: accuracy by group, answers in any order, every fault a sentence."""

import pytest
from toy import floater

from fairseq_floater.errors import ReportError
from fairseq_floater.evaluation.understanding.race import score

RIGHT = {
    **{f"middle/{k}/0": {"answer": "ABCD"[k % 4], "group": "middle"} for k in range(5)},
    **{f"high/{k}/0": {"answer": "ABCD"[k % 4], "group": "high"} for k in range(20)},
}
FOUND = {name: reference["answer"] for name, reference in RIGHT.items()}
WRONG = {"middle/0/0": "B", "high/3/0": "A", "high/4/0": "D"}


@pytest.fixture
def files(write):
    """Write predictions and references, and return their paths."""
    return lambda found, right=RIGHT: (write("found.json", found), write("right.json", right))


def test_accuracy_is_over_all_questions_and_by_group(files):
    shuffled = dict(reversed({**FOUND, **WRONG}.items()))
    scores = score(*files(shuffled)).to_json_dict()
    numbers = {"score": 88, "middle": 80, "high": 90, "n": 25, "n_middle": 5, "n_high": 20}
    assert scores == {"task": "RACE", "metric": "accuracy", **numbers}


def test_a_group_without_questions_has_no_score(files):
    right = {name: r for name, r in RIGHT.items() if r["group"] == "high"}
    found = {name: FOUND[name] for name in right}
    scores = score(*files(found, right)).to_json_dict()
    assert (scores["high"], scores["n"]) == (100, 20)
    assert "middle" not in scores


def test_the_command_prints_all_middle_and_high(files):
    predictions, references = files({**FOUND, **WRONG})
    out = floater("race", "score", predictions, "--references", references).stdout
    rows = [line.split()[:2] for line in out.splitlines()[1:]]
    assert rows == [["all", "88.00"], ["middle", "80.00"], ["high", "90.00"]]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({k: v for k, v in FOUND.items() if k != "high/7/0"}, "lacks 1, the first 'high/7/0'"),
        ({**FOUND, "high/20/0": "A"}, "has 1 others, the first 'high/20/0'"),
        ({**FOUND, "high/7/0": "E"}, "'high/7/0': must be A to D, but is 'E'"),
        ("[]", "must be of type dict"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_answers_that_do_not_fit_are_refused(found, message, files):
    predictions, references = files(found)
    with pytest.raises(ReportError, match=message) as error:
        score(predictions, references)
    assert str(predictions) in str(error.value)


def test_references_that_are_none_are_refused(files):
    for right, message in (
        ({}, "right.json is empty"),
        ({"q": "A"}, "must have a `group`"),
        ({"q": {"answer": "F", "group": "high"}}, "must be A to D, but is 'F'"),
    ):
        found = dict.fromkeys(right, "A")
        with pytest.raises(ReportError, match=message):
            score(*files(found, right))
