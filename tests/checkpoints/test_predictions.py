"""Answers of fine-tuned models in the official formats, equal to those computed one by one."""

import json

import pytest
import torch
import toy
from roberta_toy import (
    LONGEST,
    SHAPE,
    save_dictionary,
    save_model,
    sentence,
    write_labels,
    write_split,
)
from squad_corpus import households, vocabulary, write

from fairseq_floater.checkpoints.predictions import predict
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.roberta_tasks import load_model
from fairseq_floater.cli import main
from fairseq_floater.data.understanding import squad
from fairseq_floater.evaluation.understanding import glue, race

HEAD = "sentence_classification_head"
LABELS = ("entailment", "not_entailment")
LENGTHS = (9, 3, 12, 7, 5, 8, 2, 11, 6, 10)
FIRST = [sentence(length, i) for i, length in enumerate(LENGTHS)]
SECOND = [sentence(length, i + 50) for i, length in enumerate(LENGTHS[::-1])]
OPTIONS = [[sentence(3 + (i + k) % 4, 7 * i + k) for i in range(10)] for k in range(4)]
# Official indices need not start at 0 or increase.
INDICES = [str(97 - 3 * i) for i in range(10)]


def options_of(arch="roberta"):
    words = ["--arch", arch, "--optimizer", "adam", "--lr", "0.01", "--cpu", "--num-workers", 0]
    for name, value in SHAPE.items():
        words += ["--" + name.replace("_", "-"), value]
    words += ["--batch-size", 5, "--max-update", 2, "--no-epoch-checkpoints"]
    return [*words, "--required-batch-size-multiple", 1, "--init-token", 0, "--separator-token", 2]


