"""Register the length oracle: each hypothesis has as many tokens as its reference (Newman et al. 2020).

This removes the errors of stopping too early or too late, and leaves those of misplaced words.
"""

import argparse
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_floater.errors import UsageError

TASK = "translation_told_length"


class ToldLengthSearch(BeamSearch):
    """Beam search that ends each hypothesis at a given step; ``ends`` holds it by sentence id."""

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
        """Choose candidates as fairseq does, but force or forbid the end in ``lprobs`` [B, beam, V]."""
        assert original_batch_idxs is not None
        ends = [self.ends[sentence] == step for sentence in original_batch_idxs.tolist()]
        at_end = torch.tensor(ends, device=lprobs.device)[:, None, None]
        is_end = torch.arange(lprobs.size(2), device=lprobs.device) == self.eos
        return super().step(
            step,
            lprobs.masked_fill(at_end != is_end, float("-inf")),
            scores,
            prev_output_tokens,
            original_batch_idxs,
            candidate_multiple,
        )


@register_task(TASK, dataclass=TranslationConfig)
class ToldLengthTask(TranslationTask):
    """Translate like fairseq's task, but with hypotheses as long as their references."""

    def build_generator(
        self, models: Any, args: argparse.Namespace, *further: Any, **options: Any
    ) -> SequenceGenerator:
        generator = super().build_generator(models, args, *further, **options)
        search = getattr(generator, "search", None)  # none with --score-reference
        if search is not None and type(search) is not BeamSearch:
            raise UsageError(
                f"`--task {TASK}` takes plain beam search only: leave out `--sampling`, "
                "`--constraints` and diverse beams."
            )
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
        if sample.get("target") is None:
            raise UsageError(
                f"`--task {TASK}` needs references: use fairseq-generate on data with a target side."
            )
        if any(given is not None for given in (*further, *options.values())):
            raise UsageError(f"`--prefix-size` must be off with `--task {TASK}`.")
        # Without the end symbol. At least 1: at the first step fairseq has one beam, and too few could end.
        lengths = (sample["target"].ne(self.target_dictionary.pad()).sum(1) - 1).clamp(min=1)
        generator.search.ends = dict(zip(sample["id"].tolist(), lengths.tolist()))
        generator.min_len, generator.max_len_a, generator.max_len_b = 0, 0, int(lengths.max())
        return super().inference_step(generator, models, sample, *further, **options)
