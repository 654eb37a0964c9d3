"""Show Tables 2 and 6 of the paper beside what a folder of runs has scored.

The paper's BLEU is tokenised, on newstest2014, for German after splitting compounds: the line
"tokenised" is on its scale, sacreBLEU is not. Runs that belong in no cell are listed with the reason.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_floater.errors import ReportError
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2, TABLE_6
from fairseq_floater.experiments.run_folder import RECORD
from fairseq_floater.position_encoders.registry import DEFAULT_TARGETS
from fairseq_floater.records import markdown_table
from fairseq_floater.results.runs import Run, read_run, read_settings, refuse_a_run

# Where a run has several test sets, the first of these is the paper's.
TEST_NAMES = ("newstest2014", "test")
BASE_SHAPES = ("transformer", "transformer_wmt_en_de")
# Runs of table2.sh, seen from the folder of all experiments: table2/<config>/seed-1/<run>.
_DEEPEST = 4
_METRICS = ("sacrebleu", "tokenised")
_RUN_HEADS = (
    *("run", "seed", *_METRICS, "sentences", "encoder parameters"),
    *("training hours", "tokens an update"),
)


class OutsideError(Exception):
    """The reason why a run is in none of the tables."""


class Scored(NamedTuple):
    """A run and the test set of it that the tables show."""

    run: Run
    test: str

    @property
    def text(self) -> tuple[str, int | None]:
        """Tell texts apart: which of WMT14's it is, if any, and the sentences of the test set."""
        return self.run.settings.get("wmt14", ""), self.run.scores[self.test].get("sentences")

    def score(self, name: str) -> float | None:
        """Return ``sacrebleu`` or ``tokenised``."""
        return self.run.metric(name, self.test).get("score")

    def cells(self) -> list[str]:
        """Return a line of the table of runs."""
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
    """A number of the paper and the runs that answer to it."""

    paper: float
    found: list[Scored] = field(default_factory=list)

    @property
    def is_papers_test(self) -> bool:
        """Return whether every run was scored on as many sentences as the paper's test set has."""
        return all(run.is_newstest2014(test) for run, test in self.found)

    def ours(self, name: str) -> dict[str, Any] | None:
        """Return mean, standard deviation over seeds (None for one run) and number of runs."""
        scores = [score for one in self.found if (score := one.score(name)) is not None]
        if not scores:
            return None
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        return {"mean": statistics.fmean(scores), "spread": spread, "runs": len(scores)}

    def format(self, name: str) -> str:
        """Return ``paper / ours``, with a star where ours is of another test set."""
        ours = self.ours(name)
        if ours is None:
            return f"{self.paper} / -"
        spread = "" if ours["spread"] is None else f" ± {ours['spread']:.2f} (n = {ours['runs']})"
        return f"{self.paper} / {ours['mean']:.2f}{spread}{'' if self.is_papers_test else ' *'}"

    def to_json_dict(self) -> dict[str, Any]:
        """Return the paper's number and ours as plain JSON values."""
        return {
            "paper": self.paper,
            **{name: self.ours(name) for name in _METRICS},
            "runs": [run.name for run, _ in self.found],
            "seeds": [run.seed for run, _ in self.found],
            "papers_test_set": self.is_papers_test if self.found else None,
        }


