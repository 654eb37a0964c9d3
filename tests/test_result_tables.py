"""The tables of docs/tasks.md hold the means and deviations of the seeds in docs/results."""

import csv
import re
import statistics

from toy import ROOT

CELL = re.compile(r"(?P<mean>[\d.]+)(?: ±(?P<deviation>[\d.]+))?(?: \(\d+\))?")
XL = "FLOATER, relative (xl)"
# A label that begins with dots continues the one above it.
SYSTEMS = {
    "... starting as a slow rotation": f"{XL}, rotation, lr-scale 0.01",
    "... linear time": f"{XL}, linear time",
}


def rows_of(head):
    """Yield system and cells of each row of the table with this head in docs/tasks.md, but published ones."""
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    _, found, after = plain.partition(head)
    assert found, head
    for line in after.partition("\n\n")[0].splitlines()[2:]:
        system, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not system.startswith("*"):
            yield SYSTEMS.get(system, system), cells


def seeds_in(name, column, key):
    """Return the values of seeds 1 to 3 in ``column`` of a file of docs/results by ``key`` of a row."""
    values = {}
    with (ROOT / "docs" / "results" / name).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["seed"] in ("1", "2", "3"):
                values.setdefault(key(row), []).append(float(row[column]))
    return values


def assert_shows(cell, values):
    """Each number of ``cell`` is that of ``values``, with as many digits as it has."""
    shown = CELL.fullmatch(cell)
    assert shown and (shown["deviation"] is None) == (len(values) == 1), cell
    numbers = [(shown["mean"], statistics.mean(values))]
    if len(values) > 1:
        numbers.append((shown["deviation"], statistics.stdev(values)))
    for text, number in numbers:
        rounding = 0.5 * 10.0 ** -len(text.partition(".")[2])
        assert abs(float(text) - number) <= rounding + 0.05, (cell, values)


def test_scan():
    head = "| system | cutoff 22 | 26 | 26, 5,003 updates | 30 |"
    values = seeds_in(
        "scan.csv",
        "all longer",
        lambda row: (row["exact match in %"], row["cutoff"], row["told length"]),
    )
    columns = (("", "22"), ("", "26"), (", 5,003 updates", "26"), ("", "30"))
    for system, cells in rows_of(head):
        for cell, (longer_training, cutoff) in zip(cells, columns, strict=True):
            for part, told in zip(filter(None, cell.split("; ")), ("no", "yes")):
                assert_shows(part, values[f"{system}{longer_training}", cutoff, told])


def test_reverse_copy_duplicate_and_cartesian():
    head = "| system | reverse | with cross-attention | copy | duplicate | cartesian |"
    values = seeds_in("copies.csv", "longer", lambda row: (row["task"], row["system"]))
    values |= seeds_in(
        "reverse.csv", "17 to 24 digits", lambda row: (row["cross-attention"], row["system"])
    )
    columns = ("no", "yes", "copy", "duplicate", "cartesian")
    for system, cells in rows_of(head):
        for cell, column in zip(cells, columns, strict=True):
            if cell:
                assert_shows(cell, values[column, system])
