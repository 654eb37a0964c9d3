"""Check the plugin on a GPU (`scripts/gpu_check.sh`): first that it is right, then how fast it is."""

from __future__ import annotations

import json
import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.records import code_hash
from fairseq_floater.errors import UserError, one_line
from fairseq_floater.experiments.commands import ONE_THREAD
from fairseq_floater.experiments.job import floater, python
from fairseq_floater.experiments.launch import CommandError, Launcher
from fairseq_floater.files import USER_DIR, write_text, write_whole
from fairseq_floater.position_encoders.registry import DEFAULT_TARGETS
from fairseq_floater.records import write_json

ROOT = USER_DIR.parent
# One encoder of each kind: added to the projections, a rotation, a bias, a stage.
TRAINED = ("floater", "rope", "t5", "conv")
PRECISIONS = ("float32", "fp16", "amp", "bf16")
PACKED = (".log", ".json", ".jsonl", ".txt", ".md", ".png")


class Step(NamedTuple):
    """A command with a name; what it prints goes to ``<name>.log``, its stdout to ``output``."""

    name: str
    argv: list[Any]
    output: Path | None = None


@dataclass(frozen=True)
class GpuCheck:
    """The check's folder ``work``, its ``device``, and the encoders that are trained."""

    work: Path
    device: str
    encoders: tuple[str, ...]

    @property
    def rehearsed(self) -> bool:
        return self.device == "cpu"

    @property
    def data(self) -> Path:
        return self.work / "data"

    def steps(self) -> Iterator[Step]:
        if not self.rehearsed:
            yield Step("nvidia-smi", ["nvidia-smi"])
        yield Step("versions", floater("info"), self.work / "versions.txt")
        yield self._contract()
        yield Step("corpus", floater("numbers", self.work / "numbers"))
        languages = ("--src", "en", "--tgt", "de", "--vocab", "300")
        yield Step("text", floater("prepare", self.work / "numbers", self.data, *languages))
        for encoder in self.encoders:
            for precision in PRECISIONS:
                if self.rehearsed and precision == "fp16":
                    continue  # fairseq's optimiser for it asks CUDA for a device
                yield self._training(encoder, precision)
        for encoder in self.encoders:
            for precision in PRECISIONS[:2]:
                yield self._translation(encoder, precision)
        yield from self._benchmarks()

    def _contract(self) -> Step:
        argv = [ROOT / "tests" / "contract", "--device", self.device]
        argv += ["-q", "-p", "no:cacheprovider"]
        argv += ["-k", "rope-all and reordered"] if self.rehearsed else ["-n", "4"]
        return Step("contract", python("pytest", *argv))

    def _training(self, encoder: str, precision: str) -> Step:
        """Train for some updates; bf16 through Hydra, since fairseq-train takes --bf16 for a TPU."""
        updates = 3 if self.rehearsed else 60
        name = f"train-{encoder}-{precision}"
        checkpoints = self.work / name
        if precision == "bf16":
            settings = {
                "task.data": self.data / "bin",
                "common.user_dir": USER_DIR,
                "common.bf16": "true",
                "common.cpu": str(self.rehearsed).lower(),
                "optimization.max_update": updates,
                "optimization.max_epoch": 0,
                "checkpoint.save_dir": checkpoints,
                "hydra.run.dir": checkpoints / "hydra",
                "model.position_encoder": encoder,
                "model.position_target": DEFAULT_TARGETS[encoder],
            }
            folder = ("--config-dir", ROOT / "configs" / "hydra", "--config-name", "floater_tiny")
            pairs = [f"{key}={value}" for key, value in settings.items()]
            return Step(name, python("fairseq_cli.hydra_train", *folder, *pairs))
        argv = [self.data / "bin", "-s", "en", "-t", "de", "--user-dir", USER_DIR]
        argv += ["--arch", "floater_transformer_tiny", "--position-encoder", encoder]
        argv += ["--share-all-embeddings", "--optimizer", "adam", "--lr", "0.003"]
        argv += ["--max-tokens", "4000", "--max-update", updates, "--seed", "1"]
        argv += ["--save-dir", checkpoints, "--no-epoch-checkpoints", "--log-format", "simple"]
        argv += ["--log-interval", "10"]
        argv += ["--cpu"] if self.rehearsed else []
        argv += [] if precision == "float32" else [f"--{precision}"]
        return Step(name, python("fairseq_cli.train", *argv))

    def _translation(self, encoder: str, precision: str) -> Step:
        """Translate with the float32 model, in float32 or in float16."""
        model = self.work / f"train-{encoder}-float32" / "checkpoint_last.pt"
        argv = [self.data / "bin", "--user-dir", USER_DIR, "--path", model, "--beam", "4"]
        argv += ["--max-len-a", "1", "--max-len-b", "10"]  # after 60 updates a model does not stop
        argv += ["--gen-subset", "valid", "--required-batch-size-multiple", "1"]
        argv += ["--cpu"] if self.rehearsed else []
        argv += ["--fp16"] if precision == "fp16" else []
        name = f"translate-{encoder}-{precision}"
        return Step(name, python("fairseq_cli.generate", *argv), self.work / f"{name}.txt")

    def _benchmarks(self) -> Iterator[Step]:
        def measured(name: str, *argv: Any) -> Step:
            place = self.work / f"benchmark-{name}"
            files = ["--json", f"{place}.json", "--plot", f"{place}.png"]
            files += ["--resume", f"{place}.jsonl"] if name != "flows" else []
            size = ("--quick", "--rounds", "1", "--threads", "1") if self.rehearsed else ()
            command = python("benchmarks", "speed", "--device", self.device, *size, *argv, *files)
            return Step(place.name, command, Path(f"{place}.md"))

        if self.rehearsed:
            yield measured("updates", "--encoders", "rope", "--parts", "update")
            return
        size = ("--encoders", "all", "--dtype", "bfloat16", "--together", "8")
        updates = ("--parts", "update,memory,launches", "--tokens", "25000", "--rounds", "6")
        translation = ("--parts", "generation", "--vocabulary", "32768", "--rounds", "4")
        yield measured("updates", *size, *updates)
        yield measured("translation", *size, *translation)
        yield measured("flows", "--parts", "solve,growth", "--rounds", "8")


