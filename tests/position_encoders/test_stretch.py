"""Training on stretched positions, and the flow that keeps its length."""

import pytest
import torch
from helpers import (
    PAD,
    build,
    difference,
    log_probs,
    loss_of,
    parts,
    position_parameters,
    randomise_positions,
    sentence,
    shifted,
    signals,
    source_batch,
    target_batch,
    visible,
)
from warped import training_log_probs

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.kept_table import PositionRangeError
from fairseq_floater.position_encoders.sinusoidal import sinusoid_at, sinusoid_rows
from fairseq_floater.position_encoders.transforms import Places, Tokens
from fairseq_floater.position_encoders.warp import DrawnWarp, drawn_factors
from fairseq_floater.position_encoders.warp_law import ROWS_PER_TOKEN, Stretching, WarpLaw

CONTINUOUS = [name for name, cls in POSITION_ENCODERS.items() if cls.continuous]
CASES = [(name, target) for name in CONTINUOUS for target in POSITION_ENCODERS[name].targets]
every_continuous = pytest.mark.parametrize(("encoder", "target"), CASES)
every_continuous_signal = pytest.mark.parametrize(
    ("encoder", "target"), [case for case in CASES if case[1] in ("qkv", "hidden")]
)
ALONE = {"no_token_positional_embeddings": True}


def stretched(encoder, target, text="0.5:2.5", **options):
    model = build(
        encoder, target=target, position_stretch=text, dropout=0.0, **{**ALONE, **options}
    )
    return randomise_positions(model)


def draw(monkeypatch, factors):
    """Let the next batches have these factors, [B, 1]."""
    monkeypatch.setattr(
        "fairseq_floater.position_encoders.warp.drawn_factors",
        lambda law, sentences, device: factors,
    )


@every_continuous_signal
def test_rows_between_tokens_meet_the_rows_of_tokens(encoder, target):
    model = visible(encoder, "all", target, **ALONE)
    for stack, name, signal in signals(model):
        with torch.no_grad():
            rows = signal.rows(Places(12), parts(stack, name))
            fine = signal.rows(Places(45, 4), parts(stack, name))
        scale = rows.abs().max()
        assert difference(fine[::4], rows) <= 1e-5 * scale
        # Between two rows the flow is on its way from one to the other; a bucket ends at once.
        if target != "attention":
            steps = fine.diff(dim=0).flatten(1).norm(dim=1)
            assert steps.max() < rows.diff(dim=0).flatten(1).norm(dim=1).max()


@every_continuous
def test_a_factor_of_one_is_training_without_stretch(encoder, target):
    model, plain = stretched(encoder, target, "1:1"), stretched(encoder, target, None)
    batch = source_batch(), target_batch()
    real = batch[1].ne(PAD)
    left, right = (training_log_probs(m, *batch)[real] for m in (model, plain))
    assert difference(left, right) <= 2e-5


@every_continuous
def test_a_factor_of_two_puts_token_i_where_token_2i_was(encoder, target, monkeypatch):
    model = stretched(encoder, target)
    batch = source_batch(), target_batch()
    draw(monkeypatch, torch.full((len(batch[0]), 1), 2.0))
    real = batch[1].ne(PAD)
    found = training_log_probs(model, *batch)
    monkeypatch.undo()
    plain = stretched(encoder, target, None)
    plain.load_state_dict(model.state_dict())
    at = Tokens.at

    def doubled(tokens, slots_do):
        places = at(tokens, slots_do)
        return places._replace(
            queries=2 * places.queries, keys=2 * places.keys, num_rows=2 * places.num_rows
        )

    monkeypatch.setattr(Tokens, "at", doubled)
    assert difference(found[real], training_log_probs(plain, *batch)[real]) <= 2e-5


@every_continuous
def test_evaluation_is_never_stretched(encoder, target):
    model = stretched(encoder, target)
    plain = stretched(encoder, target, None)
    batch = source_batch(), target_batch()
    assert difference(log_probs(model.eval(), *batch), log_probs(plain.eval(), *batch)) == 0


@every_continuous
def test_every_update_draws_anew_and_the_seed_decides(encoder, target):
    model = stretched(encoder, target)
    batch = source_batch(), target_batch()
    real = batch[1].ne(PAD)
    first, again, other = (training_log_probs(model, *batch, seed=s)[real] for s in (1, 1, 2))
    assert difference(first, again) == 0
    assert difference(first, other) > 1e-3
    loss_of(model).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(float(p.grad.abs().max()) > 0 for p in position_parameters(model))


