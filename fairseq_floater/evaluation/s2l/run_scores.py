"""Score the runs of systems, one for each seed, on whole test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_floater.data.parallel_text import check_languages
from fairseq_floater.data.subwords import SEGMENTATIONS, Segmentation
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.group_scores import ScoredSet, begin, warn_of_lengths
from fairseq_floater.evaluation.s2l.options import S2LError
from fairseq_floater.evaluation.s2l.report import S2LScores
from fairseq_floater.evaluation.s2l.systems import EvaluationSet, SystemFiles, token_counts
from fairseq_floater.records import read_json


def score_runs(
    data: Path,
    runs: Mapping[str, Sequence[Path]],
    *,
    tests: Sequence[str] | None = None,
    **options: Any,
) -> S2LScores:
    """Score systems on test sets, each a group of its own.

    Where a test set has sentences of lengths that training left out (``--max-len``), these and the others
    are groups as well: a difference may come from the few that are longer than any trained on.

    Args:
        data: what ``scripts/prepare_text.sh`` made.
        runs: the folders of each system's runs, as ``scripts/protocol.sh`` leaves them, one for each seed:
            ``generate.<test>.txt`` and, where the loss is wanted, ``losses.<test>.txt``.
        tests: test sets, the main one first; None for all of the data.
        options: baseline, length limit, metric, resampling and labels, as
            :func:`~fairseq_floater.evaluation.s2l.group_scores.begin` takes them.

    Raises:
        UsageError: no system, no such test set, a baseline that is none of the systems.
        S2LError, ScoringError: no data there, or files that do not belong to them.
    """
    if not runs:
        raise UsageError("At least one system is needed: `--run NAME=FOLDER`.")
    langs, subwords, longest, known, left_out = _described(data)
    for test in tests or ():
        if test not in known:
            raise UsageError(f"`--tests` must be some of {', '.join(known)}, but names {test!r}.")
    length = f"source tokens without the end symbol; tokens of {data / subwords.model}"
    report, bleu = begin(list(runs), langs[1], references=data, length=length, **options)
    report.warnings += left_out
    for test in tests or known:
        found = EvaluationSet.whole(data, test, langs, subwords.folder)
        files = [_files(name, folders, test) for name, folders in runs.items()]
        scored = ScoredSet(found, files, bleu)
        scored.add_group(test, np.arange(len(found)), report)
        target_tokens = token_counts(data / subwords.folder / f"{test}.{langs[1]}")
        longer = (np.maximum(found.source_tokens, target_tokens) > longest) & (longest > 0)
        if 0 < longer.sum() < len(found):
            for name, members in ((f"up to {longest}", ~longer), ("longer", longer)):
                scored.add_group(f"{test}, {name}", np.flatnonzero(members), report)
    warn_of_lengths(report)
    return report


class _Data(NamedTuple):
    """How data were prepared: ``longest`` is the most subwords of a training pair's side, 0 for any."""

    langs: tuple[str, str]
    subwords: Segmentation
    longest: int
    tests: list[str]
    left_out: list[str]


def _described(data: Path) -> _Data:
    try:
        summary = read_json(data / "summary.json")
        made, train = summary["parameters"], summary["splits"]["train"]
        check_languages(made["src"], made["tgt"])  # they become parts of paths
        return _Data(
            (made["src"], made["tgt"]),
            SEGMENTATIONS[made["bpe"]],
            int(made["max_len"]),
            list(read_json(data / "tests.json")),
            [
                f"{count:,} of {train['lines']:,} training pairs were left out: {why.replace('_', ' ')} "
                "(`max-len`, `max-ratio`)."
                for why, count in train["dropped"].items()
                if count
            ],
        )
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise S2LError(
            f"{data} is not what `scripts/prepare_text.sh` makes: it holds no {missing}. A run's data are in "
            "`data` of its --work."
        ) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise S2LError(
            f"{data} is not what `scripts/prepare_text.sh` makes: {type(error).__name__} {error}."
        ) from None


def _files(name: str, folders: Sequence[Path], test: str) -> SystemFiles:
    """Return a system's files of a test set; the losses only if every run has them."""
    losses = [folder / f"losses.{test}.txt" for folder in folders]
    return SystemFiles(
        name,
        [folder / f"generate.{test}.txt" for folder in folders],
        list(losses) if all(path.is_file() for path in losses) else [],
    )
