"""Linear attention against its equations, written out key by key in float64."""

import math

import pytest
import torch
from fairseq.utils import fill_with_neg_inf
from helpers import TOLERANCE, difference

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import NEUTRAL, PositionBias, ProjectionBiases
from fairseq_floater.position_encoders.rope import RopePositions
from fairseq_floater.position_encoders.transforms import Tokens
from fairseq_floater.transformer.linear_attention import LinearAttention
from fairseq_floater.transformer.masks import additive_mask

HEADS, WIDTH, LENGTH = 2, 6, 7
CHANNELS = HEADS * WIDTH
ROPE = {"rope_base": 10000.0, "rope_partial": 1.0, "rope_values": False, "rope_learned": False}
POSITIONS = {
    "none": None,
    "rope": ROPE,
    "rope-partial": {**ROPE, "rope_partial": 0.7},  # two of three pairs
    "rope-values": {**ROPE, "rope_values": True},
    "rope-learned": {**ROPE, "rope_learned": True},
}
every_kernel = pytest.mark.parametrize("kernel", ["elu", "cosine"])
every_position = pytest.mark.parametrize("options", POSITIONS.values(), ids=POSITIONS)
PADDING = {
    "none": [0, 0, 0],
    "behind": [-2, 0, -4],
    "in-front": [2, 0, 4],
}
every_padding = pytest.mark.parametrize("counts", PADDING.values(), ids=PADDING)


def attention(kernel, seed=0):
    torch.manual_seed(seed)
    built = LinearAttention(CHANNELS, HEADS, kernel=kernel, self_attention=True).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


def stream(length=LENGTH, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, 3, CHANNELS, generator=generator, dtype=torch.float64)


def padding(counts, length=LENGTH):
    """[B, S] bool: ``counts`` padded slots in front of each sentence, or behind it if negative."""
    slots = torch.arange(length)
    return torch.stack([slots < n if n > 0 else slots >= length + n for n in counts])


class Positions:
    """A block's RoPE, its arguments to attention and its frequencies; no positions without options."""

    def __init__(self, options):
        self.part, self.frequencies = NEUTRAL, []
        self.turns_values = bool(options and options["rope_values"])
        self.encoder = None if options is None else RopePositions(spec(options)).eval()
        if self.encoder is None:
            return
        self.part = self.encoder.build_block(0)
        pairs = int(WIDTH * options["rope_partial"]) // 2
        self.frequencies = [10000 ** (-c / pairs) for c in range(pairs)]
        if self.encoder.frequencies is not None:
            torch.nn.init.uniform_(self.encoder.frequencies, 0.1, 1.5)
            self.frequencies = self.encoder.frequencies.tolist()

    def arguments(self, hidden, last_only=False, dtype=torch.float64):
        """Attention's hooks and tables for all tokens but the ``hidden``, or for the last token only."""
        if self.encoder is None:
            return {}
        at = Tokens.read(hidden, last_only).at(use_slots=False)
        with torch.no_grad():
            return {"hooks": self.part, "tables": self.encoder.prepare(at, [self.part], dtype)[0]}


def spec(options):
    return EncoderSpec(
        dim=CHANNELS,
        target="attention",
        side="source",
        max_positions=64,
        padding_idx=1,
        base=False,
        heads=HEADS,
        options=options,
    )


def rotation(place, frequencies):
    """R_i: a matrix of 2 x 2 rotations, the identity in the remaining channels."""
    matrix = torch.eye(WIDTH, dtype=torch.float64)
    for c, w in enumerate(frequencies):
        cos, sin = math.cos(place * w), math.sin(place * w)
        block = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
        matrix[2 * c : 2 * c + 2, 2 * c : 2 * c + 2] = block
    return matrix


def phi(x):
    """elu + 1 (Katharopoulos et al. 2020, equation 7)."""
    return torch.stack([c + 1 if c > 0 else c.exp() for c in x])


def weights(kernel, q, k, turn_q, turn_k):
    """A key's weight in numerator and denominator: the survey's equation 29, or its 1 + cosine."""
    if kernel == "cosine":
        cosine = (turn_q @ q / q.norm()) @ (turn_k @ k / k.norm())
        return 1 + cosine, 1 + cosine
    return (turn_q @ phi(q)) @ (turn_k @ phi(k)), phi(q) @ phi(k)


