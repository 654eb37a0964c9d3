"""`floater info --check`: what it finds here, and what it says of a machine that lacks something."""

import json
import re
import shutil
import sys
import zipfile
from types import SimpleNamespace

import pytest
import yaml
from toy import ROOT, environment, floater

from fairseq_floater.cli import main
from fairseq_floater.data.wmt14.sources import RECIPES
from fairseq_floater.experiments import machine_checks
from fairseq_floater.experiments.machine_checks import (
    COMMANDS,
    GB,
    MISSING,
    NOTE,
    OK,
    Gpu,
    available_memory,
    gpu_check,
    memory_check,
    package_check,
)
from fairseq_floater.experiments.model_options import parse_training
from fairseq_floater.experiments.readiness import (
    WMT14,
    gpu_memory_check,
    kept_checkpoints,
)
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
from fairseq_floater.requirements import PACKAGES

BASE, TINY, NUMBERS = (
    ROOT / "configs" / f"{name}.yaml" for name in ("text_base", "text_tiny", "numbers_en_de")
)


@pytest.fixture
def checked(tmp_path, capsys):
    """Run `floater info --check WORDS`; return the exit code and the result as JSON."""

    def check(*words):
        path = tmp_path / "result.json"
        code = main(["info", "--check", "--json", str(path), *map(str, words)])
        result = json.loads(path.read_text())
        out = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in out[:-1]] == [c["mark"] for c in result["checks"]]
        assert out[-1].startswith("not ready: " if code else "ready: 0 missing")
        assert result["ready"] == (code == 0)
        return code, result

    return check


def line(result, name):
    [found] = [check for check in result["checks"] if check["name"] == name]
    return found


def changed(tmp_path, path=TINY, **sections):
    """Write a configuration with other values in its sections; None removes a key."""
    config = yaml.safe_load(path.read_text())
    for section, values in sections.items():
        config[section].update(values)
        config[section] = {k: v for k, v in config[section].items() if v is not None}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_this_installation_is_ready_for_the_built_in_corpus(tmp_path):
    work = tmp_path / "work"
    done = floater("info", "--check", "--config", NUMBERS, "--work", work, "--processes", 0)
    lines = done.stdout.splitlines()
    assert len(lines) > len(PACKAGES) + len(COMMANDS)
    assert lines[-1].startswith("ready: 0 missing")
    assert "ok       data           the built-in corpus" in done.stdout
    assert not list(tmp_path.iterdir())
    assert done.stderr == ""


def test_without_a_configuration_only_the_installation_is_checked(checked):
    code, result = checked()
    assert code == 0
    assert result["estimates"] == {}
    names = {check["name"] for check in result["checks"]} - {"fairseq-fixed", "fairseq"}
    expected = {*PACKAGES, *COMMANDS, "GPUs"} - {"fairseq", "nvidia-smi"}
    assert names - {"nvidia-smi"} == expected
    assert all(line(result, name)["found"][0].isdigit() for name in ("torch", "sacrebleu"))


def test_a_package_that_cannot_be_imported_is_named_with_its_remedy(tmp_path):
    for module in ("num2words", "subword_nmt"):
        (tmp_path / f"{module}.py").write_text("raise ImportError('no such thing\\nsecond line')")
    done = floater("info", "--check", env=environment(PYTHONPATH=str(tmp_path)), code=1)
    assert "missing  num2words      cannot be imported (no such thing). Run: " in done.stdout
    assert "-m pip install num2words\n" in done.stdout
    assert "note     subword-nmt    cannot be imported" in done.stdout  # of an extra
    assert done.stdout.splitlines()[-1].startswith("not ready: 1 missing (num2words)")


def test_a_package_of_an_extra_is_needed_by_configurations_that_use_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "subword_nmt", None)
    marks = [package_check("subword-nmt", "subword_nmt", extra).mark for extra in (None, "wmt14")]
    assert marks == [NOTE, MISSING]


