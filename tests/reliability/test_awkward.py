"""Awkward names of files and folders: taken as they are, by the verbs and the scripts."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from command_lines import value
from fuzzing import call, inputs
from hypothesis import example
from hypothesis import strategies as st
from toy import ROOT, run_script

from fairseq_floater.data.number_words import write_numbers


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An empty working folder: odd words may name files in it."""
    folder = tmp_path_factory.mktemp("security")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


CONFIG = ROOT / "configs" / "numbers_s2l.yaml"

AWKWARD = " '\"\n\t\r$()`;&|*?[]{}<>~#!\\-=:,%aé\u2028\u202e\x1b\udcff"
NAMES = st.text(AWKWARD, min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
TOUCHING = "a 'b\" $(touch pwned) `touch pwned`;touch pwned -x &é"


@inputs(
    "names of files",
    20,
    *(example(name=name, folder="x") for name in (TOUCHING, "-x", "--json", "*", "${HOME}", "%s")),
    name=NAMES,
    folder=NAMES,
)
def test_any_name_of_a_file_works(place, name, folder):
    """A name is given after ./ or =, or with its folder, and comes back unchanged in the result."""
    (place / folder).mkdir(exist_ok=True)
    hypotheses, raw = place / folder / name, Path(folder) / f"{name}.ref"
    hypotheses.write_text("a b c d e\n")
    raw.write_text("a b c d e\n")
    output = place / folder / "out" / name
    words = (f"./{raw.parent / name}", f"--references={raw}", "--target-lang=de", "--bootstrap=0")
    code, out, err = call("score", *words, f"--json={output}")
    assert (code, err) == (0, "")
    out.encode()  # can be printed
    found = json.loads(output.read_text("utf-8"))["references_name"]
    assert found.encode("utf-8", "surrogatepass") == str(raw).encode("utf-8", "surrogatepass")
    shutil.rmtree(place / folder)
    assert not (place / "pwned").exists()
    return True


@pytest.mark.parametrize("name", [TOUCHING, "-x", r"a\nb\\c", "*"])
def test_any_folder_reaches_fairseq_as_it_is(name):
    code, out, _ = call("args", CONFIG, "donor", f"--data={name}", f"--work={name}")
    assert code == 0
    words = out.splitlines()
    place = f"./{name}" if name.startswith("-") else name
    assert words[0] == place
    assert value(words, "--save-dir") == f"{place}/plain/checkpoints"


def run(script, *words, cwd):
    done = run_script(script, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def shown(output):
    """Return the commands of a dry run as lists of words, as bash reads them, without `> FILE`."""
    return [
        subprocess.run(
            ["bash", "-c", f'printf "%s\\0" {line}'], capture_output=True, text=True, check=True
        ).stdout.split("\0")[:-1]
        for line in (printed.partition(" > ")[0] for printed in output.splitlines())
    ]


@pytest.mark.parametrize("script", ["protocol.sh", pytest.param("s2l.sh", marks=pytest.mark.slow)])
def test_scripts_take_any_folder(tmp_path, script):
    config, system = tmp_path / "one system.yaml", ("--encoder", "plain")
    settings = yaml.safe_load(CONFIG.read_text())
    settings["s2l"].update(systems=["--encoder none --scratch"], baseline=None)
    config.write_text(yaml.safe_dump(settings))
    words = (config, *(system if script == "protocol.sh" else ()), "--work", f"-{TOUCHING}")
    commands = shown(run(script, *words, "--processes", 0, "--dry-run", cwd=tmp_path))
    place = f"./-{TOUCHING}"  # a word that begins with a dash would be an option
    assert f"{place}/numbers" in next(words for words in commands if "numbers" in words)
    training = next(words for words in commands if "fairseq_cli.train" in words)
    folder = value(training, "--save-dir")
    assert folder.startswith(f"{place}/")
    assert folder.endswith("/checkpoints")
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.slow
def test_text_is_prepared_in_any_folder(tmp_path):
    raw, out = tmp_path / TOUCHING, tmp_path / f"{TOUCHING} out"
    write_numbers(raw, train=60, valid=3, test=3, test_long=0, max_number=99)
    words = ("--src", "en", "--tgt", "de", "--vocab", 60, "--workers", 1)
    run("prepare_text.sh", raw, out, *words, cwd=tmp_path)
    assert (out / "bin" / "train.en-de.en.bin").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {raw.name, out.name}
