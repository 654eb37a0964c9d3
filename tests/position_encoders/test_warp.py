"""CAPE, SHAPE and randomised positions against their papers' formulas, and in every encoder."""

import math

import helpers as h
import pytest
import torch
from forcing import assert_beams_keep_their_sentence, assert_padding_moves_nothing
from input_oracles import fairseqs_sinusoid, passages
from warped import CAPE, SHAPE, every_continuous, model_of, takes, training_log_probs

from fairseq_floater.position_encoders.kept_table import KeptTable
from fairseq_floater.position_encoders.transforms import Positions, Tokens
from fairseq_floater.position_encoders.warp import (
    DrawnWarp,
    EvenSpacing,
    chosen_positions,
    drawn_factors,
    drawn_shifts,
)
from fairseq_floater.position_encoders.warp_law import (
    ROWS_PER_TOKEN,
    Drawing,
    Shifting,
    Stretching,
    WarpLaw,
)

CPU = torch.device("cpu")
FLOATS = {"position_random": "float:512"}
WARP = "fairseq_floater.position_encoders.warp"


def draw(monkeypatch, factors):
    """Make the next batches draw ``factors`` [B, 1]."""
    monkeypatch.setattr(f"{WARP}.drawn_factors", lambda law, sentences, device: factors)


# The published formulas. The first block's input of a `sinusoidal` model shows the positions.


def uniform(low, high, *shape):
    return torch.empty(shape).uniform_(low, high)


def cape(padding):
    """Likhomanenko et al. 2021: (i + Delta + eps_i) lambda; both sides have one lambda."""
    factor = uniform(-math.log(1.03), math.log(1.03), 3, 1).exp()
    return [
        (numbers(side) + uniform(-5, 5, 3, 1) + uniform(-0.5, 0.5, *side.shape)) * factor
        for side in padding
    ]


def shape(padding):
    """Kiyono et al. 2021: i + k, with one whole number k < K for each sentence and side."""
    return [numbers(side) + uniform(0, 500, 3, 1).floor() for side in padding]


def random_floats(padding):
    """Shimizu et al. 2026: real numbers from [0, L], sorted."""
    drawn = [uniform(0, 512, *side.shape).masked_fill(side, math.inf) for side in padding]
    return [places.sort(dim=1).values for places in drawn]


def numbers(is_padding):
    return ((~is_padding).cumsum(1) - 1).clamp(min=0)


