"""The papers' equations for positions inside attention, each written out for one sentence.

``s`` holds the sentence in the first block: q [H, T, D], k and v [H, S, D], x [T, C], the positions of
queries [T] and keys [S], and the distances d = i - j [T, S]. An oracle returns logits [H, T, S] and
values [H, S, D] or [H, T, S, D].
"""

import math

import torch
import torch.nn.functional as F
from input_oracles import fairseqs_sinusoid, solved

from fairseq_floater.position_encoders.in_attention import HIDING_BIAS


def sinusoid(places, width, frequencies=None):
    """sin(t w_c) and cos(t w_c) in channels 2c and 2c + 1: [..., W]."""
    if frequencies is None:
        frequencies = 10_000.0 ** (-2 * torch.arange(width // 2).double() / width)
    angles = places.double()[..., None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


def directed(s, bias):
    """Return ``bias`` of the absolute distances [H, T, S], with ``bias_direction`` in an encoder."""
    direction = "mirror" if s.causal else s.options["bias_direction"]
    if direction == "offset":
        return bias(s.d.abs() - 0.5 * (s.d < 0))
    found = bias(s.d.abs())
    if direction == "heads":
        for h in range(len(found)):
            found[h][(s.d > 0) if h % 2 else (s.d < 0)] = HIDING_BIAS
    return found


def content(s):
    return s.q @ s.k.transpose(1, 2) / s.q.size(-1) ** 0.5


def gate(holder):
    """Return the learned gate of parameter-free positions over fairseq's base, or 1 without a gate."""
    return 1.0 if holder.gate.weight is None else holder.gate.weight.detach()


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
    w, count = 10_000.0 ** (-torch.arange(64).double() / 64), len(s.q)
    heads = torch.arange(1, count + 1)[:, None, None]

    def products(d):
        return (d[..., None] * w).cos().sum(-1) * count / (8 * heads)

    added = directed(s, products).float()
    return content(s) + added.where(added <= HIDING_BIAS, gate(s.encoder) * added), s.v


def t5_bucket(distance, causal, buckets, furthest):
    """Return the bucket of one distance by Raffel's rule; small fractional distances are rounded."""
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
    latest = torch.maximum(s.queries[:, None], s.keys).maximum(limit)
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
    return content(s) + gate(s.part) * added, s.v


def turned(s, x, places, fading=0.0):
    """Rotate pair c of ``x`` [H, T, D] at position t by t w_c and scale it by exp(t ``fading``_c)."""
    pairs = int(x.size(-1) * s.options["rope_partial"]) // 2
    learned = s.encoder.frequencies
    w = s.options["rope_base"] ** (-torch.arange(pairs).double() / pairs)
    angles = places[:, None].double() * (w if learned is None else learned.detach().double())
    factors = torch.polar((places[:, None] * fading + 0 * angles).exp(), angles)
    pair = torch.view_as_complex(x[..., : 2 * pairs].double().unflatten(-1, (-1, 2)).contiguous())
    return torch.cat(
        [torch.view_as_real(pair * factors).flatten(-2).float(), x[..., 2 * pairs :]], -1
    )


def rope(s):
    s.v = turned(s, s.v, s.keys) if s.options["rope_values"] else s.v
    s.q, s.k = turned(s, s.q, s.queries), turned(s, s.k, s.keys)
    return content(s), s.v


def xpos(s):
    width = 2 * (int(s.q.size(-1) * s.options["rope_partial"]) // 2)
    z = (torch.arange(0, width, 2).double() + 0.4 * width) / (1.4 * width)
    fading = z.log() / s.options["xpos_scale_base"] if s.causal else 0.0 * z
    s.q, s.k = turned(s, s.q, s.queries, fading), turned(s, s.k, s.keys, -fading)
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
    vectors = gate(s.encoder) * sinusoid((-s.d).clamp(-limit, limit), s.q.size(-1))
    return with_vectors(s, vectors, vectors)


def of_distances(s, rows, divisor, key_term=0.0):
    """((q_i + u) k_j + (q_i + v) R_(i-j) + ``key_term``) / ``divisor``; rows R [T, S, H, D]."""
    scores = (s.q + s.part.u[:, None]) @ s.k.transpose(1, 2)
    v = 0.0 if s.part.v is None else s.part.v[:, None]
    scores = scores + torch.einsum("hid,ijhd->hij", s.q + v, rows)
    return (scores + key_term) / divisor, s.v


def projected(s, rows):
    """((q_i + u) k_j + (q_i + v) W_R r) / sqrt(D), or r itself cut into heads; r [T, S, C]."""
    if s.part.projection is not None:
        rows = rows @ s.part.projection.weight.T
    return of_distances(s, rows.unflatten(-1, (4, -1)), s.q.size(-1) ** 0.5)


def xl(s):
    learned = s.encoder.frequencies
    d = torch.log1p(s.d.abs()) * s.d.sign() if s.options["xl_distance"] == "log" else s.d
    rows = sinusoid(d, 64, None if learned is None else learned.detach().double())
    return projected(s, rows if s.part.projection is not None else gate(s.encoder) * rows)


def tener(s):
    rows, back = (sinusoid(d, 16)[:, :, None].expand(-1, -1, 4, -1) for d in (s.d, -s.d))
    divisor = {"none": 1.0, "sqrt": 4.0, "2sqrt": 8.0}[s.options["tener_scale"]]
    key_term = torch.einsum("hjd,ijhd->hij", s.k, back) if s.options["tener_key_term"] else 0.0
    return of_distances(s, rows, divisor, key_term)


def deberta_bucket(d, count, furthest):
    """Return the bucket of one signed distance in version 2 of DeBERTa."""
    if abs(d) <= count // 2:
        return round(d)
    share = math.log(abs(d) / (count // 2)) / math.log((furthest - 1) / (count // 2))
    return int(math.copysign(count // 2 + math.ceil(share * (count // 2 - 1) - 1e-6), d))


def deberta(s):
    buckets, vectors = s.options["deberta_buckets"], s.encoder.vectors
    k = buckets or s.options["deberta_distance"]
    if s.encoder.norm is not None:
        vectors = s.encoder.norm(vectors)
    of_keys, of_queries = (p(vectors).unflatten(-1, (4, -1)) for p in s.part.projections)

    def delta(d):  # rounds fractional distances
        if buckets:
            rule = buckets, s.options["deberta_distance"]
            d = torch.tensor([[deberta_bucket(x, *rule) for x in row] for row in d.tolist()])
        return (d.round() + k).clamp(0, 2 * k - 1).long()

    mirrored = -s.d if s.options["deberta_p2c"] == "paper" else s.d
    scores = s.q @ s.k.transpose(1, 2)
    scores = scores + torch.einsum("hid,ijhd->hij", s.q, of_keys[delta(s.d)])
    scores = scores + torch.einsum("hjd,ijhd->hij", s.k, of_queries[delta(mirrored)])
    return scores / (3 * s.q.size(-1)) ** 0.5, s.v


def tupe(s):
    encoder = s.encoder

    def projected(places, u):
        learned = encoder.positions
        p = fairseqs_sinusoid(places + 2, 64) if learned is None else learned[places.long()]
        return u(encoder.norm(p)).unflatten(-1, (4, -1)).transpose(0, 1)

    q, k = projected(s.queries, encoder.query_projection), projected(s.keys, encoder.key_projection)
    scores = s.q @ s.k.transpose(1, 2) + q @ k.transpose(1, 2)
    return scores / (2 * s.q.size(-1)) ** 0.5 + t5_bias(s), s.v


def times(s):
    """Return a flow's time at each distance, tau [T, S], and its start r(0) [streams, sides, W]."""
    if s.options["floater_relative"] != "xl":
        return torch.log1p(s.d.round().abs()), s.part.start.initial()
    time, delta = s.options["floater_time"], s.options.get("floater_delta", 0.1)
    tau = torch.log1p(s.d.abs()) if time == "log" else delta * s.d.abs()
    if time.startswith("log:"):
        bend = float(time.removeprefix("log:"))
        tau = delta * bend * torch.log1p(s.d.abs() / bend)
    return tau, s.encoder.start.initial()


def relative(s, r):
    """Use a flow's r [T, S, streams, sides, W] as Shaw's vectors, as biases, or as XL's rows."""
    d = s.d if s.options["floater_relative"] == "xl" else s.d.round()
    behind = (d < 0) & (not s.causal)
    r = torch.where(behind[..., None, None], r[..., -1, :], r[..., 0, :])
    if s.options["floater_relative"] == "xl":
        return projected(s, r[:, :, 0])
    if s.options["floater_relative"] == "bias":
        return content(s) + r[:, :, 0].permute(2, 0, 1), s.v
    return with_vectors(s, r[:, :, 0], r[:, :, 1] if r.size(2) > 1 else torch.zeros(1))


def floater(s):
    tau, r0 = times(s)
    tau, row = tau.unique(return_inverse=True)
    return relative(s, solved(s.encoder.dynamics, r0, tau)[row])


def rotation_flow(s):
    tau, r0 = times(s)
    w, r0 = s.encoder.frequencies.double(), r0.double()
    planes = torch.block_diag(*(f * torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double() for f in w))
    turns = torch.matrix_exp(tau[..., None, None] * planes)
    return relative(s, torch.einsum("abw,tswv->tsabv", r0, turns).float())


ORACLES = {
    f.__name__: f
    for f in (
        *(alibi, kerple, sandwich, t5, fire, cope, forget, rope, xpos),
        *(shaw, nezha, xl, tener, deberta, tupe, floater, rotation_flow),
    )
}
