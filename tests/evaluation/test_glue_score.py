"""Scores of GLUE: metrics by their definitions, predictions in any order, every fault a sentence."""

import json
import random

import numpy as np
import pytest
from toy import floater

from fairseq_floater.data.understanding.glue_tasks import GLUE_TASKS, glue_task
from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.evaluation.understanding.glue import score


def write(path, column, values, shuffle=None):
    rows = [f"{index}\t{value}\n" for index, value in values.items()]
    if shuffle is not None:
        random.Random(shuffle).shuffle(rows)
    path.write_text(f"index\t{column}\n" + "".join(rows))
    return path


def answers(name, n=200, seed=1):
    """Labels and predictions that agree often."""
    draw, labels = random.Random(seed), glue_task(name).labels
    if not labels:
        right = {str(k): draw.uniform(0, 5) for k in range(n)}
        return right, {k: value + draw.gauss(0, 1) for k, value in right.items()}
    right = {str(k): draw.choice(labels) for k in range(n)}
    return right, {k: draw.choice([label, label, *labels]) for k, label in right.items()}


def files(folder, name, shuffle=7):
    right, found = answers(name)
    predictions = write(folder / "predictions.tsv", "prediction", found, shuffle)
    return predictions, write(folder / "references.tsv", "label", right)


@pytest.mark.parametrize("name", sorted(GLUE_TASKS))
def test_metrics_are_those_of_the_definitions(name, tmp_path):
    right, found = answers(name)
    scores = score(name, *files(tmp_path, name)).to_json_dict()
    assert scores["n"] == 200
    assert scores["task"].lower() == name
    if name == "sts-b":
        a, b = np.array(list(right.values())), np.array(list(found.values()))
        ranks = [x.argsort().argsort() for x in (a, b)]
        assert scores["score"] == pytest.approx(100 * np.corrcoef(a, b)[0, 1], abs=1e-9)
        assert scores["spearman"] == pytest.approx(100 * np.corrcoef(*ranks)[0, 1], abs=1e-9)
        assert scores["metric"] == "pearson"
        return
    pairs = [(right[k], found[k]) for k in right]
    accuracy = 100 * sum(a == b for a, b in pairs) / 200
    tp, fp, fn, tn = (pairs.count(p) for p in (("1", "1"), ("0", "1"), ("1", "0"), ("0", "0")))
    if name == "cola":
        root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
        assert scores["score"] == pytest.approx(100 * (tp * tn - fp * fn) / root, abs=1e-9)
        assert (scores["metric"], scores["accuracy"]) == ("matthews", pytest.approx(accuracy))
    else:
        assert (scores["metric"], scores["score"]) == ("accuracy", pytest.approx(accuracy))
    assert ("f1" in scores) == (name in ("mrpc", "qqp"))
    if "f1" in scores:
        assert scores["f1"] == pytest.approx(200 * tp / (2 * tp + fp + fn), abs=1e-9)


def test_both_sets_of_mnli_are_scored(tmp_path):
    matched = files(tmp_path, "mnli")
    labels = glue_task("mnli").labels
    right = {str(k): labels[k % 3] for k in range(8)}
    one = write(tmp_path / "p1.tsv", "prediction", {**right, "0": labels[1]}, 3)
    two = write(tmp_path / "r1.tsv", "label", right)
    scores = score("MNLI", *matched, mismatched=one, mismatched_references=two).to_json_dict()
    assert scores["score"] == score("mnli", *matched).fields["score"]
    assert (scores["mismatched"], scores["n_mismatched"]) == (87.5, 8)


def test_equal_predictions_have_no_correlation(tmp_path, capsys):
    right, _ = answers("sts-b")
    references = write(tmp_path / "r.tsv", "label", right)
    predictions = write(tmp_path / "p.tsv", "prediction", dict.fromkeys(right, 2.5))
    scores = score("sts-b", predictions, references)
    assert (scores.fields["score"], scores.fields["spearman"]) == (0, 0)
    assert "no correlation" in capsys.readouterr().err
    right, _ = answers("cola")
    references = write(tmp_path / "r.tsv", "label", right)
    predictions = write(tmp_path / "p.tsv", "prediction", dict.fromkeys(right, "1"))
    assert score("cola", predictions, references).fields["score"] == 0


def test_the_command_prints_and_writes_the_scores(tmp_path):
    predictions, references = files(tmp_path, "cola")
    words = ("glue", "score", "CoLA", predictions, "--references", references)
    out = floater(*words, "--json", tmp_path / "scores.json").stdout
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert list(scores) == ["task", "metric", "score", "accuracy", "n"]
    assert f"{scores['score']:.2f}" in out and f"{scores['accuracy']:.2f}" in out


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ("index\tprediction\n0\t1\n", r"must answer all 2 of .*, but lacks 1, the first '1'"),
        ("index\tprediction\n0\t1\n1\t0\n2\t0\n", "has 1 others, the first '2'"),
        ("index\tprediction\n0\t1\n1\t0\n1\t0\n", "has the index '1' twice"),
        ("index\tprediction\n0\t1\n1\tyes\n", "'1': must be one of 0, 1, but is 'yes'"),
        ("index\tprediction\n0\t1\n1\n", "line 3 must have two columns"),
        ("0\t1\n1\t0\n", "must begin with the line"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(predictions, message, tmp_path):
    path = tmp_path / "predictions.tsv"
    path.write_text(predictions)
    references = write(tmp_path / "references.tsv", "label", {"0": "1", "1": "0"})
    with pytest.raises(ReportError, match=message) as error:
        score("sst-2", path, references)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("value", ["nan", "high", ""])
def test_a_score_of_sts_b_is_a_number(value, tmp_path):
    predictions = write(tmp_path / "p.tsv", "prediction", {"0": "1", "1": value})
    references = write(tmp_path / "r.tsv", "label", {"0": "1.0", "1": "0.5"})
    with pytest.raises(ReportError, match="must be a number"):
        score("sts-b", predictions, references)


def test_references_of_another_task_and_options_of_mnli_are_refused(tmp_path):
    predictions, references = files(tmp_path, "rte")
    with pytest.raises(ReportError, match="must be one of 0, 1"):
        score("cola", predictions, references)
    other = {"mismatched": predictions, "mismatched_references": references}
    with pytest.raises(UsageError, match="for MNLI, but the task is RTE"):
        score("rte", predictions, references, **other)
    with pytest.raises(UsageError, match="needs --mismatched-references"):
        score("mnli", predictions, references, mismatched=predictions)
    references.write_text("index\tlabel\n")
    with pytest.raises(ReportError, match="references.tsv is empty"):
        score("rte", predictions, references)