@pytest.mark.parametrize(
    ("options", "formula", "part"),
    [(CAPE, cape, 1 / 16), (SHAPE, shape, 0), (FLOATS, random_floats, 1 / 16)],
    ids=["CAPE", "SHAPE", "floats"],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sinusoid_enters_at_the_places_of_the_paper(options, formula, part, seed):
    """Fractional positions are rounded to 1/16 of a token; SHAPE's are whole numbers."""
    batch = h.source_batch(left=False), h.target_batch()
    padding = [tokens.eq(h.PAD) for tokens in batch]
    model = model_of("sinusoidal", blocks="input", **options).train()
    torch.manual_seed(seed)
    places = formula(padding)
    torch.manual_seed(seed)
    with torch.no_grad():
        blocks = [*passages(model, *batch)]
    found = [(after - x).transpose(0, 1) for _, number, _, x, after in blocks if number == 0]
    for rows, own, is_padding in zip(found, places, padding):
        exact = fairseqs_sinusoid(own + 2, 64)
        if part:
            assert h.difference(rows[~is_padding], exact[~is_padding]) <= part / 2 + 1e-5
            exact = fairseqs_sinusoid((own / part).round() * part + 2, 64)
        assert h.difference(rows[~is_padding], exact[~is_padding]) <= 1e-4
    assert h.difference(places[0][:, :4], places[1][:, :4]) > 1  # each side its own shift


def test_the_laws_are_those_asked_for():
    torch.manual_seed(0)
    logs = drawn_factors(Stretching(0.25, 4, log=True), 4000, CPU).log() / math.log(4)
    shifts = drawn_shifts(Shifting(-5, 5), torch.ones(4000)) / 5
    factors = drawn_factors(Stretching(0.5, 2.5), 4000, CPU) - 1.5
    for drawn in (logs, shifts, factors):
        assert drawn.min() >= -1.001 and drawn.max() <= 1.001
        assert float(drawn.mean()) == pytest.approx(0, abs=0.04)
        assert float(drawn.std()) == pytest.approx(1 / 3**0.5, abs=0.03)
    counts = drawn_shifts(Shifting(0, 5, whole=True), torch.ones(5000)).long().flatten().bincount()
    assert len(counts) == 5 and (counts - 1000).abs().max() < 120
    filling = Shifting.read("fill:12")  # shifts 0 .. 4 for n = 8
    counts = drawn_shifts(filling, torch.full((5000,), 8)).long().flatten().bincount()
    assert len(counts) == 5 and (counts - 1000).abs().max() < 120
    assert not drawn_shifts(filling, torch.tensor([12, 13, 40])).any()
    law = WarpLaw(jitter=0.25)
    jitter = DrawnWarp.of_source(law, torch.zeros(40, 100, dtype=torch.bool)).jitter
    assert jitter.abs().max() <= 0.25 and float(jitter.std()) == pytest.approx(0.144, abs=0.01)
    assert jitter.flatten().unique().numel() > 3000  # each token its own


def test_every_choice_of_positions_is_equally_likely_and_sorted():
    """Ruoss et al. 2023: n of L positions without replacement, in their order."""
    torch.manual_seed(0)
    padding = torch.zeros(6000, 3, dtype=torch.bool)
    padding[::2, 0] = True  # two tokens behind a padded slot
    chosen = chosen_positions(Drawing(5), padding)
    for rows, count in ((chosen[::2, 1:], 10), (chosen[1::2], 10)):
        assert (rows.diff(dim=1) > 0).all() and rows.min() == 0 and rows.max() == 4
        sets, times = rows.unique(dim=0, return_counts=True)
        assert len(sets) == count and (times - 300).abs().max() < 60


def test_evaluation_stands_where_training_stood_on_average():
    torch.manual_seed(0)
    law, padding = WarpLaw(random=Drawing(64)), torch.zeros(4000, 7, dtype=torch.bool)
    mean = chosen_positions(law.random, padding).float().mean(0)
    rows, count, _ = EvenSpacing.of_source(law, padding).rows(numbers(padding))
    assert h.difference(rows[0].float(), mean) < 1
    assert rows[0].tolist() == [round((i + 1) * 65 / 8) - 1 for i in range(7)]
    assert count == int(rows.max()) + 1
    floats = WarpLaw(random=Drawing(64, whole=False))  # rows are 1/64 of a token apart
    mean = chosen_positions(floats.random, padding).float().mean(0)
    found, count, _ = EvenSpacing.of_source(floats, padding).rows(numbers(padding))
    assert h.difference(found[0].float(), mean) < 64
    assert found[0].tolist() == [(i + 1) * 8 * 64 for i in range(7)]
    long = torch.zeros(1, 200, dtype=torch.bool)
    assert EvenSpacing.of_source(law, long).rows(numbers(long))[0].tolist() == [list(range(200))]


def test_more_tokens_than_positions_are_an_error():
    padding = torch.zeros(2, 9, dtype=torch.bool)
    with pytest.raises(ValueError, match="tokens of the longest sentence, 9, but is 8"):
        chosen_positions(Drawing(8), padding)
    padding[:, 0] = True
    assert chosen_positions(Drawing(8), padding)[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]


# Every encoder with continuous positions.


@every_continuous
@pytest.mark.parametrize("options", [CAPE, FLOATS], ids=str)
def test_training_is_seeded_and_reaches_every_parameter(encoder, target, options):
    # FIRE's threshold would get no gradient if all positions lay beyond it.
    model = model_of(encoder, target, **takes(encoder, target, options), fire_threshold=4096)
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    first, again, other = (training_log_probs(model, *batch, seed=s)[real] for s in (1, 1, 2))
    assert h.difference(first, again) == 0
    assert h.difference(first, other) > 1e-3
    h.loss_of(model).backward()
    assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))


MOVES = {
    "stretch": ({"position_stretch": "0.5:2.5"}, (2, 0)),
    "random": ({"position_random": 64}, (3, 2)),
}


@every_continuous
@pytest.mark.parametrize(("options", "law"), MOVES.values(), ids=MOVES)
def test_a_token_stands_where_the_draw_says(encoder, target, options, law, monkeypatch):
    """Token i gets position ``times`` * i + ``first`` of a model without draws."""
    times, first = law
    model, plain = model_of(encoder, target, **options), model_of(encoder, target)
    plain.load_state_dict(model.state_dict())
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    draw(monkeypatch, torch.full((len(batch[0]), 1), float(times)))
    monkeypatch.setattr(f"{WARP}.chosen_positions", lambda _, pad: times * numbers(pad) + first)
    found = training_log_probs(model, *batch)
    at = Tokens.at

    def moved(tokens, use_slots):
        queries, keys, count, *rest = at(tokens, use_slots)
        return Positions(
            times * queries + first, times * keys + first, times * count + first, *rest
        )

    monkeypatch.setattr(Tokens, "at", moved)
    assert h.difference(found[real], training_log_probs(plain, *batch)[real]) <= h.TOLERANCE


@every_continuous
def test_source_and_target_share_their_factor(encoder, target, monkeypatch):
    """A sentence in a batch gets the same output as alone with its own factor."""
    model = model_of(encoder, target, position_stretch="0.5:2.5")
    source, target_in = h.source_batch(), h.target_batch()
    torch.manual_seed(3)
    factors = torch.empty(3, 1).uniform_(0.5, 2.5)
    together = training_log_probs(model, source, target_in, seed=3)
    for i in range(3):
        draw(monkeypatch, factors[i : i + 1])
        s, t = source[i][source[i].ne(h.PAD)], target_in[i][target_in[i].ne(h.PAD)]
        alone = training_log_probs(model, s[None], t[None])[0]
        assert h.difference(together[i][target_in[i].ne(h.PAD)], alone) <= h.TOLERANCE


