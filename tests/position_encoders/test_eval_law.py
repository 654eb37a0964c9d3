"""`--position-eval`: how evaluation changes the positions of a trained model."""

import math
from argparse import Namespace
from functools import partial

import attention_oracles
import forcing
import helpers as h
import one_attention as one
import pytest
import test_oracles as oracles
import torch
from fairseq import checkpoint_utils
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_floater.position_encoders import POSITION_ENCODERS, encoder_class, registry
from fairseq_floater.position_encoders.eval_law import EvalLaw
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.rope import RopePart, RopePositions
from fairseq_floater.position_encoders.warp import Interpolation, SourceLengths

T = 5  # trained length; the sentences here have 13 tokens
SPECS = ("interpolate:5", "ntk:5", "yarn:5", "cap:4", "grouped:3:2", "logn:5", "window:2")
FREQUENCIES = ("rope", "xpos", "xl", "tener", "nezha")


def accepted(case, spec):
    """Whether the encoder accepts ``spec`` if fairseq's sinusoid is off."""
    encoder, _, target = case
    cls = encoder_class(encoder, h.options_of(target)["position_target"])
    options = {option.dest: option.default for option in cls.options} | h.options_of(target)
    kind = spec.partition(":")[0]
    return {
        "interpolate": cls.takes_stretch(options) and (encoder, target) != ("sinusoidal", "qkv"),
        "window": encoder not in ("cope", "forget"),
        "ntk": encoder in FREQUENCIES,
        "yarn": encoder in FREQUENCIES,
        "cap": cls.is_relative(options) and cls.tabulated,
        "grouped": cls.is_relative(options) and cls.tabulated,
    }.get(kind, True)


# `logn` and `window` act outside of the encoder; rnn takes no other. `grouped` is tested for all below.
PAIRS = [
    (case, spec)
    for case in h.CASES
    for spec in SPECS
    if case[1] == "all" or case[0] == "sinusoidal"
    if case in h.MECHANISMS
    or case[0] == "rnn"
    or not spec.startswith(("logn", "window", "grouped"))
]
every_pair = pytest.mark.parametrize(
    ("case", "spec"),
    [pair for pair in PAIRS if accepted(*pair)],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)


def visible(case, spec="none", **options):
    encoder, blocks, target = case
    if encoder != "sinusoidal":
        options["position_base"] = "drop"
    return h.visible(encoder, blocks, target, position_eval=spec, **options)


@every_pair
def test_it_changes_long_sentences_alone_and_keeps_the_contract(case, spec):
    usual, model = visible(case), visible(case, spec)
    short = h.source_batch(lengths=(3, 5, 4)), h.target_batch(lengths=(5, 4, 5))
    kind, *numbers = spec.split(":")
    fits = visible(case, ":".join((kind, "6", *numbers[1:])))  # distances below 6 are untouched
    real = short[1].ne(h.PAD)
    assert h.difference(h.log_probs(usual, *short)[real], h.log_probs(fits, *short)[real]) <= 1e-5
    long = h.source_batch(), h.target_batch()
    if case[0] != "none" or kind != "interpolate":
        assert h.difference(h.log_probs(usual, *long), h.log_probs(model, *long)) > 1e-5
    forcing.assert_padding_moves_nothing(model, *long)
    forcing.assert_steps_equal_one_pass(model, *long)
    forcing.assert_beams_keep_their_sentence(model, 2)


TRANSLATED = [("rope", "all", "attention"), ("floater", "all", "hidden")]
BESIDE = [(c, k) for c in TRANSLATED for k in ("interpolate", "cap", "logn") if accepted(c, k)]


@pytest.mark.parametrize(("case", "kind"), BESIDE)
def test_sentences_of_up_to_the_trained_length_get_the_same_translations(case, kind):
    usual, fits, long = (
        h.generated([visible(case, spec)], h.source_batch(), longest=11)
        for spec in ("none", f"{kind}:12", f"{kind}:5")
    )
    scores = lambda beams: [(b["tokens"].tolist(), b["score"].item()) for b in beams]  # noqa: E731
    assert scores(usual) == scores(fits) != scores(long)


@pytest.mark.parametrize(
    ("encoder", "spec"),
    [
        (encoder, spec)
        for encoder in ("rope", "t5", "xl", "tener")
        for spec in SPECS
        if accepted((encoder, "all", "attention"), spec)
    ],
)
def test_training_does_not_see_it(encoder, spec):
    models = [
        h.randomise_positions(h.build(encoder, target="attention", position_eval=s))
        for s in (spec, "none")
    ]
    forcing.assert_same_gradients(*models)


