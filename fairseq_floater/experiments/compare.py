"""Compare systems: data, a run of each under each seed, scores (`scripts/compare.sh`, `s2l.sh`).

Where the configuration splits its text by length (section `s2l`), scores are by length, else of whole test
sets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fairseq_floater.errors import UsageError, exit_code
from fairseq_floater.experiments.cells import act, add_table_options, select
from fairseq_floater.experiments.commands import (
    add_config,
    add_node_options,
    experiment_of,
    seeds,
    work_of,
)
from fairseq_floater.experiments.comparison import LengthComparison, SystemCell, WholeSetComparison
from fairseq_floater.experiments.config import Comparison, ListedSystem
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.verbs import positive

# What s2l.sh adds to its words.
_BY_LENGTH = "--by-length"
# The donor trained on, or fairseq's own Transformer from random parameters.
_CONTROL = "--encoder sinusoidal --blocks input"


def section_of(experiment: Experiment, start: str | None = None) -> Comparison:
    """Return the section that lists systems; without one, the control alone, with which others are compared.

    Args:
        experiment: the configuration.
        start: ``scratch`` or ``donor``, of the control (None: the donor).
    """
    if experiment.config.comparison is not None:
        return experiment.config.comparison
    found = Comparison([f"{_CONTROL} --scratch" if start == "scratch" else _CONTROL])
    found.baseline = found.listed()[0].system.name
    return found


def systems_of(
    experiment: Experiment,
    *,
    encoders: Sequence[str] | None,
    start: str | None = None,
    stretch: str | None = None,
) -> list[ListedSystem]:
    """Return the systems of a comparison.

    Args:
        experiment: the configuration; its baseline is always among them.
        encoders: registered names; None for the configuration's systems.
        start: ``scratch`` or ``donor``, of ``encoders``; None: as the baseline.
        stretch: LOW:HIGH; also each system that takes it under ``--position-stretch``; None: not.

    Raises:
        UsageError: no encoders, and a configuration that lists no systems.
    """
    section = experiment.comparison if encoders is None else section_of(experiment, start)
    found = section.listed()
    if encoders is None and stretch is None:
        return found
    # It brings torch, which takes seconds.
    from fairseq_floater.experiments.forms import forms_of, with_stretched, within_training

    if encoders is not None:
        found = [entry for entry in found if entry.system.name == section.baseline]
        from_scratch = start != "donor" if start or not found else found[0].system.scratch
        forms = forms_of(encoders, scratch=from_scratch)
        found += [form for form in forms if form.system.name != section.baseline]
    if stretch is not None:
        found = with_stretched(found, stretch)
    if encoders is None or experiment.config.s2l is None:
        return found
    return within_training(found, experiment.s2l)


def _parser() -> argparse.ArgumentParser:
    name = "s2l" if _BY_LENGTH in sys.argv else "compare"
    parser = argparse.ArgumentParser(prog=f"scripts/{name}.sh", allow_abbrev=False)
    add_config(parser)
    add_table_options(parser)
    parser.add_argument("--encoders", type=encoder_names, metavar="NAMES")
    parser.add_argument("--start", choices=("scratch", "donor"))
    parser.add_argument("--stretch", metavar="LOW:HIGH")
    parser.add_argument("--seeds", type=seeds)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--donor", type=Path)
    parser.add_argument("--jobs", type=positive)
    # Of s2l.sh: a configuration that does not split its text is refused.
    parser.add_argument(_BY_LENGTH, action="store_true", help=argparse.SUPPRESS)
    add_node_options(parser)
    return parser


def _seeds_of(work: Path) -> list[int]:
    """Return the seeds that have a folder."""
    names = (path.name.removeprefix("seed-") for path in work.glob("seed-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _run(args: argparse.Namespace) -> None:
    experiment, args.work = experiment_of(args), work_of(args)
    section = experiment.s2l if args.by_length else section_of(experiment, args.start)
    looks = args.table or args.status
    args.seeds = args.seeds or (looks and _seeds_of(args.work)) or [experiment.config.seed]
    if args.start is not None and args.encoders is None:
        raise UsageError("`--start` is of `--encoders`: the configuration's systems say theirs.")
    chosen = {name: getattr(args, name) for name in ("encoders", "start", "stretch")}
    every = [SystemCell(entry) for entry in systems_of(experiment, **chosen)]
    by_length = experiment.config.s2l is not None
    kind = LengthComparison if by_length else WholeSetComparison
    runner = partial(kind, experiment=experiment, every=every, baseline=section.baseline)
    act(runner, args, select(every, args.only), ())


if __name__ == "__main__":
    arguments = _parser().parse_args()
    sys.exit(exit_code(lambda: _run(arguments)))
