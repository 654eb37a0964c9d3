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
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fairseq_floater.files import write_text
from fairseq_floater.hypotheses import BPE_MARKS as BPE_MARKS
from fairseq_floater.hypotheses import DROPPED_HINT, FilePath, wrong
from fairseq_floater.hypotheses import FORMATS as FORMATS
from fairseq_floater.hypotheses import ScoringError as ScoringError
from fairseq_floater.hypotheses import read_hypotheses as read_hypotheses
from fairseq_floater.hypotheses import read_references as read_references
from fairseq_floater.version import __version__

TOKENIZERS = tuple(BLEU.TOKENIZERS)
# newstest2014 by target: sacreBLEU's `wmt14` is the filtered set, the papers use `wmt14/full`.
TEST_SET_LINES = {
    "de": {"wmt14": 2737, "wmt14/full": 3003},
    "fr": {"wmt14": 3003, "wmt14/full": 3003},
}
# The interval leaves out 1/40 of the resamples at each end; fewer would leave out none.
_FEWEST_RESAMPLES = 40
# Of 3,003 sentences these are 2.4 GB; an interval has two digits after 1,000.
_MOST_RESAMPLES = 100_000
_HYPHEN = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One score in 0..100 with its signature.

    ``mean`` and ``half_width`` are those of sacreBLEU's ``--confidence``: the mean of the bootstrap
    scores and half the span of their central 95%. Both are None without a bootstrap, and
    for a score of 0.
    """

    name: str
    score: float
    signature: str
    mean: float | None = None
    half_width: float | None = None


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
    """Score N detokenised hypotheses against N raw references.

    Args:
        target_language: a code such as ``de``; chooses the Moses rules.
        tokenize: of ``bleu``, one of :data:`TOKENIZERS`.
        compound_split: whether to report it; None means for German, and no other can have it.
        test_set: a label for the signatures; newstest2014's are checked against N.
        bootstrap: resamples for two intervals (each takes 80 bytes per sentence); 0 for none.
        seed: of the resampling; overrules the variable SACREBLEU_SEED.
        hypotheses_name, references_name: how errors and the report call the two.

    Raises ScoringError: an option or the number of lines is wrong, or no reference has any text.
    """
    _check_options(target_language, compound_split, test_set, bootstrap, seed)
    _check_corpus(hypotheses, references, hypotheses_name, references_name)
    _check_test_set(test_set, target_language, len(references), references_name)
    labels = {"test": test_set} if test_set else {}
    raw = (list(hypotheses), list(references))
    with _sacrebleu_seed(seed):
        bleu, counts = _measure(
            "BLEU", bleu_metric(tokenize, target_language), *raw, labels, bootstrap
        )
        chrf, _ = _measure("chrF2", CHRF(), *raw, labels, bootstrap)
    return ScoreReport(
        bleu,
        chrf,
        *_tokenised(*raw, target_language, labels, compound_split),
        sentences=len(references),
        empty_hypotheses=sum(not line.strip() for line in hypotheses),
        empty_references=sum(not line.strip() for line in references),
        length_ratio=counts.ratio,
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
    result = bleu_metric(tokenize, target_language).corpus_score(
        list(references), [list(references)]
    )
    # In floating point a perfect score is 100.00000000000004.
    if f"{result.score:.2f}" != "100.00":
        hint = "; no line has 4 tokens, and BLEU averages over 1 to 4." * (result.totals[-1] == 0)
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


def bleu_metric(tokenize: str, language: str) -> Any:
    """sacreBLEU's BLEU; raises ScoringError for a tokenizer that is unknown or not installed."""
    if not re.fullmatch("[a-z]{2,3}", language):
        raise wrong("`target_language` must be a code such as de", f"is {language!r}")
    if tokenize not in TOKENIZERS:
        raise wrong(f"`tokenize` must be one of {', '.join(TOKENIZERS)}", f"is {tokenize!r}")
    try:
        # `trg_lang` only brings sacreBLEU's warning of a tokenizer that does not suit it.
        return BLEU(tokenize=tokenize, trg_lang=language)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        rule = "`tokenize` must be a tokenizer that is installed"
        raise wrong(rule, f"is {tokenize!r}", f": {reason}.") from None


def _measure(
    name: str,
    metric: Any,
    hypotheses: list[str],
    references: list[str],
    labels: Mapping[str, str],
    bootstrap: int = 0,
) -> tuple[Metric, Any]:
    """The score with its full signature, and sacreBLEU's own object for what else it counted."""
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=max(1, bootstrap))
    details = metric.get_signature()
    for key, value in labels.items():
        details.update(key, value)
    signature = str(details.format())
    # Only the JSON form gives the interval away.
    shown = json.loads(result.format(width=6, signature=signature, is_json=True))
    interval = (shown.get("confidence_mean"), shown.get("confidence_var"))
    return Metric(name, result.score, signature, *interval), result


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes the seed of its bootstrap from the environment alone."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


def _tokenised(
    hypotheses: list[str],
    references: list[str],
    language: str,
    labels: Mapping[str, str],
    compound_split: bool | None,
) -> tuple[Metric, Metric | None]:
    """BLEU of Moses tokens as they are, and with hyphens split off."""
    from sacremoses import MosesTokenizer  # slow to import

    moses = MosesTokenizer(lang=language)
    hypotheses, references = (
        [moses.tokenize(line, return_str=True, escape=False) for line in lines]
        for lines in (hypotheses, references)
    )
    bleu = BLEU(tokenize="none", force=True)
    version = importlib.metadata.version("sacremoses")
    labels = {**labels, "moses": language, "sacremoses": version, "split": "no"}
    plain, _ = _measure("BLEU, tokenised", bleu, hypotheses, references, labels)
    if compound_split is False or language != "de":
        return plain, None
    # As the published scores had it: matches share no letter, so of a-b-c one hyphen stays.
    hypotheses, references = (
        [_HYPHEN.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]
        for lines in (hypotheses, references)
    )
    labels["split"] = "yes"
    split, _ = _measure("BLEU, compounds split", bleu, hypotheses, references, labels)
    return plain, split
