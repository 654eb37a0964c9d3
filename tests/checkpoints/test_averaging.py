"""Averaging: which checkpoints are taken, what is averaged, and what is refused."""

import os
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, save_donor, save_model

from fairseq_floater.checkpoints.averaging import average
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    RefusedError,
    load_checkpoint,
    model_args,
)
from fairseq_floater.checkpoints.rebuild import build_model
from fairseq_floater.checkpoints.resume import repair_last
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError


def save_series(folder, numbers, pattern="checkpoint{}.pt"):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        path = save_donor(folder / pattern.format(number), arch=TINY, seed=number)
        state = load_checkpoint(path)
        state["extra_state"]["val_loss"] = abs(number - 9.5)
        state["optimizer_history"] = [{"num_updates": number}]
        state["extra_state"]["previous_training_time"] = 10.0 * number
        torch.save(state, path)


def test_the_last_are_the_last_by_number(tmp_path):
    save_series(tmp_path / "c", [1, 2, 9, 10, 11])
    report = average([tmp_path / "c"], tmp_path / "a.pt", last=3)
    assert [i["path"].rsplit("/", 1)[1] for i in report.inputs] == [
        f"checkpoint{n}.pt" for n in (9, 10, 11)
    ]
    states = [load_checkpoint(tmp_path / "c" / f"checkpoint{n}.pt")["model"] for n in (9, 10, 11)]
    for name, tensor in load_checkpoint(tmp_path / "a.pt")["model"].items():
        torch.testing.assert_close(
            tensor, sum(s[name].double() for s in states).div(3).to(tensor.dtype)
        )
    assert report.format_text().startswith("averaged 3 checkpoints (last 3):")
    assert report.training_seconds == 110.0
    assert report.position_parameters > 0
    recorded = load_checkpoint(tmp_path / "a.pt")["extra_state"]["averaged"]
    assert [len(r["sha256"]) for r in recorded] == [64, 64, 64]


def test_the_mean_of_an_ema_run_is_the_average_that_another_one_starts_from(tmp_path):
    """`--store-ema` takes the parameters from there: fairseq has freed the model's."""
    save_series(tmp_path / "c", [1, 2])
    for path in (tmp_path / "c").iterdir():
        state = load_checkpoint(path)
        state["extra_state"] |= {"ema": state["model"], "ema_fp32_params": state["model"]}
        torch.save(state, path)
    average([tmp_path / "c"], tmp_path / "a.pt", last=2)
    mean = load_checkpoint(tmp_path / "a.pt")
    assert "ema_fp32_params" not in mean["extra_state"]
    for name, tensor in mean["extra_state"]["ema"].items():
        assert torch.equal(tensor, mean["model"][name])


def test_a_best_score_in_numpys_numbers_is_read(tmp_path):
    """As fairseq saves it with --report-acc-and-f1 and --best-checkpoint-metric."""
    path = save_donor(tmp_path / "checkpoint_last.pt", arch=TINY)
    state = load_checkpoint(path)
    state["extra_state"] = {"best": np.float64(70.8), "val_loss": np.float32(3)}
    torch.save(state, path)
    assert load_checkpoint(path)["extra_state"] == {"best": 70.8, "val_loss": 3}
    assert "resuming from" in repair_last(tmp_path)


def test_a_refused_checkpoint_is_whole_and_stays(tmp_path):
    path = save_donor(tmp_path / "checkpoint_last.pt", arch=TINY)
    torch.save({**load_checkpoint(path), "extra_state": {"best": Path()}}, path)
    save_donor(tmp_path / "checkpoint1.pt", arch=TINY)
    with pytest.raises(RefusedError, match="is refused"):
        repair_last(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint_last.pt", "checkpoint1.pt"}


def test_the_best_are_the_best(tmp_path):
    save_series(tmp_path / "c", [1, 2, 9, 10, 11])
    report = average([tmp_path / "c"], tmp_path / "a.pt", best=2)
    assert {i["path"].rsplit("/", 1)[1] for i in report.inputs} == {
        "checkpoint9.pt",
        "checkpoint10.pt",
    }
    assert report.training_seconds == 100.0  # up to the later one, whichever is better
    for path in (tmp_path / "c").iterdir():  # as fairseq saved them before 0.10
        state = load_checkpoint(path)
        options = {**vars(model_args(state, path)), "maximize_best_checkpoint_metric": True}
        torch.save({**state, "cfg": None, "args": Namespace(**options)}, path)
    report = average([tmp_path / "c"], tmp_path / "b.pt", best=1)
    assert report.inputs[0]["path"].endswith("checkpoint1.pt")
    state["extra_state"]["val_loss"] = float("nan")
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="holds 4 validated checkpoints, fewer than 5"):
        average([tmp_path / "c"], tmp_path / "n.pt", best=5)


