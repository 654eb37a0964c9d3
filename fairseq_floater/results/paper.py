"""Tables 2 and 6 of the paper beside what a folder of runs has scored.

The paper's BLEU is tokenised, on newstest2014, for German after splitting compounds: the line
"tokenised" is on its scale, sacreBLEU is not. Runs that belong in no cell are listed with the reason.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_floater.encoder_names import DEFAULT_TARGETS
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2, TABLE_6
from fairseq_floater.experiments.run_folder import RECORD
from fairseq_floater.records import ReportError
from fairseq_floater.results.runs import TEST_NAMES as TEST_NAMES
from fairseq_floater.results.runs import OutsideError, ScoredRun, is_run, read_run, runs_table

BASE_SHAPES = ("transformer", "transformer_wmt_en_de")
_DEEPEST = 3
_METRICS = ("sacrebleu", "tokenised")


@dataclass
class Cell:
    """A number of the paper and the runs that answer to it."""

    paper: float
    runs: list[ScoredRun] = field(default_factory=list)

    def add(self, run: ScoredRun, outside: list[tuple[str, str]]) -> None:
        """Runs of a cell are seeds of one system: a seed that is there already is listed outside."""
        seed = run.settings.get("seed")
        same = next((r.name for r in self.runs if r.settings.get("seed") == seed), None)
        if same is None:
            self.runs.append(run)
        elif (entry := (run.name, f"seed {seed} of its cell is {same}")) not in outside:
            outside.append(entry)

    def ours(self, name: str) -> dict[str, Any] | None:
        """Mean, standard deviation over seeds (None for one run) and number of runs."""
        found = [run.metric(name).get("score") for run in self.runs]
        scores = [float(score) for score in found if score is not None]
        if not scores:
            return None
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        return {"mean": statistics.fmean(scores), "spread": spread, "runs": len(scores)}

    def format(self, name: str) -> str:
        """``paper / ours``, a star where ours is of another test set."""
        ours = self.ours(name)
        if ours is None:
            return f"{self.paper} / -"
        spread = "" if ours["spread"] is None else f" ± {ours['spread']:.2f} (n = {ours['runs']})"
        star = "" if all(run.is_papers_test for run in self.runs) else " *"
        return f"{self.paper} / {ours['mean']:.2f}{spread}{star}"

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            **{name: self.ours(name) for name in _METRICS},
            "runs": [run.name for run in self.runs],
            "seeds": [run.settings.get("seed") for run in self.runs],
            "papers_test_set": all(run.is_papers_test for run in self.runs) if self.runs else None,
        }


@dataclass
class PaperTables:
    """Both tables, filled as far as there are runs; ``outside`` holds (run, reason)."""

    folder: str
    table_2: dict[tuple[str, str], list[Cell]]
    table_6: dict[tuple[str, str | None, str | None], Cell]
    outside: list[tuple[str, str]]

    @property
    def cells(self) -> list[Cell]:
        """Of both tables."""
        return [*(c for row in self.table_2.values() for c in row), *self.table_6.values()]

    @property
    def filled(self) -> bool:
        """Whether any run belongs in a cell."""
        return any(cell.runs for cell in self.cells)

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "table_2": [
                {"blocks": blocks, "encoder": encoder, "size": size, "pair": f"{source}-{target}"}
                | cell.to_json_dict()
                for (blocks, encoder), cells in self.table_2.items()
                for (size, source, target), cell in zip(COLUMNS, cells)
            ],
            "table_6": [
                {"encoder": encoder, "layers": layers, "input": input}
                | {"paper_parameters": TABLE_6[encoder, layers, input][1] * 1000}
                | {"parameters": [run.parameters for run in cell.runs]}
                | cell.to_json_dict()
                for (encoder, layers, input), cell in self.table_6.items()
            ],
            "outside": [{"run": run, "reason": reason} for run, reason in self.outside],
        }

    def format_text(self) -> str:
        """Markdown: Table 2, Table 6, signatures, and what is in neither."""
        cells = self.cells
        lines = ["Table 2, BLEU: paper / ours", "", *self._table_2()]
        lines += ["", "Table 6, En-De, base: paper / ours", "", *self._table_6(), ""]
        lines += [
            "The paper's BLEU is tokenised (German: compounds split), as the lines so named; "
            "sacreBLEU is another scale. ± is the standard deviation of n runs.",
            "The paper counts the parameters of one dynamics or recurrence; ours are all that the "
            "encoder adds.",
        ]
        runs = list({id(run): run for cell in cells for run in cell.runs}.values())
        if any("*" in cell.format(name) for cell in cells for name in _METRICS):
            lines.append(
                "Starred: of another test set than newstest2014, not comparable with the paper."
            )
        signatures = {(n, r.metric(n)["signature"]) for r in runs for n in _METRICS if r.metric(n)}
        lines += [f"{name}: {signature}" for name, signature in sorted(signatures)]
        if runs:
            lines += ["", "What they are of", "", *runs_table(runs)]
        if self.outside:
            lines += ["", "Not in the table:", *(f"- {run}: {why}" for run, why in self.outside)]
        return "\n".join(lines)

    def _table_2(self) -> list[str]:
        heads = [f"{size} {source.title()}-{target.title()}" for size, source, target in COLUMNS]
        lines = [f"| blocks | encoder | BLEU | {' | '.join(heads)} |", "|---" * 7 + "|"]
        for (blocks, encoder), cells in self.table_2.items():
            for name in _METRICS:
                values = " | ".join(cell.format(name) for cell in cells)
                lines.append(f"| {blocks} | {encoder} | {name} | {values} |")
        return lines

    def _table_6(self) -> list[str]:
        lines = ["| encoder | sacrebleu | tokenised | parameters |", "|---" * 4 + "|"]
        for (encoder, layers, input), cell in self.table_6.items():
            label = encoder if layers is None else f"{encoder}, layers {layers}, {input} input"
            counts = sorted({run.parameters for run in cell.runs if run.parameters is not None})
            ours = ", ".join(f"{count:,}" for count in counts) or "-"
            paper = f"{TABLE_6[encoder, layers, input][1]:,.1f}K"
            values = " | ".join(cell.format(name) for name in _METRICS)
            lines.append(f"| {label} | {values} | {paper} / {ours} |")
        return lines


def collect_paper_tables(folder: str | os.PathLike[str], *, test: str | None = None) -> PaperTables:
    """Read every run below ``folder``, up to three folders deep.

    Args:
        test: the test set to take (``scores.<test>.json``); default: the first of
            :data:`TEST_NAMES` that a run has, or its only one.

    Raises:
        ReportError: no run there, or a result that cannot be read.
    """
    folder = Path(folder)
    found = PaperTables(
        str(folder),
        {row: [Cell(number) for number in numbers] for row, numbers in TABLE_2.items()},
        {row: Cell(bleu) for row, (bleu, _) in TABLE_6.items()},
        [],
    )
    paths = {
        path.parent
        for depth in range(1, _DEEPEST + 1)
        for name in (RECORD, "settings.args", "average.json")
        for path in folder.glob("*/" * depth + name)
    }
    paths = {path for path in paths if is_run(path)}
    if not paths:
        raise ReportError(f"{folder} holds no run (a folder with {RECORD} or average.json).")
    for path in sorted(paths):
        name = str(path.relative_to(folder))
        try:
            run = read_run(path, name, test)
            cells = _cells(run, found)
        except OutsideError as reason:
            found.outside.append((name, str(reason)))
            continue
        for cell in cells:
            cell.add(run, found.outside)
    return found


def _cells(run: ScoredRun, tables: PaperTables) -> list[Cell]:
    """The cells that ``run`` answers to; raises :class:`OutsideError` where there are none."""
    settings = run.settings
    encoder, blocks = settings["encoder"], settings["blocks"]
    column = (_size(settings["arch"]), settings["source"], settings["target"])
    if column not in COLUMNS:
        pair = f"{settings['source']}-{settings['target']}"
        raise OutsideError(f"{settings['arch']}, {pair} is no column of Table 2")
    _check_protocol(settings)
    if encoder == "rnn":
        row = (encoder, *_rnn_shape(settings["options"]))
        if row in tables.table_6 and blocks == "all" and column == COLUMNS[0]:
            return [tables.table_6[row]]
        raise OutsideError(
            f"{' '.join(row)}, blocks {blocks}, {' '.join(column)} is not in Table 6"
        )
    if settings["options"]:
        raise OutsideError(f"has further options, {settings['options']}")
    if (blocks, encoder) not in TABLE_2:
        raise OutsideError(f"{encoder} is no row of the paper's tables")
    cells = [tables.table_2[blocks, encoder][COLUMNS.index(column)]]
    if (blocks, encoder, column) == ("all", "floater", COLUMNS[0]):
        cells.append(tables.table_6["floater", None, None])
    return cells


def _size(arch: str) -> str | None:
    shape = arch.removeprefix("floater_")
    return "base" if shape in BASE_SHAPES else "big" if shape.endswith("_big") else None


def _check_protocol(settings: dict[str, str]) -> None:
    """The tables are of warm starts, by each encoder's own target; runs of one cell are seeds."""
    default = DEFAULT_TARGETS.get(settings["encoder"])
    if settings["scratch"] == "yes":
        raise OutsideError("was trained from random parameters, the tables are of warm starts")
    if settings["base"] == "no":
        raise OutsideError("is without fairseq's sinusoid underneath")
    target = settings.get("position_target")
    if default is not None and target not in (None, default):
        raise OutsideError(f"has target {target}, the row is of {default}")


def _rnn_shape(options: str) -> tuple[str, str]:
    """Layers and input of ``--rnn-layers 2 --rnn-input scalar``; anything else is another model."""
    words = options.replace("=", " ").split()
    shape = {"--rnn-layers": "1", "--rnn-input": "scalar", **dict(zip(words[::2], words[1::2]))}
    if len(shape) > 2:
        raise OutsideError(f"has further options, {options}")
    return shape["--rnn-layers"], shape["--rnn-input"]
