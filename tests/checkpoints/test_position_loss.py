"""Loss by position: equal to a computation by hand on what fairseq's task masks, and refusals."""

import json
import math
import re

import pytest
import torch
import toy
from fairseq.data import (
    MaskTokensDataset,
    PrependTokenDataset,
    TokenBlockDataset,
    data_utils,
)
from roberta_toy import LONGEST, WORDS, dictionary, save_dictionary, save_model, write_text

from fairseq_floater.checkpoints.position_loss import position_loss
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.roberta_tasks import load_model
from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError

BINS = [4, 12, 20, LONGEST]


@pytest.fixture()
def data(tmp_path):
    write_text(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture()
def checkpoint(tmp_path, data):
    return save_model(tmp_path / "model.pt", task={"_name": "masked_lm", "data": str(data)})


def masked_blocks(data, seed, kept, random):
    """Return fairseq's masked-LM blocks, [(input, target)] with <pad> as unmasked targets, and <mask>."""
    words = dictionary()
    mask = words.add_symbol("<mask>")
    text = data_utils.load_indexed_dataset(str(data / "valid"), words)
    blocks = TokenBlockDataset(text, text.sizes, LONGEST - 1, pad=1, eos=2, break_mode="complete")
    shares = {"leave_unmasked_prob": kept, "random_token_prob": random, "mask_prob": 0.15}
    source, target = MaskTokensDataset.apply_mask(
        PrependTokenDataset(blocks, 0), words, pad_idx=1, mask_idx=mask, seed=seed, **shares
    )
    for part in (source, target):
        part.set_epoch(1)
    return [(source[i], target[i]) for i in range(len(source))], mask


@torch.no_grad()
def by_hand(checkpoint, pairs):
    """Return {position: [(block, bits)]}, computed one block at a time without padding."""
    model, _ = load_model(checkpoint)
    bits = {}
    for block, (source, target) in enumerate(pairs):
        scores = model(source[None])[0][0].double()
        for position in range(len(target)):
            if target[position] != 1:
                row = scores[position] - scores[position].max()
                p = row.exp()[target[position]] / row.exp().sum()
                bits.setdefault(position, []).append((block, -math.log2(p)))
    return bits


@pytest.mark.parametrize(("masking", "kept", "random"), [("bert", 0.1, 0.1), ("mask", 0.0, 0.0)])
def test_the_loss_is_that_written_out(data, checkpoint, masking, kept, random):
    found = position_loss(checkpoint, data, bins=BINS, seed=3, masking=masking)
    pairs, mask = masked_blocks(data, 3, kept, random)
    inputs = [s[t != 1] for s, t in pairs]
    assert all((i == mask).all() for i in inputs) is (masking == "mask")
    expected = by_hand(checkpoint, pairs)
    assert [(b.first, b.last) for b in found.bins] == [(0, 3), (4, 11), (12, 19), (20, 31)]
    for b in (*found.bins, found.all):
        inside = [x for place in range(b.first, b.last + 1) for x in expected.get(place, [])]
        mean = sum(bits for _, bits in inside) / len(inside)
        assert b.n == len(inside)
        assert b.bits == pytest.approx(mean, abs=1e-5)
        blocks = {block: [bits for k, bits in inside if k == block] for block, _ in inside}
        squares = sum((sum(bits) - len(bits) * mean) ** 2 for bits in blocks.values())
        variance = len(blocks) / (len(blocks) - 1) * squares / len(inside) ** 2
        assert b.standard_error == pytest.approx(math.sqrt(variance), rel=1e-4)
    assert found.all.n == sum(b.n for b in found.bins) == sum(map(len, expected.values()))
    assert found.all.bits > 0.5 + math.log2(WORDS + 5)  # the model is far from uniform
    assert found.blocks == len(pairs) and not found.left_out


def test_all_holds_positions_past_the_last_bin_too(data, checkpoint):
    whole = position_loss(checkpoint, data, bins=BINS)
    half = position_loss(checkpoint, data, bins=BINS[:1], tokens_per_sample=whole.tokens_per_sample)
    assert half.all == whole.all and half.bins == whole.bins[:1]


def test_the_whole_is_what_fairseq_validate_prints(tmp_path, data):
    task = {"_name": "masked_lm", "data": str(data), "tokens_per_sample": LONGEST, "seed": 5}
    path = save_model(tmp_path / "model.pt", task={**task, "sample_break_mode": "complete"})
    words = ("--task", "masked_lm", "--path", path, "--batch-size", 4, "--cpu")
    log = toy.fairseq("validate", data, *words, "--required-batch-size-multiple", 1).stdout
    printed = float(re.search(r"valid on 'valid' subset \| loss ([\d.]+)", log)[1])
    found = position_loss(path, data, bins=[LONGEST], seed=5)
    assert found.all.bits == pytest.approx(printed, abs=6e-4)


def test_every_model_is_asked_for_the_same_tokens(tmp_path, data, checkpoint):
    other = save_model(tmp_path / "other.pt", seed=1, encoder_layers=1)
    first, second = (position_loss(path, data, bins=BINS) for path in (checkpoint, other))
    assert [b.n for b in first.bins] == [b.n for b in second.bins]
    assert first.all.bits != pytest.approx(second.all.bits, abs=0.01)
    another_seed = position_loss(checkpoint, data, bins=BINS, seed=2)
    assert [b.n for b in first.bins] != [b.n for b in another_seed.bins]
    torch.manual_seed(99)
    assert position_loss(checkpoint, data, bins=BINS) == first


def test_the_batch_does_not_matter(data, checkpoint):
    one, many = (position_loss(checkpoint, data, bins=BINS, batch_size=n) for n in (1, 50))
    for a, b in zip((*one.bins, one.all), (*many.bins, many.all)):
        assert (a.n, a.bits) == (b.n, pytest.approx(b.bits, abs=1e-5))
        assert a.standard_error == pytest.approx(b.standard_error, abs=1e-5)


def test_lines_longer_than_a_block_are_counted(tmp_path, checkpoint):
    write_text(tmp_path / "long", [10] * 20 + [40] * 3)
    found = position_loss(checkpoint, tmp_path / "long", bins=[8, 20])
    assert (found.blocks, found.left_out, found.tokens_per_sample) == (20, 3, 20)
    assert "3 lines that are longer than a block were left out." in found.format_text()


def test_the_verb_prints_a_table_and_writes_json(tmp_path, data, checkpoint, capsys):
    words = ["position-loss", str(checkpoint), str(data), "--bins", "8,32"]
    assert main([*words, "--json", str(tmp_path / "loss.json")]) == 0
    out = capsys.readouterr().out
    assert "15% of them masked (80% `<mask>`, 10% random, 10% kept), seed 1" in out
    assert re.search(r"^\| 0-7 (\| \d+\.\d{3} ){3}\| \d+ \|$", out, re.MULTILINE)
    written = json.loads((tmp_path / "loss.json").read_text())
    assert [b["last"] for b in written["bins"]] == [7, 31]
    assert written["all"]["n"] == sum(b["n"] for b in written["bins"])
    assert written["masking"] == "bert"


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("floater_bert", {}),
        ("roberta_prenorm", {}),
        ("floater_roberta_tiny", {"position_encoder": "floater"}),
        ("floater_roberta_tiny", {"position_encoder": "t5"}),
    ],
)
def test_other_robertas_are_measured(tmp_path, data, arch, options):
    path = save_model(tmp_path / "other.pt", arch=arch, **options)
    assert position_loss(path, data, bins=BINS).all.n > 0


