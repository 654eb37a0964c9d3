"""Add the verbs s2l (short-to-long data, scores bin by bin) and compare (scores of whole test sets)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_floater.data.parallel_text import FilePath
from fairseq_floater.data.sentencepiece_subwords import NORMALIZATIONS
from fairseq_floater.data.subwords import WORDS
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.cli import add_metric_options
from fairseq_floater.evaluation.s2l.figure import plot_s2l
from fairseq_floater.evaluation.s2l.options import Bins, SplitOptions
from fairseq_floater.evaluation.s2l.report import S2LScores
from fairseq_floater.evaluation.s2l.run_scores import score_runs, score_split
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.evaluation.s2l.split_report import SplitReport
from fairseq_floater.evaluation.s2l.systems import SystemFiles
from fairseq_floater.figures import checked_format
from fairseq_floater.verbs import add_parts, add_verb, positive, positives, share

_Named = list[tuple[str, str]]  # the values of an option NAME=VALUE


def add_s2l(verbs: Any) -> None:
    parts = add_parts(verbs, "s2l")
    _add_split(parts)
    _add_score(parts)


def _add_split(parts: Any) -> None:
    parser = add_verb(
        parts,
        "split",
        "floater s2l split my_text my_split --src en --tgt fr --vocab 8000 --threshold 80",
        _split,
        summary="parallel text -> train and valid with short sources, test with long ones in bins",
    )
    add = parser.add_argument
    add("raw_dir", type=Path, metavar="RAW_DIR", help="train, valid, test* files")
    add("out_dir", type=Path, metavar="OUT_DIR")
    add("--src", dest="source", required=True, metavar="LANG")
    add("--tgt", dest="target", required=True, metavar="LANG")
    text = "train on sources below N tokens (end symbol not counted), test on the others (80)"
    add("--threshold", type=positive, metavar="N", help=text)
    text = "where the bins begin (80 100 120 140, or the same multiples of --threshold)"
    add("--edges", type=positives, nargs="+", metavar="N", help=text)
    add("--both-sides", action="store_true", help="train and valid: only targets below N, too")
    group = parser.add_mutually_exclusive_group(required=True)
    text = "learn N subwords, on the short part only"
    group.add_argument("--vocab", type=positive, metavar="N", help=text)
    group.add_argument("--spm-model", type=Path, metavar="FILE", help="a sentencepiece model")
    group.add_argument("--encoded", action="store_true", help="the text is already in subwords")
    group.add_argument("--subwords", choices=(WORDS,), help="none: words are counted")
    text = "leave out pairs with more tokens on a side (1000)"
    add("--max-len", type=positive, default=1000, metavar="N", help=text)
    add("--max-per-bin", type=positive, metavar="N", help="at most N test pairs, a random sample")
    add("--seed", type=int, default=1, help="random seed of the sample (1)")
    add("--character-coverage", type=share, default=1.0, metavar="SHARE")
    add("--normalization", choices=NORMALIZATIONS, help="as for floater prepare")
    text = "word between the sentences of a document, kept as one subword"
    add("--separator", metavar="SYMBOL", help=text)
    add("--workers", type=positive, default=1, metavar="N", help="threads (1)")
    add("--force", action="store_true", help="replace OUT_DIR")


def _split(
    raw_dir: Path,
    out_dir: Path,
    *,
    threshold: int | None,
    edges: list[list[int]] | None,
    force: bool,
    workers: int,
    **given: Any,
) -> SplitReport:
    bins = Bins.from_options(threshold, [n for word in edges or [] for n in word])
    options = SplitOptions(edges=bins.edges, **given)
    return split(raw_dir, out_dir, options, force=force, threads=workers)


def _add_score(parts: Any) -> None:
    parser = add_verb(
        parts,
        "score",
        "floater s2l score my_split --hypotheses plain=plain.txt --hypotheses floater=floater.txt \\\n"
        "    --baseline plain --figure s2l.png s2l.svg\n"
        "several files with the same NAME are training seeds of one system",
        _score,
        summary="hypotheses of one or more models against the references of a split, bin by bin",
    )
    add = parser.add_argument
    add("split_dir", type=Path, metavar="SPLIT_DIR", help="folder that floater s2l split made")
    files = {**_NAMED, "metavar": "NAME=FILE"}
    text = "fairseq-generate's output for test, or plain lines"
    add("--hypotheses", required=True, **files, help=text)
    text = "output of fairseq-generate --score-reference for test, to report the loss per token"
    add("--losses", **files, help=text)
    add("--short", **files, help="hypotheses for test_short, to score the trained lengths too")
    add("--short-losses", **files, help="as --losses, for test_short")
    text = "scores of another metric (COMET), one a line in the order of the references"
    add("--scores", **files, help=text)
    add("--short-scores", **files, help="as --scores, for test_short")
    _add_comparison(parser)


def add_compare(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "compare",
        "floater compare work/my_text/data --run plain=work/my_text/seed-1/plain \\\n"
        "    --run plain=work/my_text/seed-2/plain --run rope=work/my_text/seed-1/rope-all-attention ...\n"
        "several folders with the same NAME are training seeds of one system",
        _compare,
    )
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="made by scripts/prepare_text.sh")
    text = "the folder of a run of scripts/protocol.sh"
    add("--run", dest="runs", required=True, **_NAMED, metavar="NAME=FOLDER", help=text)
    add("--tests", nargs="+", metavar="NAME", help="test sets, the main one first (all of DATA)")
    text = "another metric; its numbers, one a line, are in NAME.TEST.txt of each FOLDER"
    add("--scores", metavar="NAME", help=text)
    _add_comparison(parser)


def _compare(data: Path, *, runs: _Named, **options: Any) -> S2LScores:
    folders = {name: [*map(Path, seeds)] for name, seeds in _by_name(runs).items()}
    return _with_figures(partial(score_runs, data, folders), **options)


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of every comparison of systems; :func:`_with_figures` reads them."""
    add = parser.add_argument
    text = "compare every system with this one: difference and two-sided p-value"
    add("--baseline", metavar="NAME", help=text)
    text = "name of a system in tables and figures (default: NAME)"
    add("--label", dest="labels", **_NAMED, metavar="NAME=LABEL", help=text)
    text = "as given to fairseq-generate, to count the hypotheses that its length limit cut off"
    for name in ("--max-len-a", "--max-len-b"):
        add(name, type=float, metavar="X", help=text)
    add_metric_options(parser)
    text = "bars by group of sentences: png, svg or pdf"
    add("--figure", nargs="+", default=[], metavar="FILE", help=text)


