"""Options of the model: solvers, learning rates, averages, Hydra, and what is refused."""

import copy
import logging

import helpers as h
import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models import build_model
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf

# With a flow this large, `auto` takes seconds to choose an engine.
STRONG = {"floater_solver": "rk4_hermite"}


@h.every_target
def test_a_checkpoint_loads_under_another_learning_rate_scale(target):
    batch = h.source_batch(), h.target_batch()
    saved = h.visible("floater", target=target, floater_lr_scale=4.0, **STRONG)
    before = saved.state_dict()
    for scale, allowed in ((1.0, 1e-6), (4.0, 0), (0.3, h.TOLERANCE)):  # 0.3 rounds
        model = h.build("floater", target=target, floater_lr_scale=scale, seed=5, **STRONG).eval()
        model.load_state_dict(copy.deepcopy(before), strict=True)
        assert h.difference(h.log_probs(model, *batch), h.log_probs(saved, *batch)) <= allowed
    one, four = (h.build("floater", target=target, floater_lr_scale=s).eval() for s in (1.0, 4.0))
    assert h.difference(h.log_probs(one, *batch), h.log_probs(four, *batch)) <= 1e-6


@h.every_target
def test_an_exponential_moving_average_averages_the_flow(target):
    model = h.build("floater", target=target, floater_lr_scale=4.0, **STRONG)
    h.randomise_positions(model).train()
    batch = h.source_batch(), h.target_batch()
    h.loss_of(model, *batch).backward()
    ema = EMA(model, EMAConfig(store_ema=True, ema_decay=0.75))
    first = [p.detach().clone() for p in model.parameters()]
    h.log_probs(ema.get_model().eval(), *batch)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    ema.step(model)
    for averaged, start in zip(ema.get_model().parameters(), first):
        torch.testing.assert_close(averaged.detach(), 1.5 * start)
    fresh = h.build("floater", target=target, seed=5, **STRONG).eval().requires_grad_(False)
    fresh.load_state_dict(ema.get_model().state_dict())
    assert h.difference(h.log_probs(ema.get_model(), *batch), h.log_probs(fresh, *batch)) <= 1e-6


@pytest.mark.parametrize(
    ("solver", "gradient"), [("rk4", "direct"), ("rk4", "adjoint"), ("dopri5", "direct")]
)
def test_torchdiffeqs_solvers_give_the_same_model(solver, gradient):
    options = {"floater_solver": solver, "floater_gradient": gradient}
    models = [h.build("floater", target="qkv", dropout=0.0, **o) for o in (options, {})]
    (loss, actual), (expected_loss, expected) = map(h.gradients, map(h.randomise_positions, models))
    assert loss == pytest.approx(expected_loss, abs=1e-4)
    for name, gradient in actual.items():  # the kinks of the ReLU make them differ
        distance = float((gradient - expected[name]).norm())
        assert distance <= 0.1 * float(expected[name].norm()) + 1e-6


@h.every_mechanism
def test_hydras_configuration_builds_the_same_model(encoder, blocks, target):
    expected = h.build(encoder, blocks, target)
    options = {"_name": "floater_transformer_tiny", "position_encoder": encoder}
    options |= {"position_blocks": blocks, **h.options_of(target)}
    torch.manual_seed(0)
    model = build_model(OmegaConf.create(options), h.task())
    states = model.state_dict(), expected.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states)))
    with pytest.raises(
        ValueError, match="--position-blocks.* must be all, input, or numbers.*'some'"
    ):
        build_model(OmegaConf.create({**options, "position_blocks": "some"}), h.task())


def test_an_option_that_only_hydra_lets_through_is_warned_of(caplog):
    options = {"_name": "floater_transformer_tiny", "position_encoder": "rope", "dropout": 0.1}
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        build_model(OmegaConf.create(options), h.task())
        assert "no effect" not in caplog.text
        build_model(OmegaConf.create({**options, "position-stretch": "0.5:2.5"}), h.task())
    words = "position-stretch is not an option of the model and has no effect; did you mean "
    assert words + "position_stretch?" in caplog.text