def written_out(built, qkv, kernel, hidden, causal, positions):
    """Attend one query and one key at a time; q, k, v [T, B, C] -> [T, B, C]."""
    zero = torch.zeros(WIDTH, dtype=torch.float64)
    outputs = []
    for b, padded in enumerate(hidden):
        slots = [s for s, is_padding in enumerate(padded) if not is_padding]
        turns = [rotation(place, positions.frequencies) for place in range(len(slots))]
        for h in range(HEADS):
            q, k, v = (x[:, b, h * WIDTH : (h + 1) * WIDTH] for x in qkv)
            rows = [zero] * len(padded)
            for i, s in enumerate(slots):
                above, below = zero, 0.0
                for j, t in enumerate(slots[: i + 1] if causal else slots):
                    w, u = weights(kernel, q[s], k[t], turns[i], turns[j])
                    above = above + w * (turns[j] @ v[t] if positions.turns_values else v[t])
                    below = below + u
                rows[s] = above / below
            outputs.append(torch.stack(rows))
    merged = torch.stack(outputs).unflatten(0, (-1, HEADS)).permute(2, 0, 1, 3).flatten(2)
    return merged @ built.out_proj.weight.T + built.out_proj.bias


def future():
    return fill_with_neg_inf(torch.zeros(LENGTH, LENGTH)).triu(1)


@every_kernel
@every_position
@pytest.mark.parametrize("causal", [False, True], ids=["two-sums", "masked-products"])
@every_padding
@torch.no_grad()
def test_the_output_is_the_papers(kernel, options, causal, counts):
    built, x, hidden = attention(kernel), stream(), padding(counts)
    positions = Positions(options)
    q, k, v = built.q_proj(x), built.k_proj(x), built.v_proj(x)
    expected = written_out(built, (q, k, v), kernel, hidden, causal, positions)
    arguments = positions.arguments(hidden)
    output, _ = built(x, x, x, hidden, attn_mask=future() if causal else None, **arguments)
    assert difference(output[~hidden.T], expected[~hidden.T]) < 1e-6
    assert output.isfinite().all()
    if not causal:  # the encoder hides its padding by a mask of one row
        mask = additive_mask(hidden[:, None, None], torch.float64)
        assert difference(built(x, x, x, attn_mask=mask, **arguments)[0], output) == 0
        mask[0] = 0.0
        only_first = hidden & (torch.arange(3) == 0)[:, None]
        both, _ = built(x, x, x, only_first, attn_mask=mask, **arguments)
        assert difference(both, output) == 0


@every_kernel
@torch.no_grad()
def test_a_signal_enters_before_phi(kernel):
    built, x = attention(kernel), stream()
    rows = torch.randn(3, LENGTH, CHANNELS, dtype=torch.float64)
    places = torch.arange(LENGTH)[:, None]
    hooks = ProjectionBiases({s: PositionBias(row, places) for s, row in zip("qkv", rows)})
    projections = built.q_proj, built.k_proj, built.v_proj
    qkv = [project(x) + row[:, None] for project, row in zip(projections, rows)]
    expected = written_out(built, qkv, kernel, padding([0, 0, 0]), True, Positions(None))
    output, _ = built(x, x, x, attn_mask=future(), hooks=hooks)
    assert difference(output, expected) < 1e-9


def steps(built, x, hidden, positions, state):
    """Attend token by token: [T, B, C]."""
    outputs = []
    for t, now in enumerate(x.split(1)):
        until = hidden[:, : t + 1]
        arguments = positions.arguments(until, last_only=True, dtype=x.dtype)
        arguments |= {"key_padding_mask": until[:, -1:], "incremental_state": state}
        outputs.append(built(now, now, now, **arguments)[0])
    return torch.cat(outputs)


@every_kernel
@every_position
@every_padding
@torch.no_grad()
def test_a_state_gives_what_the_products_give(kernel, options, counts):
    built, x, hidden = attention(kernel).float(), stream().float(), padding(counts)
    positions = Positions(options)
    arguments = positions.arguments(hidden, dtype=x.dtype)
    whole, _ = built(x, x, x, hidden, attn_mask=future(), **arguments)
    stepwise = steps(built, x, hidden, positions, {})
    assert difference(stepwise[~hidden.T], whole[~hidden.T]) <= TOLERANCE
    assert stepwise.isfinite().all()