# What cannot be measured: one sentence.


def refused(error, sentence, *words, **options):
    with pytest.raises(error, match=sentence):
        position_loss(*words, **{"bins": BINS, **options})


@pytest.mark.parametrize(
    ("lengths", "bins", "sentence"),
    [
        # No two of these lines fit into a block.
        ([20] * 30, [8, 22, LONGEST], r"predict at 22 to 31 \(the last one is at \d+\)"),
        ([1], [4], r"predict at 0 to 3 \(there is none\)"),  # 3 tokens, of which seed 0 masks none
        ([40] * 3, BINS, "No line of valid fits"),
    ],
)
def test_text_without_a_token_to_measure(tmp_path, checkpoint, lengths, bins, sentence):
    write_text(tmp_path / "other", lengths)
    refused(CheckpointError, sentence, checkpoint, tmp_path / "other", bins=bins, seed=0)


def test_options_that_do_not_fit(data, checkpoint):
    sentence = "must be at most the 32 positions of .*model.pt, but is 33; warm-start"
    refused(UsageError, sentence, checkpoint, data, bins=[8, 33])
    refused(UsageError, sentence, checkpoint, data, tokens_per_sample=33)
    refused(UsageError, "must be rising numbers, but is 8,4", checkpoint, data, bins=[8, 4])
    refused(CheckpointError, "There is no .*test.idx", checkpoint, data, split="test")


def test_data_of_another_dictionary(tmp_path, checkpoint):
    other = tmp_path / "other"
    write_text(other)
    position_loss(checkpoint, other, bins=BINS)  # the same words in another place
    lines = (other / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    refused(CheckpointError, "entry 4 is 'w1', not 'w0'", checkpoint, other)
    save_dictionary(other, WORDS + 3)
    refused(CheckpointError, "has 38 entries, but .* was trained with 35", checkpoint, other)
    (other / "dict.txt").unlink()
    refused(CheckpointError, "There is no dictionary", checkpoint, other)


def test_an_imported_models_dictionary_is_compared(tmp_path, data, checkpoint):
    """The dictionary lies beside the checkpoint."""
    save_dictionary(tmp_path)
    lines = (tmp_path / "dict.txt").read_text().splitlines()
    (tmp_path / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    refused(CheckpointError, "is not .*dict.txt, which .* was trained with", checkpoint, data)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda state: setattr(state["cfg"]["model"], "arch", "lstm"),
            "is not a RoBERTa: its architecture is 'lstm'",
        ),
        (
            lambda state: state.pop("optimizer_history"),
            "format of 2019; `floater import-roberta .* converts it",
        ),
        (
            lambda state: setattr(state["cfg"]["model"], "encoder_ffn_embed_dim", 23),
            "does not fit its own options: size mismatch",
        ),
        (
            lambda state: state["model"].pop("encoder.sentence_encoder.layers.1.fc2.bias"),
            "lacks encoder.sentence_encoder.layers.1.fc2.bias, which its own options require",
        ),
    ],
)
def test_another_checkpoint(data, checkpoint, change, sentence):
    state = torch.load(checkpoint, weights_only=True)
    change(state)
    torch.save(state, checkpoint)
    refused(CheckpointError, sentence, checkpoint, data)


@pytest.mark.parametrize("bins", ["0,4", "x", ""])
def test_bins_that_are_no_numbers(capsys, bins):
    with pytest.raises(SystemExit):
        main(["position-loss", "model.pt", "data", "--bins", bins])
    assert "--bins" in capsys.readouterr().err
