"""Warm start: what is copied, where the start is the donor's function, and what a report says."""

import helpers
import pytest
import torch
from checkpoint_models import ROUNDING, difference, loaded
from encoder_cases import KINDS
from fairseq import options as options_parser
from helpers import TINY, save_donor, save_model

from fairseq_floater import FloaterTransformerModel
from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows


@pytest.mark.parametrize("encoder", ["floater", "learned", "rope", "xl", "token-rnn"])
def test_every_tensor_of_the_donor_is_copied(start, donor, encoder):
    report, out = start(donor, f"--position-encoder {encoder}")
    before, after = load_checkpoint(donor)["model"], load_checkpoint(out)
    # `fairseq-train --finetune-from-model` needs these.
    assert {"cfg", "model", "optimizer_history", "extra_state", "task_state"} <= set(after)
    assert after["optimizer_history"][-1]["num_updates"] == 0
    assert "last_optimizer_state" not in after
    for name, tensor in before.items():
        assert torch.equal(after["model"][name], tensor), name
    assert not report.ignored
    assert report.difference is not None


def test_the_donors_optimiser_does_not_keep_the_start_from_translating(start, donor):
    state = load_checkpoint(donor)
    state["cfg"]["model"].optimizer = "nag"
    torch.save(state, donor)
    _, out = start(donor, "--position-encoder floater --floater-lr-scale 0.5")
    loaded(out).set_num_updates(0)  # as fairseq does when it loads a checkpoint


# Options that make the start the donor's function, given that the donor's positions are kept.
TO_BE_EXACT = {
    "floater": "--floater-init-scale 0",
    "rnn": "--position-target qkv",
    "rotation_flow": "--position-target qkv",
    "token-rnn": "--token-rnn-residual",
}
# These act on the logits, or in every block, from the first update on.
NEVER_EXACT = {"rope", "xpos", "alibi", "kerple"}
SCALED = {"tupe", "deberta", "tener"}  # these scale the logits by another number than the donor
KEPT = [(e, "all") for e in POSITION_ENCODERS if e != "sinusoidal"]
KEPT += [(e, "input") for e in KINDS]
KEPT += [(e, "cross") for e in POSITION_ENCODERS if POSITION_ENCODERS[e].can_cross]
KEPT += [("learned", "1"), ("t5", "1")]


@pytest.mark.parametrize(("encoder", "blocks"), KEPT)
def test_with_the_base_kept_the_start_is_the_donors_function(start, donor, encoder, blocks):
    where = "--position-cross relative" if blocks == "cross" else f"--position-blocks {blocks}"
    options = f"--position-encoder {encoder} {where} --position-base keep"
    report, out = start(donor, f"{options} {TO_BE_EXACT.get(encoder, '')}")
    assert not report.ignored
    if encoder in NEVER_EXACT:
        assert report.difference > 1e-3
        assert "start    not the donor's function" in report.format_text()
        return
    assert report.difference <= ROUNDING
    assert difference(loaded(out), loaded(donor)) <= 1e-6
    assert any("q_proj times" in note for note in report.notes) == (encoder in SCALED)
    model = loaded(out)
    # Training leaves the start: what starts at zero gets a gradient.
    helpers.loss_of(model.train()).backward()
    names = POSITION_ENCODERS[encoder].silent_at_zero
    owned = [named for m in helpers.position_modules(model) for named in m.named_parameters()]
    silent = [(name, p) for name, p in owned if name in names]
    assert {name for name, _ in silent} == set(names)
    assert not any(p.any() for _, p in silent)
    assert all(p.grad.any() for _, p in silent)
    assert not owned or any(p.grad.any() for _, p in owned)
    assert bool(names) == any("zero at the start" in note for note in report.notes)