def test_commands_are_looked_for_in_path(tmp_path, monkeypatch, checked):
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    monkeypatch.setenv("PATH", str(tmp_path))
    _, result = checked()
    assert line(result, "bash")["found"] == f"{tmp_path}/bash"
    assert line(result, "curl")["mark"] == NOTE
    assert "install curl" in line(result, "curl")["advice"]


def test_gpus_and_their_memory():
    two = [Gpu("A", 80 * GB), Gpu("A", 80 * GB)]
    assert gpu_check(two, None).found == "2 x A (80.0 GB)"
    assert [gpu_check(two, n).mark for n in (None, 0, 2)] == [OK, NOTE, OK]
    assert gpu_check([], None).mark == NOTE
    mixed = [Gpu("B", 24 * GB), *two]
    assert gpu_check(mixed, 3).found == "1 x B (24.0 GB), 2 x A (80.0 GB)"
    fits, too_large = (gpu_memory_check(mixed, n * GB) for n in (1, 2))
    assert (fits.mark, too_large.mark) == (NOTE, MISSING)
    assert too_large.found == "24.0 GB on the smallest"
    assert too_large.needed == "32.0 GB"


def test_a_checkpoint_is_as_large_as_estimated(tmp_path, toy, checked):
    shape = {
        f"{side}-{what}embed-dim": size
        for side in ("encoder", "decoder")
        for what, size in (("", 32), ("ffn-", 64))
    }
    heads = {f"{side}-attention-heads": None for side in ("encoder", "decoder")}
    config = changed(tmp_path, data={"vocab": 120}, shape={**shape, **heads})
    _, result = checked("--config", config, "--work", tmp_path)
    with zipfile.ZipFile(toy.donor) as file:
        tensors = [entry.file_size for entry in file.infolist() if "/data/" in entry.filename]
    assert result["estimates"]["checkpoint_bytes"] == pytest.approx(sum(tensors), rel=0.01)
    # Names and padding do not grow with the model: they only show in one as small as this.
    assert toy.donor.stat().st_size - sum(tensors) < 600 * len(tensors)


def test_a_disk_that_is_too_small_is_missing(tmp_path, checked):
    shape = {"encoder-embed-dim": 65_536, "encoder-ffn-embed-dim": 262_144}
    code, result = checked("--config", changed(tmp_path, shape=shape), "--work", tmp_path / "w")
    assert code == 1
    estimates = result["estimates"]
    needed = sum(estimates[f"{name}_bytes"] for name in ("donor", "system", "data"))
    assert needed > shutil.disk_usage(tmp_path).total
    disk = line(result, "disk")
    assert disk["mark"] == line(result, "memory")["mark"] == MISSING
    assert f"free at {tmp_path}" in disk["found"]
    assert f"about {needed / GB:,.1f} GB for one system" in disk["needed"]


def test_what_is_there_already_takes_no_more_disk(tmp_path, checked):
    words = ("--config", BASE, "--work", tmp_path / "w")
    _, result = checked(*words)
    estimates = result["estimates"]
    parameters = estimates["parameters"]
    assert parameters == pytest.approx(60.5e6, rel=0.01)
    # Five of the last epochs, one more while it is written, the best and the last.
    assert estimates["donor_checkpoints"] == estimates["finetune_checkpoints"] == 8
    assert estimates["donor_bytes"] == 8 * 12 * parameters
    assert estimates["system_bytes"] == (8 * 12 + 2 * 4) * parameters
    assert line(result, "data")["mark"] == NOTE
    (tmp_path / "w" / "plain").mkdir(parents=True)
    (tmp_path / "w" / "plain" / "run.json").write_text(json.dumps({"trained": True}))
    (tmp_path / "w" / "data" / "bin").mkdir(parents=True)
    _, result = checked(*words)
    assert result["estimates"]["donor_bytes"] == 0
    assert line(result, "data")["mark"] == OK


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 8),
        ({"keep-last-epochs": 3}, 6),
        ({"keep-last-epochs": 20}, 10),  # there are only 8 epochs
        ({"keep-last-epochs": None}, 10),
        ({"keep-last-epochs": None, "save-interval": 4}, 4),
        ({"no-epoch-checkpoints": True, "keep-best-checkpoints": 2}, 4),
        ({"no-epoch-checkpoints": True, "save-interval-updates": 10, "max-update": 50}, 7),
        ({"save-interval-updates": 10}, None),
    ],
)
def test_checkpoints_at_once_are_read_from_fairseqs_options(tmp_path, options, count):
    experiment = Experiment(changed(tmp_path, optimisation=options))
    arguments = experiment.arguments("donor", System())
    assert kept_checkpoints(parse_training(arguments, experiment.path, "donor")) == count


