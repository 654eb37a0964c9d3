"""From a donor to translations, by the commands a user types; no part of fairseq is replaced.

Every test starts from the toy experiment of `toy.py`. Training runs are in
`test_integration_training.py`, so that two workers share the work.
"""

import functools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import toy as toys
from fairseq import checkpoint_utils
from toy import TEST_LINES, hypotheses, valid_losses

from fairseq_floater.position_encoders import POSITION_ENCODERS

LEARNED_ROWS = 64
LONG_LIMITS = ("--max-source-positions", 4096, "--max-target-positions", 4096)


@dataclass(frozen=True)
class System:
    """An encoder's warm start and the two epochs trained from it."""

    start: Path
    checkpoints: Path
    log: str

    @property
    def last(self):
        return self.checkpoints / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def trained(toy, tmp_path_factory):
    """encoder -> System, each trained once."""

    @functools.cache
    def train(encoder):
        folder = tmp_path_factory.mktemp(encoder)
        options = ["--position-encoder", encoder]
        if encoder == "learned":
            options += ["--max-source-positions", LEARNED_ROWS]
        start = folder / "start.pt"
        toy.warm_start(start, *options)
        options += ["--arch", toys.ARCH, "--finetune-from-model", start, "--max-epoch", 2]
        return System(start, folder, toy.train(folder, *options).stdout)

    return train


@pytest.fixture(scope="session")
def translated(toy, trained):
    """encoder -> fairseq-generate's output on the test split, made once."""
    return functools.cache(lambda encoder: toy.generate(trained(encoder).last).stdout)


# Other tests cover what each encoder does (contract, warm start, stored checkpoints).
every_encoder = pytest.mark.parametrize(
    "encoder",
    [pytest.param(e, marks=[pytest.mark.slow] * (e != "floater")) for e in POSITION_ENCODERS],
)


# The path of every experiment.


@every_encoder
def test_training_goes_on_from_a_warm_start(toy, trained, encoder):
    system = trained(encoder)
    assert f"loading pretrained model from {system.start}" in system.log
    losses = valid_losses(system.log)
    assert list(losses) == [1, 2]
    validated = toy.validate(system.last, "--valid-subset", "valid").stdout
    assert f"valid on 'valid' subset | loss {losses[2]} |" in validated


@every_encoder
def test_a_trained_checkpoint_reloads_with_nothing_switched_off(trained, encoder):
    system = trained(encoder)
    for path in (system.start, system.checkpoints / "checkpoint1.pt", system.last):
        state = torch.load(path, weights_only=True)
        assert state["cfg"]["model"].position_encoder == encoder
        models, _ = checkpoint_utils.load_model_ensemble([str(path)])
        loaded = models[0].state_dict()
        assert set(loaded) == set(state["model"])
        assert all(torch.equal(loaded[name], t) for name, t in state["model"].items())


@every_encoder
def test_generate_and_interactive_agree(toy, trained, translated, encoder):
    generated = hypotheses(translated(encoder))
    lines = toy.lines("test", "en")
    assert sorted(generated) == list(range(TEST_LINES)) == list(range(len(lines)))
    typed = hypotheses(toy.interactive(trained(encoder).last, lines).stdout)
    assert list(typed) == list(range(TEST_LINES))
    for number, (best, *more) in typed.items():
        assert not more
        assert best[1] == generated[number][0][1]
        assert best[0] == pytest.approx(generated[number][0][0], abs=1e-4)
    assert len({best[0][1] for best in typed.values()}) > TEST_LINES // 2


@pytest.mark.slow  # test_warm_start.py and test_fairseq_compat.py compare the models
def test_a_floater_of_size_zero_translates_as_its_donor(toy, tmp_path):
    start = tmp_path / "start.pt"
    report = toy.warm_start(start, "--floater-init-scale", 0).stdout
    assert "start    the donor's function" in report
    expected, actual = (hypotheses(toy.generate(path).stdout) for path in (toy.donor, start))
    assert list(actual) == list(expected)
    for number, (best,) in expected.items():
        assert actual[number][0][1] == best[1]
        assert actual[number][0][0] == pytest.approx(best[0], abs=1e-4)


# fairseq-generate's options, on a trained FLOATER.


def targets(output):
    """{sentence: reference in subwords} of fairseq-generate's T lines."""
    rows = (line[2:].split("\t") for line in output.splitlines() if line.startswith("T-"))
    return {int(number): text for number, text in rows}


