"""Make batches of random words as fairseq does from data: sentences of a similar length together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.data.language_pair_dataset import collate
from torch import Tensor

from benchmarks.settings import Settings

# The batches that contestants go through in turn: their relative places, the longest batch first.
PLACES = (0.0, 0.25, 0.5, 0.75)
# fairseq-train's default: a batch of more sentences than this has a multiple of it.
BATCH_SIZE_MULTIPLE = 8
# Number of batches among which `PLACES` chooses.
POOL = 32

Batch = dict[str, Any]


def make_batches(
    settings: Settings,
    dictionary: Dictionary,
    *,
    tokens: int | None = None,
    sentences: int | None = None,
) -> list[Batch]:
    """Make batches of random words, the longest sentences first.

    Source lengths are uniform over ``settings.length``; a target is 0.8 to 1.25 times as long,
    within the same bounds. Sentences are sorted and cut into batches by fairseq's own function, but
    from the longest on, so that the last batch, which may not be full, has the shortest sentences.

    Args:
        settings: ``length`` and ``seed``.
        dictionary: of both languages.
        tokens: the most in a batch, padding included, as in training.
        sentences: number in each batch, as in generation; give either this or ``tokens``.
    """
    random = np.random.default_rng(settings.seed)
    low, high = settings.length
    count = POOL * (sentences or max(2 * (tokens or 0) // (low + high), 1))
    sources = random.integers(low, high + 1, count)
    targets = np.clip(np.rint(sources * random.uniform(0.8, 1.25, count)), low, high).astype(int)
    # One pair of the longest sentences, so that the longest is what the settings say.
    sources[0] = targets[0] = high
    order = np.lexsort((targets, sources))[::-1]
    cut = data_utils.batch_by_size(
        order,
        num_tokens_fn=None,
        num_tokens_vec=np.maximum(sources, targets)[order],
        max_tokens=tokens,
        max_sentences=sentences,
        required_batch_size_multiple=BATCH_SIZE_MULTIPLE if sentences is None else 1,
    )
    generator = torch.Generator().manual_seed(settings.seed)

    def sentence(length: int) -> Tensor:
        drawn = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=generator)
        drawn[-1] = dictionary.eos()
        return drawn

    def batch(chosen: Any) -> Batch:
        samples = [
            {"id": int(i), "source": sentence(sources[i]), "target": sentence(targets[i])}
            for i in chosen
        ]
        made: Batch = collate(samples, dictionary.pad(), dictionary.eos(), left_pad_source=True)
        return made

    return [batch(cut[round(place * (len(cut) - 1))]) for place in PLACES]


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
