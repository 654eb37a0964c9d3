"""Every encoder of the registry against its equation, by one table of oracles."""

from functools import partial
from types import SimpleNamespace

import attention_oracles
import helpers as h
import input_oracles
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders import POSITION_ENCODERS, encoder_class
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS
from fairseq_floater.position_encoders.warp import DrawnWarp
from fairseq_floater.position_encoders.warp_law import Stretching, WarpLaw

TOLERANCE = 2e-5
FACTORS, SHIFTS = (0.6, 2.3, 1.0), (-3.0, 2.5, 0.0)  # of three sentences in training
DIRECTIONS = [{"bias_direction": direction} for direction in ("offset", "mirror", "heads")]
GATED = {"position_base": "keep"}
FLOW = {"floater_solver": "rk4", "floater_step_size": 0.05}
RELATIVE_XL = {"floater_relative": "xl"}
INPUTS = ("scalar", "vector", "none")
COMBINED = [{"position_combine": how} for how in ("multiply", "concat")]
ALONE = {"no_token_positional_embeddings": True}
INSIDE = {
    "alibi": [{**d, "alibi_slopes": s} for d in DIRECTIONS for s in ("fixed", "learned")],
    "kerple": [{"kerple_kernel": kernel} for kernel in ("log", "power")],
    "sandwich": [*DIRECTIONS, *({**GATED, **d} for d in DIRECTIONS), {"heads": 6, "width": 48}],
    "t5": [{}, {"t5_buckets": 8, "t5_max_distance": 9}],
    "fire": [{"fire_threshold": n} for n in (1, 4, 16)],
    "cope": [{"cope_positions": n} for n in (3, 5, 64)],  # limits most pairs, some, none
    "forget": [{}, GATED],
    "rope": [
        *({}, {"rope_base": 50.0}, {"rope_partial": 0.5}, {"rope_learned": True}),
        {"rope_values": True, "rope_partial": 0.75, "rope_base": 200.0},
    ],
    "xpos": [
        *({}, {"xpos_scale_base": 7.0, "rope_base": 50.0}),
        {"xpos_scale_base": 20.0, "rope_partial": 0.5},
    ],
    "shaw": [
        *({"shaw_clip": 5}, {"shaw_clip": 5, "shaw_per_head": True}),
        {"shaw_clip": 5, "shaw_values": "off"},
    ],
    "nezha": [{"nezha_clip": 5}, {"nezha_clip": 0}, GATED],
    "xl": [
        *({}, {"xl_learned": True, "xl_distance": "log"}, {"xl_v": "off"}),
        *({"xl_projection": "off", **of_base} for of_base in ({}, GATED)),
    ],
    "tener": [
        {"tener_scale": n, "tener_key_term": k}
        for n in ("none", "sqrt", "2sqrt")
        for k in (False, True)
    ],
    "deberta": [
        *({"deberta_distance": 4}, {"deberta_distance": 4, "deberta_p2c": "paper"}),
        {"deberta_share": True, "deberta_distance": 6},
        {"deberta_distance": 9, "deberta_buckets": 4},
    ],
    "tupe": [{}, {"tupe_positions": "learned"}],
    "floater": [
        *({**FLOW, "floater_relative": form} for form in ("keys", "values", "bias", "xl")),
        {**FLOW, **RELATIVE_XL, "floater_time": "linear", "floater_delta": 0.2},
        {**FLOW, "floater_autonomous": True},
        {**FLOW, **RELATIVE_XL, "floater_time": "log:5", "xl_v": "off", "xl_projection": "off"},
    ],
    "rotation_flow": [
        *({"floater_relative": form} for form in ("keys", "values", "bias", "xl")),
        {**RELATIVE_XL, "floater_time": "linear", "xl_projection": "off"},
    ],
}
AROUND = {
    "none": [{}],
    "sinusoidal": [{}, ALONE, *COMBINED],
    "learned": [{}, {"learned_hierarchy": 4}, *COMBINED],
    "rnn": [
        *({"rnn_layers": n, "rnn_input": z} for n in (1, 2) for z in INPUTS),
        *COMBINED,
    ],
    "floater": [
        *({**FLOW, **ALONE}, {**FLOW, **ALONE, "floater_time": "log:5", "floater_delta": 0.2}),
        {**FLOW, **ALONE, "floater_theta": "block"},
        {**FLOW, **ALONE, "floater_autonomous": True},
    ],
    "rotation_flow": [{}, ALONE, *COMBINED],
    "conv": [{"conv_kernel": kernel} for kernel in (3, 5, 7)],
    "token-rnn": [{}, {"token_rnn_residual": True}],
    "complex": [{"complex_omega": omega} for omega in ("word", "shared", "fixed")],
}


