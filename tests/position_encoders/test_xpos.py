"""xPos beside x-transformers' rotary embedding with its scales."""

import pytest
import torch
from forcing import assert_steps_equal_one_pass
from helpers import (
    build,
    difference,
    parts,
    source_batch,
    target_batch,
    visible,
)
from one_attention import (
    LENGTH,
    SIDES,
    causal_mask,
    heads_of,
    stack_of,
    stream,
    written_out,
)

from fairseq_floater.position_encoders.kept_table import PositionRangeError

HEAD = 16
OPTIONS = {
    "default": {},
    "options": {"xpos_scale_base": 7.0, "rope_base": 50.0},
    "partial": {"xpos_scale_base": 20.0, "rope_partial": 0.5},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def turned(stack, x, places):
    """q and k as x-transformers leaves them, its scales in a decoder alone."""
    package = pytest.importorskip("x_transformers.x_transformers")
    spec = stack.positions.spec
    oracle = package.RotaryEmbedding(
        int(HEAD * spec.options["rope_partial"]),
        use_xpos=spec.causal,
        scale_base=spec.options["xpos_scale_base"],
        base=spec.options["rope_base"],
    )
    angles, scale = oracle(places)
    of_key = scale**-1.0 if spec.causal else 1.0
    q, k, v = heads_of(stack, x)
    turn = package.apply_rotary_pos_emb
    return turn(q, angles, scale), turn(k, angles, of_key), v


@torch.no_grad()
def test_a_decoders_product_fades_and_an_encoders_does_not():
    fading = (torch.arange(0, HEAD, 2) + 0.4 * HEAD) / (1.4 * HEAD)
    ones = torch.ones(9, HEAD // 2)
    encoder, decoder = (
        stack.positions(9, parts(stack, "positions"), torch.float32).unflatten(1, (-1, 2))
        for stack in (stack_of(side, "xpos", xpos_scale_base=4.0) for side in SIDES)
    )
    assert difference(encoder.norm(dim=2), ones[:, None]) <= 1e-6
    of_queries, of_keys = decoder.norm(dim=2).unbind(1)
    assert difference(of_queries[4], fading) <= 1e-6  # cos and sin in the norm leave the factor
    assert difference(of_queries * of_keys, ones) <= 1e-6


@every_option
@pytest.mark.parametrize("linear", [False, True], ids=["softmax", "linear"])
def test_decoding_is_forcing_with_every_option(options, linear):
    kind = {"attention_kind": "linear"} if linear else {}
    model = visible("xpos", target="attention", **options, **kind)
    assert_steps_equal_one_pass(model, source_batch(), target_batch(), 2e-5)


@torch.no_grad()
def test_far_tokens_attend_as_near_ones_do():
    """Factors of 1e4 on one side and 1e-4 on the other leave the product exact in float32."""
    stack, x = stack_of("decoder", "xpos"), stream()
    table = stack.positions(4096, parts(stack, "positions"), torch.float32)
    assert 1.9e4 < float(table.abs().max()) < 2.3e4
    near = written_out(stack, *turned(stack, x, torch.arange(LENGTH)))[0]
    q, k, _ = heads_of(stack, x)
    rows = table[4096 - LENGTH :].flatten(1).chunk(4, dim=-1)
    part = stack.layers[0].positions
    far = part.turn(q, "q", rows) @ part.turn(k, "k", rows).transpose(2, 3) / HEAD**0.5
    seen = causal_mask(stack) == 0
    assert difference(far[..., seen], near[..., seen]) <= 1e-5


def test_what_float16_cannot_hold_is_an_error():
    model = visible("xpos", target="attention")
    blocks = parts(model.decoder, "positions")
    with torch.no_grad():
        assert model.decoder.positions(4000, blocks, torch.float16).isfinite().all()
        with pytest.raises(
            PositionRangeError, match=r"Position 45\d\d of xpos .*--xpos-scale-base"
        ):
            model.decoder.positions(5000, blocks, torch.float16)


def test_values_are_never_turned():
    model = build("xpos", target="attention", rope_values=True)  # of another encoder
    assert model.encoder.positions.is_relative(model.encoder.positions.spec.options)