def test_checkpoints_without_a_limit_are_noted(tmp_path, checked):
    config = changed(tmp_path, optimisation={"save-interval-updates": 10})
    code, result = checked("--config", config, "--work", tmp_path, "--processes", 0)
    assert code == 0
    assert line(result, "disk")["mark"] == NOTE
    assert result["estimates"]["donor_checkpoints"] is None


@pytest.mark.parametrize("pair", list(RECIPES))
def test_wmt14_takes_disk_and_memory_until_it_is_there(tmp_path, checked, pair):
    config = ROOT / "configs" / f"wmt14_{pair.replace('-', '_')}_base.yaml"
    words = ("--config", config, "--work", tmp_path)
    _, result = checked(*words)
    disk, memory = WMT14[pair]
    estimates = result["estimates"]
    assert (estimates["data_bytes"], estimates["memory_bytes"]) == (disk, memory)
    assert line(result, "data")["mark"] == NOTE
    assert f"WMT14 {pair}" in line(result, "data")["advice"]
    assert f"data {disk / GB:.1f} GB" in line(result, "disk")["needed"]
    made = tmp_path / "elsewhere"
    (made / "bin").mkdir(parents=True)
    _, result = checked(*words, "--data", made)
    assert line(result, "data")["mark"] == OK
    assert result["estimates"]["data_bytes"] == 0
    assert result["estimates"]["memory_bytes"] < memory


def test_memory_is_what_the_system_leaves_and_the_control_groups_admit(tmp_path, monkeypatch):
    free = SimpleNamespace(available=4000 * 1024)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    assert available_memory(tmp_path) == 4000 * 1024
    # Two groups, the outer one with a limit.
    inner = tmp_path / "sys" / "fs" / "cgroup" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/x\n0::/a/b\n")
    (inner / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 4000 * 1024
    (inner.parent / "memory.max").write_text("123000\n")
    assert available_memory(tmp_path) == 123_000
    monkeypatch.setattr(machine_checks, "available_memory", lambda: 123_000)
    assert [memory_check(n).mark for n in (123_000, 123_001)] == [OK, MISSING]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--check", "--config", "nowhere.yaml"], "There is no configuration nowhere.yaml"),
        (["--check", "--work", "w"], "`--work` is an experiment's folder and needs `--config`"),
        (["--check", "--processes", "-1"], "`--processes` must not be negative, but is -1"),
        (["--config", str(TINY)], "`--config` is an option of `--check`"),
    ],
)
def test_bad_usage_is_one_sentence_and_exits_with_2(capsys, words, message):
    assert main(["info", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"budget": {"finetune": {"max-epochs": 3}}}, "options of finetune: .*--max-epochs 3"),
        ({"shape": {"encoder-attention-heads": 5}}, "cannot build `shape`: .*divisible"),
    ],
)
def test_a_configuration_that_fairseq_refuses_is_refused(tmp_path, capsys, sections, message):
    config = changed(tmp_path, **sections)
    assert main(["info", "--check", "--config", str(config), "--work", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert "config.yaml" in said