def test_checkpoints_kept_as_the_best_come_before_epochs(tmp_path):
    """As --keep-best-checkpoints names them."""
    save_series(tmp_path / "c", [9, 10, 11, 12])
    for number, name in ((11, "bleu_27.501"), (12, "loss_-3")):
        (tmp_path / "c" / f"checkpoint{number}.pt").rename(
            tmp_path / "c" / f"checkpoint.best_{name}.pt"
        )
    report = average([tmp_path / "c"], tmp_path / "a.pt", best=2)
    assert [i["num_updates"] for i in report.inputs] == [11, 12]
    assert "last_optimizer_state" not in load_checkpoint(tmp_path / "a.pt")


def test_an_input_is_never_overwritten(tmp_path):
    a, b = (save_donor(tmp_path / f"{name}.pt", arch=TINY) for name in "ab")
    with pytest.raises(CheckpointError, match=r"b\.pt is one of the inputs; choose another name"):
        average([a, b], tmp_path / "." / "b.pt", force=True)
    with pytest.raises(CheckpointError, match=r"a\.pt is one of the inputs"):
        warm_start(a, a, arch=TINY, force=True)


def test_checkpoints_saved_by_updates(tmp_path):
    save_series(tmp_path / "c", [500, 1000, 90], pattern="checkpoint_1_{}.pt")
    with pytest.raises(CheckpointError, match="holds 0 files.*--updates"):
        average([tmp_path / "c"], tmp_path / "a.pt", last=2)
    report = average([tmp_path / "c"], tmp_path / "a.pt", last=2, updates=True)
    assert [i["path"].rsplit("_", 1)[1] for i in report.inputs] == ["500.pt", "1000.pt"]
    with pytest.raises(UsageError, match="`--updates` must come with `--last` N"):
        average([tmp_path / "c"], tmp_path / "b.pt", best=1, updates=True)


def test_an_update_that_ends_an_epoch_counts_where_it_is_of_the_interval(tmp_path):
    """fairseq writes no checkpoint_<epoch>_<updates>.pt for such an update."""
    # After --reset-dataloader, epochs are counted from 1 again.
    for path, updates in [("_4_500", 500), ("1", 800), ("_2_1000", 1000), ("2", 1500)]:
        path = save_donor(tmp_path / f"checkpoint{path}.pt", arch=TINY)
        state = load_checkpoint(path)
        state["optimizer_history"] = [{"num_updates": updates}]
        state["cfg"]["checkpoint"]["save_interval_updates"] = 500
        torch.save(state, path)
    report = average([tmp_path], tmp_path / "a.pt", last=3, updates=True)
    assert [i["num_updates"] for i in report.inputs] == [500, 1000, 1500]
    (tmp_path / "checkpoint_2_1000.pt").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint between updates 500 and 1500"):
        average([tmp_path], tmp_path / "b.pt", last=2, updates=True)


def test_frequencies_of_shared_words_are_counted_once(tmp_path):
    path = save_model(
        tmp_path / "checkpoint1.pt", "complex", target="stage", share_all_embeddings=True
    )
    state = load_checkpoint(path)
    model = build_model(state, model_args(state, path), path)
    report = average([path], tmp_path / "a.pt")
    assert report.parameters == sum(p.numel() for p in model.parameters())
    omega = next(p for n, p in model.named_parameters() if n.endswith("omega"))
    assert report.position_parameters == omega.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_mean_of_equal_checkpoints_is_the_checkpoint(tmp_path, dtype):
    path = save_donor(tmp_path / "checkpoint1.pt", arch=TINY)
    state = load_checkpoint(path)
    state["model"] = {
        n: t.to(dtype) if t.dtype == torch.float32 else t for n, t in state["model"].items()
    }
    torch.save(state, path)
    average([path, path, path], tmp_path / "a.pt")
    for name, tensor in load_checkpoint(tmp_path / "a.pt")["model"].items():
        assert tensor.dtype == state["model"][name].dtype
        assert torch.equal(tensor, state["model"][name]), name


def test_too_few_checkpoints_are_an_error(tmp_path, capsys):
    save_series(tmp_path / "c", [1, 2])
    arguments = ["average", "--inputs", str(tmp_path / "c"), "--output", str(tmp_path / "a.pt")]
    assert main([*arguments, "--last", "5"]) == 1
    assert "holds 2 files checkpoint<epoch>.pt, fewer than 5" in capsys.readouterr().err
    assert not (tmp_path / "a.pt").exists()
    assert main(arguments) == 2
    assert "pass --last N or --best N" in capsys.readouterr().err


