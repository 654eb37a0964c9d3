"""Compare systems: data, a run of each under each seed, scores (`scripts/compare.sh`, `s2l.sh`).

Where the configuration splits its text by length (section `s2l`), scores are by length, else of whole test
sets.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.cells import progress_of, seconds_left, select
from fairseq_floater.experiments.commands import (
    ONE_THREAD,
    add_config,
    add_node_options,
    experiment_of,
    seeds,
    work_of,
)
from fairseq_floater.experiments.comparison import ComparisonTable, cells_of, donors_of
from fairseq_floater.experiments.config import Comparison, ListedSystem
from fairseq_floater.experiments.hardware import machines_from_args
from fairseq_floater.experiments.screen import duration
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN
from fairseq_floater.experiments.tables import act, add_table_options
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.verbs import positive

_MOST_JOBS = 4  # side by side on a CPU, unless --jobs says more
# The donor trained on, or fairseq's Transformer from random parameters.
_CONTROL = "--encoder sinusoidal --blocks input"


def section_of(experiment: Experiment, start: str | None = None) -> Comparison:
    """Return the section that lists systems; without one, the control alone, with which others are compared.

    Args:
        experiment: the configuration.
        start: ``scratch`` or ``donor``, of the control (None: the donor).
    """
    if experiment.config.comparison is not None:
        return experiment.config.comparison
    control = Comparison([f"{_CONTROL} --scratch" if start == "scratch" else _CONTROL])
    control.baseline = control.listed()[0].system.name
    return control


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
    systems = section.listed()
    if encoders is None and stretch is None:
        return systems
    # It brings torch, which takes seconds.
    from fairseq_floater.experiments.forms import forms_of, with_stretched, within_training

    if encoders is not None:
        systems = [entry for entry in systems if entry.system.name == section.baseline]
        from_scratch = start != "donor" if start or not systems else systems[0].system.scratch
        forms = forms_of(encoders, scratch=from_scratch)
        systems += [form for form in forms if form.system.name != section.baseline]
    if stretch is not None:
        systems = with_stretched(systems, stretch)
    if encoders is None or experiment.config.s2l is None:
        return systems
    return within_training(systems, experiment.s2l)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`run` reads, but for ``by_length``."""
    add = parser.add_argument
    add_config(parser)
    add_table_options(parser, "names or patterns of systems: 'rope-*,*-stretch_*'")
    text = (
        "all, or names with commas (rope,t5,floater): each in the forms that its class names, beside "
        "the configuration's baseline (default: the systems that CONFIG lists)"
    )
    add("--encoders", type=encoder_names, metavar="NAMES", help=text)
    text = (
        "of --encoders: scratch (random parameters, nothing underneath a signal) or donor (warm); "
        "default: as the baseline"
    )
    add("--start", choices=("scratch", "donor"), help=text)
    text = "each system that takes it also under --position-stretch LOW:HIGH"
    add("--stretch", metavar="LOW:HIGH", help=text)
    text = "each system under each seed: means, spreads (default: the configuration's seed)"
    add("--seeds", type=seeds, metavar="1,2,3", help=text)
    text = "parallel text (train, valid and test* files); not for the built-in corpus"
    add("--raw", type=Path, metavar="DIR", help=text)
    text = "one donor for all seeds, trained in DIR if need be (default: one for each seed)"
    add("--donor", type=Path, metavar="DIR", help=text)
    text = "trainings side by side (default: 1 on GPUs; the number of cores, at most 4, on the CPU)"
    add("--jobs", type=positive, metavar="N", help=text)
    add_node_options(parser)


def _seeds_of(work: Path) -> list[int]:
    names = (path.name.removeprefix("seed-") for path in work.glob("seed-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def run(args: argparse.Namespace) -> None:
    experiment, args.work = experiment_of(args), work_of(args)
    section = experiment.s2l if args.by_length else section_of(experiment, args.start)
    looks = args.table or args.status
    args.seeds = args.seeds or (looks and _seeds_of(args.work)) or [experiment.config.seed]
    if args.start is not None and args.encoders is None:
        raise UsageError("`--start` is of `--encoders`: the configuration's systems say theirs.")
    systems = systems_of(experiment, encoders=args.encoders, start=args.start, stretch=args.stretch)
    stages = {entry.system.name: entry.system.stage for entry in systems}
    if args.donor is not None and "donor" in stages.values():
        raise UsageError(
            f"{args.config}: with `--donor` the system `--encoder {PLAIN}` has one run, not one for each "
            "seed; leave one of the two out."
        )
    cells = select(cells_of(args, experiment, systems), args.only)
    on_cpu = machines_from_args(args).on_cpu
    jobs = args.jobs or (min(len(os.sched_getaffinity(0)), _MOST_JOBS) if on_cpu else 1)

    def left() -> str:
        seconds = seconds_left(cells)
        if not seconds:
            return ""
        at_once = jobs
        if args.status and not args.jobs:
            # A look counts with the runs that it sees at work, whatever number they were told.
            running = sum(progress_of(cell.folder).state == "running" for cell in cells)
            at_once = running or jobs
        return f"about {duration(seconds / at_once)} left in all, {at_once} at a time"

    act(
        args,
        cells,
        lambda launcher: ComparisonTable(
            launcher, args, experiment, systems, cells, jobs, section.baseline
        ),
        shared=donors_of(args) if any(stages[c.name] == "finetune" for c in cells) else (),
        environment=ONE_THREAD if on_cpu and jobs > 1 else None,
        left=left,
    )
