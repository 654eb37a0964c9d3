"""BLEU and chrF of hypotheses against raw references, computed outside fairseq-generate.

fairseq scores tokenised references, in the order of its batches. This module restores the order,
refuses missing and duplicate sentences, and gives a signature with every score. It also reports
tokenised BLEU, without and with compounds split, because older papers report it. These scales
differ: 28.6 on one and 29.3 on another can be the same system.

Sources: sacreBLEU (Post, 2018); chrF (Popović, 2015); sacremoses for Moses tokens with hyphens split
off (``-a``), as in fairseq's recipes for WMT14; fairseq's ``compound_split_bleu.sh`` for the rule
that splits compounds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU

from fairseq_floater.data.parallel_text import LANGUAGE, FilePath, first_subtag
from fairseq_floater.errors import say, shown
from fairseq_floater.evaluation.documents import sentences_of
from fairseq_floater.evaluation.hypotheses import (
    DROPPED_HINT,
    read_hypotheses,
    read_references,
    refuse_pieces,
    warn_of_other_targets,
)
from fairseq_floater.evaluation.lines import TextFile, read_numbers, scoring_error
from fairseq_floater.evaluation.metrics import (
    Chrf,
    Metric,
    bleu_metric,
    check_bootstrap,
    corpus_score,
    exact_matches,
    moses_tokens,
    split_compounds,
)
from fairseq_floater.files import write_text
from fairseq_floater.requirements import version_of
from fairseq_floater.version import __version__

# newstest2014 by target: sacreBLEU's `wmt14` is the filtered set, the papers use `wmt14/full`.
TEST_SET_LINES = {
    "de": {"wmt14": 2737, "wmt14/full": 3003},
    "fr": {"wmt14": 3003, "wmt14/full": 3003},
}
# Languages without spaces between words; Moses' tokenisers do not segment them.
UNSPACED = re.compile("zh|zho|cmn|yue|ja|jpn|th|tha|lo|lao|km|khm|my|mya|bo|bod")
# Warn of tokenised text if at least this many hypotheses end in ` .`.
_MANY_TOKENISED = 100


@dataclasses.dataclass(frozen=True)
class ScoreReport:
    """The result of :func:`score`; ``length_ratio`` is hypothesis / reference in tokens of ``bleu``.

    ``tokenised_bleu`` is None for :data:`UNSPACED` languages and without sacremoses. ``exact_match``, if
    asked for, is a share 0..1. ``scores`` is the mean of another metric's numbers, if given. For documents,
    ``places`` has a report on all first sentences, one on all second sentences, ...
    """

    bleu: Metric
    chrf: Metric
    tokenised_bleu: Metric | None
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
    system: str | None = None
    exact_match: Metric | None = None
    scores: Metric | None = None
    places: list[ScoreReport] | None = None

    def to_json_dict(self) -> dict[str, Any]:
        versions = {name: version_of(name) for name in ("sacrebleu", "sacremoses")}
        return {**dataclasses.asdict(self), "versions": {"floater": __version__, **versions}}

    def format_text(self) -> str:
        shares = (self.exact_match, self.scores)
        every = (self.bleu, self.chrf, self.tokenised_bleu, self.compound_split_bleu, *shares)
        metrics = [metric for metric in every if metric is not None]
        width = max(len(metric.name) for metric in metrics)
        lines = [
            f"hypotheses  {self.hypotheses_name} ({self.empty_hypotheses} empty)",
            f"references  {self.references_name} ({self.empty_references} empty)",
            f"sentences   {self.sentences}" + (f" of {self.test_set}" if self.test_set else ""),
            f"length      {self.length_ratio:.3f} of the references'",
            "",
            f"{'metric':{width}}   score" + ("   95% interval" if self.bootstrap else ""),
        ]
        for metric in metrics:
            digits = 4 if metric in shares else 2  # these may lie in 0..1
            line = f"{metric.name:{width}}  {metric.score:6.{digits}f}"
            if metric.mean is not None:
                line += f"   {metric.mean:.{digits}f} ± {metric.half_width:.{digits}f}"
            lines.append(line)
        for k, place in enumerate(self.places or (), start=1):
            lines += [""] if k == 1 else []
            scores = f"BLEU {place.bleu.score:6.2f}, chrF2 {place.chrf.score:6.2f}"
            lines.append(f"place {k} of documents: {place.sentences} sentences, {scores}")
        return "\n".join([*lines, "", *(f"{m.name:{width}}  {m.signature}" for m in metrics)])


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str,
    tokenize: str | None = None,
    compound_split: bool = False,
    test_set: str | None = None,
    bootstrap: int = 1000,
    seed: int = 12345,
    exact_match: bool = False,
    hypotheses_name: str = "hypotheses",
    references_name: str = "references",
    system: str | None = None,
) -> ScoreReport:
    """Score N detokenised hypotheses against N raw references.

    Args:
        target_language: a code such as ``de`` or ``zh-Hans``; its first part chooses the Moses rules.
        tokenize: sacreBLEU's tokenizer for ``bleu``; None: sacreBLEU's choice for the language.
        compound_split: require BLEU with compounds split, which German has if sacremoses is installed.
        test_set: a label for the signatures; for the labels of newstest2014, N is checked.
        bootstrap: resamples for the intervals; 0 for none.
        exact_match: whether to report the share of hypotheses that equal their reference.
        hypotheses_name, references_name: names of the two in errors and in the report.
        system: the signature of the model, recorded as it is.

    Raises:
        ScoringError: an option or the number of lines is wrong, or no reference has any text.
    """
    language = first_subtag(target_language)
    _check_options(target_language, compound_split, test_set)
    check_bootstrap(bootstrap, seed)
    _check_corpus(hypotheses, references, hypotheses_name, references_name)
    known_sizes = TEST_SET_LINES.get(language, {})
    if test_set in known_sizes and len(references) != known_sizes[test_set]:
        hint = "; " + ", ".join(f"{label} has {size}" for label, size in known_sizes.items()) + "."
        rule = f"`{references_name}` must have {known_sizes[test_set]} lines as {test_set}"
        raise scoring_error(rule, f"has {len(references)}", hint)
    _warn_of_tokenised(hypotheses)
    labels = {"test": test_set} if test_set else {}
    bleu, chrf = bleu_metric(tokenize, language), Chrf()
    bleu_score, chrf_score = (
        corpus_score(metric, hypotheses, references, bootstrap, seed) for metric in (bleu, chrf)
    )
    exact = exact_matches(hypotheses, references) if exact_match else None
    tokenised = split = None
    if compound_split or (version_of("sacremoses") and not UNSPACED.fullmatch(language)):
        tokens = [moses_tokens(lines, language) for lines in (hypotheses, references)]
        tokenised = _moses_bleu("BLEU, tokenised", tokens, language, labels, "no")
        if language == "de":
            parts = [split_compounds(lines) for lines in tokens]
            split = _moses_bleu("BLEU, compounds split", parts, language, labels, "yes")
    return ScoreReport(
        Metric.from_score("BLEU", bleu, bleu_score, labels),
        Metric.from_score("chrF2", chrf, chrf_score, labels),
        tokenised,
        split,
        sentences=len(references),
        empty_hypotheses=sum(not line.strip() for line in hypotheses),
        empty_references=sum(not line.strip() for line in references),
        length_ratio=bleu_score.sys_len / bleu_score.ref_len if bleu_score.ref_len else 0,
        target_language=target_language,
        test_set=test_set,
        bootstrap=bootstrap,
        seed=seed,
        hypotheses_name=hypotheses_name,
        references_name=references_name,
        system=system,
        exact_match=Metric.from_numbers("exact match", exact, bootstrap, seed) if exact else None,
    )


def _moses_bleu(
    name: str, texts: Sequence[Sequence[str]], language: str, labels: dict[str, str], split: str
) -> Metric:
    bleu = BLEU(tokenize="none", force=True)
    score = corpus_score(bleu, texts[0], texts[1])
    version = str(version_of("sacremoses"))
    labels = {**labels, "tok": f"moses-a-{language}", "sacremoses": version, "split": split}
    return Metric.from_score(name, bleu, score, labels)


def _warn_of_unspaced(references: Sequence[str], signature: str) -> None:
    unspaced = sum(len(line) > 9 and " " not in line.strip() for line in references)
    if "|tok:13a|" in signature and unspaced > len(references) / 2:
        say(
            f"warning: {unspaced} references have no spaces, and BLEU's tokenizer 13a divides words at "
            "spaces: pass --tokenize zh, char or flores200."
        )


def _warn_of_tokenised(hypotheses: Sequence[str]) -> None:
    count = sum(line.endswith(" .") for line in hypotheses)
    if count >= _MANY_TOKENISED:
        say(
            f"warning: {count} hypotheses end in ` .`, as if they were tokenised: give raw text, because "
            "sacreBLEU tokenises it itself."
        )


def score_files(
    hypotheses_path: FilePath,
    references_path: FilePath,
    *,
    format: str = "auto",
    remove_bpe: str | None = None,
    documents: str | None = None,
    scores_path: FilePath | None = None,
    lines_path: FilePath | None = None,
    **options: Any,
) -> ScoreReport:
    """Read, check and score two files, as ``floater score`` does.

    Args:
        hypotheses_path, format, remove_bpe: as in :func:`read_hypotheses`.
        references_path: raw references, one a line.
        documents: the separator between the sentences of a line. Sentences are scored one by one, all
            together and by position in their document (`documents.py`).
        scores_path: another metric's numbers, one per line in the order of the references.
        lines_path: where to write the hypotheses, one per line in that order.
        options: ``target_language``, ``tokenize``, ``compound_split``, ``test_set``, ``bootstrap``, ``seed``,
            ``exact_match`` and ``system`` of :func:`score`.
    """
    references = read_references(references_path)
    refuse_pieces(references, references_path)
    file = TextFile(hypotheses_path)
    hypotheses = read_hypotheses(file, format=format, remove_bpe=remove_bpe)
    if format != "plain" and len(hypotheses) == len(references):
        warn_of_other_targets(file, references, references_path)
    options |= {"hypotheses_name": str(hypotheses_path), "references_name": str(references_path)}
    places: list[int] = []
    if documents is not None:
        hypotheses, references, places = sentences_of(hypotheses, references, documents)
    report = score(hypotheses, references, **options)
    _warn_of_unspaced(references, report.bleu.signature)
    if places:
        of_places, options = [], {**options, "bootstrap": 0, "test_set": None}
        for place in range(max(places) + 1):
            at = [i for i, other in enumerate(places) if other == place]
            ours, theirs = ([x[i] for i in at] for x in (hypotheses, references))
            if not any(theirs):  # a line ends in the separator
                break
            of_places.append(score(ours, theirs, **options))
        report = dataclasses.replace(report, places=of_places)
    if lines_path is not None:
        write_text(lines_path, "".join(f"{line}\n" for line in hypotheses))
    if scores_path is None:
        return report
    numbers = read_numbers(scores_path, len(references))
    name = Path(scores_path).name
    scores = Metric.from_numbers(name, numbers, report.bootstrap, report.seed)
    return dataclasses.replace(report, scores=scores)


def _check_options(language: str, compound_split: bool, test_set: str | None) -> None:
    if not LANGUAGE.fullmatch(language):
        rule = "`target_language` must be a code such as de"
        raise scoring_error(rule, f"is {shown(language)}", option=True)
    if compound_split and first_subtag(language) != "de":
        # French data have their hyphens split already: a second split would raise the score again.
        rule = "`target_language` must be de for a compound split"
        raise scoring_error(rule, f"is {first_subtag(language)!r}", option=True)
    if test_set is not None and not re.fullmatch(r"[\w./+-]+", test_set):
        rule = "`test_set` must consist of letters, digits and . / + - _"
        raise scoring_error(rule, f"is {test_set!r}", option=True)


def _check_corpus(
    hypotheses: Sequence[str], references: Sequence[str], hypotheses_name: str, name: str
) -> None:
    if not any(line.strip() for line in references):
        fault = f"has {len(references)} lines, all of them empty"
        raise scoring_error(f"`{name}` must hold text", fault)
    if len(hypotheses) != len(references):
        are_fewer = len(hypotheses) < len(references)
        hint = f"; if they are from fairseq: {DROPPED_HINT}" if are_fewer else ""
        rule = f"`{hypotheses_name}` must have as many sentences as `{name}`, {len(references)}"
        raise scoring_error(rule, f"has {len(hypotheses)}", hint)
