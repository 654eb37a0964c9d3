"""Warm start and averaging: what is copied, what is refused, and what a file says of itself."""

import json
from pathlib import Path

import helpers
import numpy as np
import pytest
import torch
from fault_disks import small_disk
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
from fairseq_floater.position_encoders import POSITION_ENCODERS, alibi
from fairseq_floater.position_encoders.alibi import AlibiPositions
from fairseq_floater.position_encoders.in_attention import AttentionPart, Gate
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows


@pytest.fixture()
def donor(tmp_path):
    return save_donor(tmp_path / "donor.pt")


def loaded(path, **options):
    """The model that a checkpoint describes, with its parameters."""
    state = load_checkpoint(path)
    model = helpers.build(**{**vars(state["cfg"]["model"]), **options})
    model.load_state_dict(state["model"], strict=True)
    return model.eval()


# Of the report, which compares in float32; `difference` below compares the functions, to 1e-6.
ROUNDING = 5e-6


def difference(a, b):
    source, target = helpers.sentence(9), helpers.shifted(helpers.sentence(7))
    with torch.no_grad():
        first, second = (torch.log_softmax(m.double()(source, None, target)[0], -1) for m in (a, b))
    return float((first - second).abs().max())


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
@pytest.mark.parametrize("blocks", ["all", "input"])
def test_every_tensor_of_the_donor_is_copied(tmp_path, donor, encoder, blocks):
    options = ["--position-encoder", encoder, "--position-blocks", blocks]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    before, after = load_checkpoint(donor)["model"], load_checkpoint(tmp_path / "out.pt")
    # What a file for `fairseq-train --finetune-from-model` must hold.
    assert {"cfg", "model", "optimizer_history", "extra_state", "task_state"} <= set(after)
    assert after["optimizer_history"][-1]["num_updates"] == 0
    assert "last_optimizer_state" not in after
    for name, tensor in before.items():
        assert torch.equal(after["model"][name], tensor), name
    assert not report.ignored
    assert report.difference is not None


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        (["--floater-init-scale", "0"], 1e-6),
        (["--floater-init-scale", "0", "--position-target", "hidden"], 1e-6),
        (["--position-encoder", "sinusoidal", "--position-blocks", "input"], 1e-6),
        (["--position-encoder", "learned"], 1e-6),
        (["--position-encoder", "learned", "--position-blocks", "input"], 1e-6),
    ],
)
def test_the_start_is_the_donors_function(tmp_path, donor, options, bound):
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference <= bound
    assert difference(loaded(tmp_path / "out.pt"), loaded(donor)) <= bound


# With the donor's positions underneath, what must be added for the start to be the donor's function.
TO_BE_EXACT = {
    "floater": ["--floater-init-scale", "0"],
    "rnn": ["--position-target", "qkv"],
    "rotation_flow": ["--position-target", "qkv"],
    "token-rnn": ["--token-rnn-residual"],
}
# Here positions are in the logits from the first update on, or in every block.
NEVER_EXACT = {"rope", "xpos", "alibi", "kerple"}
KEPT = [
    (e, b) for e in POSITION_ENCODERS for b in ("all", "input") if (e, b) != ("sinusoidal", "all")
]


@pytest.mark.parametrize(("encoder", "blocks"), KEPT)
def test_with_the_base_kept_the_start_is_the_donors_function(tmp_path, donor, encoder, blocks):
    options = ["--position-encoder", encoder, "--position-blocks", blocks]
    options += ["--position-base", "keep", *TO_BE_EXACT.get(encoder, [])]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert not report.ignored
    if encoder in NEVER_EXACT:
        assert report.difference > 1e-3
        assert "start    not the donor's function" in report.format_text()
        return
    assert report.difference <= ROUNDING
    assert difference(loaded(tmp_path / "out.pt"), loaded(donor)) <= 1e-6
    model = loaded(tmp_path / "out.pt")
    # And leaves it: what starts at zero is not stuck there.
    helpers.loss_of(model.train()).backward()
    names = POSITION_ENCODERS[encoder].silent_at_zero
    owned = [named for m in helpers.position_modules(model) for named in m.named_parameters()]
    silent = [(name, p) for name, p in owned if name in names]
    assert {name for name, _ in silent} == set(names)
    assert not any(p.any() for _, p in silent)
    assert all(p.grad.any() for _, p in silent)
    assert bool(names) == any("zero at the start" in note for note in report.notes)


