import argparse
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import helpers
import pytest
import torch

from benchmarks import batches, contestants, memory, parts
from benchmarks.bench import Bench
from benchmarks.goals import ARCH, verdicts
from benchmarks.settings import QUICK, Settings
from benchmarks.tables import BenchmarkResult
from fairseq_floater.checkpoints.dictionaries import placeholder_dictionary
from fairseq_floater.errors import UserError
from fairseq_floater.position_encoders.registry import ENCODERS, encoder_names

# Warnings of fairseq and Hydra about each other, which the command hides from users.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

TINY = Settings(**QUICK)
NAMES = ["fairseq", "floater", "floater K=8"]


def settings(*options, **changes):
    return Settings(**{**QUICK, "model_options": options, **changes})


def found(*options, **changes):
    return contestants.contestants(settings(*options, **changes), "nowhere")


@pytest.fixture(scope="module")
def three():
    return found()


def bench(chosen, three):
    return Bench(chosen, three, progress=lambda message: None)


def test_batches_are_fairseqs_of_similar_lengths():
    chosen = settings(tokens=200, length=(5, 40))
    words = placeholder_dictionary(chosen.vocabulary[-1])
    assert len(words) == chosen.vocabulary[-1]
    made = batches.make_batches(chosen, words, tokens=chosen.tokens)
    sizes = [batches.size(batch) for batch in made]
    assert max(sizes[0]["source_length"], sizes[0]["target_length"]) == 40
    for batch, size in zip(made, sizes):
        longest = max(size["source_length"], size["target_length"])
        assert size["sentences"] * longest <= 200 < 2 * 8 * longest + size["sentences"] * longest
        source, target = batch["net_input"]["src_tokens"], batch["target"]
        assert (source[:, -1] == helpers.EOS).all()  # padded on the left
        assert (target[:, 0] > helpers.EOS).all()
        lengths = target.ne(helpers.PAD).sum(1)
        assert lengths.min() >= 5
        assert size["tokens"] == lengths.sum()
        assert size["tokens"] > 0.8 * size["padded_tokens"]
    sources = [size["source_length"] for size in sizes]
    assert sources == sorted(sources, reverse=True)
    assert len(set(sources)) == len(batches.PLACES)
    again = batches.make_batches(chosen, words, tokens=chosen.tokens)
    assert all(torch.equal(a["target"], b["target"]) for a, b in zip(made, again))
    for sentences in (1, 3):
        sources = [
            batch["net_input"]["src_tokens"]
            for batch in batches.make_batches(chosen, words, sentences=sentences)
        ]
        assert {len(source) for source in sources} == {sentences}
        assert sources[0].size(1) == 40


def test_contestants_are_what_fairseq_train_builds(three):
    assert [c.name for c in three] == NAMES
    assert [c.interval for c in three] == [1, 1, 8]
    words = placeholder_dictionary(helpers.VOCABULARY)
    trainers = [contestants.trainer(c, words) for c in three]
    counts = [sum(p.numel() for p in t.model.parameters()) for t in trainers]
    plain = helpers.plain(share_all_embeddings=True)
    ours = helpers.build("floater", target="qkv", share_all_embeddings=True)
    assert counts[0] == sum(p.numel() for p in plain.parameters())
    assert counts[1] == counts[2] == sum(p.numel() for p in ours.parameters())
    assert type(trainers[0].model) is type(plain)
    assert {type(t.optimizer).__name__ for t in trainers} == {"FairseqAdam"}
    assert {t.criterion.eps for t in trainers} == {0.1}
    dropouts = {t.model.encoder.dropout_module.p for t in trainers}
    assert dropouts == {plain.encoder.dropout_module.p}


def test_options_of_an_encoder_make_one_contestant_and_others_are_shared():
    options = ("--position-encoder", "rnn", "--encoder-layers", "3", "--rnn-layers=2")
    baseline, other = found(*options)
    assert (baseline.name, other.name) == ("fairseq", "position-encoder rnn rnn-layers=2")
    assert baseline.cfg.model.encoder_layers == other.cfg.model.encoder_layers == 3
    assert (other.cfg.model.position_encoder, other.cfg.model.rnn_layers) == ("rnn", "2")
    assert not hasattr(baseline.cfg.model, "position_encoder")
    assert [c.cfg.model.dropout for c in found("--dropout", "0.25")] == [0.25] * 3
    every_fourth = found("--floater-update-interval", "4", encoders=("floater", "rope"))
    assert [c.interval for c in every_fourth] == [1, 4, 1]
    assert bench(settings(), every_fourth).translating == every_fourth


