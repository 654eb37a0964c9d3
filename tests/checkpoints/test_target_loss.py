"""Loss and accuracy of a translation model by target position."""

import math
import shutil

import helpers as h
import pytest
import torch
import toy
from checkpoint_models import loaded
from fairseq.data import indexed_dataset

from fairseq_floater.checkpoints.position_loss import position_loss
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError

SOURCES, TARGETS = (7, 13, 4, 10, 9), (9, 6, 12, 3, 11)
BINS = [4, 8, 12]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for seed, (language, lengths) in enumerate({"en": SOURCES, "de": TARGETS}.items()):
        h.dictionary().save(str(folder / f"dict.{language}.txt"))
        prefix = f"{folder}/test.en-de.{language}"
        builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=40)
        for size in lengths:
            builder.add_item(h.sentence(size, seed)[0])
        builder.finalize(f"{prefix}.idx")
    return folder


def save(path, encoder):
    return h.save_donor(path) if encoder == "plain" else h.save_model(path, encoder)


@torch.no_grad()
def by_hand(path, **options):
    """Return [(sentence, position, bits, hit)] of every target token, computed one sentence at a time."""
    model, tokens = loaded(path, **options), []
    for number, (n, m) in enumerate(zip(SOURCES, TARGETS)):
        source, target = h.sentence(n, 0), h.sentence(m, 1)
        scores = model(source, torch.tensor([n]), h.shifted(target))[0][0].double()
        for place, (row, word) in enumerate(zip(scores, target[0])):
            bits = (row.logsumexp(0) - row[word]) / math.log(2)
            tokens.append((number, place, bits.item(), row[word] == row.max()))
    return tokens


def assert_measured(report, tokens):
    assert [(b.first, b.last) for b in report.bins] == [(0, 3), (4, 7), (8, 11)]
    for group in (*report.bins, report.all):
        inside = [t for t in tokens if group.first <= t[1] <= group.last]
        mean = sum(bits for *_, bits, _ in inside) / len(inside)
        assert group.n == len(inside)
        assert group.bits == pytest.approx(mean, abs=1e-5)
        assert group.accuracy == sum(hit for *_, hit in inside) / len(inside)
        of_each = [[t[2] for t in inside if t[0] == number] for number in {t[0] for t in inside}]
        squares = sum((sum(bits) - len(bits) * mean) ** 2 for bits in of_each)
        variance = len(of_each) / (len(of_each) - 1) * squares / len(inside) ** 2
        assert group.standard_error == pytest.approx(math.sqrt(variance), rel=1e-4)
    assert report.all.n == len(tokens) == sum(TARGETS)


@pytest.mark.parametrize("encoder", ["plain", "rope", "floater"])
def test_loss_and_accuracy_are_those_written_out(tmp_path, data, encoder):
    path = save(tmp_path / "model.pt", encoder)
    report = position_loss(path, data, bins=BINS, split="test", batch_size=2)
    assert_measured(report, by_hand(path))
    assert report.all.accuracy > 0
    assert "past the last bin" not in report.format_text()
    first = position_loss(path, data, bins=BINS[:1], split="test")
    assert f" {first.all.n - first.bins[0].n} tokens past the last bin." in first.format_text()


def test_an_adaptive_softmax_chooses_among_all_words(tmp_path, data):
    path = h.save_model(tmp_path / "model.pt", "rope", adaptive_softmax_cutoff="10,20")
    model, hits = loaded(path), 0
    for n, m in zip(SOURCES, TARGETS):
        source, target = h.sentence(n, 0), h.sentence(m, 1)
        with torch.no_grad():
            output = model(source, torch.tensor([n]), h.shifted(target))
        hits += int((h.normalised(model, output).argmax(-1) == target).sum())
    report = position_loss(path, data, bins=BINS, split="test")
    assert report.all.accuracy == hits / sum(TARGETS) > 0


def test_text_that_was_binarised_the_other_way_round(tmp_path, data):
    path, turned = save(tmp_path / "model.pt", "rope"), tmp_path / "turned"
    turned.mkdir()
    for file in data.iterdir():
        shutil.copy(file, turned / file.name.replace("en-de", "de-en"))
    reports = [position_loss(path, folder, bins=BINS, split="test") for folder in (data, turned)]
    assert reports[0].bins == reports[1].bins


def test_positions_in_evaluation_are_others(tmp_path, data):
    path = save(tmp_path / "model.pt", "rope")
    law = {"position_eval": "interpolate:4"}
    report = position_loss(path, data, bins=BINS, split="test", **law)
    assert_measured(report, by_hand(path, **law))
    assert report.all.bits != position_loss(path, data, bins=BINS, split="test").all.bits
    with pytest.raises(UsageError, match="is for models of this package; .*plain.pt is fairseq"):
        position_loss(save(tmp_path / "plain.pt", "plain"), data, bins=BINS, split="test", **law)


def test_the_loss_is_that_of_fairseq_generate(tmp_path, data, capsys):
    path = save(tmp_path / "model.pt", "rope")
    words = ["--task", "translation", "--gen-subset", "test", "--path", path, "--cpu"]
    words += ["--score-reference", "--batch-size", 2, "--required-batch-size-multiple", 1]
    output = toy.fairseq("generate", data, *words).stdout
    scores = [line.split("\t")[1].split() for line in output.splitlines() if line[:2] == "P-"]
    assert main(["position-loss", str(path), str(data), "--split", "test", "--bins", "4,8"]) == 0
    table = capsys.readouterr().out
    for begin, end in ((0, 4), (4, 8)):
        bits = [-float(score) for row in scores for score in row[begin:end]]
        assert f"| {begin}-{end - 1} | {sum(bits) / len(bits):.3f} |" in table
    assert "5 sentences, teacher-forced" in table and "| target tokens |" in table


def test_sentences_that_are_longer_than_a_model_takes_are_left_out(tmp_path, data):
    path = save(tmp_path / "model.pt", "plain")
    state = torch.load(path, weights_only=True)
    state["cfg"]["model"].max_source_positions = 9
    torch.save(state, path)
    report = position_loss(path, data, bins=[9], split="test")
    assert (report.blocks, report.left_out) == (3, 2)
    assert "2 lines that are longer than the model takes were left out." in report.format_text()


def test_blocks_are_not_for_sentences(tmp_path, data):
    with pytest.raises(UsageError, match="must be left out for a translation model"):
        position_loss(save(tmp_path / "model.pt", "rope"), data, bins=BINS, tokens_per_sample=8)


def test_a_split_that_is_not_there(tmp_path, data):
    with pytest.raises(CheckpointError, match=r"There is no .*valid.en-de.en.idx"):
        position_loss(save(tmp_path / "model.pt", "rope"), data, bins=BINS)
