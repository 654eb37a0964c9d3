"""`python -m benchmarks speed`: what it measures, prints and writes, and what it refuses."""

import json
import math
import re

import pytest
import torch

from benchmarks import solvers
from benchmarks.cli import main
from benchmarks.settings import PARTS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = ["fairseq", "floater", "floater K=8"]


def test_the_command_measures_draws_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(solvers, "COMPARED", [("rk4", 0.1), ("adams", 0.1)])
    monkeypatch.setattr(solvers, "REFERENCE", "rk4 0.1")
    figure, as_json = tmp_path / "figure.png", tmp_path / "benchmark.json"
    words = ["speed", "--quick", "--device", "cpu", "--threads", "1", "--rounds", "1"]
    threads = torch.get_num_threads()
    assert main([*words, "--plot", str(figure), "--json", str(as_json)]) == 0
    assert torch.get_num_threads() == threads
    assert figure.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr()
    assert "update, floater K=8: " in said.err
    result = json.loads(as_json.read_text())
    assert result["settings"]["parts"] == list(PARTS)
    assert result["machine"]["threads"] == 1
    assert {"python", "torch", "torchdiffeq"} <= set(result["machine"]["versions"])
    assert [row["contestant"] for row in result["update"]] == NAMES
    generated = [
        (row["vocabulary"], row["sentences"], row["contestant"]) for row in result["generation"]
    ]
    assert generated == [(v, n, name) for v in (60, 100) for n in (1, 4) for name in NAMES[:2]]
    walked = [(row["position"], row["contestant"]) for row in result["step"]]
    assert walked == [(n, name) for n in (4, 9) for name in NAMES[:2]]
    for row in (*result["update"], *result["generation"], *result["step"]):
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < math.inf
        assert row["seconds"] > 0
        assert row["rounds"] % row["block"] == 0
    assert [row["contestant"] for row in result["memory"]] == NAMES
    fairseq, *ours = (row["kernels"] for row in result["launches"])
    assert 100 < fairseq < min(ours) and len(ours) == 2
    assert [row["positions"] for row in result["growth"]["tables"]] == [32, 64, 128]
    assert set(result["growth"]["exponents"]) == {"floater"}
    assert f"| `floater K=8` | {result['update'][2]['parameters']:,} | " in said.out
    heads = [line for line in said.out.splitlines() if line.startswith("#")]
    assert heads[0].startswith("## Benchmark, 20")
    assert len(heads) == 2 + len(PARTS)


def test_encoders_are_resumed_by_the_command(tmp_path, capsys):
    words = ["speed", "--quick", "--device", "cpu", "--threads", "1", "--rounds", "1"]
    words += ["--parts", "update", "--resume", str(tmp_path / "records.jsonl")]
    assert main([*words, "--encoders", "rope"]) == 0
    capsys.readouterr()
    assert main([*words, "--encoders", "rope,none"]) == 0
    said = capsys.readouterr()
    assert [line.partition(":")[0] for line in said.err.splitlines() if "rope" in line] == []
    assert "update, none: " in said.err
    assert "| `rope` | " in said.out
    assert main([*words, "--encoders", "rope", "--tokens", "64"]) == 2
    assert "holds measurements with another tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["speed", "--parts", "update,speed"])
    assert (
        "must be some of update, memory, launches, generation, step, solve"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens", "255"], r"`--tokens` must hold the longest sentence \(256 tokens\)"),
        (["--vocabulary", "11"], "`--vocabulary` must be at least 12, but is 11"),
        (["--dtype", "float16"], "`--dtype` float16 needs `--device cuda`"),
        (["--dtype", "bfloat16"], "`--dtype` bfloat16 needs `--device cuda`"),
        (
            ["--encoders", "t5", "--checkpoint", "x"],
            "`--checkpoint` must come with the part `solve`",
        ),
        (["--plot", "x.jpg"], "`x.jpg` must end in one of png, svg, pdf"),
        (["--parts", "solve", "--plot", "x.png"], "`--plot` draws the parts update"),
        (["--quick", "--", "--strange", "1"], "`--strange` is not an option of the model"),
        (["--quick", "word"], "`word` is not an option of the model"),
        (["--encoders", "t5", "--", "--position-encoder", "fire"], "`--position-encoder` must be"),
        (["--quick", "--", "--position-encoder", "x"], "refuses the model's options: argument "),
        (["--quick", "--", "--encoder-layers", "x"], "argument --encoder-layers: invalid int"),
    ],
)
def test_bad_usage_is_refused_in_a_sentence(words, message, capsys):
    assert main(["speed", "--device", "cpu", *words]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("python -m benchmarks speed: ")
    assert said.err.count("\n") == 1
    assert re.search(message, said.err)


def test_a_checkpoint_is_read_before_anything_is_measured(capsys):
    assert main(["speed", "--quick", "--device", "cpu", "--checkpoint", "nowhere.pt"]) == 1
    assert (
        capsys.readouterr().err
        == "python -m benchmarks speed: There is no checkpoint nowhere.pt.\n"
    )


@pytest.mark.parametrize("length", ["16", "9:4", "1:4", "a:b", "4:9:16"])
def test_a_range_of_lengths_is_low_and_high(length, capsys):
    with pytest.raises(SystemExit) as end:
        main(["speed", "--length", length])
    assert end.value.code == 2
    assert "must be LOW:HIGH with 2 <= LOW <= HIGH" in capsys.readouterr().err
