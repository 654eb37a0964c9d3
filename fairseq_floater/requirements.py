"""Check Python, torch and fairseq against the requirements of the package, and report versions.

An older Python must be able to import this module.
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
from fairseq_floater.version import __version__

# Distributions whose versions affect results; `floater info` shows them. fairseq may be either of FAIRSEQS.
_SAME = ("torch", "fairseq", "torchdiffeq", "numpy", "sacrebleu", "sentencepiece", "omegaconf")
DECISIVE = (*_SAME, "hydra-core")
# Distribution -> its module. fairseq's own requirements are included.
PACKAGES = {
    **{name: name for name in _SAME},
    **{name: name for name in ("sacremoses", "num2words", "matplotlib", "tqdm", "psutil")},
    **{name: name for name in ("safetensors", "tokenizers", "scipy", "jinja2")},
    **{"hydra-core": "hydra", "subword-nmt": "subword_nmt", "scikit-learn": "sklearn"},
    "pillow": "PIL",
}
# Module -> the extra of setup.py that installs it.
EXTRAS = {
    **dict.fromkeys(("sacremoses", "subword_nmt"), "wmt14"),
    **dict.fromkeys(("tokenizers", "safetensors", "sklearn", "scipy"), "roberta"),
    **dict.fromkeys(("jinja2", "PIL"), "page"),
}
FAIRSEQS = ("fairseq-fixed", "fairseq")

# setup.py states the same for pip, but pip never installs a checkout that `--user-dir` names.
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)
NEEDED = "Python 3.11 to 3.14 with fairseq-fixed 0.12.3.1 (`bash scripts/setup.sh` installs and mends it)"


class UnsupportedError(UserError, ImportError):
    """Python, torch, fairseq or an extra is missing or not supported."""


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_fairseq() -> str:
    """Return the name and version of the installed fairseq, for messages."""
    if importlib.util.find_spec("fairseq") is None:
        return "no fairseq"
    installed = (f"{name} {version}" for name in FAIRSEQS if (version := version_of(name)))
    return next(installed, "a fairseq of unknown version")


@contextlib.contextmanager
def extras_named() -> Iterator[None]:
    """If a module of an extra is missing, raise `UnsupportedError` with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UnsupportedError(
            f"{error.name} is not installed: pip install 'fairseq_floater[{extra}]' installs it."
        ) from None


def check_python() -> None:
    """Raise `UnsupportedError` on a Python that is too old.

    Official fairseq 0.12.2 runs only on Python 3.10 and older, so this check refuses it too.
    """
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but this is Python {platform.python_version()} with "
            f"{installed_fairseq()}."
        )


def check_torch() -> None:
    """Raise `UnsupportedError` on a torch that is too old.

    The tests fail on torch 2.4: attention gives NaN for left-padded sentences, and no checkpoint can be
    read because the allow-list has another form.
    """
    version = version_of("torch")
    if version is None:
        return  # importing fairseq names what is missing
    release = version.split("+")[0].split(".")[:2]
    if all(part.isdigit() for part in release) and tuple(map(int, release)) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UnsupportedError(
            f"fairseq_floater needs torch {oldest} or newer, but this is torch {version}."
        )


def check_fairseq() -> None:
    """Raise `UnsupportedError` if torch is too old, or fairseq is missing or cannot be imported."""
    check_torch()
    try:
        importlib.import_module("fairseq")
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise  # the error names the missing requirement of fairseq
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but there is no fairseq."
        ) from None
    except Exception as error:  # official fairseq: a ValueError of the dataclasses module
        raise UnsupportedError(
            f"fairseq_floater needs {NEEDED}, but found {installed_fairseq()}, which cannot be imported "
            f"by Python {platform.python_version()}: {first_line(error)}."
        ) from error


def cpu_name() -> str:
    """Return the model name of the processor, or its architecture if the system gives no name."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Return the versions of Python, the plugin and the packages that affect results."""
    installed = {name: v for name in (*FAIRSEQS, *DECISIVE) if (v := version_of(name))}
    # The plugin's own: another copy, or an older version of this one, may be installed.
    return {"python": platform.python_version(), "fairseq_floater": __version__, **installed}