def test_learned_slopes_start_as_the_donors_function_and_leave_it(tmp_path, donor):
    options = [
        "--position-encoder",
        "alibi",
        "--alibi-slopes",
        "learned",
        "--position-base",
        "keep",
    ]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference <= ROUNDING
    assert difference(loaded(tmp_path / "out.pt"), loaded(donor)) <= 1e-6
    model = loaded(tmp_path / "out.pt")
    helpers.loss_of(model.train()).backward()
    found = helpers.position_parameters(model)
    assert len(found) == 2
    assert all(not p.any() and p.grad.any() for p in found)


@pytest.mark.parametrize(
    "options",
    [
        "learned --position-target hidden --position-base keep",
        "learned --position-target qkv --position-base keep",
        "learned --position-combine multiply --position-base keep",
        "learned --position-combine concat --position-base keep",
        "learned --position-combine concat",
        "learned --learned-hierarchy 20",
        "learned --learned-hierarchy 20 --position-base keep",
        "sinusoidal --position-combine concat --position-blocks input",
        "sinusoidal --position-combine concat --position-base keep",
        "floater --position-target hidden --position-combine concat",
        "floater --position-combine multiply --position-target hidden --floater-init-scale 0",
        "rotation_flow --position-combine concat",
    ],
)
def test_signals_that_start_as_the_donors_function(tmp_path, donor, options):
    words = ["--position-encoder", *options.split()]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=words)
    assert report.difference <= ROUNDING
    assert difference(loaded(tmp_path / "out.pt"), loaded(donor)) <= 1e-6
    model = loaded(tmp_path / "out.pt")
    helpers.loss_of(model.train()).backward()
    moving = [p for p in helpers.position_parameters(model) if p.grad.any()]
    assert len(moving) >= 2  # one a stack at least


@pytest.mark.parametrize("base", ["auto", "keep"])
def test_the_donors_queries_make_up_for_another_scale_where_its_positions_stay(
    tmp_path, donor, monkeypatch, base
):
    monkeypatch.setattr(AttentionPart, "scaling", lambda _, width: (3 * width) ** -0.5)
    options = ["--position-encoder", "t5", "--position-base", base]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    before, after = (load_checkpoint(p)["model"] for p in (donor, tmp_path / "out.pt"))
    times = 3**0.5 if base == "keep" else 1.0
    for name, tensor in before.items():
        folded = ".self_attn.q_proj." in name
        torch.testing.assert_close(after[name], tensor * (times if folded else 1.0))
    assert (report.difference <= ROUNDING) == (base == "keep")
    same = difference(loaded(tmp_path / "out.pt"), loaded(donor)) <= 1e-6
    assert same == (base == "keep")
    assert any("q_proj times 1.732" in note for note in report.notes) == (base == "keep")


class GatedAlibi(AlibiPositions):
    silent_at_zero = ("gate.weight",)

    def __init__(self, spec):
        super().__init__(spec)
        self.gate = Gate(spec)

    def biases(self, distances):
        return self.gate(super().biases(distances))


def test_a_gate_starts_closed_and_opens_where_the_donors_positions_stay(
    tmp_path, donor, monkeypatch
):
    monkeypatch.setattr(alibi, "AlibiPositions", GatedAlibi)
    options = ["--position-encoder", "alibi", "--position-base"]
    warm_start(donor, tmp_path / "keep.pt", arch=TINY, model_options=[*options, "keep"])
    assert difference(loaded(tmp_path / "keep.pt"), loaded(donor)) <= 1e-6
    model = loaded(tmp_path / "keep.pt")
    gates = helpers.position_parameters(model)
    assert [p.tolist() for p in gates] == [[0.0], [0.0]]
    helpers.loss_of(model.train()).backward()
    assert all(p.grad.any() for p in gates)
    # Without the donor's positions nothing is closed.
    warm_start(donor, tmp_path / "drop.pt", arch=TINY, model_options=[*options, "drop"])
    model = loaded(tmp_path / "drop.pt")
    assert helpers.position_parameters(model) == []
    open_already = helpers.tables(model)
    monkeypatch.undo()
    assert all(map(torch.equal, open_already, helpers.tables(loaded(tmp_path / "drop.pt"))))


