"""Show Tables 2 and 6 of the paper beside the scores of a folder of runs.

The paper's BLEU is tokenised, on newstest2014, with compounds split for German. Our lines "tokenised"
are on its scale, sacreBLEU is not. Runs that belong in no cell are listed with the reason.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import ReportError
from fairseq_floater.experiments.paper_numbers import COLUMNS, SIZES, TABLE_2, TABLE_6
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.position_encoders.registry import DEFAULT_TARGETS
from fairseq_floater.records import RECORD, markdown_table
from fairseq_floater.results.runs import Run, check_experiment, read_run

# If a run has several test sets, the first of these is the paper's.
TEST_NAMES = ("newstest2014", "test")
# Depth of table2.sh's runs below the folder of all experiments: table2/<config>/seed-1/<run>.
_DEEPEST = 4
# The settings that decide the cell of a run.
_DECIDING = ("arch", "source", "target", "encoder", "blocks")
_METRICS = ("sacrebleu", "tokenised")
_RUN_HEADS = ["run", "seed", *_METRICS, "sentences", "encoder parameters", "training hours"]
_RUN_HEADS += ["tokens an update"]
# A cell of Table 2: size, source, target, blocks, encoder. A cell of Table 6: encoder, layers, input.
Key = tuple[str | None, ...]
_FLOATER = ("floater", None, None)  # its runs in Table 6 are those of its cell in Table 2


class ScoredRun(NamedTuple):
    """A run, and the test set whose scores the tables show."""

    run: Run
    test: str

    @property
    def text(self) -> tuple[str, int | None]:
        """Return the text's identity: WMT14's pair, if it is WMT14, and the size of the test set."""
        return self.run.settings.get("wmt14", ""), self.run.scores[self.test].get("sentences")

    def score(self, name: str) -> float | None:
        """Return the score of ``sacrebleu`` or ``tokenised``."""
        return self.run.metric(name, self.test).get("score")

    def cells(self) -> list[str]:
        run = self.run
        scores = [self.score(name) for name in _METRICS]
        seconds = run.average.get("training_seconds")
        tokens, hardware = (run.settings.get(key) for key in ("tokens_per_update", "processes"))
        update = "-" if tokens is None else f"{int(tokens):,}"
        return [
            run.name,
            run.seed or "-",
            *("-" if score is None else f"{score:.2f}" for score in scores),
            str(run.scores[self.test].get("sentences", "-")),
            "-" if run.parameters is None else f"{run.parameters:,}",
            "-" if seconds is None else f"{seconds / 3600:.2f}",
            f"{update} ({hardware})" if tokens and hardware else update,
        ]


@dataclass
class PaperCell:
    """A number of the paper, and the runs with its setting."""

    paper: float
    runs: list[ScoredRun] = field(default_factory=list)

    @property
    def is_papers_test(self) -> bool:
        """Return whether every run was scored on as many sentences as the paper's test set has."""
        return all(run.is_newstest2014(test) for run, test in self.runs)

    def ours(self, name: str) -> dict[str, Any] | None:
        """Return mean, standard deviation over seeds (None for one run) and number of runs."""
        scores = [score for one in self.runs if (score := one.score(name)) is not None]
        if not scores:
            return None
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        return {"mean": statistics.fmean(scores), "spread": spread, "runs": len(scores)}

    def format(self, name: str) -> str:
        """Return ``paper / ours``, with a star if ours is of another test set."""
        ours = self.ours(name)
        if ours is None:
            return f"{self.paper} / -"
        spread = "" if ours["spread"] is None else f" ± {ours['spread']:.2f} (n = {ours['runs']})"
        return f"{self.paper} / {ours['mean']:.2f}{spread}{'' if self.is_papers_test else ' *'}"

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            **{name: self.ours(name) for name in _METRICS},
            "runs": [run.name for run, _ in self.runs],
            "seeds": [run.seed for run, _ in self.runs],
            "papers_test_set": self.is_papers_test if self.runs else None,
        }


