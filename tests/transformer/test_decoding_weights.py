"""Copies of the weights of a model that only translates: `--decoding-weights`."""

import copy
import json
import time

import helpers as h
import make_stored
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.modules import MultiheadAttention
from forcing import assert_same_hypotheses

from fairseq_floater.position_encoders import signature
from fairseq_floater.transformer import decoding_weights
from fairseq_floater.transformer.decoding_weights import PreparedLinear

EXPECTED = json.loads(make_stored.OUTPUTS.read_text())
TRANSLATING = [case for case, stored in EXPECTED.items() if stored["hypotheses"]]
# Of log-probabilities against float32's; measured here: 0.05 and 0.17 (kerple; others 0.1).
TOLERANCES = {"bfloat16": 0.1, "int8": 0.25}
every_kind = pytest.mark.parametrize("weights", TOLERANCES)
ROPE = ("rope", "all", "attention")
FLOATER = ("floater", "all", "qkv")


@pytest.fixture(params=[*TOLERANCES, "float32"])
def weights(request, monkeypatch):
    """Each kind of copy, whether it is faster on this machine or not."""
    monkeypatch.setattr(decoding_weights, "_bfloat16_is_faster", lambda _: True)
    monkeypatch.setattr(decoding_weights, "_packing_is_faster", lambda *_: True)
    monkeypatch.setattr(decoding_weights, "FEWEST_WEIGHTS", 1)
    return request.param


def prepared(case=ROPE, seed=0, **options):
    return h.fast(h.visible(*case, seed=seed, **options))


def batch():
    return h.source_batch(), h.target_batch()


@pytest.mark.parametrize(
    ("case", "weights"),
    [
        *((case, "int8") for case in TRANSLATING if case != make_stored.DONOR),
        *((case, "bfloat16") for case in ("rope", "floater-hidden")),
    ],
    indirect=["weights"],
)
def test_a_stored_checkpoint_takes_them_by_fairseqs_override(case, weights, tmp_path):
    """A signal that grows along a sentence (floater-hidden) must not set one range for all tokens."""
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


@pytest.mark.parametrize("weights", ["float32"], indirect=True)
@pytest.mark.parametrize("case", [ROPE, FLOATER], ids=["rope", "floater"])
def test_copies_of_float32_translate_as_before(case, weights):
    model, source = h.visible(*case), h.source_batch(lengths=(7, 11, 4, 9))
    expected = h.generated([model], source)
    actual = h.generated([h.fast(model)], source)
    assert isinstance(model.decoder.output_projection, PreparedLinear)
    assert_same_hypotheses(actual, expected, 1e-5)


def test_a_prepared_model_runs_under_autocast(weights):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = h.log_probs(h.visible(*ROPE), *batch())
        actual = h.log_probs(prepared(decoding_weights=weights), *batch())
    assert h.difference(actual, expected) <= TOLERANCES["int8"]


@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.parametrize(
    ("product", "measured"),
    [
        ("_packed", lambda: decoding_weights._packing_is_faster.__wrapped__(1, 2048, 2048)),
        ("_in_bfloat16", lambda: decoding_weights._bfloat16_is_faster.__wrapped__(1)),
    ],
)
def test_a_faster_product_is_found(product, measured, is_faster, monkeypatch):
    seconds = 0 if is_faster else 0.01
    monkeypatch.setattr(decoding_weights, product, lambda *_: lambda x: time.sleep(seconds))
    assert measured() == is_faster


def test_bfloat16_rounds_only_the_weights_where_float32_is_faster(monkeypatch):
    monkeypatch.setattr(decoding_weights, "_bfloat16_is_faster", lambda _: False)
    linear, x = torch.nn.Linear(8, 8), torch.randn(2, 3, 8)
    decoding_weights.prepare_projections(linear, weights="bfloat16")
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, linear.weight.bfloat16().float(), linear.bias)
        assert h.difference(linear(x), expected) <= 1e-6
        assert h.difference(linear(x), torch.nn.Linear.forward(linear, x)) > 0


