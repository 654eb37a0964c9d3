"""Put one fault at a time into a copy of the package, and see which test catches it.

    python tests/mutations.py                    # every fault of mutations.txt: a Markdown table
    python tests/mutations.py t5 attention.py    # those whose file or name has one of these words

No part of the test run: a fault takes seconds where it is caught, and minutes where it is not. Ends
with 1 where a fault survives that is not said to change nothing, or is no longer to be found.
"""

import contextlib
import functools
import importlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_suffix(".txt")
PACKAGE = "fairseq_floater"
SEPARATOR = " ;; "
EQUIVALENT = "changes nothing"
# Imported once, before the forks: all that takes seconds and has no fault in it.
SLOW_IMPORTS = (
    *("torch", "fairseq.models.transformer", "fairseq.sequence_generator", "fairseq.trainer"),
    *("pytest", "x_transformers.x_transformers", "rotary_embedding_torch"),
    *("transformers.models.t5.modeling_t5", "transformers.models.bloom.modeling_bloom"),
)
WITHOUT = [
    w for name in ("cacheprovider", "hypothesispytest", "xdist") for w in ("-p", f"no:{name}")
]
# What runs on a fault of a file that encoders share: an encoder of each kind, one in the first block too.
SHARED = "t5 or (rope or alibi or learned) and not input"

# Files whose cases of the contract go by another name than their own.
CASES_OF = {
    "relative_flow": "relative",
    "clock": "floater-all-hidden",
}


@dataclass(frozen=True)
class Fault:
    """One edit of a file, or a few that belong together: pairs of the text before and after."""

    file: str
    name: str
    edits: tuple[tuple[str, str], ...]
    why_equivalent: str = ""

    def put_into(self, text):
        """Raises ValueError where a text is not there, or more than once."""
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
        return text

    @property
    def stages(self):
        """Words for pytest, run after run: an encoder's tests and its contract, or a few encoders'."""
        room, stem = Path(self.file).parent.name, Path(self.file).stem
        folder = "tests/position_encoders"
        own = f"tests/{room}/test_{stem}.py"
        moved = [
            f"{folder}/test_{name}.py" for name in ("warp_law", "warp_before", "warp", "stretch")
        ]
        if stem.startswith("warp"):
            return [moved]
        if (ROOT / own).exists():
            equations = [f"{folder}/test_oracles.py", f"{folder}/test_options.py"]
            return (
                [own],
                [*equations, "-k", stem],
                ["tests/contract", "-k", CASES_OF.get(stem, stem)],
            )
        quick = ["tests/transformer/test_hooks.py", f"{folder}/test_rope.py"]
        contract = [f"{folder}/test_alibi.py", "tests/contract", "-k", SHARED]
        decoding = [f"tests/transformer/test_{name}.py" for name in ("decoding", "attention")]
        return quick, contract, moved, decoding


def read_faults(lines):
    """Read `[file]`, then a line a fault: name ;; old ;; new, perhaps more pairs, or `changes nothing`."""
    file, found = "", []
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith("[") and line.endswith("]"):
            file = line[1:-1]
        elif line.strip() and not line.startswith("#"):
            name, *texts = line.replace("\\n", "\n").split(SEPARATOR)
            why = ""
            if texts[-1].startswith(f"{EQUIVALENT}: "):
                why = texts.pop()
            assert texts and len(texts) % 2 == 0, line
            found.append(Fault(file, name, tuple(zip(texts[::2], texts[1::2])), why))
    return found


def first_failure(tree, words):
    """Run pytest in a fork; the first test that fails, or None."""
    receives, sends = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(tree, words, sends))
    child.start()
    sends.close()
    try:
        return receives.recv()
    except EOFError:
        return "the process died"
    finally:
        child.join()


def _run(tree, words, sends):
    import pytest

    class Watch:
        failed = None

        def pytest_collectreport(self, report):
            self.failed = self.failed or (report.nodeid if report.failed else None)

        def pytest_runtest_logreport(self, report):
            self.failed = self.failed or (report.nodeid if report.failed else None)

    os.chdir(tree)
    sys.path[:0] = [str(tree)]
    watch = Watch()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main(["-x", "-q", *WITHOUT, *words], plugins=[watch])
    sends.send(watch.failed if code in (0, 1) else watch.failed or f"pytest ended with {code}")


@functools.cache
def passes(tree, test):
    """Whether ``test`` passes where there is no fault."""
    return first_failure(tree, [test]) is None


def outcome(fault, tree):
    """Say what caught ``fault`` in the copy ``tree``, and whether all is well."""
    path = tree / PACKAGE / fault.file
    before = path.read_text(encoding="utf-8")
    try:
        text = fault.put_into(before)
    except ValueError as error:
        return f"not to be found: {error}", False
    if fault.why_equivalent:
        return fault.why_equivalent, True
    _write(path, text)
    try:
        failures = (first_failure(tree, words) for words in fault.stages)
        caught = next(filter(None, failures), None)
    finally:
        _write(path, before)
    if caught:
        if ".py" in caught and not passes(tree, caught):
            return f"`{caught}`, which fails without a fault", False
        return f"`{caught.partition('::')[2] or caught}`", True
    return "**survives**", False


def _write(path, text):
    """Write a module and forget its bytecode, which a change within the same second would leave valid."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def main(words):
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.modules["torchaudio"] = None  # see oracles.py
    for name in SLOW_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with LIST.open(encoding="utf-8") as lines:
        faults = read_faults(lines)
    chosen = [f for f in faults if not words or any(w in f"{f.file} {f.name}" for w in words)]
    print("| file | fault | caught by |", "|---|---|---|", sep="\n", flush=True)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in (PACKAGE, "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "stored")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", tree)
        for fault in chosen:
            said, is_good = outcome(fault, tree)
            good = good and is_good
            print(f"| {fault.file} | {fault.name} | {said} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
