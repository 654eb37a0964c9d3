"""Register the length oracle: each hypothesis has as many tokens as its reference (Newman et al. 2020).

What a model loses by stopping too early or too late is then gone; what it loses by misplaced words stays.
"""

import argparse
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

TASK = "translation_told_length"


class ToldLengthSearch(BeamSearch):
    """Search by beams that may end at one step only; ``ends`` says at which, by the sentence's id."""

    def __init__(self, dictionary: Any):
        super().__init__(dictionary)
        self.ends: dict[int, int] = {}

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
        candidate_multiple: int = 2,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose candidates as fairseq does, of ``lprobs`` [B, beam, V] that leave no choice of the end."""
        assert original_batch_idxs is not None
        ends = [self.ends[sentence] == step for sentence in original_batch_idxs.tolist()]
        at_end = torch.tensor(ends, device=lprobs.device)[:, None, None]
        is_end = torch.arange(lprobs.size(2), device=lprobs.device) == self.eos
        chosen: tuple[Tensor, Tensor, Tensor] = super().step(
            step,
            lprobs.masked_fill(at_end != is_end, float("-inf")),
            scores,
            prev_output_tokens,
            original_batch_idxs,
            candidate_multiple,
        )
        return chosen


@register_task(TASK, dataclass=TranslationConfig)
class ToldLengthTask(TranslationTask):
    """Translate as fairseq's task does, but for the lengths of hypotheses."""

    def build_generator(
        self, models: Any, args: argparse.Namespace, *further: Any, **options: Any
    ) -> SequenceGenerator:
        generator = super().build_generator(models, args, *further, **options)
        generator.search = ToldLengthSearch(self.target_dictionary)
        return generator

    def inference_step(
        self,
        generator: SequenceGenerator,
        models: Any,
        sample: dict[str, Any],
        *further: Any,
        **options: Any,
    ) -> Any:
        # Without the end symbol. At the first step fairseq has one beam, and too few could end.
        lengths = (sample["target"].ne(self.target_dictionary.pad()).sum(1) - 1).clamp(min=1)
        generator.search.ends = dict(zip(sample["id"].tolist(), lengths.tolist()))
        generator.min_len, generator.max_len_a, generator.max_len_b = 0, 0, int(lengths.max())
        return super().inference_step(generator, models, sample, *further, **options)
