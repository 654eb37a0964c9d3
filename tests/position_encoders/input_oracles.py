"""The equations for positions at a block's input, each written out for one sentence.

``s`` holds the sentence before the block: x [T, C], its words [T], the positions of its tokens [T]. An
oracle returns the block's input with positions, [T, C].
"""

import copy
from types import SimpleNamespace

import helpers as h
import torch
from torch import nn
from torchdiffeq import odeint


def fairseqs_sinusoid(numbers, width):
    """fairseq's sinusoid of ``numbers`` [...], sines before cosines; the first token has number 2."""
    w = 10_000.0 ** (-torch.arange(width // 2).double() / (width // 2 - 1))
    angles = numbers.double()[..., None] * w
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


def solved(dynamics, p0, times):
    """Solve dp/dt = h(t, p) by torchdiffeq's RK4 at positive or negative ``times`` [N]: [N, ...]."""
    exact, rows = copy.deepcopy(dynamics).double(), torch.empty(len(times), *p0.shape)
    for sign in (1, -1):
        ahead = sign * times >= 0
        at, row = torch.cat([torch.zeros(1), sign * times[ahead]]).unique(return_inverse=True)
        found = p0.double()[None]
        if len(at) > 1:

            def slope(t, p, sign=sign):
                return sign * exact(sign * t, p)

            found = odeint(slope, found[0], at, method="rk4", options={"step_size": 0.05})
        rows[ahead] = found[row[1:]].float()
    return rows


def combined(s, rows):
    """Combine a signal's ``rows`` p [T, C] with x as ``--position-combine`` says."""
    if s.spec.combine == "concat":
        return torch.cat([s.x, rows], dim=1) @ s.encoder.joint.weight.T + s.encoder.joint.bias
    return s.x * rows if s.spec.combine == "multiply" else s.x + rows


def none(s):
    return s.x


def sinusoidal(s):
    """Equation 7; in the first block, x already contains the first summand if fairseq's base is on."""
    rows = fairseqs_sinusoid(s.places + 2, s.x.size(1))
    if s.spec.base and s.spec.combine == "add" and s.number == 0:
        rows = torch.zeros_like(rows)
    of_block = fairseqs_sinusoid(torch.tensor(s.number + 1), s.x.size(1))
    return combined(s, rows if s.spec.input_alone else rows + of_block)


def learned(s):
    p, n = s.part.weight[:, 0], s.options["learned_hierarchy"]
    if n:
        alpha = s.options["learned_hierarchy_alpha"]
        u, i = (p - alpha * p[0]) / (1 - alpha), torch.arange(len(s.x))
        p = alpha * u[i // n] + (1 - alpha) * u[i % n]
    return combined(s, p[: len(s.x)])


def rnn(s):
    rows = [s.part.values[0]]
    for i in range(len(s.x) - 1):
        p, z = rows[-1], torch.tensor([float(i)] if s.options["rnn_input"] != "none" else [])
        if s.options["rnn_input"] == "vector":
            z = fairseqs_sinusoid(torch.tensor(i + 2), len(p))
        for linear in s.encoder.maps:
            p = torch.tanh(linear(torch.cat([z, p])))
        rows.append(p)
    return combined(s, torch.stack(rows))


def floater(s):
    """Equation 8 from p(0), in linear or logarithmic time."""
    times, kind = s.places, s.options["floater_time"]
    if kind != "linear":
        bend = float(kind.removeprefix("log:"))
        times = bend * torch.log1p(times.abs() / bend) * times.sign()
    p0, dynamics = s.part.initial()[0], s.encoder.dynamics or s.part.dynamics
    return combined(s, solved(dynamics, p0, s.options["floater_delta"] * times))


def rotation_flow(s):
    skew = 0.1 * (s.encoder.generator - s.encoder.generator.T).double()
    p0 = s.part.values[0].double()
    return combined(s, torch.stack([p0 @ torch.matrix_exp(t * skew) for t in s.places]).float())


def conv(s):
    kernel, channels = s.options["conv_kernel"], s.x.size(1)
    padding = kernel - 1 if s.causal else kernel // 2
    convolution = nn.Conv1d(channels, channels, kernel, groups=channels, padding=padding)
    convolution.load_state_dict(s.part.convolution.state_dict())
    return s.x + convolution(s.x.T[None])[0].T[: len(s.x)]


def token_rnn(s):
    gru = nn.GRU(s.x.size(1), s.x.size(1))
    gru.load_state_dict(s.encoder.recurrence.state_dict())
    return gru(s.x)[0] + (s.x if s.options["token_rnn_residual"] else 0)


def complex_order(s):
    w = 10_000.0 ** (-2 * torch.arange(s.x.size(1) // 2) / s.x.size(1))
    if s.encoder.omega is not None:
        w = s.encoder.omega[s.words if s.options["complex_omega"] == "word" else 0]
    numbers = torch.complex(s.x[:, 0::2], s.x[:, 1::2])
    turned = torch.polar(numbers.abs(), w * s.places.float()[:, None] + numbers.angle())
    return torch.view_as_real(turned).flatten(1)


ORACLES = {
    **{f.__name__: f for f in (none, sinusoidal, learned, rnn, floater, rotation_flow, conv)},
    "token-rnn": token_rnn,
    "complex": complex_order,
}


def passages(model, source, target_in):
    """Yield each block with its input without positions and its actual input, both [T, B, C]."""
    caught, handles = {}, []
    for stack in (model.encoder, model.decoder):
        for block in stack.layers:
            handles += [
                block.register_forward_pre_hook(lambda m, i: caught.update({(m, "in"): i[0]})),
                block.register_forward_hook(lambda m, i, o: caught.update({(m, "out"): o})),
            ]
    model(source, source.ne(h.PAD).sum(1), target_in)
    for handle in handles:
        handle.remove()
    for stack, words in ((model.encoder, source), (model.decoder, target_in)):
        before = stack.embed_scale * stack.embed_tokens(words)
        if stack.embed_positions is not None:
            before = before + stack.embed_positions(words)
        before = before.transpose(0, 1)
        for number, block in enumerate(stack.layers):
            yield stack, number, words, before, caught[block, "in"]
            output = caught[block, "out"]
            before = output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def largest_difference(model, source, target_in, place=lambda b, i: i):
    """Compare the blocks' inputs with the oracle; token i of sentence b has position ``place(b, i)``."""
    largest = 0.0  # relative if entries exceed 1
    for stack, number, words, before, after in passages(model, source, target_in):
        encoder, part = stack.positions, stack.layers[number].positions
        for b, sentence in enumerate(words):
            real = sentence.ne(h.PAD)
            s = SimpleNamespace(
                **{"x": before[real, b], "words": sentence[real], "number": number},
                places=place(b, torch.arange(int(real.sum())).double()),
                **{"encoder": encoder, "part": part, "spec": encoder.spec},
                **{"causal": encoder.spec.causal, "options": encoder.spec.options},
            )
            receives = encoder.spec.receives(number)
            expected = ORACLES[encoder.name](s) if receives else s.x
            assert part is None or h.difference(expected, s.x) > 0.1
            size = max(1.0, float(expected.abs().max()))
            largest = max(largest, h.difference(after[real, b], expected) / size)
    return largest