@dataclass
class PaperTables:
    """The cells of both tables, filled as far as runs exist; ``outside`` holds (run, reason)."""

    folder: str
    cells: dict[Key, PaperCell]
    outside: list[tuple[str, str]] = field(default_factory=list)

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "table_2": [
                {"blocks": blocks, "encoder": encoder, "size": size, "pair": f"{source}-{target}"}
                | self.cells[size, source, target, blocks, encoder].to_json_dict()
                for blocks, encoder in TABLE_2
                for size, source, target in COLUMNS
            ],
            "table_6": [
                dict(zip(("encoder", "layers", "input"), row))
                | {"paper_parameters": thousands * 1000}
                | {"parameters": [run.parameters for run, _ in self.cells[row].runs]}
                | self.cells[row].to_json_dict()
                for row, (_, thousands) in TABLE_6.items()
            ],
            "outside": [{"run": run, "reason": reason} for run, reason in self.outside],
        }

    def format_text(self) -> str:
        lines = ["Table 2, BLEU: paper / ours", "", *self._table_2()]
        lines += ["", "Table 6, En-De, base: paper / ours", "", *self._table_6(), ""]
        lines += [
            "The paper's BLEU is tokenised (German: compounds split), as in the lines of that name; "
            "sacreBLEU is another scale. ± is the standard deviation of n runs.",
            "The paper counts the parameters of one dynamics or recurrence; ours are all parameters "
            "that the encoder adds.",
        ]
        cells = self.cells.values()
        runs = list({one.run.name: one for cell in cells for one in cell.runs}.values())
        if any("*" in cell.format(name) for cell in cells for name in _METRICS):
            lines.append(
                "Starred: scored on a test set other than newstest2014, so not comparable with the paper."
            )
        metrics = [(name, run.metric(name, test)) for name in _METRICS for run, test in runs]
        lines += sorted({f"{name}: {metric['signature']}" for name, metric in metrics if metric})
        if runs:
            table = markdown_table(_RUN_HEADS, [one.cells() for one in runs])
            lines += ["", "The runs behind these numbers", "", *table]
        if self.outside:
            lines += ["", "Not in the table:", *(f"- {run}: {why}" for run, why in self.outside)]
        return "\n".join(lines)

    def _table_2(self) -> list[str]:
        heads = [f"{size} {source.title()}-{target.title()}" for size, source, target in COLUMNS]
        rows = [
            [*row, name, *(self.cells[(*column, *row)].format(name) for column in COLUMNS)]
            for row in TABLE_2
            for name in _METRICS
        ]
        return markdown_table(["blocks", "encoder", "BLEU", *heads], rows)

    def _table_6(self) -> list[str]:
        rows = []
        for (encoder, layers, input), (_, thousands) in TABLE_6.items():
            cell = self.cells[encoder, layers, input]
            label = encoder if layers is None else f"{encoder}, layers {layers}, {input} input"
            counts = sorted({run.parameters for run, _ in cell.runs if run.parameters is not None})
            ours = ", ".join(f"{count:,}" for count in counts) or "-"
            numbers = f"{thousands:,.1f}K / {ours}"
            rows.append([label, *(cell.format(name) for name in _METRICS), numbers])
        return markdown_table(["encoder", *_METRICS, "parameters"], rows)

    def add(self, run: Run, test: str | None) -> str | None:
        """Add a run to its cells; return the reason if it belongs in none."""
        lacking = [key for key in _DECIDING if key not in run.settings]
        if lacking:
            return f"its settings lack {lacking[0]}" if run.settings else "has no settings"
        if not run.scores:
            return "is not scored yet"
        wanted = [*TEST_NAMES] if test is None else [test]
        names = wanted if test or len(run.scores) > 1 else [*wanted, *run.scores]
        name = next((name for name in names if name in run.scores), None)
        if name is None:
            return f"has {', '.join(sorted(run.scores))}, not {' or '.join(wanted)}"
        keys = _keys(run)
        if isinstance(keys, str):
            return keys
        scored, cells = ScoredRun(run, name), [self.cells[key] for key in keys]
        for other in (other for cell in cells for other in cell.runs):
            if scored.text != other.text:
                return f"has other data than {other.run.name} in its cell"
            if run.seed == other.run.seed:
                return f"its cell already has seed {run.seed}, of {other.run.name}"
        for cell in cells:
            cell.runs.append(scored)
        return None