@torch.no_grad()
def test_the_state_is_the_papers_and_float32_and_does_not_grow():
    """Katharopoulos et al. 2020, equations 18 and 19: s_i = s_(i-1) + φ(k_i) v_i^T, z_i alike."""
    built, x, hidden = attention("elu"), stream(40), padding([0, 3, -5], 40)
    k, v = built.k_proj(x), built.v_proj(x)
    state = {}
    steps(built.half(), x.half(), hidden, Positions(None), state)
    (saved,) = state.values()
    assert {t.dtype for t in saved.values()} == {torch.float32}
    shapes = [tuple(t.shape) for t in saved.values()]
    assert shapes == [(3, HEADS, WIDTH, WIDTH), (3, HEADS, WIDTH)]
    for b in range(3):
        for h in range(HEADS):
            head = slice(h * WIDTH, (h + 1) * WIDTH)
            s, z = torch.zeros(WIDTH, WIDTH, dtype=torch.float64), torch.zeros(WIDTH).double()
            for t in range(40):
                if not hidden[b, t]:
                    s += torch.outer(phi(k[t, b, head]), v[t, b, head])
                    z += phi(k[t, b, head])
            found = [t[b, h].double() for t in saved.values()]
            assert difference(found[0], s) < 0.1 and difference(found[1], z) < 0.1


@pytest.mark.parametrize("causal", [False, True], ids=["two-sums", "masked-products"])
@torch.no_grad()
def test_sums_beyond_float16_do_no_harm(causal):
    built, x = attention("elu"), stream()
    for projection in (built.q_proj, built.k_proj):
        projection.bias.fill_(60.0)  # q k is then 60 * 60 * 6, and seven of them overflow
    mask = future() if causal else None
    expected, _ = built(x, x, x, attn_mask=mask)
    output, _ = built.half()(*[x.half()] * 3, attn_mask=mask)
    assert difference(output.double(), expected) < 0.01


@every_kernel
@torch.no_grad()
def test_autocast_leaves_the_sums_alone(kernel):
    built, x = attention(kernel).float(), stream().float()
    state = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = built(x, x, x, incremental_state=state)
    (saved,) = state.values()
    assert {t.dtype for t in saved.values()} == {torch.float32}
    assert output.dtype == torch.bfloat16
    assert 0 < difference(output.float(), built(x, x, x)[0]) < 0.1


@every_kernel
@every_position
def test_gradients_are_those_of_the_written_out_form(kernel, options):
    built, x, hidden = attention(kernel), stream(), padding([2, 0, -3])
    positions = Positions(options)
    real = ~hidden.T

    def gradients(output):
        built.zero_grad()
        (output[real] ** 2).sum().backward()
        return [p.grad.clone() for p in built.parameters()]

    output, _ = built(x, x, x, hidden, attn_mask=future(), **positions.arguments(hidden))
    found = gradients(output)
    qkv = built.q_proj(x), built.k_proj(x), built.v_proj(x)
    expected = gradients(written_out(built, qkv, kernel, hidden, True, positions))
    for one, other in zip(found, expected, strict=True):
        assert difference(one, other) < 1e-5 * float(other.abs().max())


def test_a_query_that_sees_no_key_reads_zero_and_spoils_no_gradient():
    built = attention("elu").float()
    x = stream().float().requires_grad_()
    output, _ = built(x, x, x, padding([LENGTH, 2, 0]), attn_mask=future())
    assert difference(output[:, 0].detach(), built.out_proj.bias.detach().expand(LENGTH, -1)) == 0
    output.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("asked", ["need_weights", "need_head_weights", "before_softmax"])
def test_weights_are_refused(asked):
    built, x = attention("elu"), stream()
    with pytest.raises(ValueError, match=f"{asked}.*must be off.*`--attention-kind softmax`"):
        built(x, x, x, **{asked: True})


@every_kernel
def test_a_boolean_mask_hides(kernel):
    x, hidden = stream(), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    built = attention(kernel)
    found, expected = (
        built(x, x, x, attn_mask=mask)[0] for mask in (hidden, additive_mask(hidden, x.dtype))
    )
    assert torch.equal(found, expected)
