"""The tools and scripts that `test_faults.py` and `test_faults_disk.py` disturb, and what they read."""

import json
import random
import sys

import yaml
from faults import FLOATER, Tool
from helpers import save_donor
from toy import ROOT, floater, tiny_config

TINY = "floater_transformer_tiny"
LANGUAGES = ("--src", "en", "--tgt", "de")
_SCORE = (*FLOATER, "score", "in/hypotheses.txt", "--references", "in/raw/test.de")
_SCORE += ("--target-lang", "de", "--json", "out/scores.json")
_AVERAGE = (*FLOATER, "average", "--inputs", "in/checkpoints", "--output", "out/average.pt")
_AVERAGE += ("--force", "--json", "out/average.json")
_WARM = (*FLOATER, "warm-start", "in/donor.pt", "out/start.pt", "--arch", TINY, "--force")
_WARM += ("--json", "out/start.json")
_SPLIT = (*FLOATER, "s2l", "split", "in/raw", "out/split", *LANGUAGES, "--vocab", "130", "--force")
_SPLIT += ("--threshold", "24", "--edges", "24", "36", "--max-per-bin", "6")
_S2L = (*FLOATER, "s2l", "score", "in/split", "--hypotheses", "one=in/s2l.one.txt")
_S2L += ("--hypotheses", "two=in/s2l.two.txt", "--figure", "out/s2l.png", "--json", "out/s2l.json")
_PLOT = (*FLOATER, "plot", "positions", "in/floater.pt", "out/positions.png")
_PLOT += ("--json", "out/positions.json")
_NUMBERS = (*FLOATER, "numbers", "out/raw", "--force", "--train", "2000")
_TABLE = (*FLOATER, "table", "in/results", "--figure", "out/scores.png", "--json", "out/table.json")
_BENCHMARK = (sys.executable, "-m", "benchmarks", "speed", "--quick", "--parts", "update")
_BENCHMARK += ("--rounds", "1", "--json", "out/benchmark.json", "--plot", "out/benchmark.svg")
_PROTOCOL = ("bash", ROOT / "scripts" / "protocol.sh", "in/tiny.yaml", "--encoder", "floater")
_S2L_SCRIPT = ("bash", ROOT / "scripts" / "s2l.sh", "in/s2l.yaml")
# Not checked after a kill: fairseq copies checkpoints in place, and a run's record changes.
_COPIED = ("checkpoint_best.pt", "checkpoint_last.pt", "run.json")

TOOLS = {
    tool.name: tool
    for tool in (
        Tool("numbers", _NUMBERS, older=(*_NUMBERS, "--seed", "2"), seal="raw/numbers.json"),
        Tool("score", _SCORE, older=(*_SCORE, "--seed", "7", "--bootstrap", "200")),
        Tool("s2l split", _SPLIT, older=(*_SPLIT, "--seed", "2"), seal="split/split.json"),
        Tool("s2l score", _S2L, older=(*_S2L, "--bootstrap", "200")),
        Tool("average", (*_AVERAGE, "--last", "3"), older=(*_AVERAGE, "--last", "2")),
        Tool("warm-start", _WARM, older=(*_WARM, "--seed", "2")),
        Tool("table", _TABLE),
        Tool("plot positions", (*_PLOT, "--length", "40"), older=(*_PLOT, "--length", "30")),
        Tool("benchmark", _BENCHMARK, varies=("benchmark.json", "benchmark.svg")),
        Tool(
            "prepare_text.sh",
            ("bash", ROOT / "scripts" / "prepare_text.sh", "in/raw", "out/data", *LANGUAGES)
            + ("--vocab", "130", "--workers", "1"),
            seal="data/summary.json",
        ),
        Tool(
            "protocol.sh",
            (*_PROTOCOL, "--work", "out/work"),
            copied=_COPIED,
            varies=("average.json", "run.json"),
            writing="checkpoint*",
        ),
        Tool(
            "s2l.sh",
            (*_S2L_SCRIPT, "--work", "out/work", "--jobs", "2"),
            copied=_COPIED,
            varies=("average.json", "run.json", "s2l.svg"),
            writing="checkpoint*",
        ),
    )
}


def make_inputs(folder):
    """Write everything that the tools above read; return ``folder``."""
    raw = folder / "raw"
    sizes = ("--train", 400, "--valid", 30, "--test", 20, "--test-long", 60)
    floater("numbers", raw, *sizes)
    _write_hypotheses(folder / "hypotheses.txt", raw / "test.de", 1)
    floater("s2l", "split", raw, folder / "split", *_SPLIT[7:])
    for number, name in enumerate(("one", "two")):
        _write_hypotheses(folder / f"s2l.{name}.txt", folder / "split" / "test.de", number)
    results = folder / "results" / "plain"
    results.mkdir(parents=True)
    facts = {"position_parameters": 0, "training_seconds": 1.0}
    (results / "average.json").write_text(json.dumps(facts))
    words = ("--references", raw / "test.de", "--target-lang", "de")
    floater("score", folder / "hypotheses.txt", *words, "--json", results / "scores.test.json")
    save_donor(folder / "donor.pt")
    save_donor(folder / "floater.pt", arch=TINY, position_encoder="floater")
    (folder / "checkpoints").mkdir()
    for number in (1, 2, 3):
        save_donor(folder / "checkpoints" / f"checkpoint{number}.pt", seed=number)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny_config("numbers_en_de.yaml", 2)))
    short = tiny_config("numbers_s2l.yaml", 1)
    short["data"]["numbers"].update({"test": 20, "test-long": 80})
    systems = ["--encoder sinusoidal --blocks input --scratch", "--encoder none --scratch"]
    short["s2l"].update({"edges": [24, 36], "max-per-bin": 6, "systems": systems})
    short["s2l"]["baseline"] = "none-all-hidden-scratch"
    (folder / "s2l.yaml").write_text(yaml.safe_dump(short))
    return folder


def _write_hypotheses(path, references, seed):
    """Write the references with about 30 % of their words dropped."""
    words = random.Random(seed)
    lines = references.read_text().splitlines()
    kept = (" ".join(w for w in line.split() if words.random() > 0.3) for line in lines)
    path.write_text("".join(f"{line}\n" for line in kept))
