"""Make the unfinished runs of tests/stored and the results of whole ones: python tests/make_stored_runs.py

Stored runs stand for what people have on their disks. Remake them only where a release may refuse runs
that were begun before. The present ones were made by commit a6994b0.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from toy import ROOT, environment

from fairseq_floater.files import file_hash

STORED = Path(__file__).resolve().parent / "stored"
SAVING = {"log-interval": 1, "save-interval-updates": 3, "keep-interval-updates": 1}


class StoredRun(NamedTuple):
    """A run of two folders: a finished donor or stage, and a training that SIGTERM stopped."""

    name: str
    script: str
    config: str
    options: tuple[str, ...]
    folder: str  # of the run
    before: str  # of the donor, or the stage that it starts from
    results: tuple[str, ...]

    def command(self) -> list[str]:
        words = ["bash", str(ROOT / "scripts" / self.script), self.config, *self.options]
        return [*words, "--work", "w", "--processes", "0"]


RUNS = (
    StoredRun(
        "run-translation",
        "protocol.sh",
        "toy.yaml",
        ("--encoder", "floater"),
        "w/floater-all-qkv",
        "w/plain",
        ("scores.test.json", "scores.test_long.json"),
    ),
    StoredRun(
        "run-roberta",
        "finetune.sh",
        "roberta_toy.yaml",
        ("--task", "rte", "--system", "floater"),
        "w/roberta_toy/rte-floater/seed-1",
        "w/roberta_toy/flow",
        ("scores.json",),
    ),
)


def unpack(run: StoredRun, folder: Path) -> None:
    """Put a stored run into ``folder``."""
    with tarfile.open(STORED / f"{run.name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def results(run: StoredRun, folder: Path) -> dict[str, object]:
    """Return a run's results: the losses of its last updates and validation, and its scores."""
    log = (folder / run.folder / "train.log").read_text(encoding="utf-8")
    updates = re.findall(r"train_inner \|.*? loss=([\d.]+),.*? num_updates=(\d+)", log)
    valid = re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", log)
    found: dict[str, object] = {"updates": [[int(n), float(x)] for x, n in updates][-5:]}
    found["valid"] = float(valid[-1])
    for name in run.results:
        scores = json.loads((folder / run.folder / name).read_text(encoding="utf-8"))
        found[name] = scores["chrf"]["score"] if "chrf" in scores else scores["score"]
    return found


def _translation() -> dict[str, object]:
    config = yaml.safe_load((ROOT / "configs" / "numbers_en_de.yaml").read_text())
    numbers = {"train": 240, "valid": 20, "test": 8, "test-long": 8}
    config["data"]["numbers"].update({**numbers, "numbers-per-line": [1, 2]})
    config["data"]["vocab"] = 120
    small = ("encoder-embed-dim", "encoder-ffn-embed-dim")
    config["shape"].update({**dict.fromkeys(small, 16), "encoder-layers": 1, "decoder-layers": 1})
    config["optimisation"].update({**SAVING, "warmup-updates": 4})
    stages = {name: {"max-epoch": 2} for name in ("donor", "finetune", "scratch")}
    config["budget"].update({"max-tokens": 250, "tokens-per-update": 250, **stages})
    config["generation"].update({"beam": 2, "max-len-a": 0, "max-len-b": 12})
    del config["compare"]
    return config


def _roberta() -> dict[str, object]:
    config = yaml.safe_load((ROOT / "configs" / "roberta_tiny.yaml").read_text())
    config["data"].update({"quizzes": {"scale": 0.01}, "vocab": 120})
    small = ("encoder-embed-dim", "encoder-ffn-embed-dim")
    config["shape"].update({**dict.fromkeys(small, 16), "encoder-layers": 1})
    config["budget"].update({"max-tokens": 600, "tokens-per-update": 600})
    config["masked-lm"].update(SAVING)
    tuning = {**SAVING, "batch": 8, "max-update": 16, "warmup-updates": 2}
    config["finetune"]["all"].update(tuning)
    for stage in ("donor", "flow"):
        config["budget"][stage].update({"max-update": 6, "warmup-updates": 1})
    config["tasks"] = {"rte": config["tasks"]["rte"]}
    return config


def _stop_in_training(run: StoredRun, folder: Path) -> None:
    log = folder / run.folder / "train.log"
    process = subprocess.Popen(run.command(), cwd=folder, env=environment())
    while not (log.exists() and len(re.findall("train_inner", log.read_text())) >= 5):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143


def _strip(run: StoredRun, folder: Path) -> None:
    """Drop what no later step reads, and the names of this machine and its folders."""
    changed = {str(folder): "/somewhere", str(ROOT): "/checkout"}
    for path in sorted(folder.rglob("*")):
        in_donor = path.is_relative_to(folder / run.before) or "donor" in path.parts
        if (
            ".lock" in path.name
            or path.suffix == ".pt"
            and in_donor
            and path.name != "checkpoint_best.pt"
        ):
            path.unlink()
        elif path.suffix == ".pt":
            before = file_hash(path)
            _rename_folders(path, changed)
            changed[before] = file_hash(path)
    for path in (*folder.rglob("*.json"), *folder.rglob("*.log")):
        text = path.read_text(encoding="utf-8")
        for before, after in changed.items():
            text = text.replace(before, after)
        text = re.sub(r'("host": )"[^"]*"', r'\1"host"', text)
        text = re.sub(r"(FLOATER_PYTHON=|\+ )\S*/python\S*", r"\1python", text)
        path.write_text(text, encoding="utf-8")


def _rename_folders(path: Path, names: dict[str, str]) -> None:
    """Rename folders in the options that a checkpoint holds."""
    state = torch.load(path, weights_only=False)
    for section in state["cfg"].values():
        options = vars(section) if isinstance(section, argparse.Namespace) else section
        for name, value in options.items() if isinstance(options, dict) else ():
            for before, after in names.items():
                if isinstance(value, str) and value.startswith(before):
                    options[name] = value.replace(before, after)
    torch.save(state, path)


def store(run: StoredRun) -> dict[str, object]:
    """Store an unfinished run; return the results of a whole one."""
    with tempfile.TemporaryDirectory() as name:
        whole, stopped = Path(name) / "whole", Path(name) / "stopped"
        config = _translation() if run.name == "run-translation" else _roberta()
        for folder in (whole, stopped):
            folder.mkdir()
            (folder / run.config).write_text(yaml.safe_dump(config))
        subprocess.run(run.command(), cwd=whole, env=environment(), check=True)
        _stop_in_training(run, stopped)
        _strip(run, stopped)
        shutil.rmtree(stopped / "w" / "numbers", ignore_errors=True)
        shutil.rmtree(stopped / "w" / "quizzes", ignore_errors=True)
        with tarfile.open(STORED / f"{run.name}.tar.xz", "w:xz") as archive:
            archive.add(stopped, ".", filter=_nobodys)
        return results(run, whole)


def _nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    chosen = [run for run in RUNS if run.name in sys.argv[1:] or len(sys.argv) == 1]
    path = STORED / "runs.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept |= {run.name: store(run) for run in chosen}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
