"""Launchers that train nothing, for tests of the order of a run's steps. Not a test file."""

import json
from pathlib import Path

from command_lines import value
from toy import ROOT

from fairseq_floater.experiments.launch import CommandError, Launcher
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System

CONFIG = ROOT / "configs" / "numbers_en_de.yaml"


class FakeLauncher(Launcher):
    """Write the files that each command would write; ``fails`` names the step that fails."""

    def __init__(self, fails=None):
        super().__init__()
        self.steps, self.commands, self.fails = [], [], fails

    def run(self, words, *, name="", log=None, output=None, line=None, locks=()):
        words = [str(word) for word in words]
        self.steps.append(step := _step(words))
        self.commands.append(words)
        self.locks = list(locks)
        if self.dry_run:
            return
        if step == self.fails:
            raise CommandError(f"{name}: the command failed; see the end of {log}.")
        if step.startswith("train"):
            folder = Path(value(words, "--save-dir"))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "checkpoint_best.pt").write_bytes(b"one")
        elif step == "validate":
            log.write_text("x | valid on 'valid' subset | loss 3.25 | ppl 9.5\n")
        elif output is not None:
            output.write_text("H-0\n")
        elif step == "prepare":
            tests = Path(words[5]) / "tests.json"
            tests.parent.mkdir(parents=True, exist_ok=True)
            tests.write_text('{"test": "test", "test_long": "test1"}')
        elif "--json" in words:
            result = {"bleu": {"score": 12.5}, "score": 87.5, "f1": 87.5}
            Path(value(words, "--json")).write_text(json.dumps(result))


def run(work, encoder, launcher=None, *, scratch=False, config=CONFIG, **asked):
    """Run the protocol of one system; return its steps."""
    launcher, system = launcher or FakeLauncher(), System(encoder, scratch=scratch)
    Protocol(RunRequest(Experiment(config), system, work, **asked), launcher).run()
    return launcher.steps


class Laboratory(FakeLauncher):
    """Write the files that the commands of a comparison would write."""

    def run(self, words, *, output=None, **places):
        super().run(words, output=output, **places)
        words = [str(word) for word in words]
        if self.steps[-1] == "prepare":
            data = places["log"].parent / "data"
            (data / "bin").mkdir(exist_ok=True)
            (data / "summary.json").write_text("{}")
            numbers = {"test": "test", "test_short": "test1", "test_long": "test1"}
            (data / "tests.json").write_text(json.dumps(numbers))
        elif "split" in words:
            split = places["log"].parent / "split"
            split.mkdir(exist_ok=True)
            (split / "split.json").write_text('{"kept": {"train": {"longest_source": 23}}}')
        elif self.steps[-1] in ("s2l", "compare"):
            self.scored = words


class RobertaLauncher(FakeLauncher):
    """Write the files that the commands of RoBERTa's experiment would write; ``splits`` have references."""

    LOG = "x | INFO | train_inner | epoch 001:     2 / 156 loss=1, num_updates=2, lr=1\n"

    def __init__(self, fails=None, splits=("valid", "test")):
        super().__init__(fails)
        self.splits, self.said = splits, []
        self.screen.say = self.said.append

    def run(self, words, *, line=None, **places):
        super().run(words, **places)
        words = [str(word) for word in words]
        if self.steps[-1].startswith("train"):
            line.read(self.LOG)
        elif self.steps[-1] == "prepare_mlm.sh":
            write(Path(words[2]) / "summary.json", "{}")
        elif self.steps[-1].endswith("prepare"):
            data = Path(words[words.index("--like") - 1])
            write(data / "summary.json", "{}")
            for split in self.splits:
                ending = "tsv" if words[3] == "glue" else "json"
                write(data / f"references.{split}.{ending}", "x")
        elif self.steps[-1].startswith("predict"):
            write(Path(words[6]), "x")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _step(words):
    """Return a command's step: ``train floater-all-qkv``, ``warm-start``, ``generate test1``, ..."""
    if words[0] == "bash":
        return Path(words[1]).name
    if words[2] == "fairseq_floater":
        if words[3] == "predict":
            return f"predict {value(words, '--split')}"
        return " ".join(words[3:5]) if words[3] in ("glue", "race", "squad") else words[3]
    step = words[2].removeprefix("fairseq_cli.")
    if step == "train":
        return f"train {Path(value(words, '--save-dir')).parent.name}"
    if step == "generate":
        step = "losses" if "--score-reference" in words else step
        return f"{step} {value(words, '--gen-subset')}"
    return step
