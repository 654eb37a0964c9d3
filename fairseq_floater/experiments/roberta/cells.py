"""Run the 38 cells of Tables 3 to 5 and report the progress of each: `scripts/tables345.sh`.

The run of a cell is in ``WORK/<config>/<task>-<system>/seed-<n>``. With ``--config``, the cells are the tasks
of another configuration with both systems.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.cells import Cell, select
from fairseq_floater.experiments.commands import add_node_options, seeds
from fairseq_floater.experiments.hardware import machines_from_args
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.paper_numbers import TABLES_345
from fairseq_floater.experiments.roberta.config import TASKS
from fairseq_floater.experiments.roberta.finetuning import FineTuning
from fairseq_floater.experiments.roberta.protocol import DONOR
from fairseq_floater.experiments.roberta.stages import (
    FLOATER,
    ROBERTA,
    RobertaExperiment,
    RobertaRequest,
    size_of,
)
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.experiments.tables import PaperTable, add_table_options
from fairseq_floater.files import USER_DIR
from fairseq_floater.verbs import as_options


class TableEntry(NamedTuple):
    """An entry of Tables 3 to 5: the configuration's name without ``.yaml``, a task, a system."""

    config: str
    task: str
    system: str

    @property
    def name(self) -> str:
        """``glue-base-rte-floater``, ``race-large-roberta``, ``squad2-large-floater``."""
        size = size_of(self.config)
        if TASKS[self.task].family == "glue":
            return f"glue-{size}-{self.task}-{self.system}"
        return f"{self.task}-{size}-{self.system}"


def paper_entries() -> list[TableEntry]:
    return [
        TableEntry(f"roberta_{size}", task, system)
        for (size, task), numbers in TABLES_345.items()
        for system in numbers
    ]


def entries_of(experiment: RobertaExperiment) -> list[TableEntry]:
    tasks = experiment.config.tasks
    return [TableEntry(experiment.name, task, s) for task in tasks for s in (ROBERTA, FLOATER)]


def cells_of(args: argparse.Namespace, entries: list[TableEntry]) -> list[Cell]:
    cells = []
    for seed in args.seeds:
        for entry in entries:
            folder = args.work / entry.config / f"{entry.task}-{entry.system}" / f"seed-{seed}"
            cells.append(Cell(entry.name, folder, partial(_job, args, entry, seed), seed))
    return cells


def _job(args: argparse.Namespace, entry: TableEntry, seed: int, launcher: Launcher) -> FineTuning:
    config = entry.config
    experiment = RobertaExperiment(args.config or args.configs / f"{config}.yaml")
    donor = args.donor or (args.donors and args.donors / f"{config}.pt")
    system = System(PLAIN if entry.system == ROBERTA else entry.system)
    request = request_of(args, experiment, system, donor=donor, seed=seed)
    return FineTuning(request, entry.task, launcher)


def _shared(args: argparse.Namespace, config: str) -> list[Cell]:
    """Return the donor and the flow stage of a configuration, which its first cell makes for all."""
    folder, size = args.work / config, size_of(config)
    return [
        Cell(f"{size}-{stage}", folder / stage, None, lock=folder / f".{stage}.lock")
        for stage in (DONOR, "flow")
    ]


def add_work(parser: argparse.ArgumentParser) -> None:
    text = "everything goes to DIR/<name of CONFIG> and DIR/data (default: work/tables345)"
    parser.add_argument(
        "--work", type=Path, default=Path("work/tables345"), metavar="DIR", help=text
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`request_of` reads, except ``--work``."""
    add = parser.add_argument
    text = "text and tasks, in the layout of `floater quizzes`"
    add("--raw", type=Path, metavar="DIR", help=text)
    add("--donor", type=Path, metavar="FILE", help="a pretrained RoBERTa, dict.txt beside it")
    add("--bpe-dir", type=Path, metavar="DIR", help="folder with encoder.json and vocab.bpe")
    text = "URL or folder to take WikiText-103 and GPT-2's BPE from"
    add("--mirror", metavar="PLACE", help=text)
    add_node_options(parser)


def request_of(
    args: argparse.Namespace,
    experiment: RobertaExperiment,
    system: System,
    *,
    donor: Path | None,
    seed: int | None,
) -> RobertaRequest:
    preparation = {"bpe-dir": args.bpe_dir, "mirror": args.mirror}
    return RobertaRequest(
        experiment,
        system,
        args.work,
        raw=args.raw,
        donor=donor,
        seed=seed,
        machines=machines_from_args(args, experiment.config.budget),
        preparation=tuple(as_options(preparation)),
        extend=getattr(args, "extend", None),  # only single runs have this option
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_table_options(parser, "names or patterns: glue-base-rte-floater, 'glue-base-*', 'squad*'")
    text = "seeds of fine-tuning (default: 1,2,3,4,5)"
    add("--seeds", type=seeds, default=[1, 2, 3, 4, 5], metavar="1,2,3", help=text)
    text = "run the tasks of this configuration instead, with both systems; its donor: --donor FILE"
    add("--config", type=Path, metavar="CONFIG", help=text)
    text = "where roberta_<size>.yaml are (default: configs)"
    add("--configs", type=Path, default=USER_DIR.parent / "configs", metavar="DIR", help=text)
    text = "roberta_base.pt and roberta_large.pt (`floater import-roberta`), dict.txt beside them"
    add("--donors", type=Path, metavar="DIR", help=text)
    add_work(parser)
    add_run_options(parser)


def run(args: argparse.Namespace) -> None:
    entries = paper_entries() if args.config is None else entries_of(RobertaExperiment(args.config))
    cells = select(cells_of(args, entries), args.only)
    if args.donor and len({cell.folder.parents[1] for cell in cells}) > 1:
        raise UsageError(
            "`--donor` is for one size, but these are base and large: give `--donors DIR`."
        )
    configs = [] if args.only else dict.fromkeys(entry.config for entry in entries)
    shared = [cell for config in configs for cell in _shared(args, config)]
    PaperTable(args, "tables345", cells, shared).act()
