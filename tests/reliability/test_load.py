"""Large inputs: memory grows with the number of lines as documented, but not with that of checkpoints.

`FLOATER_LOAD_LINES=1000000 bash scripts/test.sh -m slow tests/reliability/test_load.py -rP` prints what
docs/reliability.md shows; without the variable, a test has a fifth of these lines. Seconds are not asserted.
"""

import os
import random
import subprocess
import sys
import time

import pytest
import torch
from faults import FLOATER
from toy import environment

from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.data.sentencepiece_subwords import SUBWORD_PAIRS

LINES = int(os.environ.get("FLOATER_LOAD_LINES", 200_000))
CHECKPOINTS = 20
MEGABYTE = 1 << 20

# A process inherits its parent's peak memory; these tests have loaded torch, so theirs is too large.
BETWEEN = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime)
sys.exit(code)
"""

pytestmark = pytest.mark.slow


def measured(name, *words):
    """Run a command to its end and print its costs; return its peak memory in bytes."""
    begun = time.monotonic()
    command = [sys.executable, "-c", BETWEEN, *FLOATER, *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    peak, cpu = done.stdout.split()[-2:]
    print(
        f"{name}: {int(peak) / 1024:,.0f} MB, {time.monotonic() - begun:,.0f} s, "
        f"{float(cpu):,.0f} s of CPU"
    )
    return int(peak) * 1024


def sentences(count, seed):
    """Yield sentences of 5 to 45 words (one in fifty: up to 120) from a vocabulary of 2,000."""
    words = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyzäöü"
    known = ["".join(words.choices(letters, k=words.randint(2, 10))) for _ in range(2_000)]
    words.seed(seed)
    for number in range(count):
        size = words.randint(5, 45 if number % 50 else 120)
        yield " ".join(words.choices(known, k=size)) + "."


def write(path, lines):
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def damaged(line, number):
    """Drop every third word, starting at another one in each sentence."""
    return " ".join(w for i, w in enumerate(line.split()) if (i + number) % 3)


def test_scoring(tmp_path):
    """sacreBLEU holds all resamples at once, and before that the n-grams of all references."""
    count = min(LINES, 100_000)
    references = write(tmp_path / "references", sentences(count, 1))
    with references.open(encoding="utf-8") as file:
        found = (
            f"S-{i}\tx\nT-{i}\tx\nH-{i}\t-1\tx\nD-{i}\t-1\t{damaged(line, i)}\nP-{i}\t-1 -1"
            for i, line in enumerate(file)
        )
        hypotheses = write(tmp_path / "hypotheses", found)
    words = ("score", hypotheses, "--references", references, "--target-lang", "de")
    peak = measured(f"score, {count:,} lines", *words)
    assert peak < 115_000 * count + 256 * MEGABYTE


@pytest.mark.parametrize("kind", ["raw", "encoded"])
def test_splitting(tmp_path, kind):
    """Raw text: the text that subwords are learned from is held in memory, up to a limit."""
    peaks = []
    for count in (LINES // 10, LINES):
        raw = tmp_path / f"raw{count}"
        raw.mkdir()
        for split, size in (("train", count), ("valid", 1000), ("test", 1000)):
            for lang in ("en", "de"):
                lines = sentences(size, f"{split} {lang}")
                if kind == "encoded":
                    lines = (" ".join(f"\u2581{word}" for word in line.split()) for line in lines)
                write(raw / f"{split}.{lang}", lines)
        words = ("s2l", "split", raw, tmp_path / f"out{count}", "--src", "en", "--tgt", "de")
        words += ("--encoded",) if kind == "encoded" else ("--vocab", "8000")
        words += ("--threshold", "60", "--max-per-bin", "500")
        peaks.append(measured(f"s2l split, {count:,} {kind} pairs", *words))
    held = min(LINES, SUBWORD_PAIRS) if kind == "raw" else 0
    assert peaks[1] < peaks[0] + 1000 * held + 64 * MEGABYTE


def test_averaging(tmp_path):
    """As fairseq saves a base model (512 wide, 6 + 6 blocks, 32,768 subwords) with Adam's moments."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"encoder.embed_tokens.weight": (32768, 512)}
    for side, attentions in (
        ("encoder", ["self_attn"]),
        ("decoder", ["self_attn", "encoder_attn"]),
    ):
        for block in range(6):
            place = f"{side}.layers.{block}"
            for name in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes[f"{place}.{name}.{part}.weight"] = (512, 512)
            shapes |= {f"{place}.fc1.weight": (2048, 512), f"{place}.fc2.weight": (512, 2048)}
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    size = sum(tensor.numel() for tensor in model.values())
    moments = {"state": {0: {name: torch.zeros(size) for name in ("exp_avg", "exp_avg_sq")}}}
    for number in range(1, CHECKPOINTS + 1):
        shifted = {name: tensor + number for name, tensor in model.items()}
        state = {"model": shifted, "last_optimizer_state": moments, "extra_state": {}}
        torch.save({**state, "optimizer_history": [{}]}, tmp_path / f"checkpoint{number}.pt")
    print(f"{size:,} parameters, {(tmp_path / 'checkpoint1.pt').stat().st_size / 1e6:,.0f} MB each")
    peaks = []
    for last in (CHECKPOINTS // 4, CHECKPOINTS):
        output = tmp_path / f"average{last}.out"
        words = ("average", "--inputs", tmp_path, "--last", last, "--output", output)
        peaks.append(measured(f"average of {last}", *words))
    assert peaks[1] < 1.05 * peaks[0]
    mean = load_checkpoint(output)["model"]["encoder.embed_tokens.weight"]
    expected = model["encoder.embed_tokens.weight"] + (CHECKPOINTS + 1) / 2
    torch.testing.assert_close(mean, expected)
