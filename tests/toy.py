"""A toy experiment made by the real commands, and functions that run such commands.

Not a test file: `test_integration.py` and its sibling build the experiment through :func:`shared`.
"""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import warm
import yaml

import fairseq_floater

PACKAGE = Path(fairseq_floater.__file__).resolve().parent
ROOT = Path(__file__).resolve().parent.parent
ARCH = "floater_transformer_tiny"

# Smaller than fairseq's tiny shape; pre-norm learns something in seconds.
SHAPE = (
    *("--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"),
    *("--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64"),
    *("--encoder-normalize-before", "--decoder-normalize-before"),
)
TASK = ("--task", "translation", "--source-lang", "en", "--target-lang", "de", "--cpu")
# With a loader's process, the end of every epoch would take seconds.
TASK += ("--num-workers", "0")
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.005", "--clip-norm", "1.0"),
    *("--batch-size", "34", "--required-batch-size-multiple", "1", "--seed", "1"),
    *("--log-format", "simple", "--log-interval", "1"),
    # An epoch's batches then depend only on its number; without it a resumed run sees others.
    *("--update-epoch-batch-itr", "True"),
)
CRITERION = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")
# fairseq drops the rest of a batch that is not a multiple of 8 unless told otherwise.
GENERATION = (
    *("--beam", "2", "--max-len-a", "1", "--max-len-b", "10"),
    *("--max-tokens", "1000", "--required-batch-size-multiple", "1"),
)
TRAIN_LINES, TEST_LINES = 300, 20
UPDATES_AN_EPOCH = 9  # 300 lines, 34 at a time


def environment(**changes):
    """Return the caller's environment for one CPU thread, with the protection of checkpoints left on."""
    kept = {k: v for k, v in os.environ.items() if k != "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
    own = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONWARNINGS": "ignore",
        "FLOATER_PYTHON": sys.executable,
    }
    return {**kept, **own, **changes}


def run(command, *, code=0, stdin="", cwd=None, env=None, timeout=300, new=False):
    """Run a command to its end and return the result; an exit code other than ``code`` fails the test.

    ``new`` starts a new Python instead of a forked one (`warm.py`).
    """
    __tracebackhide__ = True
    command = [str(word) for word in command]
    if command[0] == sys.executable and not new:
        command[0] = warm.python()
    env = environment(FLOATER_PYTHON=warm.python()) if env is None else env
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": timeout}
    done = subprocess.run(command, input=stdin, cwd=cwd, env=env, **how)
    if done.returncode != code:
        raise AssertionError(
            f"exit code {done.returncode} instead of {code}: {shlex.join(command)}\n"
            f"--- end of stdout\n{_end(done.stdout)}\n--- end of stderr\n{_end(done.stderr, 120)}"
        )
    return done


def run_script(name, *words, **options):
    """Run one of `scripts/` to its end, whatever its exit code."""
    command = ["bash", str(ROOT / "scripts" / name), *map(str, words)]
    env = environment(FLOATER_PYTHON=warm.python())
    return subprocess.run(command, capture_output=True, text=True, env=env, **options)


def killed(command, seconds):
    """Run a command, and all that it starts, for at most ``seconds``; return whether it was killed."""
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [str(word) for word in command], env=environment(), start_new_session=True, **silent
    )
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def _end(text, lines=40):
    return "\n".join(line[:400] for line in text.splitlines()[-lines:])


def fairseq(tool, *args, **how):
    """`fairseq-<tool> ARGS --user-dir <the package>`."""
    words = [sys.executable, "-m", f"fairseq_cli.{tool}", *args, "--user-dir", PACKAGE]
    return run(words, **how)


def floater(*args, **how):
    """`floater ARGS`."""
    return run([sys.executable, "-m", "fairseq_floater", *args], **how)


@dataclass(frozen=True)
class Experiment:
    """Number words, their binarised form, and a plain Transformer trained on them."""

    folder: Path

    @property
    def raw(self):
        return self.folder / "raw"

    @property
    def prepared(self):
        return self.folder / "data"

    @property
    def data(self):
        return self.prepared / "bin"

    @property
    def sentencepiece_model(self):
        return self.prepared / "spm.model"

    @property
    def donor(self):
        return self.folder / "donor" / "checkpoint_best.pt"

    def lines(self, split, language):
        """Sentences of a split in subwords."""
        path = self.prepared / "spm" / f"{split}.{language}"
        return path.read_text(encoding="utf-8").splitlines()

    def train(self, save_dir, *options, **how):
        """Run fairseq-train into ``save_dir``; later options override those of the toy."""
        return fairseq("train", *self.training(save_dir, *options), **how)

    def training(self, save_dir, *options):
        """Return fairseq-train's arguments."""
        words = [self.data, *TASK, *SHAPE, *TRAINING, "--save-dir", save_dir]
        if "--criterion" not in options:
            words += CRITERION
        if "--adaptive-softmax-cutoff" not in options:  # fairseq cannot reload both together
            words.append("--share-all-embeddings")
        return [*words, *options]

    def warm_start(self, out, *options, donor=None, **how):
        words = [donor or self.donor, out, "--arch", ARCH, "--data", self.data, *options]
        return floater("warm-start", *words, **how)

    def validate(self, path, *options, **how):
        words = [self.data, *TASK, "--path", path, "--max-tokens", "1000", *options]
        return fairseq("validate", *words, "--required-batch-size-multiple", "1", **how)

    def generate(self, path, *options, **how):
        return fairseq("generate", self.data, *TASK, "--path", path, *GENERATION, *options, **how)

    def interactive(self, path, lines, *options, **how):
        words = [self.data, *TASK, "--path", path, *GENERATION, "--buffer-size", len(lines)]
        stdin = "".join(f"{line}\n" for line in lines)
        return fairseq("interactive", *words, *options, stdin=stdin, **how)