def _score(
    split_dir: Path,
    *,
    hypotheses: _Named,
    losses: _Named,
    short: _Named,
    short_losses: _Named,
    scores: _Named,
    short_scores: _Named,
    **options: Any,
) -> S2LScores:
    systems = _systems(hypotheses, losses, scores)
    short_systems = _systems(short, short_losses, short_scores)
    scored = partial(score_split, split_dir, systems, short_systems=short_systems)
    return _with_figures(scored, **options)


def _with_figures(
    scored: Callable[..., S2LScores],
    *,
    labels: _Named,
    max_len_a: float | None,
    max_len_b: float | None,
    figure: list[str],
    **options: Any,
) -> S2LScores:
    if (max_len_a is None) != (max_len_b is None):
        raise UsageError("`--max-len-a` and `--max-len-b` set one limit: give both or none.")
    for path in figure:
        checked_format(path)  # before the work, not after it
    limit = None if max_len_a is None else (max_len_a, max_len_b)
    scores = scored(length_limit=limit, labels=dict(labels), **options)
    for path in figure:
        plot_s2l(scores, path)
    return scores


def _named_value(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, but is {text!r}")
    return name, value


_NAMED: dict[str, Any] = {"type": _named_value, "action": "append", "default": []}


def _systems(*files: _Named) -> Sequence[SystemFiles]:
    """Return the systems that have hypotheses; losses and scores may be missing."""
    seeds, *others = map(_by_name, files)
    for named in others:
        for name in named:
            if name not in seeds:
                raise UsageError(f"`{name}={named[name][0]}` names a system without hypotheses.")
    return [
        SystemFiles(name, paths, *(named.get(name, []) for named in others))
        for name, paths in seeds.items()
    ]


def _by_name(named: _Named) -> dict[str, list[FilePath]]:
    """Return the paths of each name, one per seed; raises UsageError if a name has a path twice."""
    paths: dict[str, dict[Path, FilePath]] = {}
    for name, path in named:
        seeds, resolved = paths.setdefault(name, {}), Path(path).resolve()
        if resolved in seeds:
            raise UsageError(f"`{name}={path}` is given twice, but must differ for each seed.")
        seeds[resolved] = path
    return {name: list(seeds.values()) for name, seeds in paths.items()}
