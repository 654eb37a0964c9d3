"""Register translation in windows, a baseline for sources that are longer than in training.

A source of more than T tokens, its end symbol not counted, is cut into windows of T tokens (the last may be
shorter) that share O tokens with the next one. Each window ends with the end symbol and is translated alone.

The O shared tokens are translated twice: by the last O/T of one window's tokens, and by the first tokens of
the next. The two translations are joined at the longest run of tokens that these two parts have in common. If
there are several, it is the one whose places in the two parts differ least. Tokens after the run in the first
part, and before it in the second, were translated without their neighbours, and are left out. Parts that have
no token in common are put one after the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, product, takewhile
from operator import eq
from typing import Any, Optional

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor

from fairseq_floater.errors import UsageError

TASK = "translation_windows"
_OF_A_WHOLE = (
    "`--nbest` must be 1 with `--window`; `--print-alignment`, `--prefix-size` and `--constraints` must "
    "be off."
)


@dataclass
class WindowsConfig(TranslationConfig):
    window: int = field(default=0, metadata={"help": "source tokens of a window"})
    window_overlap: Optional[int] = field(  # noqa: UP045  fairseq reads no `int | None`
        default=None, metadata={"help": "tokens shared by two windows (default: a quarter)"}
    )


def seam(tail: Sequence[int], head: Sequence[int]) -> tuple[int, int]:
    """Return how many tokens of ``tail`` to keep, and how many of ``head`` to leave out."""
    runs = []
    for i, j in product(range(len(tail)), range(len(head))):
        size = sum(1 for _ in takewhile(bool, map(eq, tail[i:], head[j:])))
        runs.append((size, -abs(i - j), i + size, j + size))
    size, _, end, begin = max(runs, default=(0, 0, 0, 0))
    return (end, begin) if size else (len(tail), 0)


@register_task(TASK, dataclass=WindowsConfig)
class WindowsTask(TranslationTask):
    """Translate like fairseq's task, but long sources in windows. Losses are of whole sentences."""

    def __init__(self, cfg: WindowsConfig, *dictionaries: Any):
        super().__init__(cfg, *dictionaries)
        size, given = cfg.window, cfg.window_overlap
        self.overlap = size // 4 if given is None else given
        if not 0 <= self.overlap < size:
            raise UsageError(
                f"`--window` needs at least one token and `--window-overlap` fewer, but they are {size} "
                f"and {self.overlap}."
            )

    def build_generator(self, models: Any, args: Any, *further: Any, **options: Any) -> Any:
        names = ("print_alignment", "prefix_size", "constraints")
        if getattr(args, "nbest", 1) > 1 or any(getattr(args, name, None) for name in names):
            raise UsageError(_OF_A_WHOLE)
        return super().build_generator(models, args, *further, **options)

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], *further: Any, **options: Any
    ) -> Any:
        sources = sample["net_input"]["src_tokens"]
        words = [source[source.ne(self.source_dictionary.pad())][:-1] for source in sources]
        cut = [self._windows(source) for source in words]
        if isinstance(generator, SequenceScorer) or max(map(len, cut)) == 1:
            return super().inference_step(generator, models, sample, *further, **options)
        if any(given is not None for given in (*further, *options.values())):
            raise UsageError(_OF_A_WHOLE)
        windows = [window for of_one in cut for window in of_one]
        padding, left = self.source_dictionary.pad(), self.cfg.left_pad_source
        net_input = {
            "src_tokens": collate_tokens(windows, padding, left_pad=left),
            "src_lengths": sources.new_tensor([len(window) for window in windows]),
        }
        translations = iter(super().inference_step(generator, models, {"net_input": net_input}))
        hypotheses = []
        for of_one in cut:
            found = list(islice(translations, len(of_one)))
            parts = [(len(window) - 1, best) for window, (best, *_) in zip(of_one, found)]
            hypotheses.append(found[0] if len(found) == 1 else [self._joined(parts)])
        return hypotheses

    def _windows(self, words: Tensor) -> list[Tensor]:
        size, end = self.cfg.window, words.new_tensor([self.source_dictionary.eos()])
        begins = range(0, max(len(words) - self.overlap, 1), size - self.overlap)
        return [torch.cat([words[begin : begin + size], end]) for begin in begins]

    def _joined(self, translations: Sequence[tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
        """Join the translations of windows, each with the window's number of source tokens.

        Each token keeps the score that its window gave it; the score of the whole is their mean.
        """
        tokens, scores = (translations[0][1][name] for name in ("tokens", "positional_scores"))
        before = self._overlap_in(*translations[0])
        for size, translation in translations[1:]:
            following, after = translation["tokens"], self._overlap_in(size, translation)
            kept = len(tokens) - 1  # without the end symbol
            tail = tokens[max(kept - before, 0) : kept].tolist()
            end, begin = seam(tail, following[:after].tolist())
            kept += end - len(tail)
            tokens = torch.cat([tokens[:kept], following[begin:]])
            scores = torch.cat([scores[:kept], translation["positional_scores"][begin:]])
            before = after
        nothing = torch.empty(0)
        joined = {"tokens": tokens, "score": scores.mean(), "positional_scores": scores}
        return joined | {"attention": nothing, "alignment": nothing}

    def _overlap_in(self, size: int, translation: dict[str, Tensor]) -> int:
        """Return how many tokens of a window's translation count as those of the shared source tokens."""
        return math.ceil((len(translation["tokens"]) - 1) * self.overlap / size)
