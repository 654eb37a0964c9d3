"""The tables of README, docs/tasks.md and docs/results.md hold the numbers of docs/results."""

import csv
import re
import statistics

import pytest
from toy import ROOT

RESULTS = ROOT / "docs" / "results"
CELL = re.compile(r"(?P<mean>[\d.]+)(?: ±(?P<deviation>[\d.]+))?(?: \(\d+\))?")
XL = "FLOATER, relative (xl)"
# A label that begins with dots continues the one above it.
SYSTEMS = {
    "... starting as a slow rotation": f"{XL}, rotation, lr-scale 0.01",
    "... linear time": f"{XL}, linear time",
    "`rotation_flow`": "rotation_flow, hidden",
    "FLOATER, `qkv`": "FLOATER, qkv",
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
    for row in csv.DictReader((RESULTS / name).read_text(encoding="utf-8").splitlines()):
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
    head = "| system | cutoff 22 | 25 | 26 | 26, 5,003 updates | 30 |"
    values = seeds_in(
        "scan.csv",
        "all longer",
        lambda row: (row["exact match in %"], row["cutoff"], row["told length"]),
    )
    columns = (("", "22"), ("", "25"), ("", "26"), (", 5,003 updates", "26"), ("", "30"))
    for system, cells in rows_of(head):
        for cell, (longer_training, cutoff) in zip(cells, columns, strict=True):
            for part, told in zip(filter(None, cell.split("; ")), ("no", "yes")):
                assert_shows(part, values[f"{system}{longer_training}", cutoff, told])


# For each column the task (for reverse: whether distances are in cross-attention), and how it is trained.
TASKS = {
    "| reverse | with cross-attention | copy | duplicate | cartesian |": (
        "no; yes; copy; duplicate; cartesian"
    ),
    "| reverse | stretched | ... and cross-attention | copy | stretched | duplicate | stretched "
    "| cartesian, stretched |": (
        "no; no, stretched; yes, stretched; copy; copy, stretched; duplicate; duplicate, stretched; "
        "cartesian, stretched"
    ),
}


@pytest.mark.parametrize("head", TASKS)
def test_reverse_copy_duplicate_and_cartesian(head):
    values = seeds_in("copies.csv", "longer", lambda row: (row["task"], row["system"]))
    values |= seeds_in(
        "reverse.csv", "17 to 24 digits", lambda row: (row["cross-attention"], row["system"])
    )
    for system, cells in rows_of(f"| system {head}"):
        for cell, column in zip(cells, TASKS[head].split("; "), strict=True):
            task, comma, stretched = column.partition(",")
            if cell:
                assert_shows(cell, values[task, system + comma + stretched])


def numbers_in(name):
    """Return the text of a file of docs/results and, if it has seeds, the mean and deviation of each cell."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    head, *rows = csv.reader(text.splitlines())
    if "seed" not in head:
        return text
    at, values = head.index("seed"), {}
    for row in rows:
        for column, cell in enumerate(row[at + 1 :]):
            for part, number in enumerate(cell.split("; ")):
                if re.fullmatch(r"[\d.]+", number):
                    values.setdefault((*row[:at], column, part), []).append(float(number))
    for seeds in filter(lambda seeds: len(seeds) > 1, values.values()):
        mean, deviation = statistics.mean(seeds), statistics.stdev(seeds)
        text += "".join(f"\n{mean:.{d}f} ±{deviation:.{d}f}" for d in (1, 2))
    return text


@pytest.mark.parametrize(
    ("document", "heading"),
    [
        ("README.md", "Results"),
        ("docs/results.md", "Number words"),
        ("docs/results.md", "Positions in cross-attention"),
        ("docs/results.md", "What makes Transformer-XL carry over"),
        ("docs/results.md", "On documents that the model has not seen"),
        ("docs/results.md", "Cross-attention on legal text"),
        ("docs/results.md", "Language models"),
    ],
)
def test_means_over_seeds(document, heading):
    text = (ROOT / document).read_text(encoding="utf-8").replace("**", "")
    section = re.split(rf"^##+ {heading}$", text, flags=re.M)[1].partition("\n#")[0]
    every = [path.name for path in sorted(RESULTS.glob("*.csv"))]
    files = re.findall(r"results/(\w+\.csv)", section) or every
    known = "".join(map(numbers_in, files))
    means = re.findall(r"(?<=[|;] )[\d.]+ ±[\d.]+(?=;| \|)", section)
    assert means and [mean for mean in means if mean not in known] == []