def test_weights_of_decoding_make_contestants_of_translating_alone():
    chosen = {"encoders": ("rope",), "decoding_weights": ("float32", "int8")}
    made = bench(settings(**chosen), found(**chosen))
    assert [c.name for c in made.contestants] == ["fairseq", "rope"]
    assert [c.name for c in made.translating] == ["fairseq", "rope", "rope int8"]
    assert [c.cfg.model.decoding_weights for c in made.translating[1:]] == ["float32", "int8"]


def test_a_verdict_names_who_misses_a_goal_that_was_measured():
    def row(contestant, ratio, **where):
        return {"contestant": contestant, "ratio": ratio, **where}

    updates = [row("fairseq", 1.0), row("floater", 0.9), row("t5", 1.2), row("cope", 2.0)]
    alone = [row("rope", 0.7), row("rope", 0.85), row("rope int8", 0.39), row("cope", 0.8)]
    rows = {"update": updates, "generation": [r | {"sentences": 1} for r in alone]}
    assert list(verdicts(rows)) == [
        "translation, 1 at once, float32, at most 0.80: missed by `rope` 0.850",
        "translation, 1 at once, int8, at most 0.40: holds",
        "an update, signals and rope, at most 1.00: holds",
        "an update, others except cope, at most 1.15: missed by `t5` 1.200",
    ]
    base = Settings(device="cpu", arch=ARCH)
    result = BenchmarkResult({"cpu": "a CPU"}, base, update=updates)
    assert [line.startswith("* On a CPU: an update, ") for line in result.goals()] == [True] * 2
    for other in ({"tokens": 512}, {"model_options": ("--encoder-layers", "1")}):
        assert not BenchmarkResult({"cpu": "a CPU"}, replace(base, **other), update=updates).goals()


@pytest.mark.parametrize("interval", [1, 3, 8])
def test_everyone_trains_on_the_same_batches_and_solves_meet_all(monkeypatch, interval):
    pair = found("--floater-update-interval", str(interval))
    seen, updates = {c.name: [] for c in pair}, itertools.count()

    def record(trained, batch, name):
        seen[name].append(tuple(batch["target"].shape))
        next(updates)

    fake = SimpleNamespace(model=helpers.plain())
    monkeypatch.setattr(parts, "trainer", lambda contestant, words: fake)
    monkeypatch.setattr(parts, "update", record)
    rows = parts.update_rows(bench(settings(rounds=4 * interval), pair))
    assert seen["fairseq"] == seen[pair[1].name]
    warm_up, block = 1 + parts.WARM_UP["cpu"], rows[1]["block"]  # plus one turn before
    assert rows[0]["block"] == 1
    assert block == (1 if interval == 1 else math.lcm(interval, 4))
    rounds = rows[0]["rounds"]
    assert rounds == rows[1]["rounds"] >= 4 * interval
    assert rounds % block == 0
    assert next(updates) == 2 * (warm_up + rounds)
    counted = seen["fairseq"][warm_up:]
    every = {(size["sentences"], size["target_length"]) for size in rows[0]["batches"]}
    assert set(counted) == every
    solves = [
        shape for i, shape in enumerate(seen["fairseq"]) if i % interval == 0 and i >= warm_up
    ]
    assert set(solves) == every
    parameters = sum(p.numel() for p in fake.model.parameters())
    assert [row["parameters"] for row in rows] == [parameters] * 2


def test_updates_are_fairseqs_and_a_skipped_one_is_an_error(three):
    words = placeholder_dictionary(TINY.vocabulary[-1])
    [batch, *_] = batches.make_batches(TINY, words, tokens=TINY.tokens)
    trained = contestants.trainer(three[2], words)
    before = [p.detach().clone() for p in trained.model.parameters()]
    contestants.update(trained, batch, "floater K=8")
    contestants.update(trained, batch, "floater K=8")
    first = contestants.FIRST_UPDATE
    assert first % 8 == 0
    assert trained.get_num_updates() == first + 2
    assert trained.model.encoder.positions.num_updates == first + 1  # set before each update
    moved = max(float((a - b).abs().max()) for a, b in zip(before, trained.model.parameters()))
    assert 0 < moved < 1e-6
    trained.train_step = lambda samples: None
    with pytest.raises(UserError, match="fairseq skipped an update of floater K=8"):
        contestants.update(trained, batch, "floater K=8")


