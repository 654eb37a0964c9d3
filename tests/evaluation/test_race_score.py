"""Scores of RACE: accuracy by group, answers in any order, every fault a sentence."""

import json

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


def files(folder, found, right=RIGHT):
    paths = folder / "predictions.json", folder / "references.json"
    for path, content in zip(paths, (found, right), strict=True):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return paths


def test_accuracy_is_over_all_questions_and_by_group(tmp_path):
    shuffled = dict(reversed({**FOUND, **WRONG}.items()))
    scores = score(*files(tmp_path, shuffled)).to_json_dict()
    assert scores == {
        **{"task": "RACE", "metric": "accuracy", "score": pytest.approx(88.0)},
        **{"middle": pytest.approx(80.0), "high": pytest.approx(90.0)},
        **{"n": 25, "n_middle": 5, "n_high": 20},
    }


def test_a_group_without_questions_has_no_score(tmp_path):
    right = {name: r for name, r in RIGHT.items() if r["group"] == "high"}
    found = {name: FOUND[name] for name in right}
    scores = score(*files(tmp_path, found, right)).to_json_dict()
    assert (scores["high"], scores["n"]) == (100, 20)
    assert "middle" not in scores


def test_the_command_prints_all_middle_and_high(tmp_path):
    predictions, references = files(tmp_path, {**FOUND, **WRONG})
    out = floater("race", "score", predictions, "--references", references).stdout
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["all", "88.00"],
        ["middle", "80.00"],
        ["high", "90.00"],
    ]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({k: v for k, v in FOUND.items() if k != "high/7/0"}, "lacks 1, the first 'high/7/0'"),
        ({**FOUND, "high/20/0": "A"}, "has 1 others, the first 'high/20/0'"),
        ({**FOUND, "high/7/0": "E"}, "'high/7/0': must be A to D, but is 'E'"),
        ("[]", "must hold a JSON object"),
        ("{", "no readable JSON"),
    ],
)
def test_answers_that_do_not_fit_are_refused(found, message, tmp_path):
    predictions, references = files(tmp_path, found)
    with pytest.raises(ReportError, match=message) as error:
        score(predictions, references)
    assert str(predictions) in str(error.value)


def test_references_that_are_none_are_refused(tmp_path):
    for right, message in (
        ({}, "references.json is empty"),
        ({"q": "A"}, "must have a `group`"),
        ({"q": {"answer": "F", "group": "high"}}, "must be A to D, but is 'F'"),
    ):
        found = dict.fromkeys(right, "A")
        with pytest.raises(ReportError, match=message):
            score(*files(tmp_path, found, right))