def test_different_models_are_not_averaged(tmp_path):
    first = save_donor(tmp_path / "a.pt", arch=TINY)
    second = save_donor(tmp_path / "b.pt", arch=TINY, floater_lr_scale=4.0)
    third = save_donor(tmp_path / "c.pt", arch=TINY, position_encoder="none")
    for other, fault in ((second, "floater_lr_scale is 4.0 and 1.0"), (third, "they differ in")):
        with pytest.raises(
            CheckpointError, match=f"{other.name} and .*a.pt are of different models: {fault}"
        ):
            average([first, other], tmp_path / "out.pt")
    # These two encoders have no parameters that tell them apart.
    alike = [save_model(tmp_path / f"{name}.pt", name) for name in ("rope", "alibi")]
    with pytest.raises(CheckpointError, match="position_encoder is alibi and rope"):
        average(alike, tmp_path / "out.pt")


@pytest.mark.parametrize(
    ("encoder", "change"),
    [
        ("rope", {"rope_base": 500.0}),
        ("rope", {"attention_kind": "linear"}),
        ("sinusoidal", {"position_base": "drop"}),
        ("sinusoidal", {"no_token_positional_embeddings": True}),
        ("floater", {"floater_delta": 0.2}),
    ],
)
def test_different_functions_of_equal_shape_are_not_averaged(tmp_path, encoder, change):
    first = save_model(tmp_path / "a.pt", encoder)
    second = save_model(tmp_path / "b.pt", encoder, **change)
    with pytest.raises(CheckpointError, match=f"of different models: {next(iter(change))} is"):
        average([first, second], tmp_path / "out.pt")


def test_a_training_resumed_with_another_solver_is_averaged(tmp_path):
    first = save_model(tmp_path / "a.pt", "floater")
    second = save_model(tmp_path / "b.pt", "floater", floater_solver="rk4_hermite")
    assert len(average([first, second], tmp_path / "out.pt").inputs) == 2


def test_numbers_that_are_not_finite_are_not_averaged(tmp_path):
    path = save_donor(tmp_path / "a.pt", arch=TINY)
    state = load_checkpoint(path)
    state["model"]["encoder.layers.0.fc1.weight"][0, 0] = float("nan")
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"a\.pt .*encoder.layers.0.fc1.weight is not finite"):
        average([path], tmp_path / "out.pt")


def test_a_flipped_byte_is_noticed(tmp_path):
    path = save_donor(tmp_path / "checkpoint_last.pt", arch=TINY)
    whole = tmp_path / "checkpoint1.pt"
    whole.write_bytes(path.read_bytes())
    damaged = bytearray(path.read_bytes())
    values = load_checkpoint(path)["model"]["encoder.layers.0.fc1.weight"].numpy().tobytes()
    damaged[damaged.index(values)] ^= 64
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        average([path], tmp_path / "out.pt")
    assert "checkpoint1.pt" in repair_last(tmp_path)
    assert path.read_bytes() == whole.read_bytes()


def test_a_broken_last_checkpoint_is_replaced_by_the_newest_whole_one(tmp_path):
    folder = tmp_path / "c"
    assert "nothing to resume" in repair_last(folder)
    save_series(folder, [1, 2])
    (folder / "checkpoint3.pt").write_bytes((folder / "checkpoint2.pt").read_bytes()[:10_000])
    last = folder / "checkpoint_last.pt"
    last.write_bytes((folder / "checkpoint3.pt").read_bytes())
    assert "checkpoint2.pt" in repair_last(folder)
    assert last.read_bytes() == (folder / "checkpoint2.pt").read_bytes()
    last.unlink()  # killed before fairseq copied the first checkpoint to it
    assert "missing; resuming from" in repair_last(folder)
    assert f"resuming from {last}" in repair_last(folder)
    best = folder / "checkpoint_best.pt"
    best.write_bytes(b"half")  # without scores, the newest replaces it
    assert "checkpoint_best.pt was damaged; replaced by" in repair_last(folder)
    assert best.read_bytes() == (folder / "checkpoint2.pt").read_bytes()
    for file in (last, folder / "checkpoint1.pt"):
        state = load_checkpoint(file)
        state["extra_state"] |= {"val_loss": 2.0 + (file == last), "best": 2.0}
        torch.save(state, file)
    best.write_bytes(b"half")
    assert "checkpoint_best.pt was damaged; replaced by" in repair_last(folder)
    assert best.read_bytes() == (folder / "checkpoint1.pt").read_bytes()
    os.utime(folder / "checkpoint1.pt", (1, 1))
    for path in (best, last):
        path.write_bytes(b"half")
    assert f"resuming from {folder / 'checkpoint2.pt'}" in repair_last(folder)
    best.unlink()
    for path in folder.glob("checkpoint?.pt"):
        path.unlink()
    last.write_bytes(b"half")
    assert "starting over" in repair_last(folder)
    assert not last.exists()