def test_the_first_block_with_learned_rows_takes_over_the_donors_positions(start, donor):
    report, out = start(donor, "--position-encoder learned --position-blocks 1")
    rows = load_checkpoint(out)["model"]["encoder.layers.1.positions.weight"][:20, 0]
    assert torch.equal(rows, sinusoid_rows(20, 64, helpers.PAD))
    assert "block 2 starts as the donor's positions" in report.format_text()


@pytest.mark.parametrize(
    "options",
    [
        "sinusoidal --position-blocks input",
        "sinusoidal --position-combine concat --position-blocks input",
        "sinusoidal --position-combine concat --position-base keep",
        "learned",
        "learned --position-blocks input",
        "learned --position-target hidden --position-base keep",
        "learned --position-target qkv --position-base keep",
        "learned --position-combine multiply --position-base keep",
        "learned --position-combine concat --position-base keep",
        "learned --position-combine concat",
        "learned --learned-hierarchy 20",
        "learned --learned-hierarchy 20 --position-base keep",
        "floater --floater-init-scale 0",
        "floater --position-target hidden --floater-init-scale 0",
        "floater --position-target hidden --position-combine concat",
        "floater --position-combine multiply --position-target hidden --floater-init-scale 0",
        "rotation_flow --position-combine concat",
        "alibi --alibi-slopes learned --position-base keep",
    ],
)
def test_signals_that_start_as_the_donors_function(start, donor, options):
    report, out = start(donor, f"--position-encoder {options}")
    assert report.difference <= ROUNDING
    assert difference(loaded(out), loaded(donor)) <= 1e-6
    model = loaded(out)
    helpers.loss_of(model.train()).backward()
    parameters = helpers.position_parameters(model)
    moving = [p for p in parameters if p.grad.any()]
    assert len(moving) >= min(2, len(parameters))  # at least one per stack


def test_positions_that_the_donor_brings_are_not_silenced(tmp_path, start):
    """A donor with the same encoder: its positions are copied, and its queries are already scaled."""
    donor = save_model(
        tmp_path / "donor.pt",
        "tupe",
        position_base="keep",
        change=lambda state: state["encoder.positions.weight"].fill_(0.7),
    )
    report, _ = start(donor, "--position-encoder tupe --position-base keep")
    assert report.difference == 0
    assert report.notes == []


@pytest.mark.parametrize(
    ("encoder", "option", "note"),
    [
        ("shaw", "--position-cross relative", "cross-attention: "),
        ("floater", "--floater-start bias", "p(0) starts at the donor's biases"),
        (
            "floater",
            "--position-target hidden --floater-start sinusoid --floater-solver rk4_hermite",
            "start as fairseq's sinusoid",
        ),
    ],
)
def test_what_a_donor_of_the_same_encoder_lacks_starts_as_from_another(
    tmp_path, start, encoder, option, note
):
    target = {"position_target": "hidden"} if "hidden" in option else {}
    donor = save_model(tmp_path / "donor.pt", encoder, position_base="keep", **target)
    base = "" if "sinusoid" in option else " --position-base keep"
    report, _ = start(donor, f"--position-encoder {encoder} {option}{base}")
    assert report.notes and all(note in said for said in report.notes)
    left_out = "the donor's floater is left out"
    assert (left_out in report.changed) == (encoder == "floater")
    assert (report.difference <= ROUNDING) == (encoder == "shaw")


def test_a_hierarchy_takes_as_many_of_the_donors_rows_as_it_has(start, donor):
    report, out = start(donor, "--position-encoder learned --learned-hierarchy 20")
    first = load_checkpoint(out)["model"]["encoder.layers.0.positions.weight"][:, 0]
    torch.testing.assert_close(first, sinusoid_rows(20, first.size(1), helpers.PAD))
    assert all("in 20 of its 20 rows" in note for note in report.notes)


