"""The contract of a position encoder, one suite for every encoder of the registry.

A class added to the registry is tested by all of this without another line.
"""

import copy

import forcing
import helpers as h
import on_device
import pytest
import torch
from fairseq.optim.adam import Adam
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS, PositionRangeError
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.transforms import Places

pytestmark = pytest.mark.usefixtures("measured_once")
TABLES = [
    c
    for c in h.CASES
    if POSITION_ENCODERS[c[0]].tabulated and c != ("sinusoidal", "input", "hidden")
]


def _cases(cases):
    return pytest.mark.parametrize(
        ("encoder", "blocks", "target"), cases, ids=["-".join(c) for c in cases]
    )


every_table = _cases(TABLES)
every_signal = _cases([c for c in TABLES if c[2] in ("qkv", "hidden")])
every_endless_table = _cases(
    [c for c in TABLES if POSITION_ENCODERS[c[0]].inductive and c[1] == "all"]
)
every_kept_table = _cases([c for c in TABLES if c[1] == "all"])


def recorded(model, monkeypatch):
    """Lets every `compute` run, and lists what it returned."""
    calls = []
    for _, _, signal in h.signals(model):

        def compute(*args, _compute=signal.rows):
            calls.append(_compute(*args))
            return calls[-1]

        monkeypatch.setattr(signal, "rows", compute)
    return calls


# 1. Token positions, not slots.


@h.every_case
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_sentence_alone_is_the_sentence_in_a_padded_batch(encoder, blocks, target, left):
    model = h.visible(encoder, blocks, target)
    source, target_in = h.source_batch(left), h.target_batch(left)
    together = h.log_probs(model, source, target_in)
    forcing.assert_padding_moves_nothing(model, source, target_in)
    assert h.difference(together, h.log_probs(model, source, target_in)) == 0


@h.every_case
def test_the_order_of_source_tokens_matters_exactly_where_there_are_positions(
    encoder, blocks, target
):
    only_base = (encoder, blocks, target) == ("sinusoidal", "input", "hidden")
    model = h.visible(encoder, blocks, target, no_token_positional_embeddings=not only_base)
    source, target_in = h.sentence(9), h.shifted(h.sentence(7, seed=1))
    swapped = source[:, [0, 4, 2, 3, 1, 5, 6, 7, 8]]
    change = h.difference(
        h.log_probs(model, source, target_in), h.log_probs(model, swapped, target_in)
    )
    if encoder == "none":
        assert change <= h.TOLERANCE  # without positions, attention sees a bag of words
    else:
        assert change > 0.01


@every_signal
def test_every_stream_of_every_block_reaches_the_output(encoder, blocks, target, monkeypatch):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model, *batch)
    streams = 0
    for stack, name, signal in h.signals(model):
        rows = signal.rows(Places(64), h.parts(stack, name)).detach()
        assert len(rows[0, 0]) == (len(stack.layers) if blocks == "all" else 1)
        noise = torch.randn(rows[:, 0, 0].shape)
        for s in range(rows.size(1)):
            for block in range(rows.size(2)):
                bumped = rows.clone()
                bumped[:, s, block] += noise
                signal.drop_kept_table()
                with monkeypatch.context() as patch:
                    patch.setattr(signal, "rows", lambda at, _, bumped=bumped: bumped[: at.count])
                    assert h.difference(h.log_probs(model, *batch), before) > 1e-3
                streams += 1
        signal.drop_kept_table()
    assert streams == (9 if target == "qkv" else 2) * (2 if blocks == "all" else 1)


# 2. Decoding is teacher forcing.


