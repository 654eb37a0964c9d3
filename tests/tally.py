"""Count for the tables of docs/reliability.md; `pytest --tables` prints them as Markdown.

Not a test file. Tests call :func:`count`. `conftest.py` takes the counts with each test's report, also from
the worker processes of pytest-xdist.
"""

from collections import Counter, defaultdict

_counts = Counter()  # of the test that runs: {(table, row, column): number}


def count(table, row, column, number=1):
    """Count for ``table``, one of :data:`TABLES`; ``row`` is the text left of the row's numbers."""
    _counts[table, row, column] += number


def take():
    """Return [[table, row, column, number], ...] since the last call."""
    taken = [[*place, number] for place, number in _counts.items()]
    _counts.clear()
    return taken


def markdown(counts):
    """Yield the tables' lines; ``counts`` are rows of :func:`take`, each with whether the test failed."""
    tables = defaultdict(lambda: defaultdict(Counter))
    for table, row, column, number, failed in counts:
        tables[table][row].update({column: number, "failed": failed})
    for table, rows in tables.items():
        header, cells = TABLES[table]
        yield f"| {' | '.join(header)} |"
        yield f"|{'---|' * len(header)}"
        for row, found in rows.items():
            yield f"| {' | '.join([row, *cells(found)])} |"
        if table != "disks":
            yield f"| {' | '.join(['in all', *cells(sum(rows.values(), Counter()))])} |"
        yield ""


def _outcome(found):
    return "**failed**" if found["failed"] else "nothing lost"


def _kills(found):
    killed, told = found["SIGKILL"], found["SIGTERM"]
    return [f"{killed + told:,} ({killed} SIGKILL, {told} SIGTERM)", _outcome(found)]


def _disks(found):
    tools = [name for name in found if name != "failed"]
    return [", ".join(tools), str(sum(found[name] for name in tools)), _outcome(found)]


def _inputs(found):
    return [
        f"{found['tried']:,}",
        f"{found['accepted']:,}",
        "failed" if found["failed"] else "none",
    ]


TABLES = {
    "kills": (("tool", "kills", "outcome"), _kills),
    "disks": (("fault", "what follows", "tools", "times", "outcome"), _disks),
    "inputs": (("target", "inputs", "accepted", "failed"), _inputs),
}
