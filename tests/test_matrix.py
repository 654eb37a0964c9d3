"""The noxfile, read with a stand-in for nox: what its sessions install and run."""

import re
import runpy
import sys
from importlib.metadata import requires
from types import SimpleNamespace

import fairseq_symbols
import pytest
from packaging.requirements import Requirement
from toy import ROOT, environment, run


class Session:
    """Records the commands that it gets; `run` returns `said`."""

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
    """PyPI's torchaudio does not load beside a torch for CPUs, so that `import transformers` fails."""
    lock = (ROOT / "scripts" / "fairseq.txt").read_text()
    pins = dict(
        re.findall(r"^([\w-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    )
    needs = [Requirement(line) for line in requires("fairseq-fixed") if "extra ==" not in line]
    assert {need.name for need in needs} - set(pins) == {"cffi", "cython", "torch", "torchaudio"}
    # The pins include all that the pinned packages need in turn, in versions that these accept.
    needs += [Requirement(line) for name in pins for line in requires(name) or []]
    for need in needs:
        if need.name in pins and not need.marker:
            assert need.specifier.contains(pins[need.name]), need
    in_turn = {need.name.lower() for need in needs[len(pins) :] if not need.marker}
    assert in_turn <= {*pins, "cffi", "cython", "torch", "torchaudio"}
    session = Session()
    noxfile.tests(session, noxfile.TORCH)
    [build] = [argv for argv in session.installed if noxfile.FAIRSEQ in argv]
    assert "--no-deps" in build


MAIN = (
    "    common: CommonConfig = CommonConfig()\r\n    q: Q = field(default=Q())\n    n: int = 1\n"
    "    sizes = np.zeros(n, dtype=np.compat.long)\n"
    '    ) or typestring.startswith("typing.Optional"):\n    num_workers=self.num_workers,\n'
)


def test_fairseq_and_hydra_are_mended_for_newer_pythons_and_numpy_2(tmp_path):
    """fairseq's defaults become those of fairseq-fixed; other lines, and a function's body, stay."""
    package, hydra = tmp_path / "fairseq", tmp_path / "hydra"
    package.mkdir()
    hydra.mkdir()
    (hydra / "__init__.py").write_text("help=LazyCompletionHelp(),\n")
    (package / "__init__.py").write_text("        local: Plain = Plain()\n")
    (package / "configs.py").write_bytes(MAIN.encode())
    env = environment(PYTHONPATH=str(tmp_path))
    for _ in range(2):
        run([sys.executable, ROOT / "scripts" / "mend_fairseq.py"], env=env, new=True)
        mended = MAIN.replace("CommonConfig()", "CommonConfig").replace("Q())", "Q)")
        mended = mended.replace("np.compat.long", "np.int64")
        mended = mended.replace('al"):', 'al") or typestring.endswith(" | None"):')
        fork = 'multiprocessing_context="fork" if self.num_workers > 0 else None'
        mended = mended.replace("self.num_workers,", f"self.num_workers, {fork},")
        assert (package / "configs.py").read_bytes() == mended.encode()
    assert (package / "__init__.py").read_text() == "        local: Plain = Plain()\n"
    assert (hydra / "__init__.py").read_text() == "help=str(LazyCompletionHelp()),\n"


def test_every_name_of_fairseq_is_listed():
    used = fairseq_symbols.used()
    assert "fairseq.models.transformer.TransformerModel" in used
    assert [name for name in used if fairseq_symbols.lookup(name) is None] == []
    source = "from fairseq import utils as u, nowhere\nu.nothing()\n"
    names = fairseq_symbols.imported(source)
    assert names == {"fairseq.utils", "fairseq.nowhere", "fairseq.utils.nothing"}
    assert {n for n in names if fairseq_symbols.lookup(n)} == {"fairseq.utils"}


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