def collect_paper_tables(folder: str | os.PathLike[str], *, test: str | None = None) -> PaperTables:
    """Read every run below ``folder``, up to four folders deep.

    Args:
        test: the test set to take (``scores.<test>.json``); default: the first of
            :data:`TEST_NAMES` that a run has, or its only one.

    Raises:
        ReportError: there is no run, or a result cannot be read.
    """
    folder = Path(folder)
    check_experiment(folder)
    numbers: dict[Key, float] = {
        (*column, *row): bleu for row, of in TABLE_2.items() for column, bleu in zip(COLUMNS, of)
    }
    numbers |= {row: bleu for row, (bleu, _) in TABLE_6.items()}
    tables = PaperTables(str(folder), {key: PaperCell(bleu) for key, bleu in numbers.items()})
    paths = {
        path.parent
        for depth in range(1, _DEEPEST + 1)
        for name in (RECORD, "average.json")
        for path in folder.glob("*/" * depth + name)
    }
    # A donor has a record too, but without settings.
    paths = {p for p in paths if (p / "average.json").exists() or _is_translation(p)}
    if not paths:
        raise ReportError(f"{folder} holds no run with results (a folder with average.json).")
    runs = [read_run(path, str(path.relative_to(folder))) for path in sorted(paths)]
    # WMT14 first: the first run of a cell decides which text the cell is for.
    for run in sorted(runs, key=lambda run: not run.settings.get("wmt14")):
        if reason := tables.add(run, test):
            tables.outside.append((run.name, reason))
    tables.outside.sort()
    return tables


def _is_translation(folder: Path) -> bool:
    settings = RunFolder(folder).read()["settings"]
    return bool(settings) and "experiment" not in settings


def _keys(run: Run) -> list[Key] | str:
    """Return the cells of a run, or the reason why it belongs in none.

    The tables are of warm starts with the encoder's default target.
    """
    settings, system = run.settings, run.system
    size = SIZES.get(settings["arch"].removeprefix("floater_"))
    column, encoder = (size, settings["source"], settings["target"]), settings["encoder"]
    if column not in COLUMNS:
        pair = f"{settings['source']}-{settings['target']}"
        return f"{settings['arch']}, {pair} is not a column of Table 2"
    if system is None:
        return f"{encoder} is not a row of the paper's tables"
    if system.scratch:
        return "was trained from random parameters, but the tables have warm starts only"
    if not system.base:
        return "has no fairseq sinusoid underneath"
    usual, blocks = DEFAULT_TARGETS.get(encoder), system.blocks
    if system.resolved_target != usual:
        return f"has target {system.target}, the row is for {usual}"
    shape = {"--rnn-layers": "1", "--rnn-input": "scalar"} if encoder == "rnn" else {}
    if system.given.keys() - shape.keys():
        return f"has further options, {settings['options']}"
    if encoder == "rnn":
        row = (encoder, *(shape | system.given).values())
        if row in TABLE_6 and blocks == "all" and column == COLUMNS[0]:
            return [row]
        return f"{' '.join(row)}, blocks {blocks}, {' '.join(column)} is not in Table 6"
    if (blocks, encoder) not in TABLE_2:
        return f"{encoder} is not a row of the paper's tables"
    both = (*column, blocks, encoder) == (*COLUMNS[0], "all", "floater")
    return [(*column, blocks, encoder), *([_FLOATER] if both else [])]