def test_a_rotation_of_your_own_is_refused_where_it_would_see_no_change(monkeypatch):
    class Turn(AttentionPart):
        def turn(self, x, stream, tables):
            return x

    class OtherTurn(Turn, RopePart):
        pass

    for base, turn in ((AttentionPositions, Turn), (RopePositions, OtherTurn)):
        encoder = type("Mine", (base,), {"name": "mine", "part": turn})
        monkeypatch.setitem(registry.ENCODERS, "mine", registry.Entry(encoder, "attention"))
        for spec in ("cap:4", "grouped:3:2"):
            with pytest.raises(ValueError, match="does not read its logits from a table of"):
                h.build("mine", target="attention", position_eval=spec)


# Against the equations, with changed positions, distances or bases.


def stack_and_equation(side, encoder, spec, **options):
    target = oracles.inside_target(encoder)
    stack = one.stack_of(side, encoder, target=target, position_eval=spec, **options)
    return stack, one.stream()


def lengths_as_sources(x):
    n = torch.full((x.size(1), 1), len(x))
    return Interpolation(n, T), SourceLengths(n)


RELATIVE = [n for n in oracles.INSIDE if accepted((n, "all", oracles.inside_target(n)), "cap:4")]


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize("encoder", RELATIVE)
@pytest.mark.parametrize("spec", ["cap:4", "grouped:3:2"])
@torch.no_grad()
def test_distances_count_as_others(encoder, side, spec, monkeypatch):
    further = {"tener_key_term": True} if encoder == "tener" else {}
    stack, x = stack_and_equation(side, encoder, spec, **further)

    def counted(d):
        if spec == "cap:4":
            return d.clamp(-4, 4)
        return d.sign() * torch.where(d.abs() <= 3, d.abs(), 3 + (d.abs() - 3) // 2)

    for name in ("rope", "xpos"):
        monkeypatch.setitem(attention_oracles.ORACLES, name, partial(turned_by_distance, counted))
    by_oracle = oracles.by_oracle

    def with_other_distances(q, k, v, queries, keys, encoder, part, mask=0.0, **further):
        d = counted(queries[:, None] - keys)
        return by_oracle(q, k, v, queries, keys, encoder, part, mask, **further, d=d)

    monkeypatch.setattr(oracles, "by_oracle", with_other_distances)
    oracles.assert_attention(stack, x)


def turned_by_distance(counted, s):
    """Rotary attention that rotates each query by the distance, and no key."""
    fading = 0.0
    if "xpos_scale_base" in s.options and s.causal:
        width = s.q.size(-1)
        z = (torch.arange(0, width, 2).double() + 0.4 * width) / (1.4 * width)
        fading = z.log() / s.options["xpos_scale_base"]
    d = counted(s.queries[:, None] - s.keys)
    columns = []
    for j in range(d.size(1)):
        q = attention_oracles.turned(s, s.q, d[:, j], fading)
        columns.append((q @ s.k[:, j, :, None]) / s.q.size(-1) ** 0.5)
    return torch.cat(columns, dim=-1), s.v


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize("encoder", FREQUENCIES)
@torch.no_grad()
def test_ntk_is_another_base(encoder, side, monkeypatch):
    stack, x = stack_and_equation(side, encoder, "ntk:5")
    width = one.WIDTH if encoder == "xl" else one.WIDTH // 4
    base = 10_000 * (len(x) / T) ** (width / (width - 2))
    usual = attention_oracles.sinusoid

    def other(places, width, frequencies=None):
        return usual(places, width, base ** (-2 * torch.arange(width // 2).double() / width))

    monkeypatch.setattr(attention_oracles, "sinusoid", other)
    if encoder in ("rope", "xpos"):
        stack.positions.spec.options["rope_base"] = (
            base  # for the oracle; the model's are set below
        )
        usual = 10_000.0 ** (-torch.arange(8).double() / 8)
        monkeypatch.setattr(type(stack.positions), "_frequencies", lambda _: usual)
    oracles.assert_attention(stack, x, of=one.tokens(warp=lengths_as_sources(x)[1]))


def test_yarn_turns_slow_pairs_as_interpolation_does_and_fast_ones_as_before():
    law = EvalLaw.read(Namespace(position_eval="yarn:100"))
    w = torch.tensor([2 * math.pi, 2 * math.pi * 33 / 200, 2 * math.pi * 0.005]).double()
    found = law.frequencies(w, torch.tensor([[400], [50]]))
    # The pairs turn 100, 16.5 (half way between 1 and 32) and 0.5 times within T.
    kept = torch.tensor([1, 0.5 + 0.5 / 4, 1 / 4])
    torch.testing.assert_close(found[0, 0], w * kept)
    assert found[1, 0].tolist() == pytest.approx(w.tolist())
    assert law.temperature(torch.tensor([[400], [50]])).flatten().tolist() == pytest.approx(
        [(0.1 * math.log(4) + 1) ** 2, 1]
    )


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize("encoder", ["rope", "xpos"])
@torch.no_grad()
def test_yarn_multiplies_the_logits_by_its_temperature(encoder, side, monkeypatch):
    stack, x = stack_and_equation(side, encoder, "yarn:5")
    of = one.tokens(warp=lengths_as_sources(x)[1])
    found, factor = one.logits(stack, x, of), (0.1 * math.log(len(x) / T) + 1) ** 2
    monkeypatch.setattr(EvalLaw, "temperature", lambda _, n: torch.ones_like(n).double())
    assert one.logits_differ_by(stack, found, one.logits(stack, x, of) * factor) <= 1e-5


@pytest.mark.parametrize("side", one.SIDES)
@pytest.mark.parametrize("encoder", ["rope", "xl", "alibi", "tener", "t5"])
@torch.no_grad()
def test_interpolated_places_end_at_the_trained_length(encoder, side):
    stack, x = stack_and_equation(side, encoder, "interpolate:5")
    place = lambda b, i: (64 * i * T / len(x)).round() / 64  # noqa: E731
    oracles.assert_attention(stack, x, place, one.tokens(warp=lengths_as_sources(x)[0]))


@torch.no_grad()
def test_logits_of_more_keys_than_trained_grow_with_their_logarithm():
    stack, x = stack_and_equation("decoder", "alibi", "logn:5")
    usual, found = one.logits(one.stack_of("decoder", "alibi"), x), one.logits(stack, x)
    for t in range(len(x)):
        factor = max(1.0, math.log(t + 1) / math.log(5))
        torch.testing.assert_close(found[:, :, t, : t + 1], usual[:, :, t, : t + 1] * factor)


@pytest.mark.parametrize(
    ("encoder", "options"),
    [
        ("none", {}),
        ("rope", {"position_random": "float:200"}),
        ("rope", {"position_separator": "w8", "position_segments": True}),
        ("floater", {"position_separator": "w8", "floater_gap": 0.5}),
    ],
)
@torch.no_grad()
def test_a_window_shows_near_tokens_and_the_first_four(encoder, options):
    """Near is counted in tokens, however far apart their positions are."""
    model = h.visible(encoder, target=None, position_eval="window:2", encoder_layers=1, **options)
    source, changed = h.sentence(13), h.sentence(13).clone()
    changed[0, 6] = 5 if source[0, 6] != 5 else 6
    states = [
        model.encoder(s, torch.tensor([13]))["encoder_out"][0][:, 0] for s in (source, changed)
    ]
    moved = (states[0] - states[1]).abs().amax(-1) > 1e-6
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]
    changed = source.clone()
    changed[0, 3] = 5 if source[0, 3] != 5 else 6
    other = model.encoder(changed, torch.tensor([13]))["encoder_out"][0][:, 0]
    assert ((states[0] - other).abs().amax(-1) > 1e-6).all()


def test_a_stored_checkpoint_takes_it_by_fairseqs_override(tmp_path):
    for case in (("sinusoidal", "input", "hidden"), ("rope", "all", "attention")):
        path = str(h.save_model(tmp_path / f"{case[0]}.pt", *case))
        task = TranslationTask(TranslationConfig(), h.dictionary(), h.dictionary())
        models = [
            checkpoint_utils.load_model_ensemble([path], overrides, task=task)[0][0].eval()
            for overrides in (None, {"position_eval": "interpolate:5"})
        ]
        short, long = ((h.sentence(n), h.shifted(h.sentence(n))) for n in (5, 13))
        assert h.difference(*(h.log_probs(m, *short) for m in models)) <= 1e-6
        assert h.difference(*(h.log_probs(m, *long) for m in models)) > 1e-4


def test_every_encoder_takes_some_of_them():
    assert {case[0] for case, spec in PAIRS if accepted(case, spec)} == {*POSITION_ENCODERS}