@every_continuous
def test_source_and_target_share_their_factor(encoder, target, monkeypatch):
    """A sentence of a batch is stretched as it is alone under its own factor."""
    model = stretched(encoder, target)
    source, target_in = source_batch(), target_batch()
    torch.manual_seed(3)
    factors = torch.empty(3, 1).uniform_(0.5, 2.5)
    together = training_log_probs(model, source, target_in, seed=3)
    for i in range(3):
        draw(monkeypatch, factors[i : i + 1])
        s, t = source[i][source[i].ne(PAD)], target_in[i][target_in[i].ne(PAD)]
        alone = training_log_probs(model, s[None], t[None])[0]
        assert difference(together[i][target_in[i].ne(PAD)], alone) <= 2e-5


def test_every_process_and_every_batch_of_an_update_draws_its_own_factors(monkeypatch):
    draws = []
    for rank in range(8):
        monkeypatch.setattr("fairseq.distributed.utils.get_global_rank", lambda rank=rank: rank)
        torch.manual_seed(5)  # as fairseq does in every process
        draws += [drawn_factors(Stretching(0.5, 2.5), 4000, torch.device("cpu")) for _ in range(2)]
    torch.manual_seed(5)
    assert torch.equal(draws[0], torch.empty(4000, 1).uniform_(0.5, 2.5))
    for i, factors in enumerate(draws):
        assert factors.min() >= 0.5 and factors.max() <= 2.5
        assert float(factors.mean()) == pytest.approx(1.5, abs=0.04)
        assert float(factors.std()) == pytest.approx(2 / 12**0.5, abs=0.04)
        assert all((factors - other).abs().mean() > 0.1 for other in draws[:i])


def test_the_table_is_long_enough_for_any_draw():
    positions = torch.arange(50).expand(200, 50)
    for limits in ((0.5, 2.5), (1.0, 1.0), (0.3, 3.3)):
        law = WarpLaw(Stretching(*limits))
        warp = DrawnWarp.of_source(law, torch.zeros(200, 50, dtype=torch.bool))
        rows, count, before = warp.rows(positions)
        assert int(rows.min()) >= 0 and int(rows.max()) < count and before == 0
        assert count <= 50 * limits[1] * ROWS_PER_TOKEN + 2


def test_the_sinusoid_between_tokens_is_fairseqs_at_tokens():
    for dim in (64, 63):
        rows = sinusoid_at(torch.arange(61) / 4, dim, PAD)
        assert difference(rows[::4], sinusoid_rows(16, dim, PAD)) < 1e-6


def test_a_sinusoid_of_ours_is_the_transformers_own():
    """Without fairseq's base, the signal gives the first block what the base would have given."""
    ours, base = build("sinusoidal", "input", **ALONE), build("sinusoidal", "input")
    ours.load_state_dict(base.state_dict(), strict=False)
    batch = source_batch(), target_batch()
    real = batch[1].ne(PAD)
    left, right = (log_probs(m.eval(), *batch)[real] for m in (ours, base))
    assert difference(left, right) <= 2e-5


@pytest.mark.parametrize(
    "text", ["2", "1:2:3", "0:1", "2:1", "a:b", "1:inf", "", "log", "1:log", "1/0:2"]
)
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="`--position-stretch` must be LOW:HIGH"):
        Stretching.read(text)


def test_what_stretch_cannot_go_with_is_refused():
    for encoder in ("learned", "rnn", "none"):
        with pytest.raises(ValueError, match=f"--position-encoder is {encoder} instead"):
            build(encoder, position_stretch="1:2", **ALONE)
    with pytest.raises(ValueError, match="must come with `--no-token-positional-embeddings`"):
        build("floater", position_stretch="1:2")


# The rotation flow.


def rotation(rows, **options):
    model = build("rotation_flow", target="hidden", **options).eval()
    stack, name, signal = signals(model)[0]
    with torch.no_grad():
        return signal, parts(stack, name), signal.rows(Places(rows), parts(stack, name))


def test_a_rotation_keeps_every_norm():
    _, _, rows = rotation(4096)
    norms = rows.norm(dim=-1)
    assert ((norms / norms[0]).sub(1).abs().max()) < 1e-3