def test_prefix_of_an_ensemble(toy, trained):
    folder = trained("floater").checkpoints
    pair = f"{folder / 'checkpoint1.pt'}:{folder / 'checkpoint2.pt'}"
    output = toy.generate(pair, "--prefix-size", 1).stdout
    found, expected = hypotheses(output), targets(output)
    assert sorted(found) == list(range(TEST_LINES))
    for number, (best,) in found.items():
        assert best[1].split()[0] == expected[number].split()[0]


@pytest.mark.parametrize(
    ("options", "nbest"),
    [
        pytest.param(("--retain-dropout",), 2, id="dropout"),
        pytest.param(
            ("--beam", 4, "--diverse-beam-groups", 2, "--diverse-beam-strength", 0.5),
            4,
            id="groups",
        ),
    ],
)
def test_search_strategies(toy, trained, translated, options, nbest):
    last = trained("floater").last
    output = toy.generate(last, *options, "--nbest", nbest, "--seed", 7).stdout
    found = hypotheses(output)
    assert sorted(found) == list(range(TEST_LINES))
    assert all(len(several) == nbest for several in found.values())
    assert all(math.isfinite(score) for several in found.values() for score, _ in several)
    # This search finds other hypotheses than the default one for some sentence.
    usual = hypotheses(translated("floater"))
    assert any({t for _, t in found[n]} != {t for _, t in usual[n]} for n in found)


def test_soft_alignments_are_printed(toy, trained):
    output = toy.generate(trained("floater").last, "--print-alignment", "soft").stdout
    found = hypotheses(output)
    rows = dict(line[2:].split("\t") for line in output.splitlines() if line.startswith("A-"))
    assert sorted(int(n) for n in rows) == sorted(found) == list(range(TEST_LINES))
    sources = toy.lines("test", "en")
    for number, row in rows.items():
        steps = [[float(weight) for weight in step.split(",")] for step in row.split()]
        assert len(steps) == len(found[int(number)][0][1].split()) + 1
        assert all(len(step) == len(sources[int(number)].split()) + 1 for step in steps)
        assert all(sum(step) == pytest.approx(1, abs=1e-3) for step in steps)


def test_constraints_are_kept(toy, trained):
    lines = toy.lines("test", "en")[:5]
    asked = [f"{line}\t▁sieben hundert" for line in lines]
    found = hypotheses(toy.interactive(trained("floater").last, asked, "--constraints").stdout)
    assert list(found) == list(range(5))
    assert all("▁sieben hundert" in text for several in found.values() for _, text in several)


# Length.


def long_line(tokens):
    words = ["▁seven", "▁hundred", "▁and", "▁fifty"]
    return " ".join(words[i % 4] for i in range(tokens))


def test_sources_far_past_the_trained_length_are_translated(toy, trained, translated):
    longest = max(len(line.split()) for line in toy.lines("train", "en"))
    assert longest < 30
    short = toy.lines("test", "en")[0]
    options = ("--max-tokens", 8192, "--max-len-a", 0, "--max-len-b", 30, *LONG_LIMITS)
    lines = [long_line(700), long_line(1000), short]  # at 2,000 a flow may have overflowed
    found = hypotheses(toy.interactive(trained("floater").last, lines, *options).stdout)
    assert list(found) == [0, 1, 2]
    assert all(math.isfinite(best[0]) and best[1] for (best,) in found.values())
    # 1,000 columns of padding before a short sentence change nothing.
    score, text = hypotheses(translated("floater"))[0][0]
    assert found[2][0][1] == text
    assert found[2][0][0] == pytest.approx(score, abs=1e-4)


# From Python.

HUB = """
import sys
from fairseq_floater import FloaterTransformerModel

folder, data, sentencepiece_model = sys.argv[1:]
hub = FloaterTransformerModel.from_pretrained(
    folder,
    checkpoint_file="checkpoint_last.pt",
    data_name_or_path=data,
    bpe="sentencepiece",
    sentencepiece_model=sentencepiece_model,
)
lines = sys.stdin.read().splitlines()
print("\\n".join(hub.translate(lines, beam=2, max_len_a=1, max_len_b=10)))
"""


def test_the_hub_translates_in_a_fresh_process(toy, trained, translated):
    folder = trained("floater").checkpoints
    raw = (toy.prepared / "raw" / "test.en").read_text(encoding="utf-8")
    command = [sys.executable, "-c", HUB, folder, toy.data, toy.sentencepiece_model]
    actual = toys.run(command, stdin=raw).stdout.splitlines()
    generated = hypotheses(translated("floater"))
    pieces = (generated[number][0][1] for number in range(TEST_LINES))
    assert actual == [p.replace(" ", "").replace("▁", " ").strip() for p in pieces]
