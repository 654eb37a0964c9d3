"""Question answering by the real commands, from SQuAD's files to scores: train, resume, answer."""

import json

import pytest
import torch
from fairseq import checkpoint_utils
from squad_corpus import households, vocabulary, write
from toy import fairseq, floater

from fairseq_floater.data.understanding import squad as preparation
from fairseq_floater.evaluation.understanding.squad import score
from fairseq_floater.transformer.question_answering.answer import answer_questions

MODEL = (
    *("--arch", "roberta", "--encoder-layers", 2, "--encoder-embed-dim", 32),
    *("--encoder-ffn-embed-dim", 64, "--encoder-attention-heads", 2, "--dropout", 0.1),
    *("--max-positions", 64, "--question-tokens", 16, "--window-stride", 16),
)
TRAINING = (
    *("--task", "floater_question_answering", "--criterion", "floater_question_answering"),
    *("--optimizer", "adam", "--lr", "0.003", "--batch-size", 16, "--seed", 1, "--cpu"),
    *("--required-batch-size-multiple", 1, "--num-workers", 0, "--log-format", "simple"),
    *("--best-checkpoint-metric", "window_f1", "--maximize-best-checkpoint-metric"),
    *("--update-epoch-batch-itr", "True"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """SQuAD 2.0 of 30 passages, prepared; the longest ones take two windows."""
    raw = tmp_path_factory.mktemp("squad")
    write(raw / "train-v2.0.json", households(30, seed=1, second=True))
    write(raw / "dev-v2.0.json", households(6, seed=2, second=True, people=5))
    preparation.prepare(raw, raw / "data", vocabulary(raw / "mlm"))
    return raw / "data"


@pytest.fixture(scope="module")
def train(data):
    def run(save_dir, updates, *options):
        words = (data, *MODEL, *TRAINING, "--save-dir", save_dir, "--max-update", updates)
        return fairseq("train", *words, *options)

    return run


@pytest.fixture(scope="module")
def donor(train, tmp_path_factory):
    """A checkpoint without the head."""
    folder = tmp_path_factory.mktemp("donor")
    train(folder, 1)
    state = torch.load(folder / "checkpoint_last.pt", weights_only=True)
    kept = {k: v for k, v in state["model"].items() if not k.startswith("question_answering")}
    assert len(kept) == len(state["model"]) - 6
    torch.save({**state, "model": kept}, folder / "donor.pt")
    return folder / "donor.pt"


@pytest.fixture(scope="module")
def trained(train, donor, tmp_path_factory):
    """A run of six updates from the donor."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(folder, 6, "--finetune-from-model", donor).stdout


def parameters(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def test_training_starts_from_a_donor_without_the_head(trained):
    _, log = trained
    for name in ("window_exact", "window_f1", "answerable_loss", "span_loss"):
        assert f"| {name} " in log


def test_a_stopped_training_goes_on_as_if_it_had_not_been(train, donor, trained, tmp_path):
    for updates in (4, 6):  # four are an epoch
        log = train(tmp_path, updates, "--finetune-from-model", donor).stdout
    assert "Loaded checkpoint" in log and "donor.pt" not in log.split("Loaded checkpoint")[1]
    ours, theirs = parameters(tmp_path), parameters(trained[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_answers_of_a_checkpoint_can_be_scored(data, trained, tmp_path):
    path = str(trained[0] / "checkpoint_best.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    answers = answer_questions(model, task, "valid", max_tokens=512)
    windows = task.load_dataset("valid")
    assert len(windows) > len(windows.questions) == 12
    predictions = write(tmp_path / "answers.json", answers.texts)
    nothing = write(tmp_path / "answers.na.json", answers.no_answer)
    references = data / "references.valid.json"
    words = ("squad", "score", predictions, "--references", references, "--na-prob", nothing)
    floater(*words, "--na-prob-thresh", 0.5, "--json", tmp_path / "scores.json")
    found = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert found["total"] == 12 and found["NoAns_total"] > 0
    assert found["best_f1"] >= found["f1"] >= found["exact"]
    assert score(predictions, references).fields["NoAns_f1"] == 0  # no text is empty
    passages = [q.passage.text for q in windows.questions]
    assert all(text in passage for text, passage in zip(answers.texts.values(), passages))


def test_the_loss_falls(train, tmp_path):
    log = train(tmp_path, 60, "--no-save", "--log-interval", 10).stdout
    losses = [
        float(line.split("loss=")[1].split(",")[0]) for line in log.splitlines() if "loss=" in line
    ]
    assert losses[-1] < 0.8 * losses[0]
