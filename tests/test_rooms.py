"""Check which subpackages ("rooms") import which.

The imports are read from the source, including those inside functions.
"""

import ast
import functools
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from toy import PACKAGE, run

from fairseq_floater.verbs import VERBS

# From the lowest room to the highest.
MAY_IMPORT = {
    "ode": (),
    "position_encoders": ("ode",),
    "transformer": ("ode", "position_encoders"),
    "checkpoints": ("ode", "position_encoders", "transformer"),
    "data": (),
    "evaluation": ("data",),
    "experiments": (
        *("ode", "position_encoders", "transformer", "checkpoints"),
        *("data", "evaluation"),
    ),
    "results": (
        *("ode", "position_encoders", "transformer", "checkpoints"),
        *("data", "evaluation", "experiments"),
    ),
}
# Root modules that every room but `ode` may import; they import no room.
SMALL = ("errors", "figures", "files", "records", "requirements", "verbs", "version")
# Entry points: the package itself, which registers the models, and two for the command line.
FACE = ("", "__main__", "cli")


def module_of(path):
    """`ode.solve` for fairseq_floater/ode/solve.py; a package's own name for its __init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}
MODULES_BY_NAME = sorted(MODULES)


def imported(nodes):
    """The modules of the package that import statements among ``nodes`` name."""
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, inner = name.partition(".")
            if package == PACKAGE.name:
                yield inner if inner in MODULES else inner.rpartition(".")[0]


def at_import(tree):
    """The statements that run when a module is imported, and those for type checkers."""
    waiting = list(tree.body)
    for node in waiting:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node
            waiting += ast.iter_child_nodes(node)


@functools.cache
def imports(statements):
    """{module: modules of the package that it imports}."""
    return {
        module: set(imported(statements(ast.parse(path.read_text(encoding="utf-8")))))
        for module, path in MODULES.items()
    }


def is_allowed(module, other):
    room, other_room = module.split(".")[0], other.split(".")[0]
    if module == "":
        return other_room in (*SMALL, "transformer", "checkpoints")  # what it registers
    if room in FACE:
        return other_room in (*SMALL, "cli")
    if room in SMALL:
        return other_room in SMALL
    if room == other_room:
        return True
    return other_room in MAY_IMPORT[room] or (other_room in SMALL and room != "ode")


def test_every_file_lies_in_a_room_or_is_of_the_root():
    at_root = {path.stem for path in PACKAGE.glob("*.py")}
    assert at_root == {*SMALL, *FACE, "__init__"} - {""}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(MAY_IMPORT)


def test_a_module_imports_no_room_above_it():
    found = {
        module: refused
        for module, others in imports(ast.walk).items()
        if (refused := [other for other in sorted(others) if not is_allowed(module, other)])
    }
    assert found == {}


@pytest.mark.parametrize(
    ("module", "other"),
    [
        *(("ode.solve", "files"), ("ode.solve", "position_encoders.base")),
        ("position_encoders", "transformer.shapes"),
        ("transformer.encoder", "checkpoints.reading"),
        *(("checkpoints.donor", "experiments.system"), ("data.prepare", "evaluation.lines")),
        *(("evaluation.bleu", "ode"), ("experiments.stages", "results.runs")),
        *(("files", "data.cli"), ("cli", "data.cli"), ("results.cli", "cli"), ("", "results")),
    ],
)
def test_the_rule_refuses(module, other):
    assert not is_allowed(module, other)


def circle(graph):
    """Return modules that import each other in a cycle, or None."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_no_modules_import_each_other():
    assert circle(imports(at_import)) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None


def test_each_verb_is_behind_the_door_of_a_room():
    assert {verb.module.rpartition(".")[2] for verb in VERBS.values()} == {"cli"}
    assert {verb.module for verb in VERBS.values()} == {m for m in MODULES if m.endswith(".cli")}


def test_text_needs_no_torch():
    """Importing all of data/ and evaluation/ as `floater` does imports neither torch nor fairseq."""
    text = [m for m in MODULES_BY_NAME if m.split(".")[0] in ("data", "evaluation")]
    names = [f"{PACKAGE.name}.{module}" for module in text]
    code = (
        "import importlib, sys; sys.argv = ['floater']\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print({'torch', 'fairseq'} & {*sys.modules})"
    )
    assert run([sys.executable, "-c", code], new=True).stdout == "set()\n"
