"""Test other versions of Python, torch and fairseq, each in an environment of its own.

    nox --list
    nox --envdir /tmp/nox -s "tests(python='3.12', torch='2.13.0')"
    nox --envdir /tmp/nox -s tests -- tests/ode        # other tests than the ones below

A Python that is not installed is skipped. torch from PyPI brings gigabytes of CUDA libraries.
"""

from pathlib import Path

import nox

ROOT = Path(__file__).parent
TORCH = "2.13.0"
OLDEST_TORCH = "2.6.0"  # the oldest version that setup.py allows
FAIRSEQ = "fairseq-fixed==0.12.3.1"
OFFICIAL = "fairseq==0.12.2"
# Tests that another version of Python or torch could break. They take some minutes.
TESTS = (
    *("contract/test_contract.py", "contract/test_kept_tables.py", "contract/test_precision.py"),
    *("transformer/test_fairseq_compat.py", "ode/test_ode.py"),
    *("position_encoders/test_rnn.py", "position_encoders/test_oracles.py"),
    *("checkpoints/test_warm_start.py", "checkpoints/test_stored.py"),
    *("test_requirements.py", "test_cli.py"),
)

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False


@nox.session
@nox.parametrize(
    "python,torch",
    [(f"3.{minor}", TORCH) for minor in range(11, 15)]
    + [("3.11", "2.14.1"), ("3.11", OLDEST_TORCH)],
)
def tests(session: nox.Session, torch: str) -> None:
    """Run the tests, with fairseq built against the installed torch as in scripts/setup.sh."""
    session.install(f"torch=={torch}", "cython", "setuptools", "wheel")
    needs = ("--requirement", f"{ROOT}/scripts/fairseq.txt")
    session.install("--no-build-isolation", "--no-deps", *needs)
    session.install("--no-build-isolation", "--no-deps", FAIRSEQ)
    session.install("--no-build-isolation", "--editable", f"{ROOT}[wmt14,roberta,page,dev]")
    words = session.posargs or [f"tests/{name}" for name in TESTS]
    session.run("python", "-m", "pytest", "-m", "not slow", *words, env={"OMP_NUM_THREADS": "1"})


@nox.session
@nox.parametrize("python", ["3.11", "3.10", "3.9"])
def refused(session: nox.Session) -> None:
    """Check that import refuses official fairseq and pip an old Python, each in one sentence."""
    # Official fairseq is older than Cython 3, and newer pips refuse the form of its requirements. It is
    # installed before torch: if torch is there, it tries to build sources that its archive lacks.
    session.install("numpy", "cython<3", "setuptools<81", "wheel")
    session.install("--no-build-isolation", "--no-deps", OFFICIAL)
    if session.python == "3.11":
        session.install(
            f"torch=={TORCH}", "regex", "sacrebleu", "tqdm", "bitarray", "cffi", "PyYAML"
        )
        session.install("--no-build-isolation", "omegaconf<2.1", "hydra-core<1.1")
    fails = {"silent": True, "success_codes": [1], "env": {"PYTHONPATH": str(ROOT)}}
    said = session.run("python", "-c", "import fairseq_floater", **fails)
    if "UnsupportedError: fairseq_floater needs" not in said.strip().splitlines()[-1]:
        session.error(f"it was not refused in a sentence: {said}")
    if session.python != "3.11":
        said = session.run("python", "-m", "pip", "install", "--no-deps", str(ROOT), **fails)
        if "requires a different Python" not in said:
            session.error(f"pip did not refuse it: {said}")