def test_positions_that_the_donor_brings_are_not_silenced(tmp_path):
    """A donor of the plugin with the same encoder: its positions are copied, its queries scaled already."""
    options = ["--position-encoder", "tupe", "--position-base", "keep"]
    path = save_model(
        tmp_path / "d.pt",
        "tupe",
        position_base="keep",
        change=lambda state: state["encoder.positions.weight"].fill_(0.7),
    )
    report = warm_start(path, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference == 0
    assert report.notes == []


def test_a_hierarchy_takes_as_many_of_the_donors_rows_as_it_has(tmp_path, donor):
    options = ["--position-encoder", "learned", "--learned-hierarchy", "20"]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    state = load_checkpoint(tmp_path / "out.pt")["model"]
    first = state["encoder.layers.0.positions.weight"][:, 0]
    torch.testing.assert_close(first, sinusoid_rows(20, first.size(1), helpers.PAD))
    assert all("in 20 of its 20 rows" in note for note in report.notes)


def test_where_the_start_is_another_function_the_report_says_so(tmp_path, donor):
    options = ["--position-encoder", "none"]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference > 1e-3
    assert "not the donor's function" in report.format_text()


def test_learned_rows_are_sinusoidal_up_to_the_trained_length_and_random_past_it(tmp_path, donor):
    options = ["--position-encoder", "learned"]
    warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options, trained_length=20)
    state = load_checkpoint(tmp_path / "out.pt")["model"]
    for stack in ("encoder", "decoder"):
        first = state[f"{stack}.layers.0.positions.weight"][:, 0]
        sinusoid = sinusoid_rows(1024, first.size(1), helpers.PAD)
        torch.testing.assert_close(first[:20], sinusoid[:20])
        assert (first[20:] - sinusoid[20:]).abs().mean() > 0.1
        assert first[20:].std() > 0.05
        assert not state[f"{stack}.layers.1.positions.weight"].any()


def test_a_learned_donors_own_rows_are_taken_over(tmp_path):
    path = save_donor(tmp_path / "d.pt", encoder_learned_pos=True, decoder_learned_pos=True)
    options = ["--position-encoder", "learned"]
    report = warm_start(path, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference <= 1e-6
    assert sorted(report.ignored) == [f"{s}.embed_positions.weight" for s in ("decoder", "encoder")]


def test_the_shape_is_the_donors(tmp_path):
    path = save_donor(
        tmp_path / "d.pt", encoder_embed_dim=48, encoder_layers=1, encoder_normalize_before=True
    )
    warm_start(path, tmp_path / "out.pt", arch=TINY)
    args = load_checkpoint(tmp_path / "out.pt")["cfg"]["model"]
    assert (args.encoder_embed_dim, args.encoder_layers, args.encoder_normalize_before) == (
        48,
        1,
        True,
    )
    assert args.arch == TINY


def test_a_change_that_acts_on_longer_sentences_is_said(tmp_path):
    donor = save_model(tmp_path / "donor.pt", "nezha", target="attention", nezha_clip=64)
    options = ["--position-encoder", "nezha", "--nezha-clip", "40"]
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY, model_options=options)
    assert report.difference == 0
    text = report.format_text()
    assert "changed  --nezha-clip" in text
    assert "on random sentences of 16 tokens; what is changed acts on longer ones" in text


def test_files_of_pretrained_vectors_may_be_gone(tmp_path):
    vectors = tmp_path / "vectors.txt"
    words = (f"w{i} " + " ".join(["0.5"] * 64) for i in range(3))
    vectors.write_text("\n".join(["3 64", *words]) + "\n")
    donor = save_donor(tmp_path / "donor.pt", encoder_embed_path=str(vectors))
    vectors.unlink()
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY)
    assert report.difference is not None
    assert model_args(load_checkpoint(tmp_path / "out.pt"), donor).encoder_embed_path is None


def test_a_plugin_checkpoint_can_be_a_donor(tmp_path):
    path = save_donor(
        tmp_path / "d.pt", arch=TINY, position_encoder="sinusoidal", position_blocks="input"
    )
    report = warm_start(
        path, tmp_path / "out.pt", arch=TINY, model_options=["--position-encoder", "floater"]
    )
    assert report.difference < 0.05
    assert load_checkpoint(tmp_path / "out.pt")["cfg"]["model"].position_target == "qkv"