def inside_target(encoder):
    targets = POSITION_ENCODERS[encoder].targets
    return next(t for t in targets if t in ("attention", "relative"))


def can_cross(encoder):
    return encoder_class(encoder, inside_target(encoder)).can_cross


def cases(variants):
    found = [(name, options) for name in variants for options in variants[name]]
    ids = ["-".join(map(str, (name, *options.values()))) for name, options in found]
    return pytest.mark.parametrize(("encoder", "options"), found, ids=ids)


def test_every_encoder_has_an_equation():
    inside = {
        n for n, cls in POSITION_ENCODERS.items() if {"attention", "relative"} & {*cls.targets}
    }
    around = {n for n, cls in POSITION_ENCODERS.items() if {"hidden", "stage"} & {*cls.targets}}
    assert inside == INSIDE.keys() == attention_oracles.ORACLES.keys()
    assert around == AROUND.keys() == input_oracles.ORACLES.keys()
    assert inside | around == {*POSITION_ENCODERS}


@cases(AROUND)
@pytest.mark.parametrize(("blocks", "left"), [("all", True), ("input", False)])
def test_a_block_gets_what_the_equation_says(encoder, options, blocks, left, monkeypatch):
    target = next(t for t in POSITION_ENCODERS[encoder].targets if t in ("hidden", "stage"))
    batch = h.source_batch(left), h.target_batch(left)
    model = h.visible(encoder, blocks, target, dropout=0.0, **options)
    assert input_oracles.largest_difference(model, *batch) <= TOLERANCE
    if not POSITION_ENCODERS[encoder].continuous:
        return
    for name, values in (("factors", FACTORS), ("shifts", SHIFTS)):
        drawn = torch.tensor(values)[:, None]
        path = f"fairseq_floater.position_encoders.warp.drawn_{name}"
        monkeypatch.setattr(path, lambda law, *_, drawn=drawn: drawn)
    moves = {"position_stretch": "0.5:2.5", "position_shift": "-5:5"}
    model = h.visible(encoder, blocks, target, dropout=0.0, **{**options, **ALONE, **moves}).train()
    assert input_oracles.largest_difference(model, *batch, place=drawn_place) <= 1e-4


def drawn_place(b, i, shifts=SHIFTS):
    """The position of token i of sentence b, rounded to 1/16 of a token as in training."""
    return (16 * FACTORS[b] * (i + shifts[b])).round() / 16


def by_equation(stack, x, place=lambda b, i: i):
    """Logits [B, H, T, S] and output [T, B, C], sentence by sentence."""
    scores, outputs = [], []
    for b in range(x.size(1)):
        places = place(b, torch.arange(len(x)).double())
        q, k, v = (y[b] for y in one.heads_of(stack, x))
        mask = one.causal_mask(stack, len(x))
        positions = stack.positions, stack.layers[0].positions
        found, read = by_oracle(q, k, v, places, places, *positions, mask, x=x[:, b])
        scores.append(found)
        outputs.append(read)
    return torch.stack(scores), stack.layers[0].self_attn.out_proj(torch.stack(outputs, dim=1))


def by_oracle(q, k, v, queries, keys, encoder, part, mask=0.0, **further):
    """One sentence's logits [H, T, S], and its output before the output projection [T, C]."""
    sentence = SimpleNamespace(
        **{"q": q, "k": k, "v": v, "queries": queries, "keys": keys},
        **{"d": queries[:, None] - keys, **further},
        causal=encoder.spec.causal,
        options=encoder.spec.options,
        encoder=encoder,
        part=part,
    )
    found, values = attention_oracles.ORACLES[encoder.name](sentence)
    scores = found.float() + mask
    product = "hts,hsd->htd" if values.dim() == 3 else "hts,htsd->htd"
    read = torch.einsum(product, scores.softmax(-1), values)
    return scores, read.transpose(0, 1).flatten(1)


