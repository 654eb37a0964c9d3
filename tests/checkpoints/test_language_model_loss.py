"""Loss of language models by position: equal to a computation by hand on the blocks of text."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import data_utils
from fairseq.models import build_model
from helpers import save_state
from roberta_toy import dictionary, write_text

from fairseq_floater.checkpoints.position_loss import position_loss
from fairseq_floater.errors import UsageError

ADAPTIVE = {"adaptive_input": True, "adaptive_input_cutoff": "10,20"}
ADAPTIVE |= {"adaptive_softmax_cutoff": "10,20", "decoder_input_dim": 512}


@pytest.fixture()
def data(tmp_path):
    write_text(tmp_path / "data")
    return tmp_path / "data"


def save_language_model(path, encoder="rope", starts=False, **options):
    """Save a random model as fairseq's trainer does; return it."""
    torch.manual_seed(0)
    task = {"tokens_per_sample": 12, "add_bos_token": starts, "max_target_positions": None}
    args = Namespace(
        arch="floater_transformer_lm_gpt2_tiny", position_encoder=encoder, **task, **options
    )
    words = dictionary()
    given = Namespace(source_dictionary=words, target_dictionary=words)
    model = build_model(args, given)
    common, criterion = {"tpu": False, "seed": 1}, {"_name": "cross_entropy"}
    task |= {"_name": "language_modeling", "data": "elsewhere"}
    save_state(path, model, args, task, common=common, criterion=criterion)
    return model.eval()


def causal_blocks(data, mode, starts, longest):
    """Return the blocks [(input, target)]; ``None`` is the target of the start symbol."""
    text = data_utils.load_indexed_dataset(str(data / "valid"), dictionary())
    lines = [text[i].tolist() for i in range(len(text))]
    words, step = sum(lines, []), longest - starts
    blocks = [words[i : i + step] for i in range(0, len(words), step)]
    before = [[2]] + blocks
    if mode == "eos":
        blocks = [line for line in lines if len(line) <= step]
        before = [[2] for _ in blocks]
    first, unmeasured = ([0], [None]) if starts else ([], [])
    return [(first + b[-1:] + block[:-1], unmeasured + block) for b, block in zip(before, blocks)]


@pytest.mark.parametrize(
    ("mode", "starts", "options"),
    [
        (None, False, {}),
        ("eos", False, {}),
        (None, True, {}),
        ("eos", True, {}),
        (None, False, ADAPTIVE),
    ],
    ids=["none", "eos", "bos", "eos, bos", "adaptive"],
)
@torch.no_grad()
def test_a_language_model_predicts_every_token_of_a_block(tmp_path, data, mode, starts, options):
    model = save_language_model(tmp_path / "lm.pt", starts=starts, **options)
    expected = {}
    for source, target in causal_blocks(data, mode, starts, 20):
        output = model(torch.tensor([source]))
        nats = -model.get_normalized_probs(output, log_probs=True)[0]
        for position, (row, word) in enumerate(zip(nats, target)):
            if word is not None:
                expected.setdefault(position, []).append(row[word].item() / math.log(2))
    found = position_loss(
        tmp_path / "lm.pt", data, bins=[4, 12, 20], batch_size=3, sample_break_mode=mode
    )
    for b in (*found.bins, found.all):
        inside = [x for place in range(b.first, b.last + 1) for x in expected.get(place, [])]
        assert b.n == len(inside)
        assert b.bits == pytest.approx(sum(inside) / len(inside), abs=1e-5)
    assert found.all.n == sum(map(len, expected.values()))
    assert "blocks of at most 20 tokens\n" in found.format_text()


def test_blocks_longer_than_the_table_are_refused(data):
    save_language_model(data / "lm.pt", "learned")
    with pytest.raises(
        UsageError, match="must be at most the 12 positions of .*lm.pt, but is 13.$"
    ):
        position_loss(data / "lm.pt", data, bins=[8, 13])
