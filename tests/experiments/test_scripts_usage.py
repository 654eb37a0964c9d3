"""The scripts' command lines: help, bad usage, dry runs."""

import shlex
import shutil
import site
import subprocess
import sys

import pytest
from command_lines import value
from fuzzing import call
from toy import ROOT, environment, run_script

SCRIPTS = sorted(p for p in (ROOT / "scripts").glob("*.sh") if p.name != "common.sh")
CONFIG = ROOT / "configs" / "numbers_en_de.yaml"
# Other tests give these scripts bad options. test.sh passes further words on to pytest.
REFUSED_ELSEWHERE = ("protocol.sh", "finetune.sh", "pretrain_flow.sh", "tables345.sh", "s2l.sh")
REFUSED_ELSEWHERE += ("prepare_mlm.sh", "prepare_text.sh", "prepare_wmt14.sh", "test.sh")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_help_and_bad_options(script):
    shown = run_script(script.name, "--help")
    assert shown.returncode == 0
    assert "usage: " in shown.stdout and script.name in shown.stdout
    if script.name not in REFUSED_ELSEWHERE:
        assert run_script(script.name, "--no-such-option").returncode == 2


CONFIGS = {"config": "numbers_en_de", "text": "text_tiny", "wmt14": "wmt14_en_de_base"}
CONFIGS |= {"tiny": "roberta_tiny", "base": "roberta_base"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("run --encoder floater", 2, "arguments are required: CONFIG"),
        ("run nowhere.yaml --encoder floater", 2, "There is no configuration nowhere.yaml"),
        ("run {config}", 2, "arguments are required: --encoder"),
        ("protocol.sh {config} --encoder fourier", 2, "fourier"),
        ("protocol.sh {config} --encoder floater --work /dev/null/x", 1, "Not a directory"),
        ("run {text} --encoder floater --work {tmp}", 2, "pass its folder with --raw"),
        ("run {wmt14} --encoder floater --work {tmp} --raw x", 2, "set `wmt14: null`"),
        ("run {config} --encoder rnn '--model-options=--lr 1' -- --lr 2", 2, "not both"),
        ("run {text} --encoder floater --raw none", 1, "There is no folder none (--raw)."),
        ("finetune {tiny} --system floater", 2, "arguments are required: --task"),
        ("finetune.sh {tiny} --task rtf --system floater", 2, "`--task` must be one of cola"),
        ("finetune {tiny} --task rte --system bert", 2, "invalid choice: 'bert'"),
        ("finetune {tiny} --task rte --system roberta --extend last", 2, "`--extend` is"),
        ("pretrain-flow {tiny} --raw x", 2, "makes its own text; --raw is for your"),
        ("pretrain_flow.sh {tiny} '--model-options=--t5-buckets 9'", 2, "has no effect with `--encoder fl"),
        ("pretrain-flow {base}", 2, "`budget` has no donor; give a checkpoint by --donor"),
        ("run-tables345 --only 'huge-*'", 2, "`--only` must match cells"),
        ("tables345.sh --donor x.pt", 2, "`--donor` is for one size"),
        ("prepare_mlm.sh x --bpe gpt2 --vocab 9", 2, "`--vocab` must be given with"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_clear_sentence(tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    places = {name: ROOT / "configs" / f"{config}.yaml" for name, config in CONFIGS.items()}
    command = [word.format(tmp=tmp_path, **places) for word in shlex.split(words)]
    if command[0].endswith(".sh"):
        done = run_script(*command, timeout=300)
        found, said = done.returncode, done.stderr
    else:
        found, _, said = call(*command)
    assert found == code, said
    assert message in said
    assert "Traceback" not in said


def test_what_follows_two_dashes_are_options_of_the_model(tmp_path):
    own = ("--t5-max-distance", "32", "--t5-buckets", "16")
    words = ("--encoder", "t5", "--scratch", "--work", tmp_path / "w", "--dry-run", "--", *own)
    done = run_script("protocol.sh", CONFIG, *words)
    assert done.returncode == 0, done.stderr
    trainings = [line for line in done.stdout.splitlines() if "fairseq_cli.train" in line]
    assert len(trainings) == 1 and " ".join(own) in trainings[0]


@pytest.mark.parametrize("look", ["--list", "--status", "--dry-run"])
def test_a_look_installs_nothing(tmp_path, look):
    changed = environment(FLOATER_PYTHON=str(tmp_path / "none" / "python"))
    changed.pop("FLOATER_SET_UP", None)
    words = ["bash", ROOT / "scripts" / "compare.sh", CONFIG, look, "--work", tmp_path / "w"]
    done = subprocess.run(words, env=changed, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "Run scripts/setup.sh first: help, lists and dry runs install nothing.\n"
    assert not list(tmp_path.iterdir())


def test_a_script_uses_its_own_clone_whatever_is_installed_or_lies_around(tmp_path):
    other = tmp_path / "other clone"
    shutil.copytree(ROOT / "fairseq_floater", other / "fairseq_floater")
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"]
    subprocess.run(command, check=True)
    [packages] = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "installed.pth").write_text("\n".join([str(other), *site.getsitepackages()]))
    changed = environment(FLOATER_PYTHON=str(tmp_path / "venv/bin/python"), DRY_RUN="1", CDPATH=".")
    changed.pop("PYTHONPATH", None)
    words = ["bash", "-c", 'source "$0"; enter args "$@"', ROOT / "scripts" / "common.sh", CONFIG]
    words += ["finetune", "--encoder", "learned"]
    done = subprocess.run(words, cwd=other, env=changed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert value(done.stdout.splitlines(), "--user-dir") == str(ROOT / "fairseq_floater")
    assert str(other) not in done.stdout
