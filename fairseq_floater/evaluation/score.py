"""BLEU and chrF of hypotheses against raw references, computed outside fairseq-generate.

fairseq's own score is taken on tokenised references, in the order of its batches. Here the order is
restored, nothing may be missing or double, and every number comes with its signature. Tokenised
BLEU, without and with compounds split, stands beside sacreBLEU because older papers report it;
these are different scales: 28.6 of one and 29.3 of another can be the same system.

Sources: sacreBLEU (Post, 2018); chrF (Popović, 2015); Moses tokens as sacremoses makes them; the
hyphen rule of tensor2tensor's ``get_ende_bleu.sh`` for the compound split.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
from collections.abc import Sequence
from typing import Any

from fairseq_floater.data.parallel_text import LANGUAGE
from fairseq_floater.errors import shown
from fairseq_floater.evaluation.hypotheses import BPE_MARKS as BPE_MARKS
from fairseq_floater.evaluation.hypotheses import DROPPED_HINT, FilePath, wrong
from fairseq_floater.evaluation.hypotheses import FORMATS as FORMATS
from fairseq_floater.evaluation.hypotheses import ScoringError as ScoringError
from fairseq_floater.evaluation.hypotheses import read_hypotheses as read_hypotheses
from fairseq_floater.evaluation.hypotheses import read_references as read_references
from fairseq_floater.evaluation.metric_sums import AT_ONCE, Metric, MetricSums, blocks
from fairseq_floater.evaluation.metrics import TOKENIZERS as TOKENIZERS
from fairseq_floater.evaluation.metrics import TextSums, bleu_metric
from fairseq_floater.files import write_text
from fairseq_floater.version import __version__

# newstest2014 by target: sacreBLEU's `wmt14` is the filtered set, the papers use `wmt14/full`.
TEST_SET_LINES = {
    "de": {"wmt14": 2737, "wmt14/full": 3003},
    "fr": {"wmt14": 3003, "wmt14/full": 3003},
}
# The interval leaves out 1/40 of the resamples at each end; fewer would leave out none.
_FEWEST_RESAMPLES = 40
# An interval has two digits after 1,000.
_MOST_RESAMPLES = 100_000


@dataclasses.dataclass(frozen=True)
class ScoreReport:
    """What :func:`score` found; ``length_ratio`` is hypothesis / reference in tokens of ``bleu``."""

    bleu: Metric
    chrf: Metric
    tokenised_bleu: Metric
    compound_split_bleu: Metric | None
    sentences: int
    empty_hypotheses: int
    empty_references: int
    length_ratio: float
    target_language: str
    test_set: str | None
    bootstrap: int
    seed: int
    hypotheses_name: str
    references_name: str

    def to_json_dict(self) -> dict[str, Any]:
        """Every field, and the versions that computed them, as plain JSON values."""
        versions = {name: importlib.metadata.version(name) for name in ("sacrebleu", "sacremoses")}
        return {**dataclasses.asdict(self), "versions": {"floater": __version__, **versions}}

    def format_text(self) -> str:
        """A table for people, two decimals, the signatures under it; no newline at the end."""
        metrics = [self.bleu, self.chrf, self.tokenised_bleu, self.compound_split_bleu]
        found = [metric for metric in metrics if metric is not None]
        width = max(len(metric.name) for metric in found)
        lines = [
            f"hypotheses  {self.hypotheses_name} ({self.empty_hypotheses} empty)",
            f"references  {self.references_name} ({self.empty_references} empty)",
            f"sentences   {self.sentences}" + (f" of {self.test_set}" if self.test_set else ""),
            f"length      {self.length_ratio:.3f} of the references'",
            "",
            f"{'metric':{width}}   score" + ("   95% interval" if self.bootstrap else ""),
        ]
        for metric in found:
            line = f"{metric.name:{width}}  {metric.score:6.2f}"
            if metric.mean is not None:
                line += f"   {metric.mean:.2f} ± {metric.half_width:.2f}"
            lines.append(line)
        return "\n".join([*lines, "", *(f"{m.name:{width}}  {m.signature}" for m in found)])


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    tokenize: str = "13a",
    compound_split: bool | None = None,
    test_set: str | None = None,
    bootstrap: int = 1000,
    seed: int = 12345,
    hypotheses_name: str = "hypotheses",
    references_name: str = "references",
) -> ScoreReport:
    """Score N detokenised hypotheses against N raw references, some of them at a time.

    Args:
        target_language: a code such as ``de`` or ``pt_BR``; its first part chooses the Moses rules.
        tokenize: of ``bleu``, one of :data:`TOKENIZERS`.
        compound_split: whether to report it; None means for German, and no other can have it.
        test_set: a label for the signatures; newstest2014's are checked against N.
        bootstrap: resamples for two intervals; 0 for none.
        seed: of the resampling, as the variable SACREBLEU_SEED is sacreBLEU's.
        hypotheses_name, references_name: how errors and the report call the two.

    Raises ScoringError: an option or the number of lines is wrong, or no reference has any text.
    """
    _check_language(target_language)
    language = target_language.partition("_")[0]
    _check_options(language, compound_split, test_set, bootstrap, seed)
    _check_corpus(hypotheses, references, hypotheses_name, references_name)
    _check_test_set(test_set, language, len(references), references_name)
    sums = TextSums(language, tokenize, test_set, compound_split, (bootstrap, seed))
    sums.add_all(hypotheses, references)
    return ScoreReport(
        *sums.results(),
        sentences=len(references),
        empty_hypotheses=sums.empty[0],
        empty_references=sums.empty[1],
        length_ratio=sums.length_ratio(),
        target_language=target_language,
        test_set=test_set,
        bootstrap=bootstrap,
        seed=seed,
        hypotheses_name=hypotheses_name,
        references_name=references_name,
    )


def self_check(
    references: Sequence[str],
    target_language: str,
    *,
    tokenize: str = "13a",
    name: str = "references",
) -> None:
    """Make sure that the references score 100.00 sacreBLEU against themselves.

    Raises:
        ScoringError: they do not; says so where no line has the four tokens that BLEU counts.
    """
    _check_corpus(references, references, name, name)
    _check_language(target_language)
    sums = MetricSums("BLEU", bleu_metric(tokenize, target_language), {})
    for lines in blocks(references, AT_ONCE):
        sums.add(lines, lines)
    result = sums.result()
    # In floating point a perfect score is 100.00000000000004.
    if f"{result.score:.2f}" != "100.00":
        has_none = sums.sums is not None and sums.sums[-1] == 0
        hint = "; no line has 4 tokens, and BLEU averages over 1 to 4." * bool(has_none)
        rule = f"`{name}` must score 100.00 BLEU against itself"
        raise wrong(rule, f"scores {result.score:.2f}", hint)


def run(
    hypotheses_path: FilePath,
    references_path: FilePath,
    *,
    target_language: str,
    format: str = "auto",
    remove_bpe: str | None = None,
    check_references: bool = False,
    json_path: FilePath | None = None,
    **options: Any,
) -> ScoreReport:
    """What ``floater score`` does: read, check, score, and write the JSON report if asked for.

    Args:
        check_references: do :func:`self_check` first.
        json_path: where the report goes, whole or not at all.
        options: ``tokenize``, ``compound_split``, ``test_set``, ``bootstrap`` and ``seed`` of
            :func:`score`; the other arguments are those of :func:`read_hypotheses`.

    Raises:
        ScoringError: as the functions named above; also when ``json_path`` cannot be written.
    """
    references = read_references(references_path)
    hypotheses = read_hypotheses(hypotheses_path, format=format, remove_bpe=remove_bpe)
    if check_references:
        tokenize = options.get("tokenize", "13a")
        self_check(references, target_language, tokenize=tokenize, name=str(references_path))
    options |= {"hypotheses_name": str(hypotheses_path), "references_name": str(references_path)}
    report = score(hypotheses, references, target_language=target_language, **options)
    if json_path is not None:
        text = json.dumps(report.to_json_dict(), indent=2, ensure_ascii=False)
        try:
            write_text(json_path, text + "\n")
        except OSError as error:
            raise wrong(f"`{json_path}` must be writable", f"gives {error.strerror!r}") from None
    return report


def _check_options(
    language: str, compound_split: bool | None, test_set: str | None, bootstrap: int, seed: int
) -> None:
    if compound_split and language != "de":
        # French data comes with its hyphens split: once more would lift the score twice.
        rule = "`target_language` must be de for a compound split"
        raise wrong(rule, f"is {language!r}")
    if test_set is not None and not re.fullmatch(r"[\w./+-]+", test_set):
        raise wrong("`test_set` must be of letters, digits and . / + - _", f"is {test_set!r}")
    check_bootstrap(bootstrap, seed)


def _check_language(language: str) -> None:
    if not LANGUAGE.fullmatch(language):
        raise wrong("`target_language` must be a code such as de", f"is {shown(language)}")


def check_bootstrap(bootstrap: int, seed: int) -> None:
    """Raise ScoringError for a number of resamples or a seed that makes no interval."""
    if bootstrap != 0 and bootstrap < _FEWEST_RESAMPLES:
        rule = f"`bootstrap` must be 0 (no interval) or at least {_FEWEST_RESAMPLES}"
        raise wrong(rule, f"is {bootstrap}")
    if bootstrap > _MOST_RESAMPLES:
        raise wrong(f"`bootstrap` must be at most {_MOST_RESAMPLES:,}", f"is {bootstrap}")
    if seed < 0:
        raise wrong("`seed` must not be negative", f"is {seed}")


def _check_corpus(
    hypotheses: Sequence[str], references: Sequence[str], hypotheses_name: str, name: str
) -> None:
    if not any(line.strip() for line in references):
        raise wrong(f"`{name}` must hold text", f"has {len(references)} lines, all of them empty")
    if len(hypotheses) != len(references):
        hint = f"; if they are fairseq's, {DROPPED_HINT}" * (len(hypotheses) < len(references))
        rule = f"`{hypotheses_name}` must have as many sentences as `{name}`, {len(references)}"
        raise wrong(rule, f"has {len(hypotheses)}", hint)


def _check_test_set(test_set: str | None, language: str, lines: int, name: str) -> None:
    known = TEST_SET_LINES.get(language, {})
    expected = known.get(test_set or "", lines)
    if lines != expected:
        hint = "; " + ", ".join(f"{label} has {size}" for label, size in known.items()) + "."
        raise wrong(f"`{name}` must have {expected} lines as {test_set}", f"has {lines}", hint)
