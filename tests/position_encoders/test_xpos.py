"""xPos against x-transformers' scaled rotary embedding."""

import helpers as h
import one_attention as one
import pytest
import torch

from fairseq_floater.position_encoders.kept_table import PositionRangeError

HEAD = 16


def turned(stack, x, places):
    """q and k as rotated by x-transformers, scaled in a decoder only, and v."""
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
    q, k, v = one.heads_of(stack, x)
    turn = package.apply_rotary_pos_emb
    return turn(q, angles, scale), turn(k, angles, of_key), v


@torch.no_grad()
def test_far_tokens_attend_as_near_ones_do():
    """Factors of 1e4 on one side and 1e-4 on the other leave the product exact in float32."""
    stack, x = one.stack_of("decoder", "xpos"), one.stream()
    table = stack.positions(4096, h.parts(stack, "positions"), torch.float32)
    assert 1.9e4 < float(table.abs().max()) < 2.3e4
    near = one.written_out(stack, *turned(stack, x, torch.arange(one.LENGTH)))[0]
    q, k, _ = one.heads_of(stack, x)
    rows = table[4096 - one.LENGTH :].flatten(1)[None, None].chunk(4, dim=-1)
    part = stack.layers[0].positions
    far = part.turn(q, "q", rows) @ part.turn(k, "k", rows).transpose(2, 3) / HEAD**0.5
    seen = one.causal_mask(stack) == 0
    assert h.difference(far[..., seen], near[..., seen]) <= 1e-5


def test_what_float16_cannot_hold_is_an_error():
    model = h.visible("xpos", target="attention")
    blocks = h.parts(model.decoder, "positions")
    with torch.no_grad():
        assert model.decoder.positions(4000, blocks, torch.float16).isfinite().all()
        with pytest.raises(
            PositionRangeError, match=r"Position 45\d\d of xpos .*--xpos-scale-base"
        ):
            model.decoder.positions(5000, blocks, torch.float16)


def test_values_are_never_turned():
    model = h.build("xpos", target="attention", rope_values=True)  # an option of rope
    assert model.encoder.positions.is_relative(model.encoder.positions.spec.options)
