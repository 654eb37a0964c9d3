"""Cache keys and values while decoding: write in place, and reorder only what a search changed.

Letters: B sentences (times beam), S keys so far, H heads, D head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_floater.position_encoders.hooks import IncrementalState

#: The cache of one attention, by fairseq's names: tensors whose first dimension is the sentence.
Cache = dict[str, Tensor | None]
# Keys and values with spare capacity, [B, 2, H, capacity, D]; prev_key and prev_value are views of it.
ROOM = "room"
SMALLEST_ROOM = 32
# Key of a decoder's incremental state for the record of `read_token`.
ORIGINS = "origins"


class Keys(NamedTuple):
    """The keys and values that queries read.

    Attributes:
        k: [B, H, S, D], turned by the hooks.
        v: as k.
        padding: [B, S], or None.
        notes: on the tokens, [B, any, S], or None.
    """

    k: Tensor
    v: Tensor
    padding: Tensor | None = None
    notes: Tensor | None = None

    @classmethod
    def read(cls, cache: Cache) -> Keys:
        k, v = cache["prev_key"], cache["prev_value"]
        assert k is not None and v is not None
        return cls(k, v, cache["prev_key_padding_mask"], cache["prev_notes"])

    def as_cache(self) -> Cache:
        """Return these tensors under the cache's names."""
        names = ("prev_key", "prev_value", "prev_key_padding_mask", "prev_notes")
        return dict(zip(names, self))


