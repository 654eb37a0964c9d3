"""The noxfile, read with a stand-in for nox: what its sessions install and run."""

import runpy
import sys
from importlib.metadata import requires
from types import SimpleNamespace

import pytest
from toy import ROOT


class Session:
    """Keeps the commands that it is given; `said` is the answer to the silent ones."""

    posargs = ()

    def __init__(self, python="3.11", said=""):
        self.python, self.said, self.installed, self.commands = python, said, [], []

    def install(self, *words):
        self.installed.append(words)

    def run(self, *words, **options):
        self.commands.append(words)
        return self.said

    def error(self, message):
        raise AssertionError(message)


@pytest.fixture()
def noxfile(monkeypatch):
    stand_in = SimpleNamespace(session=lambda f: f, parametrize=lambda *_: lambda f: f)
    stand_in.options, stand_in.Session = SimpleNamespace(), Session
    monkeypatch.setitem(sys.modules, "nox", stand_in)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "noxfile.py")))


def test_the_versions_are_those_of_the_set_up(noxfile):
    setup, script = ((ROOT / p).read_text() for p in ("setup.py", "scripts/setup.sh"))
    assert f'"torch>={noxfile.OLDEST_TORCH.removesuffix(".0")}"' in setup
    assert f"torch=={noxfile.TORCH}" in script
    assert noxfile.FAIRSEQ in script


def test_fairseq_comes_without_torchaudio(noxfile):
    """PyPI's torchaudio does not load beside a torch for CPUs, which ends `import transformers`."""
    listed = (ROOT / "scripts" / "fairseq.txt").read_text().splitlines()
    needed = {line for line in listed if not line.startswith("#")}
    asked = {line for line in requires("fairseq-fixed") if "extra ==" not in line}
    left_out = {"cffi", "cython", "packaging", "torch>=1.13", "torchaudio>=0.8.0"}
    assert (asked - needed, needed - asked) == (left_out, {"scipy"})
    session = Session()
    noxfile.tests(session, noxfile.TORCH)
    [build] = [words for words in session.installed if noxfile.FAIRSEQ in words]
    assert "--no-deps" in build
    assert '--no-deps "$FAIRSEQ"' in (ROOT / "scripts" / "setup.sh").read_text()


def test_the_tests_of_a_version(noxfile):
    session = Session()
    noxfile.tests(session, "2.14.1")
    assert "torch==2.14.1" in session.installed[0]
    [command] = session.commands
    files = [ROOT / word for word in command if word.startswith("tests/")]
    assert len(files) == len(noxfile.TESTS)
    assert all(file.is_file() for file in files)


def test_a_refusal_is_one_sentence(noxfile):
    sentence = "x.UnsupportedError: fairseq_floater needs Python 3.11; requires a different Python"
    session = Session("3.10", f"Traceback\n{sentence}\n")
    noxfile.refused(session)
    assert len(session.commands) == 2
    with pytest.raises(AssertionError, match="it was not refused in a sentence"):
        noxfile.refused(Session("3.10", f"{sentence}\nTraceback\n"))