@pytest.mark.parametrize(
    ("donor_options", "arguments", "words"),
    [
        (
            {},
            ["--arch", "floater_transformer"],
            "donor.pt is of another shape: its --encoder-embed-dim is 64",
        ),
        ({}, ["--arch", TINY, "--encoder-layers", "3"], "its --encoder-layers is 2"),
        (
            {"decoder_layers": 3},
            ["--arch", TINY, "--decoder-layers", "1"],
            "its --decoder-layers is 3",
        ),
    ],
)
def test_another_shape_is_refused(tmp_path, capsys, donor_options, arguments, words):
    path = save_donor(tmp_path / "donor.pt", **donor_options)
    assert main(["warm-start", str(path), str(tmp_path / "out.pt"), *arguments]) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()


def write_dictionaries(folder, words):
    folder.mkdir()
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{w} 1\n" for w in words))
    return folder


def test_dictionaries_are_compared(tmp_path):
    words = [f"w{i}" for i in range(36)]
    own = write_dictionaries(tmp_path / "own", words)
    donor = save_donor(tmp_path / "donor.pt", data=str(own))
    same = write_dictionaries(tmp_path / "same", words)
    shorter = write_dictionaries(tmp_path / "shorter", words[:-1])
    swapped = write_dictionaries(tmp_path / "swapped", [*words[1:], words[0]])
    warm_start(donor, tmp_path / "a.pt", arch=TINY, data=str(same))
    with pytest.raises(
        CheckpointError, match=r"shorter/dict.en.txt has 39 entries.*donor.pt.*with 40"
    ):
        warm_start(donor, tmp_path / "b.pt", arch=TINY, data=str(shorter))
    with pytest.raises(
        CheckpointError, match=r"swapped/dict.en.txt is not .*own/dict.en.txt.*entry 4"
    ):
        warm_start(donor, tmp_path / "c.pt", arch=TINY, data=str(swapped))
    with pytest.raises(CheckpointError, match="no dictionary"):
        warm_start(donor, tmp_path / "d.pt", arch=TINY, data=str(tmp_path))


def test_languages_that_the_donor_does_not_name_are_those_of_the_data(tmp_path):
    # As after fairseq-train without -s and -t, which finds them in the names of the files.
    donor = save_donor(tmp_path / "donor.pt")
    state = torch.load(donor, weights_only=False)
    state["cfg"]["task"].update(source_lang=None, target_lang=None)
    torch.save(state, donor)
    data = write_dictionaries(tmp_path / "data", [f"w{i}" for i in range(36)])
    (data / "train.en-de.en.idx").touch()
    warm_start(donor, tmp_path / "out.pt", arch=TINY, data=str(data))


def test_an_existing_output_is_kept(tmp_path, donor, capsys):
    out = tmp_path / "out.pt"
    out.write_text("precious")
    arguments = ["warm-start", str(donor), str(out), "--arch", TINY]
    assert main(arguments) == 1
    assert "out.pt exists" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main([*arguments, "--force"]) == 0


@pytest.mark.parametrize("kind", ["missing", "truncated", "text", "empty", "other"])
def test_unusable_checkpoints_are_named(tmp_path, donor, capsys, kind):
    path = tmp_path / f"{kind}.pt"
    if kind == "truncated":
        path.write_bytes(donor.read_bytes()[:20_000])
    elif kind == "text":
        path.write_text("not a checkpoint\n")
    elif kind == "empty":
        path.touch()
    elif kind == "other":
        torch.save({"weights": torch.zeros(3)}, path)
    assert main(["warm-start", str(path), str(tmp_path / "out.pt"), "--arch", TINY]) == 1
    message = capsys.readouterr().err
    assert f"{kind}.pt" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out.pt").exists()