def test_a_number_that_may_be_a_range_of_yaml_is_warned_of(caplog):
    options = OmegaConf.create("{position_shift: 5:20, position_base: drop}")
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        h.build("floater", **options)
    assert "`--position-shift` is the number 320" in caplog.text


def test_a_learned_table_under_the_sinusoid_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        h.build("sinusoidal", "input", encoder_learned_pos=True, decoder_learned_pos=True)
    assert "replace the sinusoid by fairseq's learned table" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rnn_layers": 2, "shaw_clip": 4}, "rope does not read `--rnn-layers` and `--shaw-clip`"),
        ({"rope_base": 500.0, "position_blocks": "input"}, ""),
    ],
)
def test_another_encoders_options_are_warned_of(options, said, caplog):
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        h.build("rope", target="attention", **options)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert all(said in warning for warning in warnings) and bool(warnings) == bool(said)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {}),
        ("nag", {}),
        ("adadelta", {}),
        ("lamb", {}),
        ("adafactor", {"scale_parameter": True}),
    ],
)
def test_a_learning_rate_multiple_is_refused_where_training_would_make_something_else_of_it(
    optimizer, options
):
    """Refused at the first update, not when built: an evaluated checkpoint names its optimiser too."""
    options = {"optimizer": optimizer, "encoder": "floater", "floater_lr_scale": 10.0, **options}
    model = h.build(**options).eval()
    assert h.log_probs(model, h.source_batch(), h.target_batch()).isfinite().all()
    rule = f"`--floater-lr-scale` must be 1 with `--optimizer {optimizer}.*but is 10.0 instead"
    with pytest.raises(ValueError, match=rule):
        model.set_num_updates(0)
    h.build(**{**options, "floater_lr_scale": 1.0}).set_num_updates(0)
    h.build(**{**options, "encoder": "rotation"}).set_num_updates(0)


def test_a_training_resumes_with_the_same_positions_or_not_at_all(caplog):
    rope, alibi = (h.build(name, "all", "attention") for name in ("rope", "alibi"))
    changeable = {"position_eval": "cap:9", "t5_buckets": 16}  # rope does not read the second
    rope.load_state_dict(h.build("rope", "all", "attention", **changeable).state_dict())
    assert not rope.trained_otherwise
    for updates in (5, 0, 1):  # loading calls it before, a new training begins at 0
        rope.set_num_updates(updates)
    alibi.load_state_dict(rope.state_dict())
    assert "position_encoder was rope and is alibi" in caplog.text
    with pytest.raises(ValueError, match="same positions, but position_encoder was rope"):
        alibi.set_num_updates(5)
    alibi.load_state_dict(dict(rope.state_dict()))  # as the copy of --store-ema does at each update
    assert caplog.text.count("position_encoder was") == 1
    alibi.load_state_dict(rope.state_dict())
    alibi.set_num_updates(0)
    alibi.set_num_updates(1)
    # A plain checkpoint has all that rope needs, and the default --save-dir may hold one.
    rope.load_state_dict(h.plain().state_dict())
    with pytest.raises(ValueError, match="position_encoder was sinusoidal and is rope"):
        rope.set_num_updates(5)
    slow = h.build("floater", floater_lr_scale=0.1)  # the moments of Adam have another scale
    slow.load_state_dict(h.build("floater").state_dict())
    with pytest.raises(ValueError, match="floater_lr_scale was 1.0 and is 0.1"):
        slow.set_num_updates(5)
    for same in (h.build("sinusoidal", "input"), h.build("none", position_base="keep")):
        same.load_state_dict(h.plain().state_dict())
        same.set_num_updates(5)


@pytest.mark.parametrize("optimizer", ["adam", "cpu_adam", "adamax", "adagrad", "adafactor"])
def test_a_learning_rate_multiple_is_taken_where_it_is_one(optimizer):
    h.build("floater", floater_lr_scale=10.0, optimizer=optimizer).set_num_updates(0)