@dataclass
class PaperTables:
    """Both tables, filled as far as there are runs; ``outside`` holds (run, reason)."""

    folder: str
    table_2: dict[tuple[str, str], list[PaperCell]]
    table_6: dict[tuple[str, str | None, str | None], PaperCell]
    outside: list[tuple[str, str]]

    @property
    def cells(self) -> list[PaperCell]:
        """Return the cells of both tables."""
        return [*(c for row in self.table_2.values() for c in row), *self.table_6.values()]

    def to_json_dict(self) -> dict[str, Any]:
        """Return every cell as plain JSON values."""
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
                | {"parameters": [run.parameters for run, _ in cell.found]}
                | cell.to_json_dict()
                for (encoder, layers, input), cell in self.table_6.items()
            ],
            "outside": [{"run": run, "reason": reason} for run, reason in self.outside],
        }

    def format_text(self) -> str:
        """Return Markdown: Table 2, Table 6, signatures, and what is in neither."""
        cells = self.cells
        lines = ["Table 2, BLEU: paper / ours", "", *self._table_2()]
        lines += ["", "Table 6, En-De, base: paper / ours", "", *self._table_6(), ""]
        lines += [
            "The paper's BLEU is tokenised (German: compounds split), as the lines so named; "
            "sacreBLEU is another scale. ± is the standard deviation of n runs.",
            "The paper counts the parameters of one dynamics or recurrence; ours are all that the "
            "encoder adds.",
        ]
        found = list({one.run.name: one for cell in cells for one in cell.found}.values())
        if any("*" in cell.format(name) for cell in cells for name in _METRICS):
            lines.append(
                "Starred: of another test set than newstest2014, not comparable with the paper."
            )
        metrics = [(name, run.metric(name, test)) for name in _METRICS for run, test in found]
        lines += sorted({f"{name}: {metric['signature']}" for name, metric in metrics if metric})
        if found:
            table = markdown_table(_RUN_HEADS, [one.cells() for one in found])
            lines += ["", "What they are of", "", *table]
        if self.outside:
            lines += ["", "Not in the table:", *(f"- {run}: {why}" for run, why in self.outside)]
        return "\n".join(lines)

    def _table_2(self) -> list[str]:
        heads = [f"{size} {source.title()}-{target.title()}" for size, source, target in COLUMNS]
        rows = [
            [blocks, encoder, name, *(cell.format(name) for cell in cells)]
            for (blocks, encoder), cells in self.table_2.items()
            for name in _METRICS
        ]
        return markdown_table(["blocks", "encoder", "BLEU", *heads], rows)

    def _table_6(self) -> list[str]:
        rows = []
        for (encoder, layers, input), cell in self.table_6.items():
            label = encoder if layers is None else f"{encoder}, layers {layers}, {input} input"
            counts = sorted({run.parameters for run, _ in cell.found if run.parameters is not None})
            ours = ", ".join(f"{count:,}" for count in counts) or "-"
            paper = f"{TABLE_6[encoder, layers, input][1]:,.1f}K"
            rows.append([label, *(cell.format(name) for name in _METRICS), f"{paper} / {ours}"])
        return markdown_table(["encoder", *_METRICS, "parameters"], rows)


def collect_paper_tables(folder: str | os.PathLike[str], *, test: str | None = None) -> PaperTables:
    """Read every run below ``folder``, up to four folders deep.

    Args:
        test: the test set to take (``scores.<test>.json``); default: the first of
            :data:`TEST_NAMES` that a run has, or its only one.

    Raises:
        ReportError: no run there, or a result that cannot be read.
    """
    folder = Path(folder)
    refuse_a_run(folder)
    tables = PaperTables(
        str(folder),
        {row: [PaperCell(number) for number in numbers] for row, numbers in TABLE_2.items()},
        {row: PaperCell(bleu) for row, (bleu, _) in TABLE_6.items()},
        [],
    )
    paths = {
        path.parent
        for depth in range(1, _DEEPEST + 1)
        for name in (RECORD, "average.json")
        for path in folder.glob("*/" * depth + name)
    }
    # A donor has a record too, but no settings of its own.
    paths = {p for p in paths if (p / "average.json").exists() or _is_translation(p)}
    if not paths:
        raise ReportError(f"{folder} holds no run with results (a folder with average.json).")
    runs = [read_run(path, str(path.relative_to(folder))) for path in sorted(paths)]
    # WMT14 first: a cell is of the text of its first run.
    for run in sorted(runs, key=lambda run: not run.settings.get("wmt14")):
        try:
            scored = Scored(run, _chosen_test(run, test))
            cells = _cells(run, tables)
            for other in (other for cell in cells for other in cell.found):
                _check_same_experiment(scored, other)
        except OutsideError as reason:
            tables.outside.append((run.name, str(reason)))
            continue
        for cell in cells:
            cell.found.append(scored)
    tables.outside.sort()
    return tables