def test_left_overs_of_older_fairseq_are_listed_and_other_tensors_refused(tmp_path, donor):
    state = load_checkpoint(donor)
    state["model"]["encoder.layers.0.in_proj_weight"] = torch.zeros(3)
    state["model"]["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    torch.save(state, donor)
    report = warm_start(donor, tmp_path / "out.pt", arch=TINY)
    assert report.ignored == list(state["model"])[-2:]
    state["model"]["encoder.adapter.weight"] = torch.zeros(3)
    torch.save(state, donor)
    with pytest.raises(CheckpointError, match="encoder.adapter.weight"):
        warm_start(donor, tmp_path / "out2.pt", arch=TINY)


def test_json_says_what_the_screen_says(tmp_path, donor, capsys):
    out = tmp_path / "report.json"
    arguments = [
        "warm-start",
        str(donor),
        str(tmp_path / "o.pt"),
        "--arch",
        TINY,
        "--json",
        str(out),
    ]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert f"copied   {len(report['copied'])} tensors" in capsys.readouterr().out
    assert sum(report["new"].values()) > 0


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, donor, capsys):
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, "64k"):
        assert main(["warm-start", str(donor), str(folder / "out.pt"), "--arch", TINY]) == 1
        message = capsys.readouterr().err
        assert "out.pt could not be written" in message
        assert message.count("\n") == 1
        assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_is_one_sentence(donor, capsys):
    assert main(["warm-start", str(donor), "/dev/null/out.pt", "--arch", TINY]) == 1
    assert "/dev/null/out.pt could not be written" in capsys.readouterr().err


# Averaging


def save_series(folder, numbers, pattern="checkpoint{}.pt"):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        path = save_donor(folder / pattern.format(number), arch=TINY, seed=number)
        state = load_checkpoint(path)
        state["extra_state"]["val_loss"] = abs(number - 9.5)
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
    assert report.training_seconds == 110.0
    assert report.position_parameters > 0
    recorded = load_checkpoint(tmp_path / "a.pt")["extra_state"]["averaged"]
    assert [len(r["sha256"]) for r in recorded] == [64, 64, 64]


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


def test_checkpoints_saved_by_updates(tmp_path):
    save_series(tmp_path / "c", [500, 1000, 90], pattern="checkpoint_1_{}.pt")
    with pytest.raises(CheckpointError, match="holds 0 files.*--updates"):
        average([tmp_path / "c"], tmp_path / "a.pt", last=2)
    report = average([tmp_path / "c"], tmp_path / "a.pt", last=2, updates=True)
    assert [i["path"].rsplit("_", 1)[1] for i in report.inputs] == ["500.pt", "1000.pt"]
    with pytest.raises(CheckpointError, match="`--updates` says which .* the `--last` N"):
        average([tmp_path / "c"], tmp_path / "b.pt", best=1, updates=True)


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
    assert main(arguments) == 1
    assert "say --last N or --best N" in capsys.readouterr().err


def test_different_models_are_not_averaged(tmp_path):
    first = save_donor(tmp_path / "a.pt", arch=TINY)
    second = save_donor(tmp_path / "b.pt", arch=TINY, floater_lr_scale=4.0)
    third = save_donor(tmp_path / "c.pt", arch=TINY, position_encoder="none")
    for other in (second, third):
        with pytest.raises(
            CheckpointError, match=f"{other.name} and .*a.pt are of different models"
        ):
            average([first, other], tmp_path / "out.pt")
    # Neither has a parameter that tells them apart.
    alike = [
        save_donor(tmp_path / f"{name}.pt", arch=TINY, position_encoder=name)
        for name in ("rope", "alibi")
    ]
    with pytest.raises(CheckpointError, match="position_encoder is alibi and rope"):
        average(alike, tmp_path / "out.pt")


def test_a_broken_last_checkpoint_is_replaced_by_the_newest_whole_one(tmp_path):
    folder = tmp_path / "c"
    assert "nothing to resume" in repair_last(folder)
    save_series(folder, [1, 2])
    (folder / "checkpoint3.pt").write_bytes((folder / "checkpoint2.pt").read_bytes()[:10_000])
    last = folder / "checkpoint_last.pt"
    last.write_bytes((folder / "checkpoint3.pt").read_bytes())
    assert "checkpoint2.pt" in repair_last(folder)
    assert last.read_bytes() == (folder / "checkpoint2.pt").read_bytes()
    assert "resuming from" in repair_last(folder)
    for path in folder.glob("checkpoint?.pt"):
        path.unlink()
    last.write_bytes(b"half")
    assert "starting over" in repair_last(folder)
    assert not last.exists()
