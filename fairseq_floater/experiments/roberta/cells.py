"""Run the 38 cells of Tables 3 to 5 and say how far each is: `scripts/tables345.sh`.

A cell's run lies in ``WORK/<config>/<task>-<system>/seed-<n>``. With ``--config`` the cells are the tasks of
a configuration of one's own, with both systems.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from fairseq_floater.experiments import cells
from fairseq_floater.experiments.cells import TableRunner, act, add_table_options, select
from fairseq_floater.experiments.commands import seeds
from fairseq_floater.experiments.paper_numbers import TABLES_345
from fairseq_floater.experiments.roberta.commands import add_run_options, add_work, asked_of
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import DONOR
from fairseq_floater.experiments.roberta.stages import FLOATER, ROBERTA, RobertaExperiment, size_of
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR

SYSTEMS = (ROBERTA, FLOATER)


@dataclass(frozen=True)
class RobertaCell(cells.Cell):
    """One number of Tables 3 to 5; with the task ``donor`` or ``flow``, what the cells start from.

    Attributes:
        config: the name of its configuration file, without ``.yaml``.
        task: GLUE's, ``race``, ``squad1``, ``squad2``, or what is shared.
        system: ``roberta`` or ``floater``.
    """

    config: str
    task: str
    system: str

    @property
    def name(self) -> str:
        """``glue-base-rte-floater``, ``race-large-roberta``, ``squad2-large-floater``, ``base-flow``."""
        if self.shared:
            return f"{self.size}-{self.task}"
        if TASKS[self.task].family == "glue":
            return f"glue-{self.size}-{self.task}-{self.system}"
        return f"{self.task}-{self.size}-{self.system}"

    @property
    def shared(self) -> str:
        return "" if self.task in TASKS else self.task

    @property
    def size(self) -> str:
        """Return ``base`` for the configuration ``roberta_base``."""
        return size_of(self.config)

    def folder(self, work: Path, seed: int) -> Path:
        """Return where its run lies."""
        column = work / self.config
        if self.shared:
            return column / self.task
        return column / f"{self.task}-{self.system}" / f"seed-{seed}"


def paper_cells() -> list[RobertaCell]:
    """Return the 38 cells, those of a configuration together."""
    return [
        RobertaCell(f"roberta_{size}", task, system)
        for (size, task), numbers in TABLES_345.items()
        for system in numbers
    ]


def cells_of(experiment: RobertaExperiment) -> list[RobertaCell]:
    """Return the cells of a configuration: its tasks, each with both systems."""
    tasks = experiment.config.tasks
    return [RobertaCell(experiment.name, task, system) for task in tasks for system in SYSTEMS]


class Tables345(TableRunner[RobertaCell]):
    """The cells of Tables 3 to 5, or of a configuration of one's own."""

    table = "tables345"
    scores = ("*/*/seed-*/scores.json",)

    def job(self, cell: RobertaCell, seed: int) -> FineTuning:
        args = self.args
        experiment = RobertaExperiment(args.config or args.configs / f"{cell.config}.yaml")
        donor = args.donor or (args.donors and args.donors / f"{cell.config}.pt")
        system = System(PLAIN) if cell.system == ROBERTA else System(cell.system)
        asked = asked_of(args, experiment, system, donor=donor, seed=seed)
        return FineTuning(asked, cell.task, self.launcher)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`run` reads."""
    add = parser.add_argument
    add_table_options(parser, "names or patterns: glue-base-rte-floater, 'glue-base-*', 'squad*'")
    text = "of fine-tuning (default: 1,2,3,4,5)"
    add("--seeds", type=seeds, default=[1, 2, 3, 4, 5], metavar="1,2,3", help=text)
    text = "the tasks of this configuration instead, with both systems; its donor: --donor FILE"
    add("--config", type=Path, metavar="CONFIG", help=text)
    text = "where roberta_<size>.yaml are (default: configs)"
    add("--configs", type=Path, default=USER_DIR.parent / "configs", metavar="DIR", help=text)
    text = "roberta_base.pt and roberta_large.pt (`floater import-roberta`), dict.txt beside them"
    add("--donors", type=Path, metavar="DIR", help=text)
    add_work(parser)
    add_run_options(parser)


def run(args: argparse.Namespace) -> None:
    """Do what a parsed command line asks for."""
    every = paper_cells() if args.config is None else cells_of(RobertaExperiment(args.config))
    shared = [
        RobertaCell(config, stage, FLOATER)
        for config in dict.fromkeys(cell.config for cell in every)
        for stage in (DONOR, "flow")
    ]
    act(Tables345, args, select(every, args.only), shared)
