"""List every name of fairseq that the package uses; another source of fairseq must have them all.

    python tests/fairseq_symbols.py     # one name a line; exit code 1 if the installed fairseq lacks one

The names are imports, attributes of imported modules, and the methods of fairseq's classes that the
package's classes override.
"""

import ast
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import fairseq_floater

PACKAGE = Path(fairseq_floater.__file__).parent
ROOTS = ("fairseq", "fairseq_cli")


def imported(source: str) -> set[str]:
    """Return the dotted names of fairseq that a module's source imports or reads off an imported module."""
    tree = ast.parse(source)
    names, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS:
            for alias in node.names:
                names.add(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                if root in ROOTS:
                    names.add(alias.name)
                    modules[alias.asname or root] = alias.name if alias.asname else root
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            base = modules.get(node.value.id)
            if base and inspect.ismodule(lookup(base)):
                names.add(f"{base}.{node.attr}")
    return names


def overridden() -> set[str]:
    """Return the methods of fairseq's classes that classes of the package override."""
    names = set()
    for info in pkgutil.walk_packages([str(PACKAGE)], "fairseq_floater."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ != info.name:
                continue
            for base in cls.__mro__[1:]:
                if base.__module__.split(".")[0] in ROOTS:
                    shared = vars(cls).keys() & vars(base).keys()
                    methods = {name for name in shared if callable(getattr(base, name))}
                    names |= {f"{base.__module__}.{base.__qualname__}.{name}" for name in methods}
    return names


def lookup(name: str) -> object | None:
    """Return the object of a dotted name in the installed fairseq, or None."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for attribute in parts[cut:]:
            value = getattr(value, attribute, None)
        return value
    return None


def used() -> set[str]:
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return overridden().union(*map(imported, sources))


if __name__ == "__main__":
    missing = []
    for symbol in sorted(used()):
        exists = lookup(symbol) is not None
        print(symbol if exists else f"{symbol}  MISSING")
        missing += [] if exists else [symbol]
    sys.exit(bool(missing))