def write_inputs(folder, *inputs):
    for split in ("train", "valid"):
        for number, sentences in enumerate(inputs):
            save_dictionary(folder / f"input{number}")
            write_split(folder / f"input{number}", split, sentences)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of sentences with two labels, as `glue prepare` writes them."""
    folder = tmp_path_factory.mktemp("glue")
    write_inputs(folder, FIRST, SECOND)
    for split in ("train", "valid"):
        write_labels(folder / "label", split, LABELS, [i % 2 for i in range(10)])
    rows = "".join(f"{name}\t{LABELS[i % 2]}\n" for i, name in enumerate(INDICES))
    (folder / "references.valid.tsv").write_text("index\tlabel\n" + rows)
    return folder


@pytest.fixture(scope="module")
def classifier(pairs, tmp_path_factory):
    """A classifier that fairseq trained for two updates."""
    folder = tmp_path_factory.mktemp("classifier")
    task = ("--task", "sentence_prediction", "--criterion", "sentence_prediction")
    task += ("--num-classes", 2, "--save-dir", folder)
    toy.fairseq("train", pairs, *task, *options_of("floater_roberta_tiny"))
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def passages(tmp_path_factory):
    """Passages with four options, as `race prepare` writes them."""
    folder = tmp_path_factory.mktemp("race")
    write_inputs(folder, FIRST, *OPTIONS)
    (folder / "label").mkdir()
    for split in ("train", "valid"):
        (folder / "label" / f"{split}.label").write_text("".join(f"{i % 4}\n" for i in range(10)))
    names = {
        f"high/{name}/0": {"answer": "ABCD"[i % 4], "group": "high"}
        for i, name in enumerate(INDICES)
    }
    (folder / "references.valid.json").write_text(json.dumps(names))
    return folder


@pytest.fixture(scope="module")
def chooser(passages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chooser")
    task = ("--task", "sentence_ranking", "--criterion", "sentence_ranking")
    task += ("--num-classes", 4, "--max-option-length", 8, "--save-dir", folder)
    toy.fairseq("train", passages, *task, *options_of())
    return folder / "checkpoint_last.pt"


@torch.no_grad()
def by_hand(path, *parts):
    """Return the logits of one example: `<s> a </s>`, followed by `</s> b </s>`."""
    model, _ = load_model(path)
    words = [0]
    for number, part in enumerate(parts):
        words += [2] * (number > 0) + [4 + w for w in part] + [2]
    features = model(torch.tensor([words]), features_only=True)[0]
    return model.classification_heads[HEAD](features)[0]


def test_glue_has_labels_by_index_in_the_order_of_the_data(pairs, classifier, tmp_path):
    found = predict(classifier, pairs, tmp_path / "out" / "rte.tsv", task="glue", batch_size=3)
    lines = (tmp_path / "out" / "rte.tsv").read_text().splitlines()
    best = [int(by_hand(classifier, a, b).argmax()) for a, b in zip(FIRST, SECOND)]
    assert lines == ["index\tprediction", *(f"{i}\t{LABELS[k]}" for i, k in zip(INDICES, best))]
    assert found.n == 10 and found.files == [str(tmp_path / "out" / "rte.tsv")]
    scored = glue.score("RTE", tmp_path / "out" / "rte.tsv", pairs / "references.valid.tsv")
    assert scored.fields["score"] == pytest.approx(10 * sum(k == i % 2 for i, k in enumerate(best)))


def test_a_split_without_references_counts_from_0(pairs, classifier, tmp_path):
    predict(classifier, pairs, tmp_path / "train.tsv", task="glue", split="train")
    lines = (tmp_path / "train.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == [str(i) for i in range(10)]


def regression(path, data, **changes):
    task = {"_name": "sentence_prediction", "data": str(data), "num_classes": 1, "seed": 1}
    task |= {"init_token": 0, "separator_token": 2, "max_positions": LONGEST, "no_shuffle": False}
    task |= {"regression_target": True, "classification_head_name": HEAD, **changes}
    heads = [(HEAD, task["num_classes"])]
    return save_model(path, heads=heads, task=task, criterion="sentence_prediction")


def test_a_regression_gives_numbers_of_the_official_range(pairs, tmp_path):
    path = regression(tmp_path / "model.pt", pairs)
    predict(path, pairs, tmp_path / "sts.tsv", task="glue")
    lines = (tmp_path / "sts.tsv").read_text().splitlines()[1:]
    expected = [5 * float(by_hand(path, a, b)) for a, b in zip(FIRST, SECOND)]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.1


def test_race_has_letters_by_question(passages, chooser, tmp_path):
    predict(chooser, passages, tmp_path / "race.json", task="race", batch_size=4)
    found = json.loads((tmp_path / "race.json").read_text())
    scores = [
        [float(by_hand(chooser, column[i], FIRST[i])) for column in OPTIONS] for i in range(10)
    ]
    letters = ["ABCD"[row.index(max(row))] for row in scores]
    assert list(found.items()) == [(f"high/{i}/0", a) for i, a in zip(INDICES, letters)]
    assert len(set(letters)) > 1
    scored = race.score(tmp_path / "race.json", passages / "references.valid.json")
    assert scored.fields["score"] == pytest.approx(
        10 * sum(a == "ABCD"[i % 4] for i, a in enumerate(letters))
    )


def test_squad_has_texts_and_chances_of_no_answer(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    write(raw / "train-v2.0.json", households(8, seed=1, second=True))
    write(raw / "dev-v2.0.json", households(4, seed=2, second=True))
    squad.prepare(raw, tmp_path / "data", vocabulary(tmp_path / "mlm"))
    words = ["--task", "floater_question_answering", "--criterion", "floater_question_answering"]
    words += ["--question-tokens", 12, "--window-stride", 8, "--save-dir", tmp_path / "run"]
    toy.fairseq("train", tmp_path / "data", *words, *options_of()[:-4])
    output = tmp_path / "squad.json"
    path = tmp_path / "run" / "checkpoint_last.pt"
    found = predict(path, tmp_path / "data", output, task="squad")
    answers = json.loads(output.read_text(encoding="utf-8"))
    chances = json.loads((tmp_path / "squad.na.json").read_text())
    assert found.files == [str(tmp_path / "squad.na.json"), str(output)]
    assert list(answers) == list(chances) and len(answers) == found.n > 0
    assert all(0 <= chance <= 1 for chance in chances.values())
    references = tmp_path / "data" / "references.valid.json"
    words = ["squad", "score", str(output), "--references", str(references)]
    assert main([*words, "--na-prob", str(tmp_path / "squad.na.json")]) == 0


# What cannot be predicted: one sentence, and no file.


def refused(sentence, checkpoint, data, output, **options):
    with pytest.raises(CheckpointError, match=sentence):
        predict(checkpoint, data, output, **{"task": "glue", **options})
    assert not output.exists()


def test_a_model_of_another_task(pairs, passages, chooser, tmp_path):
    path = save_model(tmp_path / "model.pt")
    sentence = (
        "was trained for the task masked_lm, but --task glue needs one .* sentence_prediction"
    )
    refused(sentence, path, pairs, tmp_path / "x")
    refused("was trained for the task sentence_ranking", chooser, pairs, tmp_path / "x")


def test_data_that_are_not_there(pairs, passages, classifier, chooser, tmp_path):
    refused("glue prepare` makes it", classifier, pairs, tmp_path / "x", split="test")
    bare = tmp_path / "bare"
    write_inputs(bare, FIRST, *OPTIONS)
    refused("which must name the questions", chooser, bare, tmp_path / "x", task="race")
    (bare / "references.valid.json").write_text('{"one": "A"}')
    refused("has 1 examples, but the data .* 10", chooser, bare, tmp_path / "x", task="race")


def test_data_of_another_dictionary(classifier, tmp_path):
    other = tmp_path / "other"
    write_inputs(other, FIRST, SECOND)
    for number in range(2):
        save_dictionary(other / f"input{number}", 33)
    refused("has 38 entries, but .* was trained with 35", classifier, other, tmp_path / "x")


def test_more_classes_than_labels(pairs, tmp_path):
    path = regression(tmp_path / "m.pt", pairs, num_classes=3, regression_target=False)
    refused("tells 3 classes apart, but .*label/dict.txt has 2 labels", path, pairs, tmp_path / "x")


def test_an_example_longer_than_the_model(pairs, tmp_path):
    path = regression(tmp_path / "m.pt", pairs)
    long = tmp_path / "long"
    write_inputs(long, [sentence(20, 1)] * 3, [sentence(20, 2)] * 3)
    refused("Example 0 of valid .* has 44 tokens, but .* takes 32", path, long, tmp_path / "x")


def test_scores_that_are_not_finite(pairs, tmp_path):
    path = regression(tmp_path / "m.pt", pairs)
    state = torch.load(path, weights_only=True)
    state["model"][f"classification_heads.{HEAD}.out_proj.bias"].fill_(float("nan"))
    torch.save(state, path)
    refused("gives scores that are not finite", path, pairs, tmp_path / "x")


def test_the_verb(pairs, classifier, tmp_path, capsys):
    words = ["predict", str(classifier), str(pairs), str(tmp_path / "rte.tsv"), "--task", "glue"]
    assert main(words) == 0
    assert "10 predictions of" in capsys.readouterr().out
    assert (tmp_path / "rte.tsv").is_file()
    assert main([*words, "--split", "test"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
