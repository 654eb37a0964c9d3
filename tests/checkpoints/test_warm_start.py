"""Warm start and averaging: what is copied, what is refused, and what a file says of itself."""

import helpers
import pytest
import torch
from checkpoint_models import ROUNDING, difference, loaded
from helpers import TINY, save_donor, save_model

from fairseq_floater.checkpoints.reading import (
    load_checkpoint,
    model_args,
)
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.position_encoders import POSITION_ENCODERS, alibi
from fairseq_floater.position_encoders.alibi import AlibiPositions
from fairseq_floater.position_encoders.in_attention import AttentionPart, Gate
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows


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
    assert "of 16 tokens a sentence, what is changed may act on longer ones" in text


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


# Averaging
