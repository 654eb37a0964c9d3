"""Attention of every encoder beside its paper's equation, written out for one sentence in plain torch."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import difference
from one_attention import (
    SIDES,
    attended,
    causal_mask,
    heads_of,
    logits,
    step_by_step,
    stream,
    stretched,
)
from one_attention import stack_of as stack_of

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.in_attention import HIDING_BIAS

FACTORS = (0.6, 2.3)  # of two stretched sentences


def sinusoid(places, width, frequencies=None):
    """sin(t w_c) and cos(t w_c) in channels 2c and 2c + 1: [..., W]."""
    if frequencies is None:
        frequencies = 10_000.0 ** (-2 * torch.arange(width // 2).double() / width)
    angles = places.double()[..., None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


def directed(s, bias):
    """``bias`` of absolute distances: [H, T, S]; what tells keys behind the query from those before."""
    direction = "mirror" if s.causal else s.options["bias_direction"]
    if direction == "offset":
        return bias(s.d.abs() - 0.5 * (s.d < 0))
    found = bias(s.d.abs())
    if direction == "heads":
        for h in range(len(found)):
            found[h][(s.d > 0) if h % 2 else (s.d < 0)] = HIDING_BIAS
    return found


# Each returns logits [H, T, S] and values, [H, S, D] or [H, T, S, D].


def content(s):
    return s.q @ s.k.transpose(1, 2) / s.q.size(-1) ** 0.5


def alibi(s):
    learned = s.encoder.slopes
    m = 2.0 ** (-2 * torch.arange(1, 5)) if learned is None else learned.detach()
    return content(s) + directed(s, lambda d: -m[:, None, None] * d), s.v


def kerple(s):
    of_side = s.encoder.r.detach().clamp(min=0.01)[:, (s.d < 0).long() * (not s.causal)]
    r1, r2 = of_side.permute(0, 3, 1, 2)  # [H, T, S] each
    if s.options["kerple_kernel"] == "log":
        return content(s) - r1 * torch.log(1 + r2 * s.d.abs()), s.v
    return content(s) - r2 * s.d.abs() ** r1.clamp(max=2), s.v


def sandwich(s):
    w = 10_000.0 ** (-torch.arange(64).double() / 64)
    heads = torch.arange(1, 5)[:, None, None]

    def products(d):
        return (d[..., None] * w).cos().sum(-1) * 4 / (8 * heads)

    return content(s) + directed(s, products).float(), s.v


def t5_bucket(distance, causal, buckets, furthest):
    """Raffel's rule for one distance; one between two whole ones goes to the nearer."""
    count = buckets if causal else buckets // 2
    first = 0 if causal or distance >= 0 else count
    if abs(distance) < count // 2:
        return first + round(abs(distance))
    steps = math.log(abs(distance) / (count // 2)) / math.log(furthest / (count // 2))
    return first + min(count // 2 + int(steps * (count - count // 2)), count - 1)


def t5_bias(s):
    rule = s.causal, s.options["t5_buckets"], s.options["t5_max_distance"]
    rows = [[t5_bucket(d, *rule) if d >= 0 or not s.causal else 0 for d in r] for r in s.d.tolist()]
    return s.encoder.weight.detach()[torch.tensor(rows)].permute(2, 0, 1)


def t5(s):
    return content(s) + t5_bias(s), s.v


def fire(s):
    c, encoder = s.encoder.c.detach(), s.encoder
    limit = (encoder.threshold.detach() * s.options["fire_threshold"]).abs()
    latest = torch.maximum(s.places[:, None], s.places).maximum(limit)
    psi = torch.log((c * s.d).abs() + 1) / (torch.log((c * latest).abs() + 1) + 1e-6)
    f = torch.nn.Sequential(encoder.inner, torch.nn.ReLU(), encoder.outer)
    return content(s) + f((psi * s.d.sign()).float()[..., None]).permute(2, 0, 1), s.v


def cope(s):
    scores, added = content(s), torch.zeros(4, len(s.d), len(s.d))
    gates, vectors = scores.sigmoid(), s.part.vectors.detach()
    count = s.options["cope_positions"]
    for i in range(len(s.d)):
        for j in range(i + 1 if s.causal else len(s.d)):
            between = gates[:, i, min(i, j) : max(i, j) + 1].sum(-1).clamp(max=count - 1)
            for h, pi in enumerate(between.tolist()):
                low, high = math.floor(pi), min(math.floor(pi) + 1, count - 1)
                own = vectors[count:] if j > i else vectors[:count]
                e = (1 - pi + low) * own[low] + (pi - low) * own[high]
                added[h, i, j] = s.q[h, i] @ e
    return scores + added, s.v


def forget(s):
    gates = F.logsigmoid(s.part.forget(s.x)).T  # [H or 2 H, T]
    added = torch.zeros(4, len(s.d), len(s.d))
    for i in range(len(s.d)):
        for j in range(len(s.d)):
            of_side = gates[4:] if j > i and not s.causal else gates[:4]
            added[:, i, j] = of_side[:, min(i, j) + 1 : max(i, j) + 1].sum(-1)
    return content(s) + added, s.v


def turned(s, x, fading=0.0):
    """``x`` [H, T, D]: the pair c of each token turned by t w_c, times exp(t ``fading``_c)."""
    pairs = int(x.size(-1) * s.options["rope_partial"]) // 2
    learned = s.encoder.frequencies
    w = s.options["rope_base"] ** (-torch.arange(pairs).double() / pairs)
    angles = s.places[:, None].double() * (w if learned is None else learned.detach().double())
    factors = torch.polar((s.places[:, None] * fading + 0 * angles).exp(), angles)
    pair = torch.view_as_complex(x[..., : 2 * pairs].double().unflatten(-1, (-1, 2)).contiguous())
    return torch.cat(
        [torch.view_as_real(pair * factors).flatten(-2).float(), x[..., 2 * pairs :]], -1
    )


def rope(s):
    s.v = turned(s, s.v) if s.options["rope_values"] else s.v
    s.q, s.k = turned(s, s.q), turned(s, s.k)
    return content(s), s.v


def xpos(s):
    width = 2 * (int(s.q.size(-1) * s.options["rope_partial"]) // 2)
    z = (torch.arange(0, width, 2).double() + 0.4 * width) / (1.4 * width)
    fading = z.log() / s.options["xpos_scale_base"] if s.causal else 0.0 * z
    s.q, s.k = turned(s, s.q, fading), turned(s, s.k, -fading)
    return content(s), s.v


def with_vectors(s, of_keys, of_values):
    """Shaw's equations 3 and 4 with vectors [(H,) T, S, D]."""
    scores = torch.einsum("htd,htsd->hts", s.q, s.k[:, None] + of_keys) / s.q.size(-1) ** 0.5
    return scores, s.v[:, None] + of_values


def shaw(s):
    clip = s.options["shaw_clip"]
    rows = (-s.d).round().clamp(-clip, 0 if s.causal else clip).long() + clip
    of_keys, of_values = (
        torch.zeros(1) if vectors is None else vectors.detach()[rows]
        for vectors in (s.part.key_vectors, s.part.value_vectors)
    )
    if s.options["shaw_per_head"]:
        of_keys, of_values = (
            v.permute(2, 0, 1, 3) if v.dim() > 1 else v for v in (of_keys, of_values)
        )
    return with_vectors(s, of_keys, of_values)


def nezha(s):
    limit = s.options["nezha_clip"] or math.inf
    vectors = sinusoid((-s.d).clamp(-limit, limit), s.q.size(-1))
    return with_vectors(s, vectors, vectors)


def of_distances(s, rows, divisor, key_term=0.0):
    """((q_i + u) k_j + (q_i + v) R_(i-j) + ``key_term``) / ``divisor``; rows R [T, S, H, D]."""
    scores = (s.q + s.part.u[:, None]) @ s.k.transpose(1, 2)
    scores = scores + torch.einsum("hid,ijhd->hij", s.q + s.part.v[:, None], rows)
    return (scores + key_term) / divisor, s.v


def xl(s):
    learned = s.encoder.frequencies
    rows = sinusoid(s.d, 64, None if learned is None else learned.detach().double())
    rows = rows @ s.part.projection.weight.T
    return of_distances(s, rows.unflatten(-1, (4, -1)), s.q.size(-1) ** 0.5)


def tener(s):
    rows, back = (sinusoid(d, 16)[:, :, None].expand(-1, -1, 4, -1) for d in (s.d, -s.d))
    divisor = {"none": 1.0, "sqrt": 4.0, "2sqrt": 8.0}[s.options["tener_scale"]]
    key_term = torch.einsum("hjd,ijhd->hij", s.k, back) if s.options["tener_key_term"] else 0.0
    return of_distances(s, rows, divisor, key_term)


def deberta(s):
    k, vectors = s.options["deberta_distance"], s.encoder.vectors
    if s.encoder.norm is not None:
        vectors = s.encoder.norm(vectors)
    of_keys, of_queries = (p(vectors).unflatten(-1, (4, -1)) for p in s.part.projections)

    def delta(d):  # to the nearest whole distance
        return (d.round() + k).clamp(0, 2 * k - 1).long()

    mirrored = -s.d if s.options["deberta_p2c"] == "paper" else s.d
    scores = s.q @ s.k.transpose(1, 2)
    scores = scores + torch.einsum("hid,ijhd->hij", s.q, of_keys[delta(s.d)])
    scores = scores + torch.einsum("hjd,ijhd->hij", s.k, of_queries[delta(mirrored)])
    return scores / (3 * s.q.size(-1)) ** 0.5, s.v


def tupe(s):
    encoder, half = s.encoder, 32
    w = 10_000.0 ** (-torch.arange(half) / (half - 1))
    angles = (s.places[:, None].float() + 2) * w  # fairseq counts the first token as 2
    p = torch.cat([angles.sin(), angles.cos()], dim=1)
    p = encoder.norm(p if encoder.positions is None else encoder.positions[: len(p)])
    q, k = (
        u(p).unflatten(-1, (4, -1)).transpose(0, 1)
        for u in (encoder.query_projection, encoder.key_projection)
    )
    scores = s.q @ s.k.transpose(1, 2) + q @ k.transpose(1, 2)
    return scores / (2 * s.q.size(-1)) ** 0.5 + t5_bias(s), s.v


ORACLES = {
    f.__name__: f
    for f in (
        *(alibi, kerple, sandwich, t5, fire, cope, forget, rope, xpos),
        *(shaw, nezha, xl, tener, deberta, tupe),
    )
}
DIRECTIONS = [{"bias_direction": direction} for direction in ("offset", "mirror", "heads")]
VARIANTS = {
    "alibi": [{**d, "alibi_slopes": s} for d in DIRECTIONS for s in ("fixed", "learned")],
    "kerple": [{"kerple_kernel": kernel} for kernel in ("log", "power")],
    "sandwich": DIRECTIONS,
    "t5": [{}, {"t5_buckets": 8, "t5_max_distance": 9}],
    "fire": [{"fire_threshold": n} for n in (1, 4, 16)],
    "cope": [{"cope_positions": n} for n in (3, 5, 64)],  # reached by most pairs, some, none
    "rope": [
        *({}, {"rope_base": 50.0}, {"rope_partial": 0.5}, {"rope_learned": True}),
        {"rope_values": True, "rope_partial": 0.75, "rope_base": 200.0},
    ],
    "xpos": [{}, {"xpos_scale_base": 7.0, "rope_base": 50.0}, {"xpos_scale_base": 20.0, "rope_partial": 0.5}],
    "shaw": [
        *({"shaw_clip": 5}, {"shaw_clip": 5, "shaw_per_head": True}),
        {"shaw_clip": 5, "shaw_values": "off"},
    ],
    "nezha": [{"nezha_clip": clip} for clip in (5, 0)],
    "xl": [{}, {"xl_learned": True}],
    "tener": [
        {"tener_scale": n, "tener_key_term": k}
        for n in ("none", "sqrt", "2sqrt")
        for k in (False, True)
    ],
    "deberta": [
        *({"deberta_distance": 4}, {"deberta_distance": 4, "deberta_p2c": "paper"}),
        {"deberta_share": True, "deberta_distance": 6},
    ],
    "tupe": [{}, {"tupe_positions": "learned"}],
}  # fmt: skip
CASES = [(name, options) for name in ORACLES for options in VARIANTS.get(name, [{}])]


def by_equation(stack, x, factors):
    """Logits [B, H, T, S] and output [T, B, C], sentence by sentence."""
    scores, outputs = [], []
    for b, factor in enumerate(factors):
        places = (4 * factor * torch.arange(len(x))).round() / 4
        q, k, v = (y[b] for y in heads_of(stack, x))
        sentence = SimpleNamespace(
            **{"q": q, "k": k, "v": v, "x": x[:, b], "places": places},
            d=(places[:, None] - places).double(),
            causal=stack.positions.spec.causal,
            options=stack.positions.spec.options,
            encoder=stack.positions,
            part=stack.layers[0].positions,
        )
        found, values = ORACLES[stack.positions.name](sentence)
        scores.append(found.float() + causal_mask(stack, len(x)))
        weights = scores[-1].softmax(-1)
        read = (
            weights @ values
            if values.dim() == 3
            else torch.einsum("hts,htsd->htd", weights, values)
        )
        outputs.append(read.transpose(0, 1).flatten(1))
    return torch.stack(scores), stack.layers[0].self_attn.out_proj(torch.stack(outputs, dim=1))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("encoder", "options"), CASES, ids=["-".join(map(str, (n, *o.values()))) for n, o in CASES]
)
@torch.no_grad()
def test_attention_is_that_of_the_equation(encoder, options, side):
    stack, x = stack_of(side, encoder, **options), stream()
    cls = POSITION_ENCODERS[encoder]
    moved = cls.takes_stretch(stack.positions.spec.options)
    for factors, of in [((1.0, 1.0), None), *([(FACTORS, stretched(*FACTORS))] if moved else [])]:
        scores, output = by_equation(stack, x, factors)
        found = logits(stack, x, of)
        seen = scores > HIDING_BIAS / 2
        assert difference(found[seen], scores[seen]) <= 2e-5 * max(
            1, float(scores[seen].abs().max())
        )
        assert (found[~seen] <= HIDING_BIAS / 2).all()
        for need_weights in (False, True):
            assert difference(attended(stack, x, of, need_weights=need_weights)[0], output) <= 2e-5
    if side == "decoder":
        assert difference(step_by_step(stack, x)[0], by_equation(stack, x, (1.0, 1.0))[1]) <= 2e-5


def test_every_encoder_inside_attention_has_an_equation_here():
    inside = {n for n, cls in POSITION_ENCODERS.items() if cls.targets[0] == "attention"}
    assert inside == set(ORACLES)
