"""The state that a decoding step keeps, and its reordering by a search."""

import helpers as h
import pytest
import torch

from fairseq_floater.transformer.attention import PositionBiasedAttention
from fairseq_floater.transformer.decoding_cache import (
    ROOM,
    SMALLEST_ROOM,
    Keys,
    appended,
    changed_tokens,
    read_token,
    reordered,
)

BATCH, HEADS, WIDTH = 4, 2, 3
SPLIT = {"rope": ("rope", "all", "attention"), "floater": ("floater", "all", "qkv")}
split = pytest.mark.parametrize("case", SPLIT.values(), ids=SPLIT)


def new_keys(requires_grad=False):
    k, v = torch.randn(2, BATCH, HEADS, 1, WIDTH, requires_grad=requires_grad).unbind(0)
    return Keys(k, v)


def test_keys_are_all_there_while_their_room_doubles():
    cache, keys, rooms = {}, [], []
    for _ in range(2 * SMALLEST_ROOM + 1):
        keys.append(new_keys())
        cache = appended(cache, keys[-1])
        rooms.append(cache[ROOM].data_ptr())
        assert torch.equal(cache["prev_key"], torch.cat([k.k for k in keys], 2))
        assert torch.equal(cache["prev_value"], torch.cat([k.v for k in keys], 2))
    assert len(set(rooms)) == 3
    assert cache[ROOM].size(3) == 4 * SMALLEST_ROOM


def test_padding_is_kept_from_the_token_on_that_has_some():
    cache, padded = {}, torch.tensor([[True], [False], [False], [True]])
    for padding in (None, padded, None):
        cache = appended(cache, new_keys()._replace(padding=padding))
    expected = torch.zeros(BATCH, 3, dtype=torch.bool)
    expected[:, 1:2] = padded
    assert torch.equal(cache["prev_key_padding_mask"].bool(), expected)


def test_gradients_reach_every_step_that_kept_keys():
    cache, firsts = {}, []
    for _ in range(3):
        keys = new_keys(requires_grad=True)
        firsts.append(keys.k)
        cache = appended(cache, keys)
        cache = reordered(cache, torch.tensor([1, 0, 2, 2]), None)
    (found,) = torch.autograd.grad(cache["prev_key"].square().sum(), firsts[:1])
    assert found.abs().sum() > 0


def test_only_the_last_block_forms_weights_for_the_search(monkeypatch):
    """fairseq-generate sets ``need_attn`` to None, which attention alone would read as yes."""
    model, formed = h.fast(h.visible(*SPLIT["rope"])), []
    by_weights = PositionBiasedAttention._by_weights
    monkeypatch.setattr(
        PositionBiasedAttention,
        "_by_weights",
        lambda attention, *given: formed.append(attention) or by_weights(attention, *given),
    )
    h.generated([model], h.source_batch(), longest=3)
    assert {id(attention) for attention in formed} == {id(model.decoder.layers[-1].encoder_attn)}


ORDERS = {
    "none": [0, 1, 2, 3],
    "some": [0, 0, 3, 2],
    "all": [1, 0, 3, 2],
    "copies": [2, 2, 2, 2],
}


@pytest.mark.parametrize("leaves_after", [None, 20])
def test_a_search_of_any_orders_leaves_the_keys_of_every_history(leaves_after):
    """Reorder in place and only what changed; compare with full copies of every row."""
    generator = torch.Generator().manual_seed(leaves_after or 0)
    names = list(ORDERS)
    cache, state, expected, changes = {}, {}, None, []
    for t in range(SMALLEST_ROOM + 8):
        new = new_keys()
        rows = 2 if leaves_after is not None and t > leaves_after else BATCH
        new = Keys(new.k[:rows], new.v[:rows])
        read_token(state, rows, new.k.device)
        cache = appended(cache, new)
        expected = new.k if expected is None else torch.cat([expected, new.k], 2)
        order = ORDERS[names[int(torch.randint(len(names), (), generator=generator))]]
        if rows < BATCH:
            order = [min(o, 1) for o in order[:rows]]
        elif t == leaves_after:
            order = [3, 1]
        order = torch.tensor(order)
        changes.append(changed_tokens(state, order))
        cache = reordered(cache, order, changes[-1])
        expected = expected[order]
        assert torch.equal(cache["prev_key"], expected)
    # Once all rows share their first token, a change is None (perhaps all) only if sentences leave.
    assert (None in changes[10:]) == (leaves_after is not None)
    assert 0 in changes and any(c is not None and 0 < c < 5 for c in changes[10:])


