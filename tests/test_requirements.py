"""A Python or a fairseq that the package cannot run on is refused in one sentence."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from toy import PACKAGE, ROOT, environment, run

from fairseq_floater import requirements
from fairseq_floater.requirements import UnsupportedError, check_fairseq, check_python, check_torch
from fairseq_floater.version import __version__

OFFICIAL = "mutable default <class 'CommonConfig'> for field common is not allowed"


@pytest.fixture()
def official(tmp_path):
    """An environment whose fairseq fails as the official one does on Python 3.11 and newer."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq" / "__init__.py").write_text(f'raise ValueError("{OFFICIAL}")\n')
    info = tmp_path / "fairseq-0.12.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fairseq\nVersion: 0.12.2\n")
    # Hide the installed fairseq-fixed: the message must name the official fairseq.
    code = (
        "import importlib.metadata as metadata, sys\n"
        "known = metadata.version\n"
        "def version(name):\n"
        "    return known(name if name != 'fairseq-fixed' else 'none')\n"
        "metadata.version = version\n"
    )
    return code, environment(PYTHONPATH=f"{tmp_path}:{ROOT}")


def last_line(code, env):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    return done.returncode, done.stderr.strip().splitlines()


def test_official_fairseq_is_refused_at_import(official):
    code, env = official
    status, lines = last_line(code + "import fairseq_floater", env)
    assert status == 1
    needs = "UnsupportedError: fairseq_floater needs Python 3.11 to 3.14 with fairseq-fixed"
    assert needs in lines[-1]
    assert "but found fairseq 0.12.2, which cannot be imported by Python" in lines[-1]
    assert lines[-1].endswith(f"{OFFICIAL}.")


def test_the_commands_say_so_in_one_line(official):
    code, env = official
    code += (
        "sys.argv = ['floater', 'average']; from fairseq_floater.cli import main; sys.exit(main())"
    )
    status, lines = last_line(code, env)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("floater: fairseq_floater needs Python 3.11 to 3.14")
    assert "found fairseq 0.12.2" in lines[0]


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 10, 13)])
def test_an_older_python_is_refused(monkeypatch, version):
    monkeypatch.setattr(requirements.sys, "version_info", version)
    name = ".".join(map(str, version))
    monkeypatch.setattr(requirements.platform, "python_version", lambda: name)
    with pytest.raises(
        UnsupportedError, match=rf"needs Python 3\.11.*this is Python {name} with fair"
    ):
        check_python()


@pytest.mark.parametrize("version", ["2.4.1", "2.5.0+cpu", "1.13.1"])
def test_an_older_torch_is_refused(monkeypatch, version):
    monkeypatch.setattr(requirements.importlib.metadata, "version", lambda name: version)
    with pytest.raises(
        UnsupportedError, match=rf"needs torch 2\.6 .*this is torch {re.escape(version)}\."
    ):
        check_fairseq()


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "3.0.0", "2.x"])
def test_another_torch_is_taken(monkeypatch, version):
    monkeypatch.setattr(requirements.importlib.metadata, "version", lambda name: version)
    check_torch()


def test_no_fairseq_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq", None)  # as if it were not there
    with pytest.raises(UnsupportedError, match="needs .* but there is no fairseq"):
        check_fairseq()


def test_what_fairseq_itself_misses_keeps_its_name(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'hydra'", name="hydra")

    monkeypatch.setattr(requirements.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="hydra"):
        check_fairseq()


def test_an_older_python_can_read_what_refuses_it():
    """The modules that are imported before the refusal parse as Python 3.9."""
    for name in ("__init__", "requirements", "errors", "version"):
        ast.parse((PACKAGE / f"{name}.py").read_text(), feature_version=(3, 9))


def test_setup_asks_for_the_same_python_and_torch():
    text = (ROOT / "setup.py").read_text()
    oldest = (requirements.OLDEST_PYTHON, requirements.OLDEST_TORCH)
    python, torch = (".".join(map(str, version)) for version in oldest)
    assert f'python_requires=">={python},' in text and f'"torch>={torch}"' in text


def test_setup_installs_every_package_that_is_checked():
    """Except fairseq, which setup.sh builds, and hydra-core, which comes with it."""
    users = (ROOT / "setup.py").read_text().partition('"dev"')[0]
    assert {*re.findall(r'"([\w-]+)>=', users)} | {"numpy"} == requirements.PACKAGES.keys() - {
        "fairseq",
        "hydra-core",
    }


# Makes environments, has no modules and no headers.
BARE_PYTHON = """#!/bin/sh
case "$*" in
*version_info*) ;;
-m\\ venv\\ *) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
--version) echo Python 3.12.1 ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize("broken", [False, True], ids=["new", "over an environment without pip"])
def test_setup_stops_before_the_download_if_python_has_no_headers(tmp_path, broken):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "setup.py", tmp_path)
    python = tmp_path / "python"
    python.write_text(BARE_PYTHON)
    python.chmod(0o755)
    if broken:
        without_pip = tmp_path / ".venv" / "bin" / "python"
        without_pip.parent.mkdir(parents=True)
        without_pip.write_text("#!/bin/sh\nexit 1\n")
        without_pip.chmod(0o755)
    env = environment(FLOATER_BASE_PYTHON=str(python), FLOATER_PYTHON="")
    done = run(["bash", tmp_path / "scripts" / "setup.sh"], code=1, env=env)
    assert done.stderr.endswith(
        "The headers of Python 3.12.1 are needed to build fairseq; "
        "install them (e.g. python3-dev) and run this again.\n"
    )


def test_a_verb_whose_extra_is_missing_names_it(tmp_path):
    program = "import sys; sys.modules['jinja2'] = None; sys.argv[0] = 'floater'; "
    program += "from fairseq_floater.cli import main; sys.exit(main())"
    done = run([sys.executable, "-c", program, "page", ".", "page.html"], cwd=tmp_path, code=1)
    remedy = "pip install 'fairseq_floater[page]' installs it."
    assert f"jinja2 is not installed: {remedy}" in done.stderr


def test_the_plugins_version_is_that_of_the_code_that_runs(monkeypatch):
    """A clone may run in an environment into which another copy is installed."""
    monkeypatch.setattr(requirements, "version_of", lambda name: "0.9")
    assert requirements.versions()["fairseq_floater"] == __version__
