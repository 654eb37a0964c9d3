"""What `floater score` measures of a text: sacreBLEU's BLEU and chrF, and BLEU of Moses tokens."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from tqdm import tqdm

from fairseq_floater.evaluation.lines import wrong
from fairseq_floater.evaluation.metric_sums import AT_ONCE, Metric, MetricSums, blocks

logger = logging.getLogger(__name__)

TOKENIZERS = tuple(BLEU.TOKENIZERS)
_MANY_LIKE_TOKENS = 100
_HYPHEN = re.compile(r"(\S)-(\S)")


def bleu_metric(tokenize: str, language: str) -> Any:
    """sacreBLEU's BLEU; raises ScoringError for a tokenizer that is unknown or not installed."""
    if tokenize not in TOKENIZERS:
        raise wrong(f"`tokenize` must be one of {', '.join(TOKENIZERS)}", f"is {tokenize!r}")
    try:
        # `trg_lang` only brings sacreBLEU's warning of a tokenizer that does not suit it; `force`
        # silences its warning of tokenised text, which comes of every part of a text.
        return BLEU(tokenize=tokenize, trg_lang=language, force=True)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        rule = "`tokenize` must be a tokenizer that is installed"
        raise wrong(rule, f"is {tokenize!r}", f": {reason}.") from None


class TextSums:
    """Every metric of one text, summed over its parts.

    Args:
        language: chooses the Moses rules; of German, compounds are split too.
        tokenize: of sacreBLEU's BLEU.
        test_set: a label for the signatures.
        compound_split: False for none.
        resampling: resamples and seed of the bootstrap.

    Attributes:
        empty: hypotheses and references without text.
    """

    def __init__(
        self,
        language: str,
        tokenize: str,
        test_set: str | None,
        compound_split: bool | None,
        resampling: tuple[int, int],
    ):
        from sacremoses import MosesTokenizer  # slow to import

        self.moses = MosesTokenizer(lang=language)
        self.resampling = resampling
        bleu = bleu_metric(tokenize, language)
        labels = {"test": test_set} if test_set else {}
        self.raw = [MetricSums("BLEU", bleu, labels), MetricSums("chrF2", CHRF(), labels)]
        version = importlib.metadata.version("sacremoses")
        moses = {**labels, "moses": language, "sacremoses": version}
        self.tokenised = _tokenised_sums("BLEU, tokenised", {**moses, "split": "no"})
        self.split = None
        if language == "de" and compound_split is not False:
            self.split = _tokenised_sums("BLEU, compounds split", {**moses, "split": "yes"})
        self.empty = [0, 0]
        self.like_tokens = 0

    def add_all(self, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        """Count a whole text; raises ValueError where one side ends before the other."""
        for sums in self.raw:
            sums.resample(len(references), *self.resampling)
        bar = tqdm(total=len(references), desc="score", unit=" lines", disable=None, delay=1)
        with bar:
            for pairs in blocks(zip(hypotheses, references, strict=True), AT_ONCE):
                ours, theirs = map(list, zip(*pairs))
                self._add(ours, theirs)
                bar.update(len(pairs))
        if self.like_tokens >= _MANY_LIKE_TOKENS:
            logger.warning(
                "%d hypotheses end in ` .`, as tokenised text does: raw text was expected, and "
                "sacreBLEU tokenises it itself.",
                self.like_tokens,
            )

    def _add(self, *raw: list[str]) -> None:
        for sums in self.raw:
            sums.add(*raw)
        tokens = [
            [self.moses.tokenize(line, return_str=True, escape=False) for line in lines]
            for lines in raw
        ]
        self.tokenised.add(*tokens)
        if self.split is not None:
            # As the published scores had it: matches share no letter, so of a-b-c one hyphen stays.
            split = [[_HYPHEN.sub(r"\1 ##AT##-##AT## \2", x) for x in lines] for lines in tokens]
            self.split.add(*split)
        for side, lines in enumerate(raw):
            self.empty[side] += sum(not line.strip() for line in lines)
        self.like_tokens += sum(line.endswith(" .") for line in raw[0])

    def results(self) -> tuple[Metric, Metric, Metric, Metric | None]:
        """BLEU, chrF, BLEU of Moses tokens, and that of split compounds."""
        bleu, chrf = (sums.result() for sums in self.raw)
        split = None if self.split is None else self.split.result()
        return bleu, chrf, self.tokenised.result(), split

    def length_ratio(self) -> float:
        """Hypothesis / reference in tokens of BLEU."""
        assert self.raw[0].sums is not None
        ours, theirs = map(int, self.raw[0].sums[:2])
        return ours / theirs if theirs else 0


def _tokenised_sums(name: str, labels: dict[str, str]) -> MetricSums:
    return MetricSums(name, BLEU(tokenize="none", force=True), labels)
