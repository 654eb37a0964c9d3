"""fairseq's own commands train a language model, score longer text with it, and continue text."""

import re

import pytest
import toy as toys

from fairseq_floater.checkpoints.position_loss import position_loss
from fairseq_floater.results.position_figure import read_positions

TASK = ("--task", "language_modeling", "--cpu", "--num-workers", "0")
SHAPE = ("--arch", "floater_transformer_lm_gpt2_tiny", "--position-encoder", "rope")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Lines that count: w0 w1 w2 ..., each beginning with another word."""
    folder = tmp_path_factory.mktemp("lm")
    lines = [" ".join(f"w{(i + k) % 12}" for k in range(40)) for i in range(48)]
    (folder / "text").write_text("".join(f"{line}\n" for line in lines))
    splits = [word for s in ("train", "valid", "test") for word in (f"--{s}pref", folder / "text")]
    toys.fairseq("preprocess", "--only-source", *splits, "--destdir", folder / "bin")
    return folder / "bin"


def loss_at(data, checkpoint, tokens, *options):
    words = (*TASK, "--path", checkpoint, "--gen-subset", "test", "--tokens-per-sample", tokens)
    log = toys.fairseq("eval_lm", data, *words, *options)
    return float(re.search(r"Loss \(base 2\): ([\d.]+)", log.stdout + log.stderr)[1])


def test_training_scoring_and_generation(data, tmp_path):
    words = ("--optimizer", "adam", "--lr", "0.01", "--tokens-per-sample", "12", "--seed", "1")
    words += ("--max-tokens", "480", "--max-update", "60", "--no-epoch-checkpoints")
    moved = ("--position-stretch", "0.5:2.5", "--dropout", "0")
    toys.fairseq("train", data, *TASK, *SHAPE, *words, *moved, "--save-dir", tmp_path)
    checkpoint = tmp_path / "checkpoint_last.pt"
    trained, longer = (loss_at(data, checkpoint, tokens) for tokens in (12, 36))
    assert trained < 2 and longer < 2  # bits; guessing among 12 words costs 3.6
    by_position = position_loss(checkpoint, data, bins=[12, 36], split="test")
    assert by_position.all.bits == pytest.approx(longer, abs=1e-4)
    cap = ("--model-overrides", "{'position_eval': 'cap:4'}")
    assert loss_at(data, checkpoint, 36, *cap) != longer
    lines = ("--sample-break-mode", "eos", "--prefix-size", "4", "--max-len-b", "12", "--beam", "1")
    log = toys.fairseq("generate", data, *TASK, "--path", checkpoint, *lines, "--batch-size", "16")
    texts = [best[0][1].split()[:10] for best in toys.hypotheses(log.stdout).values()]
    counted = [f"w{(int(text[0][1:]) + k) % 12}" for text in texts for k in range(10)]
    written = [word for text in texts for word in text]
    assert sum(map(str.__eq__, written, counted)) > 0.9 * len(counted)
    positions, figure = read_positions(checkpoint)
    assert {p.stack for p in positions} == {"decoder"} and figure.trained_lengths == {"target": 12}
