"""Training by the real commands: resuming, fairseq's own options, Hydra, another checkout."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import toy as toys
from fairseq import checkpoint_utils

from fairseq_floater.checkpoints.averaging import average


@pytest.fixture(scope="session")
def start(toy, tmp_path_factory):
    """A warm start from the toy's donor: FLOATER with q, k, v biases in every block."""
    path = tmp_path_factory.mktemp("start") / "start.pt"
    toy.warm_start(path)
    return path


def going_on(start, epochs, *options):
    """Options that continue training from the warm start."""
    shared = ("--arch", toys.ARCH, "--finetune-from-model", start, "--max-epoch", epochs)
    return (*shared, *options)


@pytest.fixture(scope="session")
def uninterrupted(toy, start, tmp_path_factory):
    """Two epochs without interruption: (folder of checkpoints, log)."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, toy.train(folder, *going_on(start, 2)).stdout


def resumed(toy, folder, source, *options):
    """The log of a run that resumes from ``source`` as the last checkpoint in ``folder``."""
    folder.mkdir(exist_ok=True)
    shutil.copy(source, folder / "checkpoint_last.pt")
    log = toy.train(folder, *options).stdout
    assert f"Loaded checkpoint {folder / 'checkpoint_last.pt'} (epoch 2 @" in log
    return log


# Resuming.


def test_a_resumed_run_is_the_uninterrupted_run(toy, start, uninterrupted, tmp_path):
    folder, whole = uninterrupted
    log = resumed(toy, tmp_path, folder / "checkpoint1.pt", *going_on(start, 2))
    expected = toys.update_losses(whole)
    assert list(expected) == list(range(1, 2 * toys.UPDATES_AN_EPOCH + 1))
    assert toys.update_losses(log) == {
        n: expected[n] for n in expected if n > toys.UPDATES_AN_EPOCH
    }
    pair = folder / "checkpoint2.pt", tmp_path / "checkpoint2.pt"
    toys.assert_same_run(*pair)
    assert toys.largest_difference(folder / "checkpoint1.pt", pair[0]) > 1e-3


@pytest.mark.slow
def test_a_resumed_run_with_an_update_interval_solves_at_the_same_updates(toy, start, tmp_path):
    assert toys.UPDATES_AN_EPOCH % 3 == 0  # it stops just before an update that solves the flow
    options = going_on(start, 2, "--floater-update-interval", 3)
    toy.train(tmp_path / "whole", *options)
    resumed(toy, tmp_path / "resumed", tmp_path / "whole" / "checkpoint1.pt", *options)
    pair = [tmp_path / name / "checkpoint2.pt" for name in ("whole", "resumed")]
    toys.assert_same_run(*pair)


# fairseq's options.


def test_ema_and_update_frequency_after_a_warm_start(toy, start, tmp_path):
    options = ("--store-ema", "--ema-decay", "0.5", "--update-freq", 2)
    toy.train(tmp_path / "whole", *going_on(start, 2, *options))
    first = tmp_path / "whole" / "checkpoint1.pt"
    resumed(toy, tmp_path / "resumed", first, *going_on(start, 2, *options))
    pair = [tmp_path / name / "checkpoint2.pt" for name in ("whole", "resumed")]
    assert toys.largest_difference(*pair) <= 1e-6

    states = [torch.load(path, weights_only=True) for path in (first, *pair)]
    assert states[0]["optimizer_history"][-1]["num_updates"] == (toys.UPDATES_AN_EPOCH + 1) // 2
    before, whole, again = (state["extra_state"]["ema"] for state in states)
    names = [name for name in states[1]["model"] if "positions." in name]
    assert names
    assert set(names) <= set(whole)
    for name, tensor in whole.items():
        assert torch.allclose(again[name], tensor, rtol=0, atol=1e-6), name
    moved = "encoder.positions.dynamics.weight1"
    assert not torch.equal(whole[moved], states[1]["model"][moved])
    assert not torch.equal(whole[moved], before[moved])


def test_validation_by_bleu_resumes_and_averages(toy, start, tmp_path):
    """Checkpoints of such runs hold numpy scalars, which a safe load must accept."""
    options = (
        *("--eval-bleu", "--eval-bleu-args", json.dumps({"beam": 2, "max_len_b": 10})),
        *("--eval-bleu-remove-bpe", "sentencepiece"),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    )
    whole, again = tmp_path / "whole", tmp_path / "again"
    log = toy.train(whole, *going_on(start, 2, *options)).stdout
    assert "best_bleu" in log
    resumed(toy, again, whole / "checkpoint1.pt", *going_on(start, 2, *options))
    assert toys.largest_difference(whole / "checkpoint2.pt", again / "checkpoint2.pt") <= 1e-6

    scores = [
        torch.load(whole / f"checkpoint{n}.pt", weights_only=True)["extra_state"]["val_loss"]
        for n in (1, 2)
    ]
    report = average([whole], tmp_path / "mean.pt", best=2)
    ranked = [Path(i["path"]).name for i in report.inputs]
    assert ranked[0] == f"checkpoint{1 + scores.index(max(scores))}.pt"
    assert len(toys.hypotheses(toy.generate(tmp_path / "mean.pt").stdout)) == toys.TEST_LINES


@pytest.mark.slow
def test_layerdrop_and_quantisation_noise_then_a_pruned_encoder(toy, tmp_path):
    noise = ("--encoder-layerdrop", 0.3, "--quant-noise-pq", 0.1, "--quant-noise-pq-block-size", 4)
    log = toy.train(tmp_path, "--arch", toys.ARCH, *noise, "--max-epoch", 1).stdout
    last = tmp_path / "checkpoint_last.pt"
    assert toys.losses(last)[0] < float(toys.update_losses(log)[1])
    # If a stack is not named, fairseq drops all its blocks.
    overrides = {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "0,1"}
    output = toy.generate(last, "--model-overrides", repr(overrides)).stdout
    assert sorted(toys.hypotheses(output)) == list(range(toys.TEST_LINES))

    [model], _ = checkpoint_utils.load_model_ensemble([str(last)], arg_overrides=overrides)
    trained = toys.parameters(last)
    assert len(model.encoder.layers) == 1
    for name in ("self_attn.q_proj.weight", "positions.values"):
        kept = model.state_dict()[f"encoder.layers.0.{name}"]
        assert torch.equal(kept, trained[f"encoder.layers.1.{name}"])
        assert not torch.equal(kept, trained[f"encoder.layers.0.{name}"])


def test_the_same_seed_is_the_same_run_bit_for_bit(toy, start, uninterrupted, tmp_path):
    folder, _ = uninterrupted
    toy.train(tmp_path, *going_on(start, 2))
    first, again = (
        torch.load(place / "checkpoint_last.pt", weights_only=True) for place in (folder, tmp_path)
    )
    assert_same_bits(first["model"], again["model"])
    assert_same_bits(first["last_optimizer_state"], again["last_optimizer_state"])


def assert_same_bits(ours, theirs):
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same_bits(ours[key], theirs[key])
    elif isinstance(ours, list):
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_bits(mine, other)
    else:
        assert ours == theirs


def test_a_flow_that_leaves_its_range_stops_training_with_advice(toy, tmp_path):
    log = toy.train(tmp_path, "--arch", toys.ARCH, "--floater-lr-scale", "1e9", code=1).stderr
    assert "The position flow is not finite from t = " in log
    assert "smaller --floater-delta, --floater-init-scale or --floater-lr-scale" in log


def test_gradients_that_are_not_finite_end_with_a_sentence_and_no_stop_iteration(toy, tmp_path):
    """The Transformer overflows after its first update, but the frozen flow does not."""
    options = ("--arch", toys.ARCH, "--floater-freeze", "--lr", "1e30")
    done = toy.train(tmp_path, *options, code=1)
    assert "StopIteration" not in done.stderr
    assert done.stderr.endswith("FloatingPointError: gradients are Nan/Inf\n")
    assert "detected in output of" in done.stdout  # fairseq's detector found the place
    assert "The tables of positions of the last batch had the norms" in done.stdout


# Hydra.


def hydra_train(toy, folder, *overrides, **how):
    """Run fairseq-hydra-train with the repository's configuration at the toy's size."""
    words = [
        *("--config-dir", toys.ROOT / "configs" / "hydra", "--config-name", "floater_tiny"),
        *(f"task.data={toy.data}", f"common.user_dir={toys.PACKAGE}", "common.cpu=true"),
        *("model.encoder_embed_dim=32", "model.encoder_ffn_embed_dim=64", "dataset.batch_size=34"),
        "dataset.num_workers=0",
        *("lr_scheduler.warmup_updates=10", f"checkpoint.save_dir={folder / 'checkpoints'}"),
        f"hydra.run.dir={folder / 'hydra'}",
    ]
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", *words, *overrides]
    return toys.run(command, cwd=folder, **how)


def test_hydra_trains_resumes_and_generates(toy, tmp_path):
    hydra_train(toy, tmp_path, "optimization.max_epoch=1")
    hydra_train(toy, tmp_path, "optimization.max_epoch=2")
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    state = torch.load(last, weights_only=True)
    updates = [run["num_updates"] for run in state["optimizer_history"]]
    assert updates == [toys.UPDATES_AN_EPOCH, 2 * toys.UPDATES_AN_EPOCH]
    assert sorted(toys.hypotheses(toy.generate(last).stdout)) == list(range(toys.TEST_LINES))


# The package in other folders.

TELL_FILES = """
import atexit as _atexit, sys as _sys

@_atexit.register
def _tell():
    files = [m.__file__ for n, m in _sys.modules.items() if n.split(".")[0] == "fairseq_floater"]
    print("LOADED", *sorted(set(files)), sep="\\n", file=_sys.stderr)
"""


def test_a_plain_checkout_is_what_user_dir_loads(toy, tmp_path):
    copy = tmp_path / "checkout" / "fairseq_floater"
    shutil.copytree(toys.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "__init__.py").open("a") as file:
        file.write(TELL_FILES)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = toy.training(elsewhere / "out", "--arch", toys.ARCH, "--max-update", 2)
    command = [sys.executable, "-m", "fairseq_cli.train", *words, "--user-dir", copy]
    done = toys.run(command, cwd=elsewhere)
    files = done.stderr.split("LOADED\n")[1].split()
    assert len(files) > 10
    assert all(Path(file).is_relative_to(copy) for file in files)
    assert (elsewhere / "out" / "checkpoint_last.pt").is_file()
