"""Flows over distances: initialisation, trained parameters, and far distances."""

import helpers as h
import pytest
import torch

from fairseq_floater.position_encoders.transforms import Places

FORMS = ("keys", "values", "bias", "xl")
STARTS = ("zero", "rotation")


def relative(form="keys", build=h.visible, **options):
    return build("floater", "all", "relative", floater_relative=form, **options)


def test_each_block_has_biases_of_its_own():
    stack = relative("bias").encoder
    with torch.no_grad():
        of_blocks = stack.positions.rows(Places(9), h.parts(stack, "positions")).unbind(2)
        for block, rows in zip(stack.layers, of_blocks, strict=True):
            start = block.positions.start.initial().transpose(0, 1)
            assert h.difference(rows[0], start) <= 1e-6
    assert h.difference(*of_blocks) > 0.1


@pytest.mark.parametrize("encoder", ["floater", "rotation_flow"])
def test_starts_are_drawn_small(encoder):
    model = h.build(encoder, target="relative", floater_relative="values")
    starts = [layer.positions.start.values for layer in model.encoder.layers]
    assert 0.05 < float(torch.stack(list(starts)).std()) < 0.2


@pytest.mark.parametrize("form", FORMS[:3])
def test_a_start_of_zero_is_the_transformer_and_learns(form):
    donor = h.plain(encoder_layers=2, decoder_layers=2)
    model = relative(form, h.build, position_base="keep", floater_init_scale=0.0, dropout=0.0)
    model.load_state_dict(donor.state_dict(), strict=False)
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    ours, theirs = (h.log_probs(m.eval(), *batch)[real] for m in (model, donor))
    assert h.difference(ours, theirs) <= 5e-6
    output = model.train()(batch[0], batch[0].ne(h.PAD).sum(1), batch[1])[0]
    output.square().sum().backward()
    for stack_, name, encoder in h.signals(model):
        for part in h.parts(stack_, name):
            assert part.start.values.grad.abs().max() > 0
        assert encoder.dynamics.weight2.grad.abs().max() > 0


LINEAR = {"floater_time": "linear"}


@pytest.mark.parametrize(
    ("form", "time", "delta"), [*((form, {}, 0.1) for form in FORMS), ("xl", LINEAR, 0.2)]
)
def test_a_flow_that_starts_as_a_rotation_follows_it(form, time, delta):
    options = {"floater_delta": delta, "floater_start": "rotation"}
    model = relative(form, h.build, **options, **time).eval()
    rotation = h.build("rotation_flow", target="relative", floater_relative=form, **time).eval()
    rotation.load_state_dict(model.state_dict(), strict=False)
    for actual, expected in zip(h.tables(model, 64), h.tables(rotation, 64), strict=True):
        assert h.difference(actual, expected) <= 1e-4 < expected.abs().max()


FLOW = "zero at the start: dynamics.weight2, dynamics.bias2, start.values"
SILENT = {
    **{(form, 1.0, "zero"): FLOW for form in FORMS[:3]},
    **{(form, 1.0, "rotation"): "zero at the start: start.values" for form in FORMS[:3]},
    **{("xl", 1.0, start): "zero at the start: u, projection.weight" for start in STARTS},
    # W_R is not zeroed: if r and W_R were both zero, neither would learn.
    ("xl", 0.0, "zero"): "zero at the start: start.values, dynamics.weight2, dynamics.bias2, u",
    ("xl", 0.0, "rotation"): "zero at the start: start.values, u",
}


def test_a_warm_start_silences_what_is_not_zero_and_learns():
    for (form, scale, start), note in SILENT.items():
        options = {"floater_init_scale": scale, "floater_start": start}
        build = h.visible if start == "zero" else h.build  # `visible` would change the rotation
        model = relative(form, build, position_base="keep", **options).eval()
        donor = h.log_probs(
            h.build("none", position_base="keep").eval(), h.source_batch(), h.target_batch()
        )
        for stack_, name, encoder in h.signals(model):
            assert note == encoder.adopt_donor(
                h.parts(stack_, name), lambda n: torch.zeros(n, 64), stays=True
            )
        assert h.difference(h.log_probs(model, h.source_batch(), h.target_batch()), donor) <= 5e-6
        h.loss_of(model).backward()
        for stack_, name, _ in h.signals(model):
            of_blocks = [g for p in h.parts(stack_, name) for g in gradients(p)]
            assert any([*of_blocks, *gradients(stack_.get_submodule(name))])


def gradients(module):
    """For start.values and projection.weight, whether the gradient is not zero."""
    names = ("start.values", "projection.weight")
    return [bool(p.grad.any()) for n, p in module.named_parameters() if n in names]


@pytest.mark.parametrize(
    ("scope", "flow", "start", "rest"),
    [("dynamics", True, False, False), ("rest", False, True, True), ("flow", True, True, False)],
)
def test_the_scope_of_training_knows_its_parts(scope, flow, start, rest):
    for name, parameter in relative(build=h.build, floater_train=scope).named_parameters():
        expected = flow if ".dynamics." in name else start if ".start." in name else rest
        assert parameter.requires_grad == expected, name