def test_the_state_dict_stays_and_gradients_are_of_the_parameters(weights):
    plain = h.visible(*FLOATER, decoding_weights=weights)
    model = prepared(FLOATER, decoding_weights=weights)
    after, before = model.state_dict(), plain.state_dict()
    assert isinstance(model.decoder.layers[0].fc1, PreparedLinear) and list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    losses = [h.loss_of(m) for m in (model, plain)]
    assert abs(losses[0] - losses[1]) <= h.TOLERANCE

    def gradients(m, loss):
        block = m.decoder.layers[0]
        attention = block.self_attn
        maps = block.fc1, attention.q_proj, attention.k_proj, attention.v_proj
        return torch.autograd.grad(loss, [linear.weight for linear in maps])

    for actual, expected in zip(gradients(model, losses[0]), gradients(plain, losses[1])):
        assert h.difference(actual, expected) <= h.TOLERANCE


def changed_in_place(model):
    with torch.no_grad():
        model.decoder.layers[0].self_attn.v_proj.weight.mul_(1.5)


def an_optimiser_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)  # log-probabilities stay of size 10
    h.loss_of(model).backward()
    optimizer.step()
    model.zero_grad()


def another_tensor(model):
    projection = model.decoder.layers[0].self_attn.k_proj
    projection.weight.data = projection.weight.data * 1.5


def loaded(model):
    model.load_state_dict(h.visible(*ROPE, seed=5).state_dict())


@pytest.mark.parametrize("change", [changed_in_place, an_optimiser_step, another_tensor, loaded])
def test_copies_follow_the_parameters(change, weights):
    model = prepared(decoding_weights=weights)
    before = h.log_probs(model, *batch())
    changed = copy.deepcopy(model)
    change(changed)
    fresh = prepared(seed=1, decoding_weights=weights)
    fresh.load_state_dict(changed.state_dict())
    after = h.log_probs(changed, *batch())
    assert torch.equal(after, h.log_probs(fresh, *batch())) and h.difference(after, before) > 1e-3
    assert torch.equal(h.log_probs(model, *batch()), before)


@pytest.mark.parametrize("weights", ["float32"], indirect=True)
@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: m.double(), lambda m: m.bfloat16()])
def test_a_model_that_was_copied_or_cast_projects_with_its_own_weights(change, weights):
    attention = change(prepared()).decoder.layers[0].self_attn
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight.mul_(1.5)
        x = torch.randn(1, 2, attention.embed_dim, dtype=attention.q_proj.weight.dtype)
        found, _ = attention(x, x, x, need_weights=False)
        expected, _ = MultiheadAttention.forward(attention, x, x, x, need_weights=False)
    tolerance = 2e-2 if x.dtype == torch.bfloat16 else h.TOLERANCE
    assert x.dtype == found.dtype and h.difference(found, expected) <= tolerance


@every_kind
def test_a_model_of_16_bits_is_refused(weights):
    model = h.visible(*ROPE, decoding_weights=weights)
    with pytest.raises(
        ValueError, match=f"must be float32 in a model of torch.float16, but is {weights}"
    ):
        model.half().make_generation_fast_()
    with pytest.raises(ValueError, match="must be float32 in a model of torch.float16"):
        h.log_probs(prepared(decoding_weights=weights).half(), *batch())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant_noise_scalar": 0.1}, "with `--quant-noise-scalar`, but is int8 instead"),
        (
            {"arch": "floater_roberta", "encoder_layers": 1},
            "with an encoder alone, which decodes nothing",
        ),
        ({"decoding_weights": "int4"}, "must be one of float32, bfloat16, int8, but is 'int4'"),
    ],
)
def test_what_they_do_not_go_with(options, message):
    with pytest.raises(ValueError, match=message):
        h.build(*ROPE, **{"decoding_weights": "int8", **options})


def test_quantisation_noise_of_products_goes_with_them():
    noisy = {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 8}
    model = prepared(**noisy, decoding_weights="int8")
    expected = h.log_probs(h.visible(*ROPE, **noisy), *batch())
    assert 1e-4 < h.difference(h.log_probs(model, *batch()), expected) < TOLERANCES["int8"]