def test_learned_rows_are_sinusoidal_up_to_the_trained_length_and_random_past_it(start, donor):
    with pytest.raises(ValueError, match="`--trained-length` must come with"):
        start(donor, "--position-encoder rope", trained_length=20)
    _, out = start(donor, "--position-encoder learned", trained_length=20)
    state = load_checkpoint(out)["model"]
    for stack in ("encoder", "decoder"):
        first = state[f"{stack}.layers.0.positions.weight"][:, 0]
        sinusoid = sinusoid_rows(1024, first.size(1), helpers.PAD)
        torch.testing.assert_close(first[:20], sinusoid[:20])
        assert (first[20:] - sinusoid[20:]).abs().mean() > 0.1
        assert first[20:].std() > 0.05
        assert not state[f"{stack}.layers.1.positions.weight"].any()


def test_a_learned_donors_rows_are_taken_over(tmp_path, start):
    donor = save_donor(tmp_path / "d.pt", encoder_learned_pos=True, decoder_learned_pos=True)
    report, _ = start(donor, "--position-encoder learned")
    assert report.difference <= 1e-6
    assert sorted(report.ignored) == [f"{s}.embed_positions.weight" for s in ("decoder", "encoder")]


def test_the_shape_is_the_donors(tmp_path, start):
    shape = {"encoder_embed_dim": 48, "encoder_layers": 1, "encoder_normalize_before": True}
    _, out = start(save_donor(tmp_path / "donor.pt", **shape))
    args = load_checkpoint(out)["cfg"]["model"]
    assert {name: getattr(args, name) for name in shape} == shape
    assert args.arch == TINY


def build(train):
    parser = options_parser.get_training_parser()
    args = options_parser.parse_args_and_arch(parser, ["data", *train])
    return FloaterTransformerModel.build_model(args, helpers.task())


def test_the_report_has_the_options_that_training_needs(tmp_path, start):
    shape = {"encoder_embed_dim": 32, "decoder_layers": 1, "share_all_embeddings": True}
    shape |= {"decoder_learned_pos": True, "encoder_learned_pos": True, "max_target_positions": 40}
    donor = save_donor(tmp_path / "donor.pt", arch="transformer", decoder_embed_dim=32, **shape)
    options = "--position-encoder rope --position-base keep"
    report, out = start(donor, options, "floater_transformer")
    model = build([*report.train, "--finetune-from-model", str(out)])
    model.load_state_dict(load_checkpoint(out)["model"], strict=True)
    assert report.train[2:].count("--position-base") == 1
    assert f"train    fairseq-train {' '.join(report.train)} --finetune" in report.format_text()


def test_a_change_that_acts_on_longer_sentences_is_said(tmp_path, start):
    donor = save_model(tmp_path / "donor.pt", "nezha", target="attention", nezha_clip=64)
    report, _ = start(donor, "--position-encoder nezha --nezha-clip 40")
    assert report.difference == 0
    text = report.format_text()
    assert "changed  --nezha-clip" in text
    assert "the sentences have 16 tokens, the changes may affect longer ones" in text


def test_an_adaptive_softmax_is_said_not_to_be_compared(tmp_path, start):
    softmax = {"adaptive_softmax_cutoff": [10, 20], "adaptive_softmax_factor": 2}
    donor = save_model(tmp_path / "donor.pt", "rope", **softmax)
    report, out = start(donor, "--position-encoder t5")
    assert report.format_text().endswith("not compared with the donor: adaptive softmax")
    build(report.train).load_state_dict(load_checkpoint(out)["model"], strict=True)


def test_files_of_pretrained_vectors_may_be_gone(tmp_path, start):
    vectors = tmp_path / "vectors.txt"
    words = (f"w{i} " + " ".join(["0.5"] * 64) for i in range(3))
    vectors.write_text("\n".join(["3 64", *words]) + "\n")
    donor = save_donor(tmp_path / "donor.pt", encoder_embed_path=str(vectors))
    vectors.unlink()
    report, out = start(donor)
    assert report.difference is not None
    assert load_checkpoint(out)["cfg"]["model"].encoder_embed_path is None