class NewOrder:
    """A search's new order of its hypotheses, analysed once for all attentions.

    Args:
        hypotheses: [B or another number], for each the index of the hypothesis that it continues.
        changed: how many of the last keys may differ from those that the same row of the batch held
            before; None: all.
    """

    def __init__(self, hypotheses: Tensor, changed: int | None = None):
        self.hypotheses, self.changed = hypotheses, changed
        self._sentences: dict[tuple[int, int], tuple[Tensor | None, int]] = {}

    def of_sentences(self, sentences: int, beam: int) -> tuple[Tensor | None, int]:
        """Return the order of keys that are cached once per sentence, and the beam size from now on.

        Args:
            sentences: number of cached sentences.
            beam: hypotheses per sentence.

        Returns:
            The order is None if it changes nothing. The beam size is 1 if the hypotheses of a sentence
            are no longer adjacent, so that each needs its own keys.
        """
        groups = self._sentences.get((sentences, beam))
        if groups is None:
            groups = self._sentences[sentences, beam] = self._sentence_order(sentences, beam)
        return groups

    def _sentence_order(self, sentences: int, beam: int) -> tuple[Tensor | None, int]:
        order = [hypothesis // beam for hypothesis in self.hypotheses.tolist()]
        first = order[::beam]
        adjacent = order == [sentence for sentence in first for _ in range(beam)]
        if adjacent and first == list(range(sentences)):
            return None, beam
        by_row = self.hypotheses // beam
        return (by_row[::beam], beam) if adjacent else (by_row, 1)


def appended(cache: Cache, new: Keys) -> Cache:
    """Append ``new`` keys to ``cache``, empty at first, and return the new cache.

    Keys and values are written into the spare capacity, which doubles when none is left. If gradients
    are required, nothing is overwritten.
    """
    earlier = Keys.read(cache) if cache else None
    start = 0 if earlier is None else earlier.k.size(2)
    end = start + new.k.size(2)
    room = cache.get(ROOM)
    if room is None or room.size(3) < end or new.k.requires_grad:
        grown = _room_like(new.k, new.k.size(0), end)
        if room is not None:
            grown[:, :, :, :start] = room[:, :, :, :start]
        room = grown
    room[:, 0, :, start:end] = new.k
    room[:, 1, :, start:end] = new.v
    padding = MultiheadAttention._append_prev_key_padding_mask(
        key_padding_mask=new.padding,
        prev_key_padding_mask=None if earlier is None else earlier.padding,
        batch_size=room.size(0),
        src_len=end,
        static_kv=False,
    )
    notes = new.notes
    if notes is not None and earlier is not None and earlier.notes is not None:
        notes = torch.cat([earlier.notes, notes], dim=-1)
    return {ROOM: room, **_filled(room, end)._replace(padding=padding, notes=notes).as_cache()}


def reordered(cache: Cache, new_order: Tensor, changed: int | None) -> Cache:
    """Reorder ``cache`` by ``new_order``.

    Args:
        cache: of one attention; keys and values are written in place unless the number of rows changes.
        new_order: [B or another number], for each row the index of the row that it continues.
        changed: how many of the last keys may differ from those that the same row held before; None:
            all.
    """
    room = cache.get(ROOM)
    in_room = () if room is None else (ROOM, "prev_key", "prev_value")
    others = {
        name: x if x is None else x.index_select(0, new_order)
        for name, x in cache.items()
        if name not in in_room
    }
    if room is None:
        return others
    keys = cache["prev_key"]
    assert keys is not None
    end = keys.size(2)
    if len(new_order) == len(room) and not room.requires_grad:
        filled = room[:, :, :, 0 if changed is None else end - changed : end]
        filled.copy_(filled.index_select(0, new_order))
    else:
        filled = room[:, :, :, :end]
        room = _room_like(keys, len(new_order), end)
        room[:, :, :, :end] = filled.index_select(0, new_order)
    return {ROOM: room, **_filled(room, end).as_cache(), **others}


def _room_like(keys: Tensor, sentences: int, tokens: int) -> Tensor:
    """Allocate space for the keys and values of ``tokens`` or more: [B, 2, H, capacity, D]."""
    _, heads, _, width = keys.shape
    capacity = max(SMALLEST_ROOM, 1 << (tokens - 1).bit_length())
    # Keys of all sentences lie together, and so do values: torch multiplies by either without a copy.
    return keys.new_empty(2, sentences, heads, capacity, width).transpose(0, 1)


def _filled(room: Tensor, tokens: int) -> Keys:
    return Keys(*room[:, :, :, :tokens].unbind(1))


def beams_as_queries(x: Tensor, sentences: int) -> Tensor:
    """Turn the hypotheses of a sentence into queries: [B, H, T, D] -> [B / beam, H, beam * T, D]."""
    if x.size(0) == sentences:
        return x
    return x.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def queries_as_beams(x: Tensor, batch: int) -> Tensor:
    """Undo :func:`beams_as_queries` for a batch of B: [B / beam, H, beam * T, D] -> [B, H, T, D]."""
    if x.size(0) == batch:
        return x
    return x.unflatten(2, (batch // x.size(0), -1)).transpose(1, 2).flatten(0, 1)


def products_with(x: Tensor, of_keys: Tensor) -> Tensor:
    """Multiply rows [B, H, T, M] by matrices [B or B / beam, H, M, N]: [B, H, T, N]."""
    return queries_as_beams(beams_as_queries(x, of_keys.size(0)) @ of_keys, x.size(0))


def read_token(incremental_state: IncrementalState, sentences: int, device: torch.device) -> None:
    """Record in ``incremental_state`` that each of B ``sentences`` reads one more token.

    The record [B, T] holds, for each token, the row of the batch in which it was read. Two hypotheses with
    the same origin at t have the same keys up to t.
    """
    places = torch.arange(sentences, device=device)[:, None]
    before = incremental_state.get(ORIGINS, {}).get(ORIGINS)
    origins = places if before is None else torch.cat([before, places], 1)
    incremental_state[ORIGINS] = {ORIGINS: origins}


def changed_tokens(incremental_state: IncrementalState, new_order: Tensor) -> int | None:
    """Return how many of the last tokens ``new_order`` [B] changes in any row; None: perhaps all.

    If the first token changes, all keys do: with `--cross-self-attention` the source's come first.

    The record of :func:`read_token` in ``incremental_state`` is reordered.
    """
    before = incremental_state.get(ORIGINS, {}).get(ORIGINS)
    if before is None:
        return None
    origins = before.index_select(0, new_order)
    incremental_state[ORIGINS] = {ORIGINS: origins}
    if len(new_order) != len(before):
        return None
    differ = (origins != before).any(0)
    first = differ.nonzero()[:1].flatten().tolist()  # waits for the device, as the search does
    if not first:
        return 0
    return len(differ) - first[0] if first[0] else None
