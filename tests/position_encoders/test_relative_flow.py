"""Flows over distances, beside Shaw's vectors and T5's biases filled from a solve of their own."""

import pytest
import torch
from helpers import (
    PAD,
    build,
    difference,
    parts,
    plain,
    signals,
    source_batch,
    target_batch,
    visible,
)
from helpers import log_probs as log_probs_of
from one_attention import (
    attended,
    heads_of,
    logits,
    logits_differ_by,
    stack_of,
    stream,
    tokens,
    written_out,
)

from fairseq_floater.ode import solve
from fairseq_floater.position_encoders.transforms import At, Places

LENGTH = 13
FORMS = ("keys", "values", "bias")
EVERY_HEAD = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
every_side = pytest.mark.parametrize("side", ["encoder", "decoder"])


def relative(form="keys", build=visible, **options):
    return build("floater", "all", "relative", floater_relative=form, **options)


def stack(side, form, **options):
    fine = {"floater_solver": "rk4", "floater_step_size": 0.02}
    return getattr(relative(form, **EVERY_HEAD, **fine, **options), side)


@torch.no_grad()
def flow(stack, count=LENGTH, block=0):
    """r of a block at tau = ln(1 + d): [N, S, sides, W], by torchdiffeq in float64."""
    tau = torch.log1p(torch.arange(count, dtype=torch.float64))
    r0 = stack.layers[block].positions.start.initial().double()
    dynamics = stack.positions.dynamics.double()
    rows = solve(lambda t, r: dynamics(t, r), r0, tau, solver="rk4", step_size=0.01).float()
    dynamics.float()
    stack.positions.forget()
    return rows


@every_side
@pytest.mark.parametrize("form", ["keys", "values"])
def test_it_is_shaw_with_a_table_read_off_the_flow(side, form):
    own = stack(side, form)
    rows = flow(own)
    shaw = stack_of(
        side, "shaw", shaw_clip=LENGTH - 1, shaw_values="on" if form == "values" else "off"
    )
    shaw.load_state_dict(
        {
            k: v
            for k, v in own.state_dict().items()
            if ".positions" not in k and "positions." not in k
        },
        strict=False,
    )
    # Row k - d belongs to distance d: keys before the query first, then those behind it.
    before, *behind = rows.unbind(2)
    table = torch.cat([before.flip(0), *(side_rows[1:] for side_rows in behind)])
    part = shaw.layers[0].positions
    with torch.no_grad():
        part.key_vectors.copy_(table[:, 0])
        if form == "values":
            part.value_vectors.copy_(table[:, 1])
    shaw.positions.forget()
    x = stream()
    with torch.no_grad():
        assert logits_differ_by(own, logits(own, x), logits(shaw, x)) <= 1e-3 * float(
            table.abs().max()
        )
        assert difference(attended(own, x)[0], attended(shaw, x)[0]) <= 1e-5
        assert (
            difference(table[:LENGTH], table[LENGTH - 1 :] if side == "encoder" else 0 * table)
            > 0.1
        )


@every_side
@pytest.mark.parametrize("form", FORMS)
def test_a_rotation_is_the_exponential_of_a_skew_matrix(side, form):
    model = visible("rotation_flow", "all", "relative", floater_relative=form, **EVERY_HEAD)
    own = getattr(model, side)
    w = own.positions.frequencies.detach().double()
    planes = torch.block_diag(*(f * torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double() for f in w))
    tau = torch.log1p(torch.arange(LENGTH, dtype=torch.float64))
    turns = torch.matrix_exp(tau[:, None, None] * planes)
    table = own.positions.rows(Places(LENGTH), parts(own, "positions"))  # [N, sides, L, S, W]
    for block, layer in enumerate(own.layers):
        r0 = layer.positions.start.initial().detach().double()  # [S, sides, W]
        expected = torch.einsum("sdw,nwv->ndsv", r0, turns)
        assert difference(table[:, :, block], expected.float()) <= 1e-5
    norms = table.norm(dim=-1)
    assert difference(norms, norms[:1].expand_as(norms)) <= 1e-4
    with torch.no_grad():  # and it is what attention receives
        tables = own.positions.prepare(tokens().at(True), parts(own, "positions"), torch.float32)
        assert difference(tables[0][1], table[:, :, 0, 0].flatten(0, 1)) <= 1e-6


def test_a_rotation_needs_an_even_number_of_biases():
    with pytest.raises(
        ValueError, match="needs an even number of channels, but a row of biases has 3"
    ):
        build(
            "rotation_flow",
            target="relative",
            floater_relative="bias",
            encoder_attention_heads=3,
            encoder_embed_dim=48,
            decoder_embed_dim=48,
        )