def test_translations_take_the_same_steps_and_keep_the_table(three, monkeypatch):
    chosen = settings(steps=7, length=(4, 30))
    words = placeholder_dictionary(chosen.vocabulary[-1])
    chosen_three = found(steps=7, length=(4, 30))
    translating = bench(chosen, chosen_three).translating
    assert [c.name for c in translating] == NAMES[:2]
    steps = {}
    for contestant in translating:
        translator = contestants.Translator(contestant, words, chosen)
        search = translator.generator.search
        counted = Mock(side_effect=search.step)
        monkeypatch.setattr(search, "step", counted)
        computed = helpers.recorded(translator.model, monkeypatch)
        made = batches.make_batches(chosen, words, sentences=3)
        for batch in made:
            translator.translate(batch)
        steps[contestant.name] = counted.call_count
        assert len(computed) == len(helpers.signals(translator.model))  # once for all batches
        assert not translator.model.training
    assert steps == {"fairseq": 7 * len(made), "floater": 7 * len(made)}
    monkeypatch.setattr(
        translator.task, "inference_step", lambda *args: [[{"tokens": torch.zeros(6)}]]
    )
    with pytest.raises(UserError, match=r"hypotheses of \[6\] tokens, but all must have 7"):
        translator.translate(made[0])


def test_the_peak_of_memory_is_exact():
    outside = torch.ones(5000)
    kept = []

    def prepare():
        torch.empty(1_000_000)  # freed at once
        return torch.empty(250)

    def work(held):
        first = torch.empty(1000)
        second = torch.empty(3000)
        del first
        kept.append(torch.empty(500))
        del second
        outside.zero_()

    assert memory.peak_bytes(prepare, work, "cpu") == 4 * (250 + 1000 + 3000)
    kept.clear()
    assert memory.peak_bytes(prepare, lambda held: torch.empty(10), "cpu") == 4 * 260


def test_memory_counts_parameters_gradients_moments_and_the_solve(three):
    rows = {row["contestant"]: row for row in parts.memory_rows(bench(TINY, three))}
    assert rows["fairseq"]["ratio"] == 1
    plain = contestants.trainer(three[0], placeholder_dictionary(TINY.vocabulary[-1])).model
    parameters = sum(p.numel() for p in plain.parameters())
    assert rows["fairseq"]["bytes"] > 4 * 4 * parameters
    assert rows["fairseq"]["bytes"] < rows["floater"]["bytes"] < rows["floater K=8"]["bytes"]


def test_growth_is_of_tables_that_learn(three):
    quick = settings(rounds=1, growth_lengths=(8, 1100), growth_from=1)
    rows = parts.growth_rows(bench(quick, three))
    assert [(row["contestant"], row["positions"]) for row in rows] == [
        ("floater", 8),
        ("floater", 1100),
    ]
    assert set(parts.exponents(rows, quick)) == {"floater"}
    far = settings(rounds=1, growth_lengths=(8, 1100), growth_from=1)
    grown = bench(far, found("--position-target", "hidden", "--floater-init-scale", "1"))
    assert [row["positions"] for row in parts.growth_rows(grown)] == [8]
    [failure] = grown.failures
    assert failure["part"] == "growth" and "is not finite from" in failure["reason"]
    learned = found("--position-encoder", "learned")
    assert [row["positions"] for row in parts.growth_rows(bench(quick, learned))] == [8]
    fixed = found(encoders=("sinusoidal", "none", "rope", "alibi"))
    assert parts.growth_rows(bench(quick, fixed)) == []
    turned = found("--rope-learned", encoders=("rope", "t5"))
    rows = parts.growth_rows(bench(quick, turned))
    assert [(row["contestant"], row["positions"]) for row in rows] == [
        (name, length) for name in ("rope", "t5") for length in (8, 1100)
    ]


def test_encoders_stand_side_by_side_beside_one_baseline():
    three = found("--dropout", "0.2", "--rope-partial", "0.5", encoders=("rope", "none"))
    assert [c.name for c in three] == ["fairseq", "rope", "none"]
    assert [c.cfg.model.position_encoder for c in three[1:]] == ["rope", "none"]
    assert {c.cfg.model.dropout for c in three} == {0.2}
    assert three[1].cfg.model.rope_partial == 0.5
    assert encoder_names("rope,t5") == ("rope", "t5")
    assert encoder_names("all") == tuple(ENCODERS)
    for text in ("", "rope,bert"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be all, or some of floater, "):
            encoder_names(text)
