"""Run the 24 cells of Table 2 and say how far each is: `scripts/table2.sh`.

A cell's run lies in ``WORK/<config>/seed-<n>/<run>``, its donor, shared by all rows and seeds of a column,
in ``WORK/<config>/plain``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from fairseq_floater.experiments import cells
from fairseq_floater.experiments.cells import TableRunner, act, add_table_options, select
from fairseq_floater.experiments.commands import add_run_options, machines_of, preparation_of, seeds
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2
from fairseq_floater.experiments.protocol import Protocol, RunRequest
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR


@dataclass(frozen=True)
class Table2Cell(cells.Cell):
    """One number of Table 2, or with the encoder ``plain`` the donor of a column."""

    size: str
    source: str
    target: str
    encoder: str
    blocks: str = "all"

    @property
    def name(self) -> str:
        """``base-en-de-floater-all``; ``base-en-de-plain``."""
        parts = [self.size, self.source, self.target, self.encoder]
        return "-".join(parts if self.shared else [*parts, self.blocks])

    @property
    def shared(self) -> str:
        return "donor" if self.encoder == PLAIN else ""

    @property
    def config(self) -> str:
        """Return the configuration's file name without ``.yaml``."""
        return f"wmt14_{self.source}_{self.target}_{self.size}"

    @property
    def system(self) -> System:
        return System(self.encoder, self.blocks)

    def folder(self, work: Path, seed: int) -> Path:
        """Return where its run lies."""
        column = work / self.config
        return column / PLAIN if self.shared else column / f"seed-{seed}" / self.system.name


def all_cells(*, donors: bool = False) -> list[Table2Cell]:
    """Return the 24 cells, or the four donors, column after column: the first cells share a donor."""
    rows = [("all", PLAIN)] if donors else list(TABLE_2)
    return [Table2Cell(*column, encoder, blocks) for column in COLUMNS for blocks, encoder in rows]


class Table2(TableRunner[Table2Cell]):
    """The cells of Table 2."""

    table, options = "table2", ("--paper",)
    scores = ("*/*/scores.*.json", "*/*/*/scores.*.json")

    def job(self, cell: Table2Cell, seed: int) -> Protocol:
        args, column = self.args, self.args.work / cell.config
        experiment = Experiment(args.configs / f"{cell.config}.yaml")
        run = RunRequest(
            experiment,
            cell.system,
            column / f"seed-{seed}",
            data=args.work / "data" / f"{cell.source}-{cell.target}",
            donor=column / PLAIN,
            seed=None if cell.shared else seed,
            machines=machines_of(args, experiment.config.budget),
            preparation=preparation_of(args),
        )
        return Protocol(run, self.launcher)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`run` reads."""
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
    """Do what a parsed command line asks for."""
    donors = all_cells(donors=True)
    chosen = select(donors if args.donors else all_cells(), args.only)
    act(Table2, args, chosen, [] if args.donors else donors)