@every_side
def test_a_bias_is_added_to_the_logits_of_each_head(side):
    own = stack(side, "bias")
    rows, x = flow(own)[:, 0], stream()  # [N, sides, H]
    distances = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    side_of = (distances < 0).long() if side == "encoder" else 0 * distances
    bias = rows[distances.abs(), side_of].permute(2, 0, 1)
    with torch.no_grad():
        scores, read = written_out(own, *heads_of(own, x), bias)
        assert logits_differ_by(own, logits(own, x), scores) <= 1e-5 * max(
            1.0, float(bias.abs().max())
        )
        assert difference(attended(own, x)[0], read) <= 1e-5


def test_each_block_has_biases_of_its_own():
    own = stack("encoder", "bias")
    with torch.no_grad():
        tables = own.positions.prepare(tokens().at(True), parts(own, "positions"), torch.float32)
    for block, (_, biases) in enumerate(tables):
        expected = flow(own, block=block)[:, 0].flatten(0, 1)
        assert difference(biases, expected) <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert difference(tables[0][1], tables[1][1]) > 0.1


@every_side
@pytest.mark.parametrize("form", FORMS)
def test_a_moved_distance_goes_to_the_nearest_whole_one(side, form):
    own = stack(side, form)
    places = 3 * torch.arange(LENGTH)[None]
    at = At(places, places, 3 * LENGTH, rows_per_token=4)
    with torch.no_grad():
        rows, *tables = own.positions.prepare(at, parts(own, "positions"), torch.float32)[0]
    distances = (places[0, :, None] - places[0]).div(4).round().long()
    side_of = (distances < 0).long() if side == "encoder" else 0 * distances
    seen = torch.ones(LENGTH, LENGTH).tril().bool() if side == "decoder" else distances < LENGTH
    for stream_, table in enumerate(tables):
        expected = flow(own)[:, stream_][distances.abs(), side_of]
        found = table[rows.reshape(LENGTH, LENGTH)]
        assert difference(found[seen], expected[seen]) <= 1e-5 * max(
            1.0, float(expected.abs().max())
        )


@pytest.mark.parametrize("encoder", ["floater", "rotation_flow"])
def test_starts_are_drawn_small(encoder):
    model = build(encoder, target="relative", floater_relative="values")
    starts = [layer.positions.start.values for layer in model.encoder.layers]
    assert 0.05 < float(torch.stack(list(starts)).std()) < 0.2


@pytest.mark.parametrize("form", FORMS)
def test_a_start_of_zero_is_the_transformer_and_learns(form):
    donor = plain(encoder_layers=2, decoder_layers=2)
    model = relative(form, build, position_base="keep", floater_init_scale=0.0, dropout=0.0)
    model.load_state_dict(donor.state_dict(), strict=False)
    batch = source_batch(), target_batch()
    real = batch[1].ne(PAD)
    ours, theirs = (log_probs_of(m.eval(), *batch)[real] for m in (model, donor))
    assert difference(ours, theirs) <= 5e-6
    output = model.train()(batch[0], batch[0].ne(PAD).sum(1), batch[1])[0]
    output.square().sum().backward()
    for stack_, name, encoder in signals(model):
        for part in parts(stack_, name):
            assert part.start.values.grad.abs().max() > 0
        assert encoder.dynamics.weight2.grad.abs().max() > 0


def test_a_warm_start_silences_what_is_not_zero():
    for form in FORMS:
        model = relative(form, position_base="keep")
        donor = log_probs_of(
            build("none", position_base="keep").eval(), source_batch(), target_batch()
        )
        for stack_, name, encoder in signals(model):
            blocks = [b for b in stack_.layers if getattr(b, name) is not None]
            attentions = [b.self_attn for b in blocks]
            note = encoder.adopt_donor(
                parts(stack_, name), attentions, lambda n: torch.zeros(n, 64), stays=True
            )
            assert note.startswith(
                "zero at the start: dynamics.weight2, dynamics.bias2, start.values"
            )
        assert difference(log_probs_of(model, source_batch(), target_batch()), donor) <= 5e-6


def test_log_time_brings_far_distances_near():
    own = stack("encoder", "keys")
    table = own.positions.rows(Places(4 * LENGTH + 1), parts(own, "positions"))
    assert (
        difference(
            table[: LENGTH + 1], own.positions.rows(Places(LENGTH + 1), parts(own, "positions"))
        )
        <= 1e-6
    )
    assert float(table[-1].norm()) < 10 * float(table[LENGTH].norm())
    far = [float((table[4 * LENGTH - d] - table[4 * LENGTH]).norm()) for d in (1, 3 * LENGTH)]
    near = float((table[1] - table[0]).norm())
    assert far[0] < near / 10  # one token further, far away
    assert far[0] < far[1] < 2 * LENGTH * near


@pytest.mark.parametrize(
    ("scope", "h", "start", "rest"),
    [("dynamics", True, False, False), ("rest", False, True, True), ("flow", True, True, False)],
)
def test_the_scope_of_training_knows_its_parts(scope, h, start, rest):
    for name, parameter in relative(build=build, floater_train=scope).named_parameters():
        expected = h if ".dynamics." in name else start if ".start." in name else rest
        assert parameter.requires_grad == expected, name