def _check_same_experiment(ours: Scored, other: Scored) -> None:
    """Raise OutsideError unless two runs are seeds of one system on one text."""
    if ours.text != other.text:
        raise OutsideError(f"is of another text than {other.run.name} in its cell")
    if ours.run.seed == other.run.seed:
        raise OutsideError(f"seed {ours.run.seed} of its cell is {other.run.name}")


def _is_translation(folder: Path) -> bool:
    settings = read_settings(folder)
    return bool(settings) and "experiment" not in settings


def _chosen_test(run: Run, test: str | None) -> str:
    """Return the test set to show; raises OutsideError for a run that says too little."""
    if not run.settings:
        raise OutsideError("has no settings")
    for key in ("arch", "source", "target", "encoder", "blocks"):
        if key not in run.settings:
            raise OutsideError(f"its settings lack {key}")
    tests = tuple(run.scores)
    if not tests:
        raise OutsideError("is not scored yet")
    wanted = (test,) if test is not None else TEST_NAMES + tests * (len(tests) == 1)
    for name in wanted:
        if name in tests:
            return name
    raise OutsideError(f"has {', '.join(sorted(tests))}, not {test or ' or '.join(TEST_NAMES)}")


def _cells(run: Run, tables: PaperTables) -> list[PaperCell]:
    """Return the cells that ``run`` answers to; raises OutsideError where there are none."""
    settings = run.settings
    encoder, blocks, options = (settings[key] for key in ("encoder", "blocks", "options"))
    shape = settings["arch"].removeprefix("floater_")
    size = "base" if shape in BASE_SHAPES else "big" if shape.endswith("_big") else None
    column = (size, settings["source"], settings["target"])
    if column not in COLUMNS:
        pair = f"{settings['source']}-{settings['target']}"
        raise OutsideError(f"{settings['arch']}, {pair} is no column of Table 2")
    _check_protocol(settings)
    if encoder == "rnn":
        row = (encoder, *_rnn_shape(options))
        if row in tables.table_6 and blocks == "all" and column == COLUMNS[0]:
            return [tables.table_6[row]]
        raise OutsideError(
            f"{' '.join(row)}, blocks {blocks}, {' '.join(column)} is not in Table 6"
        )
    if options:
        raise OutsideError(f"has further options, {options}")
    if (blocks, encoder) not in TABLE_2:
        raise OutsideError(f"{encoder} is no row of the paper's tables")
    cells = [tables.table_2[blocks, encoder][COLUMNS.index(column)]]
    if (blocks, encoder, column) == ("all", "floater", COLUMNS[0]):
        cells.append(tables.table_6["floater", None, None])
    return cells


def _check_protocol(settings: dict[str, str]) -> None:
    """Raise OutsideError for what is no warm start with the encoder's own target."""
    default = DEFAULT_TARGETS.get(settings["encoder"])
    if settings["scratch"] == "yes":
        raise OutsideError("was trained from random parameters, the tables are of warm starts")
    if settings["base"] == "no":
        raise OutsideError("is without fairseq's sinusoid underneath")
    target = settings.get("position_target")
    if default is not None and target not in (None, default):
        raise OutsideError(f"has target {target}, the row is of {default}")


def _rnn_shape(options: str) -> tuple[str, str]:
    """Read layers and input of ``--rnn-layers 2 --rnn-input scalar``; else raise OutsideError."""
    words = options.replace("=", " ").split()
    shape = {"--rnn-layers": "1", "--rnn-input": "scalar", **dict(zip(words[::2], words[1::2]))}
    if len(shape) > 2:
        raise OutsideError(f"has further options, {options}")
    return shape["--rnn-layers"], shape["--rnn-input"]