@cases(INSIDE)
@pytest.mark.parametrize("side", one.SIDES)
@torch.no_grad()
def test_attention_is_that_of_the_equation(encoder, options, side):
    stack = one.stack_of(side, encoder, target=inside_target(encoder), **options)
    x, own = one.stream(options.get("width", one.WIDTH)), stack.positions.spec.options
    size = assert_attention(stack, x)
    if stack.positions.takes_stretch(own) and not stack.positions.spec.base:
        shifts = SHIFTS if stack.positions.goes_before_start(own) else (1.5, 2.5, 0.0)
        three = torch.cat([x, x[:, :1]], dim=1)
        place = partial(drawn_place, shifts=shifts)
        assert_attention(stack, three, place, one.moved(FACTORS, shifts))
    if side == "decoder":
        steps = one.step_by_step(stack, x)[0]
        assert h.difference(steps, by_equation(stack, x)[1]) <= TOLERANCE * size


def assert_attention(stack, x, place=lambda b, i: i, of=None):
    scores, output = by_equation(stack, x, place)
    found, seen = one.logits(stack, x, of), scores > HIDING_BIAS / 2
    size = max(1, float(scores[seen].abs().max()))
    assert h.difference(found[seen], scores[seen]) <= TOLERANCE * size
    assert (found[~seen] <= HIDING_BIAS / 2).all()
    for need_weights in (False, True):
        actual = one.attended(stack, x, of, need_weights=need_weights)[0]
        assert h.difference(actual, output) <= TOLERANCE * size
    return size


CROSSING = {name: INSIDE[name] for name in INSIDE if can_cross(name)}


@cases(CROSSING)
@pytest.mark.parametrize("ratio", [1.0, 1.13])
@torch.no_grad()
def test_cross_attention_is_that_of_the_equation(encoder, options, ratio):
    """Target token i and source token j have the distance R i - j, whatever padding precedes them."""
    if options.get("tupe_positions") == "learned" and ratio != 1:
        ratio = 2.0
    across = {"position_cross": "relative", "position_cross_ratio": ratio}
    stack = one.stack_of("decoder", encoder, target=inside_target(encoder), **options, **across)
    width = options.get("width", one.WIDTH)
    x, source, padding = one.stream(width), one.stream(width, 9), torch.zeros(2, 9).bool()
    padding[1, :4] = True
    expected = across_by_equation(stack, x, source, padding, ratio)
    close = TOLERANCE * max(1, float(expected.abs().max()))
    for need_weights in (False, True):
        actual = one.attended_across(stack, x, source, padding, need_weights=need_weights)[0]
        assert h.difference(actual, expected) <= close
    if stack.positions.takes_stretch(stack.positions.spec.options):
        warp = DrawnWarp(WarpLaw(Stretching(0.5, 2.5)), torch.tensor([[0.6], [2.3]]))
        actual = one.attended_across(stack, x, source, padding, warp=warp)[0]
        moved = across_by_equation(stack, x, source, padding, ratio, (0.6, 2.3))
        assert h.difference(actual, moved) <= close
    # Two beams of each sentence share its keys.
    twice, state, steps = x.repeat_interleave(2, 1), {}, []
    keys = source.repeat_interleave(2, 1), padding.repeat_interleave(2, 0)
    for t in range(len(x)):
        of, given = (
            one.tokens(t + 1, 4, last_only=True),
            {"incremental_state": state, "beam_size": 2},
        )
        steps.append(one.attended_across(stack, twice[t : t + 1], *keys, of, **given)[0])
    assert h.difference(torch.cat(steps), expected.repeat_interleave(2, 1)) <= close


def across_by_equation(stack, x, source, padding, ratio, factors=None):
    """The output [T, B, C]; fractional positions are rounded, stretched ones to a quarter token."""
    block, outputs = stack.layers[0], []
    for b, real in enumerate(~padding):
        q, k, v = (y[b] for y in one.heads_of(stack, x, source))
        queries, keys = torch.arange(len(x)).double(), torch.arange(int(real.sum())).double()
        parts = 16 if ratio == 1.13 else 2
        if factors is not None:
            queries, keys = ((4 * factors[b] * p).round() / 4 for p in (queries, keys))
            parts = 4
        queries = (ratio * queries * parts).round() / parts
        positions = stack.source_positions, block.source_positions
        outputs.append(by_oracle(q, k[:, real], v[:, real], queries, keys, *positions)[1])
    return block.encoder_attn.out_proj(torch.stack(outputs, dim=1))
