"""bfloat16 and int8 weights of a model that only translates: `--decoding-weights`."""

import json

import helpers as h
import make_stored
import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_floater.position_encoders import signature
from fairseq_floater.transformer.decoding_weights import PreparedLinear

EXPECTED = json.loads(make_stored.OUTPUTS.read_text())
TRANSLATING = [case for case, stored in EXPECTED.items() if stored["hypotheses"]]
# Of log-probabilities beside float32's: 0.05 and 0.17 (kerple; others 0.1) here.
TOLERANCES = {"bfloat16": 0.1, "int8": 0.25}
every_kind = pytest.mark.parametrize("weights", TOLERANCES)
ROPE = ("rope", "all", "attention")
FLOATER = ("floater", "all", "qkv")


def prepared(case=ROPE, seed=0, **options):
    model = h.visible(*case, seed=seed, **options)
    model.make_generation_fast_()
    return model


@every_kind
@pytest.mark.parametrize("case", [c for c in TRANSLATING if c != make_stored.DONOR])
def test_a_stored_checkpoint_takes_them_by_fairseqs_override(case, weights, tmp_path):
    """A signal that grows along a sentence (floater-hidden) must not set the range of all its tokens."""
    overrides = {"data": str(make_stored.STORED), "decoding_weights": weights}
    path = str(make_stored.unpacked(case, tmp_path))
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task([path], overrides)
    model.make_generation_fast_()
    assert f"|decoding-weights:{weights}|" in signature(model.args)
    actual, expected = make_stored.outputs(model, task), EXPECTED[case]
    pairs = [torch.tensor(o["log_probs"]) for o in (actual, expected)]
    assert 1e-4 < h.difference(*pairs) <= TOLERANCES[weights]
    for best in (0, 2, 4)[: len(expected["hypotheses"]) // 2]:
        found, stored = (o["hypotheses"][best]["score"] for o in (actual, expected))
        assert found == pytest.approx(stored, abs=TOLERANCES[weights])


@every_kind
def test_the_state_dict_stays_and_gradients_are_of_the_parameters(weights):
    plain = h.visible(*FLOATER, decoding_weights=weights)
    model = prepared(FLOATER, decoding_weights=weights)
    after, before = model.state_dict(), plain.state_dict()
    assert isinstance(model.decoder.layers[0].fc1, PreparedLinear) and list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    losses = [h.loss_of(m) for m in (model, plain)]
    assert abs(losses[0] - losses[1]) <= h.TOLERANCE
    grads = [
        torch.autograd.grad(loss, m.decoder.layers[0].fc1.weight)
        for loss, m in zip(losses, (model, plain))
    ]
    assert h.difference(grads[0][0], grads[1][0]) <= h.TOLERANCE


@every_kind
def test_copies_follow_what_is_loaded(weights):
    model, other = (prepared(seed=seed, decoding_weights=weights) for seed in (0, 5))
    model.load_state_dict(other.state_dict())
    batch = h.source_batch(), h.target_batch()
    assert torch.equal(h.log_probs(model, *batch), h.log_probs(other, *batch))


@every_kind
def test_a_model_of_16_bits_is_refused(weights):
    model = h.visible(*ROPE, decoding_weights=weights)
    with pytest.raises(
        ValueError, match=f"must be float32 in a model of torch.float16, but is {weights}"
    ):
        model.half().make_generation_fast_()
    with pytest.raises(ValueError, match="must be float32 in a model of torch.float16"):
        prepared(decoding_weights=weights).half()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant_noise_scalar": 0.1}, "with `--quant-noise-scalar`, but is int8 instead"),
        ({"arch": "floater_roberta", "encoder_layers": 1}, "with a RoBERTa, which decodes nothing"),
        ({"decoding_weights": "int4"}, "must be one of float32, bfloat16, int8, but is 'int4'"),
    ],
)
def test_what_they_do_not_go_with(options, message):
    with pytest.raises(ValueError, match=message):
        h.build(*ROPE, **{"decoding_weights": "int8", **options})


def test_quantisation_noise_of_products_goes_with_them():
    noisy = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 8}
    model, batch = prepared(**noisy, decoding_weights="int8"), (h.source_batch(), h.target_batch())
    expected = h.log_probs(h.visible(*ROPE, **noisy), *batch)
    assert 1e-4 < h.difference(h.log_probs(model, *batch), expected) < TOLERANCES["int8"]
