"""Stored checkpoints still give their stored outputs: what the CHANGELOG's first rule promises.

`make_stored.py` made them, and says how.
"""

import json

import make_stored
import pytest
import torch
from helpers import difference, signals
from make_stored import CASES, DONOR, STORED, load, outputs, unpacked

from fairseq_floater.checkpoints.reading import load_checkpoint, model_args
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.position_encoders import POSITION_ENCODERS, complete

# Of log-probabilities. Another CPU or torch sums float32 numbers in another order: 2e-6 here.
TOLERANCE = 1e-5
# `auto` may one day choose another engine or step, with values off by up to 1e-3 of the largest
# # (ode/auto.py). The outputs of the engines that it chooses from differ by up to 4e-3 here.
AUTO_TOLERANCE = 5e-3
# In float32, stored rows are off by up to 8e-5 (they come from `torch.matrix_exp`), today's by 1e-6.
ROTATION_TOLERANCE = 5e-5

ENCODERS = [case for case in CASES if case != DONOR]
EXPECTED = json.loads(make_stored.OUTPUTS.read_text())


def tolerance(case):
    if case == "rotation":
        return ROTATION_TOLERANCE
    return AUTO_TOLERANCE if case.endswith("auto") else TOLERANCE


def assert_outputs(actual, expected, allowed):
    pairs = [torch.tensor(o["log_probs"], dtype=torch.float64) for o in (actual, expected)]
    assert difference(*pairs) <= allowed
    assert len(actual["hypotheses"]) == len(expected["hypotheses"])
    for found, stored in zip(actual["hypotheses"], expected["hypotheses"]):
        if (
            allowed < AUTO_TOLERANCE
        ):  # the scores of hypotheses lie closer together than AUTO_TOLERANCE
            assert found["tokens"] == stored["tokens"]
        assert found["score"] == pytest.approx(stored["score"], abs=allowed)


@pytest.mark.parametrize("case", ENCODERS)
def test_a_stored_checkpoint_gives_its_stored_outputs(case, tmp_path):
    assert_outputs(outputs(*load(unpacked(case, tmp_path))), EXPECTED[case], tolerance(case))


def test_every_encoder_is_stored(tmp_path):
    stored = {}
    for case in ENCODERS:
        path = unpacked(case, tmp_path)
        args = model_args(load_checkpoint(path), path)
        complete(args)
        stored[case] = (args.position_encoder, args.position_target)
    assert {encoder for encoder, _ in stored.values()} == set(POSITION_ENCODERS)
    assert {t for e, t in stored.values() if e == "floater"} == {"qkv", "hidden"}


@pytest.mark.parametrize("target", ["qkv", "hidden"])
def test_what_auto_chose_is_the_flow_itself(target, tmp_path):
    """Another solver, with an error bound far below that of `auto`, gives the stored outputs of `auto`."""
    path = unpacked(f"floater-{target}-auto", tmp_path)
    state = load_checkpoint(path)
    state["cfg"]["model"].floater_solver = "dopri5"
    torch.save(state, path)
    assert_outputs(outputs(*load(path)), EXPECTED[f"floater-{target}-auto"], AUTO_TOLERANCE)


def test_the_rotation_flow_loads_under_its_former_name(tmp_path):
    path = unpacked("rotation", tmp_path)
    assert model_args(load_checkpoint(path), path).position_encoder == "rotation"
    model, _ = load(path)
    assert {signal.name for _, _, signal in signals(model)} == {"rotation_flow"}


# A donor that official fairseq 0.12.2 wrote, with the outputs that it computed. fairseq-fixed itself
# cannot load it: of every encoder layer 0.12.2 keeps eight tensors twice.


@pytest.mark.parametrize(
    ("target", "further"),
    [
        ("qkv", "--floater-init-scale 0"),
        ("hidden", "--floater-init-scale 0"),
        # Without a base, the flow itself starts as the sinusoid.
        ("hidden", "--position-base drop --floater-start sinusoid --floater-solver rk4_hermite"),
    ],
)
def test_official_fairseqs_checkpoint_is_a_donor(target, further, tmp_path):
    assert EXPECTED[DONOR]["made_with"]["fairseq"] == make_stored.DONOR_VERSION
    donor, start = unpacked(DONOR, tmp_path), tmp_path / "start.pt"
    options = [*further.split(), "--position-target", target]
    arch = "floater_transformer_tiny"
    report = warm_start(donor, start, arch=arch, data=str(STORED), model_options=options)
    assert "start    the donor's function" in report.format_text()
    twice = [name for name in report.ignored if not name.endswith("_float_tensor")]
    assert len(twice) == 16 and all(name.startswith("encoder.layers.") for name in twice)
    assert {*report.copied, *report.ignored} == set(load_checkpoint(donor)["model"])
    model, task = load(start)
    assert model.args.position_target == target
    assert_outputs(outputs(model, task), EXPECTED[DONOR], TOLERANCE)


def test_the_comparison_sees_other_numbers_words_and_scores():
    stored = EXPECTED["rnn"]
    for change in (
        {"log_probs": [[x + 2e-5 for x in row] for row in stored["log_probs"]]},
        {"hypotheses": stored["hypotheses"][1:]},
        {"hypotheses": [{**h, "tokens": h["tokens"][::-1]} for h in stored["hypotheses"]]},
        {"hypotheses": [{**h, "score": h["score"] - 2e-5} for h in stored["hypotheses"]]},
    ):
        with pytest.raises(AssertionError):
            assert_outputs({**stored, **change}, stored, TOLERANCE)