@torch.no_grad()
def test_what_two_beams_share_is_not_written_again():
    cache, state = {}, {}
    for order in ([2, 2, 2, 2], [0, 1, 2, 3], [1, 0, 3, 2]):
        read_token(state, BATCH, torch.device("cpu"))
        cache = appended(cache, new_keys())
        changed = changed_tokens(state, torch.tensor(order))
        cache = reordered(cache, torch.tensor(order), changed)
    assert changed == 2  # all beams share the third one's first token
    cache[ROOM][:, :, :, 0] = 7.0
    assert cache["prev_key"][:, :, 0].eq(7).all()


@split
@pytest.mark.parametrize("beam", [1, 4])
def test_steps_past_the_doubling_equal_one_pass_among_reordered_beams(case, beam):
    model = h.fast(h.visible(*case))
    source = h.source_batch()[:1] if beam > 1 else h.source_batch()[:1].expand(4, -1)
    steps = SMALLEST_ROOM + 8
    target_in = torch.cat([h.shifted(h.sentence(steps, seed=n)) for n in range(4)])
    orders = {5: [0, 1, 2, 3], 9: [1, 0, 2, 2], 20: [3, 3, 0, 1], 36: [0, 0, 2, 3]}
    found = h.stepwise_log_probs(model, source, target_in, orders, beam)
    for order in orders.values():
        target_in = target_in[torch.tensor(order)]
    expected = h.log_probs(model, source.expand(4, -1) if beam > 1 else source, target_in)
    assert h.difference(found, expected) <= h.TOLERANCE


def test_reordered_copies_of_a_sentence_are_what_they_were():
    model = h.visible(*SPLIT["rope"])
    source = h.source_batch(lengths=(7, 5))
    out = model.encoder(source, src_lengths=torch.tensor([7, 5]))
    apart = model.encoder.reorder_encoder_out(out, torch.tensor([0, 1, 0, 1]))
    assert torch.equal(apart["encoder_out"][0], out["encoder_out"][0][:, [0, 1, 0, 1]])
    assert not apart["beam_size"]
    out = model.encoder.reorder_encoder_out(out, torch.tensor([0, 0, 1, 1]))
    within = model.encoder.reorder_encoder_out(out, torch.tensor([1, 1, 3, 2]))
    assert within is out
    left = model.encoder.reorder_encoder_out(out, torch.tensor([3, 2]))
    assert torch.equal(left["encoder_out"][0], out["encoder_out"][0][:, 2:])
    firsts = model.encoder.reorder_encoder_out(out, torch.tensor([0, 2]))
    assert torch.equal(firsts["encoder_out"][0], out["encoder_out"][0][:, [0, 2]])
    mixed = model.encoder.reorder_encoder_out(out, torch.tensor([0, 2, 1, 3]))
    assert torch.equal(mixed["encoder_out"][0], out["encoder_out"][0][:, [0, 2, 1, 3]])
    assert not mixed["beam_size"]


SEARCHES = {
    "hypotheses-swap": [1, 0, 2, 5, 4, 3],
    "sentences-swap": [3, 4, 5, 0, 1, 2],
    "a-sentence-leaves": [3, 5, 4],
    "hypotheses-leave": [0, 1, 3],
    "two-of-each-stay": [0, 2, 3, 4],
    "sentences-mix": [0, 3, 4, 1, 2, 5],
}


@pytest.mark.parametrize("order", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    ("case", "options"),
    [
        (SPLIT["rope"], {}),
        (SPLIT["floater"], {}),
        (SPLIT["rope"], {"attention_kind": "linear", "linear_cross": True}),
    ],
    ids=["rope", "floater", "linear"],
)
def test_any_order_of_hypotheses_keeps_each_with_its_source(case, options, order):
    """A user's own search may drop hypotheses one by one, or mix those of several sentences."""
    model = h.visible(*case, **options)
    source, copies = h.source_batch(lengths=(7, 4)), torch.arange(2).repeat_interleave(3)
    targets = torch.cat([h.shifted(h.sentence(6, seed=i)) for i in range(6)])
    with torch.no_grad():
        found = h.stepwise_log_probs(model, source, targets, orders={2: order}, beam=3)
        expected = h.log_probs(model, source[copies][order], targets[order])
    assert h.difference(found, expected) <= h.TOLERANCE


@pytest.mark.parametrize("case", [("sinusoidal", "input", "hidden"), SPLIT["floater"]])
@pytest.mark.parametrize("order", [[1, 0], [1, 1]])
def test_the_sources_keys_among_the_targets_follow_their_sentence(case, order):
    """With `--cross-self-attention` they precede the target's keys, which a search reorders."""
    model = h.build(*case, cross_self_attention=True).eval()
    source = h.source_batch(lengths=(7, 4))
    targets = torch.cat([h.shifted(h.sentence(6, seed=i)) for i in range(2)])
    found = h.stepwise_log_probs(model, source, targets, orders={3: order})
    assert h.difference(found, h.log_probs(model, source[order], targets[order])) <= h.TOLERANCE