@pytest.mark.parametrize(
    ("encoder", "target"), [("sinusoidal", "hidden"), ("floater", "qkv"), ("rope", "attention")]
)
def test_nothing_is_drawn_in_evaluation(encoder, target):
    batch = h.source_batch(), h.target_batch()
    plain = h.log_probs(model_of(encoder, target).eval(), *batch)
    for options in (CAPE, SHAPE, {"position_stretch": "0.2:5:log"}):
        options = takes(encoder, target, options)
        model = model_of(encoder, target, **options).eval()
        assert h.difference(h.log_probs(model, *batch), plain) == 0


@every_continuous
@pytest.mark.parametrize(("left", "limit"), [(True, 64), (False, "float:50.5")], ids=str)
def test_even_spacing_keeps_the_contract(encoder, target, left, limit, monkeypatch):
    """Padding changes nothing, decoding equals teacher forcing, and beams keep their spacing."""
    model = model_of(encoder, target, position_random=limit).eval()
    source, target_in = h.source_batch(left), h.target_batch()
    together = h.log_probs(model, source, target_in)
    assert (
        h.difference(h.log_probs(model_of(encoder, target).eval(), source, target_in), together)
        > 0.01
    )
    with monkeypatch.context() as patch:
        patch.setattr(KeptTable, "_computed", None)  # no table is recomputed
        assert h.difference(h.log_probs(model, source, target_in), together) == 0
    assert_padding_moves_nothing(model, source, target_in)
    assert_beams_keep_their_sentence(model, 2, left)


def test_cross_attention_finds_source_tokens_where_the_encoder_put_them(monkeypatch):
    seen, read = [], Tokens.read
    monkeypatch.setattr(
        Tokens, "read", lambda *args, **kwargs: seen.append(read(*args, **kwargs)) or seen[-1]
    )
    for shared in (False, True):
        options = {**CAPE, "position_shift": "-5:5" + ":shared" * shared}
        training_log_probs(
            model_of("floater", "qkv", **options), h.source_batch(), h.target_batch()
        )
        encoders, targets, crossed = (tokens.warp for tokens in seen[-3:])
        assert encoders is crossed
        assert targets.factor is encoders.factor
        assert torch.equal(targets.shift, encoders.shift) == shared
        assert targets.jitter.shape == h.target_batch().shape


def test_a_shared_shift_that_fills_a_range_leaves_room_for_the_longer_side(monkeypatch):
    seen, drawn = [], DrawnWarp._with_unshared

    def with_own(*args):
        seen.append(drawn(*args))
        return seen[-1]

    monkeypatch.setattr(DrawnWarp, "_with_unshared", with_own)
    model, largest = model_of("sinusoidal", position_shift="fill:15:shared"), torch.zeros(3, 1)
    batch = h.source_batch(lengths=(7, 11, 4)), h.target_batch(lengths=(9, 5, 12))
    for seed in range(60):
        training_log_probs(model, *batch, seed=seed)
        source, target = seen[-2:]
        assert source.shift is target.shift
        largest = largest.maximum(source.shift)
    assert largest.flatten().tolist() == [15 - 9, 15 - 11, 15 - 12]
    assert target.rows(numbers(batch[1].eq(h.PAD)))[1] == 16  # one more than needed


def test_the_table_is_long_enough_for_any_draw():
    positions = torch.arange(50).expand(200, 50)
    for limits in ((0.5, 2.5), (1.0, 1.0), (0.3, 3.3)):
        law = WarpLaw(Stretching(*limits))
        warp = DrawnWarp.of_source(law, torch.zeros(200, 50, dtype=torch.bool))
        rows, count, before = warp.rows(positions)
        assert int(rows.min()) >= 0 and int(rows.max()) < count and before == 0
        assert count <= 50 * limits[1] * ROWS_PER_TOKEN + 2


def test_every_process_and_every_batch_of_an_update_draws_its_own(monkeypatch):
    law = WarpLaw(Stretching(0.5, 2.5), Shifting(-5, 5), 0.5)
    padding, drawn = torch.zeros(50, 9, dtype=torch.bool), []
    for rank in range(4):
        monkeypatch.setattr("fairseq.distributed.utils.get_global_rank", lambda rank=rank: rank)
        torch.manual_seed(5)  # as fairseq does in every process
        for _ in range(2):
            warp = DrawnWarp.of_source(law, padding)
            assert len(warp.factor) == len(warp.shift) == len(warp.jitter) == 50
            chosen = chosen_positions(Drawing(64), padding).float()
            drawn.append((warp.factor, warp.shift, warp.jitter, chosen))
    for i, mine in enumerate(drawn):
        assert all((a - b).abs().mean() > 0.05 for other in drawn[:i] for a, b in zip(mine, other))
