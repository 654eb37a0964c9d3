"""Make batches of random words as fairseq does from data: sentences of a similar length together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.language_pair_dataset import collate
from torch import Tensor

from fairseq_floater.benchmark.settings import Settings

# Batches that contestants go through in turn: where they stand among all, the longest first.
PLACES = (0.0, 0.25, 0.5, 0.75)
# fairseq-train's default: as many sentences a batch, or a multiple, where there are more.
BATCH_SIZE_MULTIPLE = 8
# Batches that are drawn for these.
POOL = 32

Batch = dict[str, Any]


def dictionary(entries: int) -> Dictionary:
    """Make a dictionary of ``entries``: fairseq's four symbols and words."""
    words = Dictionary()
    for number in range(entries - len(words)):
        words.add_symbol(f"word{number}")
    return words


def training_batches(settings: Settings, words: Dictionary, tokens: int) -> list[Batch]:
    """Make batches of at most ``tokens`` tokens, padding included, the longest sentences first.

    Source lengths are uniform over ``settings.length``; a target is 0.8 to 1.25 times as long,
    within the same bounds. Sentences are sorted, target before source, and cut into batches by
    fairseq's own function. (fairseq sorts the other way round; here the batch that is left over,
    not full, is one of the shortest and not the longest of all.)
    """
    random = np.random.default_rng(settings.seed)
    low, high = settings.length
    count = POOL * max(2 * tokens // (low + high), 1)
    sources = random.integers(low, high + 1, count)
    targets = np.clip(np.rint(sources * random.uniform(0.8, 1.25, count)), low, high).astype(int)
    # One pair of the longest sentences, so that the longest is what the settings say.
    sources[0] = targets[0] = high
    order = np.lexsort((sources, targets))[::-1]
    cut = data_utils.batch_by_size(
        order,
        num_tokens_fn=None,
        num_tokens_vec=np.maximum(sources, targets)[order],
        max_tokens=tokens,
        required_batch_size_multiple=BATCH_SIZE_MULTIPLE,
    )
    generator = torch.Generator().manual_seed(settings.seed)
    return [
        _collated(
            [
                {
                    "id": int(i),
                    "source": _sentence(int(sources[i]), words, generator),
                    "target": _sentence(int(targets[i]), words, generator),
                }
                for i in chosen
            ],
            words,
        )
        for chosen in _spread(cut)
    ]


def generation_batches(settings: Settings, words: Dictionary, sentences: int) -> list[Batch]:
    """Make batches of ``sentences`` sources, sorted by length, the longest first."""
    random = np.random.default_rng(settings.seed)
    low, high = settings.length
    lengths = np.sort(random.integers(low, high + 1, POOL * sentences))[::-1]
    lengths[0] = high
    generator = torch.Generator().manual_seed(settings.seed)
    return [
        _collated(
            [
                {"id": i, "source": _sentence(int(length), words, generator)}
                for i, length in enumerate(chosen)
            ],
            words,
        )
        for chosen in _spread(np.split(lengths, POOL))
    ]


def size(batch: Batch) -> dict[str, int]:
    """Count sentences and tokens of a batch, padded and real."""
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    return {
        "sentences": len(source),
        "source_length": source.size(1),
        "target_length": target.size(1),
        "tokens": int(batch["ntokens"]),
        "padded_tokens": target.numel(),
    }


def _spread(batches: Any) -> list[Any]:
    return [batches[round(place * (len(batches) - 1))] for place in PLACES]


def _sentence(length: int, words: Dictionary, generator: torch.Generator) -> Tensor:
    tokens = torch.randint(words.nspecial, len(words), (length,), generator=generator)
    tokens[-1] = words.eos()
    return tokens


def _collated(samples: list[dict[str, Any]], words: Dictionary) -> Batch:
    batch: Batch = collate(samples, words.pad(), words.eos(), left_pad_source=True)
    return batch
