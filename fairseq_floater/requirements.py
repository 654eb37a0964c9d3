"""Requirements of the package, and one sentence where Python, torch or fairseq does not meet them.

Written so that an older Python can import it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from fairseq_floater.errors import UserError, first_line

# Distributions that decide on results: `floater info` shows their versions. fairseq comes as one of two.
_SAME = ("torch", "fairseq", "torchdiffeq", "numpy", "sacrebleu", "sentencepiece", "omegaconf")
DECISIVE = (*_SAME, "hydra-core")
# Distribution -> the module that it brings, fairseq's own requirements among them.
PACKAGES = {
    **{name: name for name in _SAME},
    **{name: name for name in ("sacremoses", "num2words", "matplotlib", "tqdm", "psutil")},
    **{name: name for name in ("safetensors", "tokenizers", "scipy", "jinja2")},
    **{"hydra-core": "hydra", "subword-nmt": "subword_nmt", "scikit-learn": "sklearn"},
    "pillow": "PIL",
}
# Module -> the extra of setup.py that brings it.
EXTRAS = {
    **dict.fromkeys(("sacremoses", "subword_nmt"), "wmt14"),
    **dict.fromkeys(("tokenizers", "safetensors", "sklearn", "scipy"), "roberta"),
    **dict.fromkeys(("jinja2", "PIL"), "page"),
}
FAIRSEQS = ("fairseq-fixed", "fairseq")

# setup.py says it to pip; a checkout that `--user-dir` names is never installed.
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
NEEDED = (
    "Python 3.11, 3.12 or 3.13 with fairseq-fixed 0.12.3.1 (`bash scripts/setup.sh` installs it)"
)


class UnsupportedError(UserError, ImportError):
    """This Python or this fairseq is not one that the package runs on."""


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def fairseq_found() -> str:
    """Return the name and version of the fairseq that is installed, as one of two distributions."""
    if importlib.util.find_spec("fairseq") is None:
        return "no fairseq"
    installed = (f"{name} {version}" for name in FAIRSEQS if (version := version_of(name)))
    return next(installed, "a fairseq of unknown version")


@contextlib.contextmanager
def extras_named() -> Iterator[None]:
    """Where a module of an extra is missing, raise `UnsupportedError` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UnsupportedError(
            f"{error.name} is not installed: pip install 'fairseq_floater[{extra}]' brings it."
        ) from None


def check_python() -> None:
    """Raise `UnsupportedError` on a Python that is too old.

    Official fairseq 0.12.2 runs on Python 3.10 and older alone, so this refuses it as well.
    """
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but this is Python {platform.python_version()} with "
            f"{fairseq_found()}."
        )


def check_torch() -> None:
    """Raise `UnsupportedError` on a torch that is too old.

    On 2.4 the tests fail: attention gives NaN for sentences with padding before them, and no checkpoint
    can be read, as the allow-list has another form.
    """
    version = version_of("torch")
    if version is None:
        return  # fairseq names it when it is imported
    release = version.split("+")[0].split(".")[:2]
    if all(part.isdigit() for part in release) and tuple(map(int, release)) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedError(
            f"fairseq_floater needs torch {oldest} or newer, but this is torch {version}."
        )


def check_fairseq() -> None:
    """Raise `UnsupportedError` without fairseq, or with one that cannot be imported here."""
    check_torch()
    try:
        importlib.import_module("fairseq")
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise  # names what is missing of fairseq's own requirements
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but there is no fairseq."
        ) from None
    except Exception as error:  # official fairseq: a ValueError of the dataclasses module
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but found {fairseq_found()}, which cannot be imported "
            f"by Python {platform.python_version()}: {first_line(error)}."
        ) from error


def cpu_name() -> str:
    """Return the processor's name for people, or its kind where the system tells no more."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Return the versions of Python, the plugin and what decides on results, by distribution."""
    names = ("fairseq_floater", *FAIRSEQS, *DECISIVE)
    installed = {name: version for name in names if (version := version_of(name))}
    return {"python": platform.python_version(), **installed}
