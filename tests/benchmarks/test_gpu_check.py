"""scripts/gpu_check.sh, as far as it can be tested without a GPU."""

import json
import sys
import tarfile

import pytest
import torch
from toy import run_script

from benchmarks.cli import main
from benchmarks.gpu_check import PRECISIONS, GpuCheck, Step, agreement, run
from fairseq_floater.errors import UserError
from fairseq_floater.experiments.launch import Launcher


def test_a_dry_run_prints_every_command_and_leaves_nothing(tmp_path, capsys):
    work = tmp_path / "w"
    assert main(["gpu-check", "--work", str(work), "--encoders", "rope,t5", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nvidia-smi"
    for encoder in ("rope", "t5"):
        trained = [
            line
            for line in lines
            if f"--position-encoder {encoder} " in line or f"position_encoder={encoder} " in line
        ]
        assert len(trained) == len(PRECISIONS)
        assert [word in line for word, line in zip(("--fp16", "--amp"), trained[1:])] == [True] * 2
        assert "common.bf16=true" in trained[3]
        translated = [
            line for line in lines if f"train-{encoder}-float32/checkpoint_last.pt" in line
        ]
        assert ["--fp16" in line for line in translated] == [False, True]
    assert not work.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path, capsys):
    assert main(["gpu-check", "--work", str(tmp_path / "w")]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "torch sees no GPU" in message
    assert not (tmp_path / "w").exists()


class Steps(GpuCheck):
    """Three small steps in place of the real ones; the step ``broken`` fails."""

    broken = "second"

    def steps(self):
        for name in ("first", "second", "third"):
            code = f"print('{name}'); raise SystemExit({int(name == self.broken)})"
            yield Step(name, [sys.executable, "-c", code], self.work / f"{name}.txt")


def test_what_fails_is_noted_and_alone_repeated(tmp_path, capsys, monkeypatch):
    check = Steps(tmp_path / "w", "cpu", ())
    with pytest.raises(UserError, match=r"1 of 3 steps failed: second\."):
        run(check, Launcher())
    record = json.loads((check.work / "steps.json").read_text())
    assert [(name, step["ok"]) for name, step in record.items()] == [
        ("first", True),
        ("second", False),
        ("third", True),
    ]
    assert "see the end of" in record["second"]["reason"]
    for name in ("first", "third"):
        (check.work / f"{name}.txt").write_text("kept")
    (check.work / "checkpoint.pt").write_text("large")
    monkeypatch.setattr(Steps, "broken", None)
    run(check, Launcher())
    said = capsys.readouterr().out
    assert "Logs, tables and figures: " in said
    assert [(check.work / f"{n}.txt").read_text().strip() for n in ("first", "second")] == [
        "kept",
        "second",
    ]
    # Steps recorded for another device run again, without what they measured there.
    (check.work / "first.jsonl").write_text("of the CPU")
    run(Steps(check.work, "cuda", ()), Launcher())
    assert (check.work / "first.txt").read_text().strip() == "first"
    assert not (check.work / "first.jsonl").exists()
    with tarfile.open(check.work / "gpu_check.tar.gz") as packed:
        names = set(packed.getnames())
    assert {"gpu_check/summary.txt", "gpu_check/steps.json", "gpu_check/second.log"} <= names
    assert "gpu_check/checkpoint.pt" not in names


def test_agreement_is_the_share_of_equal_translations(tmp_path):
    assert agreement(tmp_path, "rope") is None
    for precision, words in (("float32", "a b c d"), ("fp16", "a b c e")):
        lines = [f"S-{i}\tsource\nH-{i}\t-1.5\t{word}" for i, word in enumerate(words.split())]
        (tmp_path / f"translate-rope-{precision}.txt").write_text("\n".join(lines) + "\n")
    assert agreement(tmp_path, "rope") == 0.75


@pytest.mark.slow
def test_the_rehearsal_runs_to_its_end(tmp_path):
    done = run_script("gpu_check.sh", "--device", "cpu", "--work", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "w" / "summary.txt").read_text()
    assert "rope: " in summary
    assert "FAILED" not in summary