@h.every_case
def test_step_by_step_equals_one_pass(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    forcing.assert_steps_equal_one_pass(model, h.source_batch(), h.target_batch())


@h.every_case
@pytest.mark.parametrize("beam", [1, 2], ids=["keys-per-beam", "keys-per-sentence"])
def test_step_by_step_equals_one_pass_when_beams_are_reordered(encoder, blocks, target, beam):
    forcing.assert_beams_keep_their_sentence(h.visible(encoder, blocks, target), beam)


# 3. A row never depends on how many rows were asked for; length.


def rounding_of(table):
    """What products of another shape may change: a few units in the last place of the largest entry."""
    return 1e-6 * max(1.0, float(table.abs().max()))


@every_table
def test_rows_do_not_depend_on_how_many_were_asked_for(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    for stack, name, signal in h.signals(model):
        for n in (1, 5, 16):
            short, long = (signal.rows(Places(m), h.parts(stack, name)) for m in (n, 2 * n))
            assert len(short) == (signal.table_length or n)
            assert h.difference(short, long[: len(short)]) <= rounding_of(long)
    small = h.tables(model, 9)
    lengths = [signal.table_length for _, _, signal in h.signals(model)]
    for length, before, long, after in zip(
        lengths, small, h.tables(model, 130), h.tables(model, 9), strict=True
    ):
        assert len(before) == len(after) == (length or 9)
        assert len(long) == (length or 130)
        assert h.difference(before, long[: len(before)]) <= rounding_of(long)
        assert h.difference(after, long[: len(after)]) == 0


@h.every_case
def test_inductive_encoders_go_on_past_every_trained_length(encoder, blocks, target):
    limits = {"max_source_positions": 16, "max_target_positions": 16}
    model = h.visible(encoder, blocks, target, **limits)
    if POSITION_ENCODERS[encoder].inductive:
        assert model.max_positions() == (UNLIMITED_POSITIONS, UNLIMITED_POSITIONS)
        assert h.log_probs(model, h.sentence(700), h.shifted(h.sentence(700))).isfinite().all()
        return
    assert model.max_positions() == (16, 16)
    fits, long = h.sentence(16), h.sentence(17)
    assert h.log_probs(model, fits, h.shifted(fits)).isfinite().all()
    for source, target_in, side in ((long, fits, "source"), (fits, long, "target")):
        words = rf"{side} sequence of 17 tokens.*16 positions.*--max-{side}-positions"
        with pytest.raises(ValueError, match=words):
            h.log_probs(model, source, target_in)
    with pytest.raises(ValueError, match="--max-target-positions"):
        h.stepwise_log_probs(model, fits, long)


def test_a_limit_counts_tokens_and_not_padding():
    model = h.visible("learned", max_source_positions=16, max_target_positions=16)
    source, target_in = h.sentence(16), h.shifted(h.sentence(16))
    wide = [torch.nn.functional.pad(x, (4, 0), value=h.PAD) for x in (source, target_in)]
    expected = h.log_probs(model, source, target_in)
    assert h.difference(h.log_probs(model, *wide)[:, 4:], expected) <= h.TOLERANCE


# 5, 6. In evaluation the table is computed once, and dropped when parameters may have changed.


@h.every_case
def test_evaluation_computes_the_table_once(encoder, blocks, target, monkeypatch):
    model = h.visible(encoder, blocks, target)
    calls = recorded(model, monkeypatch)
    for _ in range(2):
        h.log_probs(model, h.source_batch(), h.target_batch())
    h.stepwise_log_probs(model, h.source_batch(False), h.target_batch())
    expected = 0 if (encoder, blocks, target) not in TABLES else 3 if target == "qkv" else 2
    assert len(calls) == expected
    h.log_probs(model, h.sentence(100), h.shifted(h.sentence(100)))  # longer than what was kept
    grown = sum(signal.table_length is None for _, _, signal in h.signals(model)) if expected else 0
    assert len(calls) == expected + grown
    model.train()
    for _ in range(2):  # training keeps nothing that it trains, even where no gradients are wanted
        h.log_probs(model, h.source_batch(), h.target_batch())
    assert len(calls) == (3 if is_trained(model) else 2) * expected + grown


def is_trained(model):
    """Whether tables come from parameters."""
    return any(encoder.sources(h.parts(stack, name)) for stack, name, encoder in h.signals(model))


DROPS = {
    "train": lambda model: model.train().eval(),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "half": lambda model: model.half().float(),
    "double": lambda model: model.double().float(),
    "gradients": lambda model: h.raw_log_probs(model, h.source_batch(), h.target_batch()),
}


@every_kept_table
@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
def test_the_kept_table_is_dropped_by(encoder, blocks, target, drop, monkeypatch):
    model = h.visible(encoder, blocks, target)
    h.log_probs(model, h.source_batch(), h.target_batch())
    drop(model)
    calls = recorded(model, monkeypatch)
    h.log_probs(model, h.source_batch(), h.target_batch())
    if drop is DROPS["gradients"] and not is_trained(model):
        assert not calls  # no gradient reaches such a table
    else:
        assert len(calls) == (3 if target == "qkv" else 2)


UNANNOUNCED = {
    "vector_to_parameters": lambda model: vector_to_parameters(
        1.5 * parameters_to_vector(model.parameters()).detach(), model.parameters()
    ),
    "data": lambda model: [p.data.mul_(1.5) for p in h.position_parameters(model)],
    # No sum over a parameter changes.
    "order": lambda model: [p.data.copy_(p.data.flip(-1)) for p in h.position_parameters(model)],
    "state-dict-of-a-part": lambda model: [
        module.load_state_dict({k: 1.5 * v for k, v in module.state_dict().items()})
        for module in h.position_modules(model)
        if not isinstance(module, PositionSignal)
    ],
}


@every_kept_table
@pytest.mark.parametrize("change", UNANNOUNCED.values(), ids=UNANNOUNCED)
def test_a_changed_parameter_is_noticed_where_a_batch_begins(encoder, blocks, target, change):
    model = h.visible(encoder, blocks, target)
    h.generated([model], h.source_batch(), 2)
    change(model)
    fresh = h.build(encoder, blocks, target, seed=5).eval()
    fresh.load_state_dict(model.state_dict())
    found, expected = (h.generated([m], h.source_batch(), 2) for m in (model, fresh))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["positional_scores"], other["positional_scores"])


@h.every_encoder
def test_evaluation_follows_fairseqs_adam(encoder, blocks, target):
    model = h.visible(encoder, blocks, target, dropout=0.0)
    batch = h.source_batch(), h.target_batch()
    before = h.log_probs(model, *batch)
    optimizer = Adam(model.parameters(), lr=0.01)
    model.train()
    h.loss_of(model, *batch).backward()
    optimizer.step()
    model.eval()
    after = h.log_probs(model, *batch)
    fresh = h.build(encoder, blocks, target, seed=5).eval()
    fresh.load_state_dict(model.state_dict())
    assert h.difference(after, h.log_probs(fresh, *batch)) == 0
    assert h.difference(after, before) > 0.01


@h.every_encoder
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_nothing_is_saved_and_copies_work(encoder, blocks, target, training):
    model = h.visible(encoder, blocks, target, dropout=0.0)
    names = list(model.state_dict())
    batch = h.source_batch(), h.target_batch()
    model.train(training)
    loss = h.loss_of(model, *batch) if training else h.log_probs(model, *batch)
    assert list(model.state_dict()) == names
    assert not any(t.requires_grad for t in h.tables(model.eval()))
    twin = copy.deepcopy(model.train(training))
    assert h.difference(h.log_probs(twin, *batch), h.log_probs(model, *batch)) == 0
    for parameter in twin.parameters():
        parameter.data.mul_(2)
    assert training == loss.requires_grad
    twin.train().eval()
    assert h.difference(h.log_probs(twin, *batch), h.log_probs(model, *batch)) > 0.01


@every_endless_table
def test_ten_thousand_positions_with_a_bounded_time(encoder, blocks, target):
    """Finite, the same rows as of a short sentence, and within float16's range."""
    bounds = {"floater_time_scale": 1000.0, "floater_init_scale": 0.01, "xpos_scale_base": 8192.0}
    model = h.build(encoder, blocks, target, **bounds)
    short = h.tables(model.eval(), 256)
    lengths = [signal.table_length or 10_000 for _, _, signal in h.signals(model)]
    for length, long, few in zip(
        lengths, h.tables(model, 10_000, torch.float16), short, strict=True
    ):
        assert long.shape[0] == length
        assert long.isfinite().all()
        torch.testing.assert_close(long[:256].float(), few, atol=2e-3, rtol=2e-3)
        if encoder == "floater":  # a recurrence comes to rest
            assert len(long[::1000].flatten(1).unique(dim=0)) == 10


# 4. Precision.


@every_kept_table
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
def test_half_precision_computes_in_float32_and_casts_last(
    encoder, blocks, target, dtype, monkeypatch
):
    model = h.visible(encoder, blocks, target).to(dtype)
    exact = h.build(encoder, blocks, target, seed=5).eval()
    exact.load_state_dict(model.state_dict())  # the rounded parameters, in float32
    calls = recorded(model, monkeypatch)
    rounded = h.tables(model, dtype=dtype)
    assert {call.dtype for call in calls} == {torch.float32}
    for actual, expected in zip(rounded, h.tables(exact)):
        assert actual.dtype == dtype
        assert torch.equal(actual, expected.to(dtype))
    batch = h.source_batch(), h.target_batch()
    assert h.log_probs(model, *batch).isfinite().all()
    assert h.difference(h.log_probs(model, *batch), h.log_probs(exact, *batch)) < 0.2


@h.every_encoder
def test_double_precision_works(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    single = h.log_probs(model, *batch)
    assert h.difference(h.log_probs(model.double(), *batch), single) <= h.TOLERANCE


@every_kept_table
def test_autocast_leaves_the_table_alone(encoder, blocks, target):
    model = h.visible(encoder, blocks, target)
    expected = h.tables(model)
    batch = h.source_batch(), h.target_batch()
    exact = h.log_probs(model, *batch)
    model.train().eval()
    with torch.autocast(on_device.DEVICE.type, dtype=torch.bfloat16):
        for actual, table in zip(h.tables(model), expected, strict=True):
            assert torch.equal(actual, table)
        assert 0 < h.difference(h.log_probs(model, *batch), exact) < 0.2
        h.loss_of(model.train(), *batch).backward()


@h.every_target
@pytest.mark.parametrize("encoder", ["floater", "learned"])
def test_a_position_out_of_range_is_an_error(encoder, target):
    model = h.visible(encoder, "all", target)
    with torch.no_grad():
        for stack, name, _ in h.signals(model):
            for parameter in h.parts(stack, name)[0].parameters():
                parameter.fill_(1e5)
    assert h.tables(model, dtype=torch.bfloat16)[0].isfinite().all()
    with pytest.raises(PositionRangeError, match=f"Position 0 of {encoder} reaches 1e.05.*float16"):
        h.tables(model, dtype=torch.float16)


@every_signal
@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_the_model_would_overflow_at_is_an_error(
    encoder, blocks, target, products, monkeypatch
):
    """A table may be finite, and the model's output NaN: a LayerNorm squares rows, a product casts them."""
    model = h.visible(encoder, blocks, target)
    largest = 7e4 if products == torch.float16 else 1.2e18
    for stack, name, signal in h.signals(model):
        rows = torch.zeros_like(signal.rows(Places(64), h.parts(stack, name)).detach())
        rows[5, 0, 0, 3] = largest
        monkeypatch.setattr(signal, "rows", lambda at, _, rows=rows: rows[: at.count])
    with torch.autocast(on_device.DEVICE.type, dtype=products, enabled=products != torch.float32):
        with pytest.raises(PositionRangeError, match=f"Position 5 of {encoder} (reaches|has norm)"):
            h.log_probs(model, h.source_batch(), h.target_batch())
        short = [h.sentence(5), h.shifted(h.sentence(4))]
        assert h.log_probs(model, *short).isfinite().all()


def test_a_search_ends_with_the_error_and_no_hypothesis_of_nan():
    model = h.visible("floater", target="hidden")
    with torch.no_grad():
        for parameter in h.position_parameters(model):
            parameter.zero_()
        for _, _, signal in h.signals(model):
            signal.dynamics.bias2.fill_(1e18)  # row i is 1e17 i, and so is each of its 64 entries
    with pytest.raises(
        PositionRangeError, match="Position 2 of floater has norm .*--floater-delta"
    ):
        h.generated([model], h.source_batch())


def test_a_position_out_of_range_that_nobody_asked_for_is_none():
    model = h.visible("floater")
    with torch.no_grad():
        for parameter in h.position_parameters(model):
            parameter.zero_()
        for _, _, signal in h.signals(model):
            signal.dynamics.bias2.fill_(2e4)  # row i is 2,000 i
    assert all(t[-1].max() == 22_000 for t in h.tables(model, 12, torch.float16))
    with pytest.raises(PositionRangeError, match=r"Position 33 of floater reaches 6\.6e\+04"):
        h.tables(model, 40, torch.float16)


# 7. Gradients, as DistributedDataParallel needs them.


@h.every_case
@pytest.mark.parametrize("length", [12, 1], ids=["sentences", "end-symbols"])
def test_every_parameter_gets_a_gradient(encoder, blocks, target, length):
    model = h.randomise_positions(h.build(encoder, blocks, target)).train()
    batch = (h.source_batch(), h.target_batch()) if length > 1 else 2 * (torch.full((2, 1), h.EOS),)
    h.loss_of(model, *batch).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    if length > 1:
        assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))


