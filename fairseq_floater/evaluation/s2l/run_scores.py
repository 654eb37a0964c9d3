"""Score the runs of systems, one per seed, on the bins of a split or on whole test sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_floater.data.subwords import LEFT_OUT, SEGMENTATIONS, WORDS
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.s2l.group_scores import GroupScorer, ScoredSet
from fairseq_floater.evaluation.s2l.report import ALL, S2LScores
from fairseq_floater.evaluation.s2l.split_report import SHORT_TEST, TEST, SplitReport
from fairseq_floater.evaluation.s2l.systems import EvaluationSet, SystemFiles, token_counts
from fairseq_floater.records import read_json


def score_split(
    split_dir: Path,
    systems: Sequence[SystemFiles],
    *,
    short_systems: Sequence[SystemFiles] = (),
    **options: Any,
) -> S2LScores:
    """Score systems on the test pairs of ``floater s2l split``, bin by bin and all together.

    Args:
        systems: hypotheses of ``test``, in the order of the report.
        short_systems: the same systems on ``test_short``, to score the trained lengths too.
        options: baseline, length limit, metrics, resampling and labels of
            :class:`~fairseq_floater.evaluation.s2l.group_scores.GroupScorer`; exact matches are always
            counted if the text is in whole words, not subwords.

    Raises:
        UsageError: there is no system, the baseline is not one of them, or two have the same label.
        ScoringError: files do not belong to the split.
    """
    names = [files.name for files in systems]
    if not systems:
        raise UsageError("At least one system is needed: `--hypotheses NAME=FILE`.")
    for files in short_systems:
        if files.name not in names:
            raise UsageError(f"`--short` names {files.name}, which has no `--hypotheses`.")
    split = SplitReport.read(split_dir)
    made = split.made_from["options"]
    length = f"source tokens without the end symbol; tokens of {split.tokens_of}"
    options["exact_match"] = options.get("exact_match") or made.get("subwords") == WORDS
    scorer = GroupScorer(names, made["target"], references=split_dir, length=length, **options)
    if short_systems:
        short_test = EvaluationSet.read(split_dir, SHORT_TEST, made)
        short = ScoredSet(scorer, short_test, short_systems)
        short.add_group(split.bins.short_name, np.arange(len(short_test)))
    test = EvaluationSet.read(split_dir, TEST, made)
    scored = ScoredSet(scorer, test, systems)
    for name in split.bins.names:
        scored.add_group(name, test.members(name))
    scored.add_group(ALL, np.arange(len(test)))
    return scorer.finish()


def score_runs(
    data: Path,
    runs: Mapping[str, Sequence[Path]],
    *,
    tests: Sequence[str] | None = None,
    scores: str | None = None,
    **options: Any,
) -> S2LScores:
    """Score systems on test sets; each test set is a group.

    If a test set has sentences longer than those of training (``--max-len``), they and the others form
    two more groups: a difference may come from the few long ones. The groups in a test set's ``.groups``
    file are scored too.

    Args:
        data: the output of ``scripts/prepare_text.sh``.
        runs: the folders of each system's runs, one per seed, as ``scripts/protocol.sh`` leaves them:
            ``generate.<test>.txt`` and, for the loss, ``losses.<test>.txt``. A system called
            ``rope.told_length`` with the folders of ``rope`` has ``generate.<test>.told_length.txt``.
        tests: test sets, the main one first; None for all of the data.
        scores: the name of another metric, whose numbers are in ``<scores>.<test>.txt`` of each folder.
        options: as for :func:`score_split`.

    Raises:
        UsageError: there is no system, or a test set or the baseline is unknown.
        ScoringError: ``data`` is not prepared text, or files do not belong to it.
    """
    if not runs:
        raise UsageError("At least one system is needed: `--run NAME=FOLDER`.")
    made, known, left_out = _read_summary(data)
    subwords, longest = SEGMENTATIONS[made["bpe"]], made["max_len"]
    for name in tests or ():
        if name not in known:
            raise UsageError(f"`--tests` must be some of {', '.join(known)}, but names {name!r}.")
    length = f"source tokens without the end symbol; tokens of {data / subwords.model}"
    options["exact_match"] = options.get("exact_match") or subwords is SEGMENTATIONS[WORDS]
    scorer = GroupScorer(list(runs), made["tgt"], references=data, length=length, **options)
    scorer.report.warnings += left_out
    for name in tests or known:
        test = EvaluationSet.read_prepared(data, name, made)
        files = [
            _files(system, name + _suffix_of(system, runs), runs[system], scores) for system in runs
        ]
        scored = ScoredSet(scorer, test, files)
        scored.add_group(name, np.arange(len(test)))
        target_tokens = token_counts(data / subwords.folder / f"{name}.{made['tgt']}")
        longer = (np.maximum(test.source_tokens, target_tokens) > longest) & (longest > 0)
        if 0 < longer.sum() < len(test):
            scored.add_group(f"{name}, up to {longest}", np.flatnonzero(~longer))
            scored.add_group(f"{name}, longer than {longest}", np.flatnonzero(longer))
        for part in sorted({*test.bins} - {name}, key=_by_numbers):
            scored.add_group(part, test.members(part))
    return scorer.finish()


def _by_numbers(name: str) -> list[tuple[str, int]]:
    """Return a sort key that puts 9 before 10."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


_SUMMARY = {
    "parameters": {"src": str, "tgt": str, "bpe": str, "max_len": int},
    "splits": {"train": {"lines": int, "dropped": {...: int}}},
}


def _read_summary(data: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the options that the data were prepared with, their test sets, and warnings."""
    try:
        summary = read_json(data / "summary.json", _SUMMARY)
        tests = read_json(data / "tests.json", dict)
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise ScoringError(
            f"{data} was not made by `scripts/prepare_text.sh`: {missing} is missing. A run's data are in "
            "`data` of its --work."
        ) from None
    made, train = summary["parameters"], summary["splits"]["train"]
    left_out = [
        f"{count:,} of {train['lines']:,} training pairs were left out: {LEFT_OUT[why]}."
        for why, count in train["dropped"].items()
        if count
    ]
    return made, [*tests], left_out


def _suffix_of(system: str, runs: Mapping[str, object]) -> str:
    """Return the suffix of a variant of decoding: ``.told_length`` for ``rope.told_length``."""
    bases = (name for name in runs if system.startswith(f"{name}.") and runs[name] == runs[system])
    return next((system.removeprefix(base) for base in bases), "")


def _files(system: str, test: str, folders: Sequence[Path], scores: str | None) -> SystemFiles:
    """Return a system's files for a test set (name and suffix); losses only if every run has them."""
    hypotheses = [folder / f"generate.{test}.txt" for folder in folders]
    losses = [folder / f"losses.{test}.txt" for folder in folders]
    has_losses = all(path.is_file() for path in losses)
    given = [folder / f"{scores}.{test}.txt" for folder in folders] if scores else []
    return SystemFiles(system, [*hypotheses], [*losses] if has_losses else [], [*given])