def test_a_rotation_solves_its_flow():
    from fairseq_floater.ode import solve

    signal, blocks, rows = rotation(100)
    with torch.no_grad():
        p0 = torch.stack([b.values for b in blocks], dim=1).double()
        skew = (signal.generator - signal.generator.T).double()
        times = 0.1 * torch.arange(100, dtype=torch.float64)
        expected = solve(lambda t, p: p @ skew, p0, times, solver="rk4", step_size=0.02)
    assert difference(rows.double(), expected) < 1e-4


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("angle", [0.0, 1e-3, 0.4, 3.0, 20.0])
def test_the_exponential_and_its_gradient_are_torchs(angle, dtype, tolerance):
    from fairseq_floater.position_encoders.rotation_flow import rotation as exponential

    generator = torch.Generator().manual_seed(1)
    matrix, weights = torch.randn(2, 24, 24, generator=generator, dtype=torch.float64)
    skew = matrix - matrix.T
    skew = skew * (angle / torch.linalg.matrix_norm(skew, ord=2))

    def both(function, skew):
        skew = skew.clone().requires_grad_()
        power = function(skew)
        (power * weights.to(power)).sum().backward()
        return power.detach().double(), skew.grad.double()

    (ours, gradient), expected = both(exponential, skew.to(dtype)), both(torch.matrix_exp, skew)
    scale = 1 + angle  # rounding of the angles themselves
    assert difference(ours, expected[0]) < tolerance * scale
    assert difference(gradient, expected[1]) < tolerance * scale * float(expected[1].abs().max())


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 3e-4), (torch.float64, 1e-11)])
@pytest.mark.parametrize("frequency", [0.3, 30.0])
def test_rows_far_out_are_exact_up_to_rounding(frequency, dtype, rounding):
    """Too few or too many squarings of the exponential leave small angles right, but not these rows."""
    model = build("rotation_flow", target="hidden", rotation_frequency=frequency).to(dtype)
    (stack, name, signal), last = signals(model)[0], 399
    with torch.no_grad():
        rows = signal.rows(Places(last + 1), parts(stack, name)).double()
        skew = (0.1 * (signal.generator - signal.generator.T)).double()
        expected = rows[0] @ torch.matrix_exp(last * skew)
    assert difference(rows[last], expected) < rounding * frequency


@pytest.mark.parametrize(("asked", "frequency"), [(0.1, 0.1), (None, 0.3)])
def test_the_initial_frequencies_are_those_asked_for(asked, frequency):
    signal, _, _ = rotation(2, rotation_frequency=asked, encoder_embed_dim=256)
    with torch.no_grad():
        skew = 0.1 * (signal.generator - signal.generator.T)
        largest = float(torch.linalg.eigvals(skew).imag.abs().max())
    assert largest == pytest.approx(frequency, rel=0.15)


def test_a_rotation_in_qkv_starts_as_the_model_without_it():
    ours, base = build("rotation_flow", target="qkv", **ALONE), build("none", **ALONE)
    assert all(not p.values.any() for s, n, _ in signals(ours) for p in parts(s, n))
    base.load_state_dict(ours.state_dict(), strict=False)
    batch = sentence(5), shifted(sentence(5))
    assert difference(log_probs(ours.eval(), *batch), log_probs(base.eval(), *batch)) <= 1e-6


def test_a_rotation_that_does_not_turn_is_refused():
    with pytest.raises(ValueError, match="`--rotation-frequency` must be positive"):
        build("rotation_flow", rotation_frequency=0.0)


def test_the_similarity_of_two_rows_depends_on_their_distance_alone():
    _, _, rows = rotation(60)
    products = torch.einsum("nslc,mslc->slnm", rows, rows)
    for diagonal in (products.diagonal(k, 2, 3) for k in (1, 7, 30)):
        assert float((diagonal - diagonal[..., :1]).abs().max()) < 1e-3 * float(products.max())


@pytest.mark.parametrize(
    ("times", "dtype"), [(1e10, torch.float32), (1e25, torch.float32), (1e18, torch.float64)]
)
def test_a_rotation_that_diverged_is_out_of_range(times, dtype):
    model = build("rotation_flow", target="hidden").to(dtype).eval()
    with torch.no_grad():
        model.encoder.positions.generator.mul_(times)
    with pytest.raises(PositionRangeError, match="Position 1 of rotation_flow has norm nan"):
        log_probs(model, source_batch(), target_batch())
