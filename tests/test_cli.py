"""The command line: its help, its errors, and that a verb imports no more than it needs."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from fuzzing import call
from toy import ROOT, floater, run

import fairseq_floater
from fairseq_floater.cli import build_parser, main
from fairseq_floater.verbs import VERBS

NUMBERS = ROOT / "configs" / "numbers_en_de.yaml"
LIGHT = ("user-dir", "numbers", "args", "score", "s2l", "table")


def imported(*words):
    """Return the top-level packages that a command imports."""
    command = [sys.executable, "-X", "importtime", *words]
    lines = run(command).stderr.splitlines()
    names = [line.rsplit("|", 1)[1].strip() for line in lines if line.startswith("import time:")]
    assert "fairseq_floater" in names
    return {name.split(".")[0] for name in names}


def test_the_help_lists_every_verb_with_what_it_does():
    text = " ".join(floater("--help").stdout.split())
    for name, verb in VERBS.items():
        assert f"{name} {verb.summary}" in text


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    parser = build_parser(verb)
    with pytest.raises(SystemExit) as end:
        parser.parse_args([verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: floater {verb}" in text
    assert "example:" in text or "PART" in text


def test_a_reader_that_has_read_enough_is_no_error(tmp_path):
    result = tmp_path / "info.json"
    command = (
        f"{sys.executable} -m fairseq_floater info --json {result} | true; echo ${{PIPESTATUS[0]}}"
    )
    done = run(["bash", "-c", command])
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert json.loads(result.read_text())


def test_an_option_of_the_model_is_told_where_it_goes():
    code, _, message = call("run", NUMBERS, "--encoder", "rope", "--position-stretch", "0.5:2")
    assert code == 2 and "usage: floater run" in message
    assert "--position-stretch 0.5:2; options of the model go after `--`" in message
    code, _, message = call("table", "work", "--paprika")
    assert code == 2 and "after `--`" not in message


def test_verbs_that_need_no_model_import_neither_torch_nor_fairseq():
    code = (
        "import sys; sys.argv = ['floater']\n"
        "from fairseq_floater.cli import build_parser\n"
        f"for verb in {LIGHT}:\n"
        "    build_parser(verb)\n"
        "    assert not {'torch', 'fairseq'} & {*sys.modules}, verb"
    )
    run([sys.executable, "-c", code], new=True)


@pytest.mark.parametrize(
    "words",
    [
        ["fairseq_floater", "run-table2", "--status", "--work", "nowhere"],
        ["fairseq_floater", "args", NUMBERS, "donor", "--encoder", "floater"],
        ["fairseq_floater", "args", NUMBERS, "finetune", "--encoder", "rotation_flow"],
    ],
    ids=["status", "donor", "finetune"],
)
def test_what_scripts_ask_again_and_again_needs_no_torch(words):
    assert not {"torch", "fairseq"} & imported("-m", *words)


def test_info_needs_no_fairseq():
    assert "fairseq" not in imported("-m", "fairseq_floater", "info")


REGISTERED = """
import fairseq_floater
from fairseq.models import ARCH_MODEL_REGISTRY
assert ARCH_MODEL_REGISTRY["floater_transformer"] is fairseq_floater.FloaterTransformerModel
import torch, argparse
assert argparse.Namespace in torch.serialization.get_safe_globals()
"""


def test_an_import_registers_what_fairseq_needs(tmp_path):
    (tmp_path / "script.py").write_text(REGISTERED)
    run([sys.executable, "script.py"], cwd=tmp_path)
    # `-m` imports the package while it still looks for the module to run.
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(REGISTERED)
    (tmp_path / "package" / "__main__.py").write_text("")
    run([sys.executable, "-m", "package"], cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["-c"], False),
        (["script.py"], False),
        (["/usr/bin/fairseq-train"], False),
        (["-m", "package"], False),
        (["-m", "fairseq_cli.train"], False),
        (["/usr/bin/floater"], True),
        (["-m", "fairseq_floater"], True),
        (["-m", "fairseq_floater.cli"], True),
        (["-um", "fairseq_floater"], True),
    ],
    ids=str,
)
def test_only_our_own_command_waits_to_import_fairseq(monkeypatch, words, own):
    monkeypatch.setattr(sys, "argv", ["-m"] if words[0].endswith("m") else words[:1])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", *words])
    assert fairseq_floater._is_own_command() == own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("user-dir ''", "unrecognized arguments: ''"),
        ("fly", "invalid choice: 'fly' .*warm-start"),  # and all other verbs
        ("run-compare x --encoder rope", r": --encoder rope; did you mean `--encoders`\?"),
        ("info --arch bogus", "`--arch` must be one of"),
        ("numbers out --src xx", "must be one of de, en, fr"),
        ("average --inputs none --updates --output x.pt", "must come with `--last` N"),
        ("score h --references r --target-lang de --bootstrap 20", "must be 0"),
        (
            "average --inputs a.pt b.pt --output x.pt --json ./b.pt",
            "./b.pt is also another argument",
        ),
        ("score h --references r --target-lang de --lines ./r", "`--lines` ./r is also another"),
        ("warm-start --position-encoder rope a.pt x.pt --arch a", "must come after DONOR and OUT"),
    ],
)
def test_bad_usage_exits_with_2(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name in ("h", "r"):
        (tmp_path / name).write_text("ja\n")
    code, _, said = call(*shlex.split(words))
    assert code == 2 and re.search(message, said)


@pytest.mark.parametrize(
    "words", [["user-dir"], ["args", str(NUMBERS), "donor", "--encoder", "floater"]]
)
def test_a_result_is_written_as_json_too(tmp_path, capsys, words):
    assert main([*words, "--json", str(tmp_path / "result.json")]) == 0
    (value,) = json.loads((tmp_path / "result.json").read_text()).values()
    printed = capsys.readouterr().out.splitlines()
    assert printed == ([value] if isinstance(value, str) else value)


def test_a_fault_of_the_user_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "fairseq_floater", "score", "none", "--references", "none"]
    done = subprocess.run(
        [*command, "--target-lang", "de"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("floater score: ")