def build(folder):
    """Make the experiment in ``folder``: corpus, data and donor, about 20 seconds on an idle core."""
    toy = Experiment(folder)
    sizes = ("--train", TRAIN_LINES, "--valid", 30, "--test", TEST_LINES, "--test-long", TEST_LINES)
    floater("numbers", toy.raw, *sizes, "--numbers-per-line", 1, 2, "--max-number", 999)
    languages = ("--src", "en", "--tgt", "de")
    script = ROOT / "scripts" / "prepare_text.sh"
    run(["bash", script, toy.raw, toy.prepared, *languages, "--vocab", 120, "--workers", 1])
    options = ("--arch", "transformer_tiny", "--max-epoch", 15, "--no-epoch-checkpoints")
    toy.train(folder / "donor", *options, "--lr", "0.01")
    return toy


def shared(tmp_path_factory):
    """Return the session's experiment; the first worker that asks for it builds it."""
    base = tmp_path_factory.getbasetemp()
    # Under pytest-xdist every worker has its own folder inside the session's.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toy"
    folder.mkdir(exist_ok=True)
    whole = folder / "whole"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            build(folder)
            whole.touch()
    return Experiment(folder)


def tiny_config(name, epochs):
    """Return a configuration that trains in seconds."""
    settings = yaml.safe_load((ROOT / "configs" / name).read_text())
    settings["data"]["numbers"].update({"train": 400, "valid": 30, "test": 12, "test-long": 10})
    settings["data"]["vocab"] = 130
    settings["shape"].update({"encoder-embed-dim": 32, "encoder-ffn-embed-dim": 32})
    settings["optimisation"].update({"log-interval": 2, "warmup-updates": 4})
    budget = {stage: {"max-epoch": epochs} for stage in ("donor", "finetune", "scratch")}
    budget |= {"max-tokens": 1000, "tokens-per-update": 1000, "average": epochs}
    settings["budget"].update(budget)
    settings["generation"].update({"beam": 1, "max-len-a": 0, "max-len-b": 12})
    return settings


def hypotheses(output):
    """The H lines of fairseq-generate or -interactive: {sentence: [(score, subwords), ...]}."""
    found = {}
    for line in output.splitlines():
        match = re.fullmatch(r"H-(\d+)\t(\S+)\t(.*)", line)
        if match:
            number, score, text = match.groups()
            found.setdefault(int(number), []).append((float(score), text))
    return found


def valid_losses(log):
    """{epoch: loss as printed} of a training log."""
    return {int(e): loss for e, loss in re.findall(r"valid \| epoch (\d+) .*? loss ([\d.]+)", log)}


def update_losses(log):
    """{update: loss as printed} of a training log with --log-interval 1."""
    lines = re.findall(r"train_inner \| epoch.* loss=([\d.]+),.* num_updates=(\d+)", log)
    return {int(update): loss for loss, update in lines}


def parameters(path):
    """A checkpoint's parameters, loaded safely."""
    return torch.load(path, map_location="cpu", weights_only=True)["model"]


def losses(path):
    """Return an epoch's training loss (unrounded) and validation loss (as printed), in bits a token."""
    extra = torch.load(path, weights_only=True)["extra_state"]
    [meter] = [meter for _, name, _, meter in extra["metrics"]["train"] if name == "loss"]
    return [float(meter["sum"] / meter["count"]), extra["val_loss"]]


def largest_difference(first, second):
    """Return the largest difference of two checkpoints' parameters; NaN counts as infinite."""
    a, b = parameters(first), parameters(second)
    assert list(a) == list(b)
    worst = max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
    return worst if worst == worst else float("inf")


def assert_same_run(first, second, tolerance=1e-6):
    """Check that two checkpoints have the same losses and parameters."""
    assert losses(first) == pytest.approx(losses(second), abs=tolerance)
    assert largest_difference(first, second) <= tolerance
