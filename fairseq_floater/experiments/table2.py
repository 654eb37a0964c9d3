"""Run the 24 cells of Table 2 and report the progress of each: `scripts/table2.sh`.

The run of a cell is in ``WORK/<config>/seed-<n>/<run>``. All rows and seeds of a column share a donor, in
``WORK/<config>/plain``.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from fairseq_floater.experiments.cells import Cell, select
from fairseq_floater.experiments.commands import add_run_options, preparation_of, seeds
from fairseq_floater.experiments.hardware import machines_from_args
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.tables import PaperTable, add_table_options
from fairseq_floater.files import USER_DIR


def config_of(size: str, source: str, target: str) -> str:
    """Return the file name of a column's configuration, without ``.yaml``."""
    return f"wmt14_{source}_{target}_{size}"


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """Return the 24 cells under each seed, column by column: ``base-en-de-floater-all``, ..."""
    cells = []
    for seed in args.seeds:
        for column in COLUMNS:
            for blocks, encoder in TABLE_2:
                system = System(encoder, blocks)
                folder = args.work / config_of(*column) / f"seed-{seed}" / system.name
                job = partial(_job, args, column, system, seed)
                cells.append(Cell("-".join([*column, encoder, blocks]), folder, job, seed))
    return cells


def donors_of(args: argparse.Namespace) -> list[Cell]:
    donors = []
    for column in COLUMNS:
        folder = args.work / config_of(*column)
        job = partial(_job, args, column, System(PLAIN), None)
        lock = folder / ".donor.lock"
        donors.append(Cell("-".join([*column, PLAIN]), folder / PLAIN, job, lock=lock))
    return donors


def _job(
    args: argparse.Namespace,
    column: tuple[str, str, str],
    system: System,
    seed: int | None,
    launcher: Launcher,
) -> Protocol:
    _, source, target = column
    folder = args.work / config_of(*column)
    experiment = Experiment(args.configs / f"{config_of(*column)}.yaml")
    request = RunRequest(
        experiment,
        system,
        folder / f"seed-{args.seeds[0] if seed is None else seed}",
        data=args.work / "data" / f"{source}-{target}",
        donor=folder / PLAIN,
        seed=seed,
        machines=machines_from_args(args, experiment.config.budget),
        preparation=preparation_of(args),
    )
    return Protocol(request, launcher)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_table_options(parser, "names or patterns: base-en-de-floater-all, 'big-en-fr-*'")
    text = "train, average and score the four donors instead"
    add("--donors", action="store_true", help=text)
    text = "every cell under each seed, from the same donor (default: 1)"
    add("--seeds", type=seeds, default=[1], metavar="1,2,3", help=text)
    text = "where everything goes (default: work/table2)"
    add("--work", type=Path, default=Path("work/table2"), metavar="DIR", help=text)
    text = "where wmt14_<pair>_<size>.yaml are (default: configs)"
    add("--configs", type=Path, default=USER_DIR.parent / "configs", metavar="DIR", help=text)
    add_run_options(parser)


def run(args: argparse.Namespace) -> None:
    donors = donors_of(args)
    cells = select(donors if args.donors else cells_of(args), args.only)
    shared = [] if args.only or args.donors else donors
    PaperTable(args, "table2", cells, shared).act()