@h.every_target
def test_between_solves_the_table_is_reused_with_gradients_of_zero(target, monkeypatch):
    model = h.build("floater", target=target, floater_update_interval=4, dropout=0.0)
    h.randomise_positions(model).train()
    parameters, batch = h.position_parameters(model), (h.source_batch(), h.target_batch())
    losses = {}
    for update in range(6):
        model.set_num_updates(update)
        model.zero_grad()
        loss = h.loss_of(model, *batch)
        loss.backward()
        losses[update] = loss.item()
        assert all(p.grad is not None for p in model.parameters())
        solved = update % 4 == 0
        assert all((float(p.grad.abs().max()) > 0) == solved for p in parameters)
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(0.9)
    assert losses[0] == losses[1] == losses[3] != losses[4] == losses[5]
    h.loss_of(
        model, h.sentence(20), h.shifted(h.sentence(30))
    ).backward()  # longer than what was solved
    current = h.build("floater", target=target, seed=5).eval()
    current.load_state_dict(model.state_dict())
    assert h.difference(h.log_probs(model.eval(), *batch), h.log_probs(current, *batch)) == 0


def test_a_frozen_flow_keeps_its_parameters():
    model = h.randomise_positions(h.build("floater", floater_freeze=True)).train()
    h.loss_of(model).backward()
    assert not any(p.requires_grad or p.grad is not None for p in h.position_parameters(model))