def agreement(work: Path, encoder: str) -> float | None:
    """Return the share of sentences that both dtypes translate alike; None if any are missing."""
    translations = []
    for precision in PRECISIONS[:2]:
        path = work / f"translate-{encoder}-{precision}.txt"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        translations.append(dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", text, re.MULTILINE)))
    if not translations[0] or translations[0].keys() != translations[1].keys():
        return None
    same = sum(translations[1][i] == text for i, text in translations[0].items())
    return same / len(translations[0])


def run(check: GpuCheck, launcher: Launcher) -> None:
    """Run the steps that did not succeed before, and pack the results.

    Raises:
        UserError: a step failed; the packed file is written all the same.
    """
    record = check.work / "steps.json"
    done: dict[str, Any] = {}
    if not launcher.dry_run:
        check.work.mkdir(parents=True, exist_ok=True)
        done = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    code = code_hash()
    for step in check.steps():
        command = [check.device, code, *map(str, step.argv)]
        before = done.get(step.name, {})
        if before.get("ok") and before.get("command") == command:
            continue
        if before.get("command") != command and not launcher.dry_run:
            # Its measurements are of other code, or of another device.
            (check.work / f"{step.name}.jsonl").unlink(missing_ok=True)
        log = None if launcher.dry_run else check.work / f"{step.name}.log"
        start = time.time()
        outcome: dict[str, Any] = {"ok": True}
        launcher.say(step.name)
        try:
            launcher.run(step.argv, name=step.name, log=log, output=step.output)
        except CommandError as error:
            outcome = {"ok": False, "reason": one_line(error)}
            launcher.say(f"FAILED: {outcome['reason']}")
        if not launcher.dry_run:
            seconds = round(time.time() - start, 1)
            done[step.name] = {**outcome, "seconds": seconds, "command": command}
            write_json(record, done)
    if not launcher.dry_run:
        _finish(check, {step.name: done[step.name] for step in check.steps()})


def _finish(check: GpuCheck, done: dict[str, Any]) -> None:
    """Write the summary, pack it with the logs, and raise UserError if a step failed."""
    lines = [
        f"{'ok' if s['ok'] else 'FAILED':7}{s['seconds']:8.1f} s  {n}" for n, s in done.items()
    ]
    shares = {encoder: agreement(check.work, encoder) for encoder in check.encoders}
    lines += [
        f"{encoder}: {share:.1%} of sentences have the same translation in float32 and float16"
        for encoder, share in shares.items()
        if share is not None
    ]
    write_text(check.work / "summary.txt", "\n".join(lines) + "\n")
    print("\n".join(lines))
    packed = check.work / "gpu_check.tar.gz"
    files = sorted(path for path in check.work.iterdir() if path.suffix in PACKED)

    def pack(path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for file in files:
                archive.add(file, f"gpu_check/{file.name}")

    write_whole(packed, pack)
    print(f"Logs, tables and figures: {packed}")
    failed = [name for name, step in done.items() if not step["ok"]]
    if failed:
        raise UserError(f"{len(failed)} of {len(done)} steps failed: {', '.join(failed)}.")


def _check_device(device: str) -> None:
    # Imported here because torch takes seconds, which --help need not wait for.
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "torch sees no GPU: run this where `nvidia-smi` lists one and torch is built with CUDA "
            "(docs/install.md), or rehearse with --device cpu."
        )


def main(work: Path, device: str, encoders: tuple[str, ...] | None, dry_run: bool) -> None:
    """Check on ``device``, or rehearse on the CPU."""
    encoders = encoders or (TRAINED[1:2] if device == "cpu" else TRAINED)
    if not dry_run:
        _check_device(device)
    # Tests run modules of their own folders.
    environment = {"PYTHONSAFEPATH": "", **(ONE_THREAD if device == "cpu" else {})}
    launcher = Launcher(dry_run=dry_run, environment=environment)
    with launcher.signals():
        run(GpuCheck(work.absolute(), device, encoders), launcher)
