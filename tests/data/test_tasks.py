"""Tasks by length: each example by its rule, split by length, SCAN fetched and checked."""

from __future__ import annotations

import gzip
import hashlib
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prepared_text import text_lines as lines

from fairseq_floater.cli import main
from fairseq_floater.data import scan
from fairseq_floater.data.task_generators import TASKS
from fairseq_floater.data.wmt14.sources import Archive

SPLITS = ("train", "valid", "test_short", "test")
SIZES = {"train": 400, "valid": 40, "test_short": 60, "test": 60}
SMALL = ("--train", "400", "--valid", "40", "--test", "60")


def pairs(folder: Path, split: str) -> list[tuple[str, str]]:
    return list(zip(*(lines(folder / f"{split}.{side}") for side in ("src", "tgt")), strict=True))


def number(words: str) -> int:
    return int(words.replace("#", "").replace(" ", "") or 0)


def added(a: str, b: str, padding: str) -> tuple[int, str]:
    total = str(number(a) + number(b)) if number(a) + number(b) else ""
    digits = [len(side.lstrip("#").replace("-", "").replace(" ", "")) for side in (a, b)]
    return max(digits), " ".join(padding * (12 - len(total)) + total)


def solved(task: str, source: str) -> tuple[int, str]:
    """The length and the target of a source."""
    words = source.split()
    a, _, b = (side.strip() for side in source.partition("|"))
    first, second = a.split(), b.split()
    longest = max(len(first), len(second))
    if task == "addition":  # zeros in front are padding
        return max(len(str(number(side))) for side in (a, b)), added(a, b, "0")[1]
    if task == "addition-negatives":
        return added(a.replace("# ", ""), b.replace("# ", ""), "#")
    if task == "cartesian":
        return longest, " ".join(f"{x} {y} |" for x, y in itertools.product(first, second))
    if task == "intersection":
        return longest, "false" if {*first}.isdisjoint(second) else "true"
    target = {
        "reverse": list(reversed(words)),
        "duplicate": words + words,
        "copy": words,
        "sort": sorted(words, key=int),
        "odds-first": [*words[0::2], *words[1::2]],
    }[task]
    return len(words), " ".join(target)


@pytest.mark.parametrize("task", TASKS)
def test_every_example_follows_the_rule_in_its_lengths(task: str, tmp_path: Path) -> None:
    assert main(["tasks", task, str(tmp_path / "out"), *SMALL]) == 0
    sources, lengths = {}, {}
    for split in SPLITS:
        examples = pairs(tmp_path / "out", split)
        assert len(examples) == SIZES[split]
        sources[split] = {source for source, _ in examples}
        low, high = TASKS[task].tested if split == "test" else TASKS[task].trained
        lengths[split] = {solved(task, source)[0] for source, _ in examples}
        for source, target in examples:
            length, expected = solved(task, source)
            assert target == expected
            assert low <= length <= high
    for held_out in SPLITS[1:]:
        assert len(sources[held_out]) == SIZES[held_out]
        assert not sources["train"] & sources[held_out]
    low, high = TASKS[task].trained
    assert lengths["train"] >= {*range(low + 1, high + 1)}
    sides = [side.split() for s, _ in pairs(tmp_path / "out", "train") for side in s.split("|")]
    if task == "cartesian":
        assert len({(len(a), len(b)) for a, b in zip(sides[::2], sides[1::2])}) > 30
    if task == "addition-negatives":
        assert sum("-" in side for side in sides) / 800 == pytest.approx(0.25, abs=0.05)
    if task == "intersection":
        assert all(len({*side}) == len(side) for side in sides)
        answers = [target for _, target in pairs(tmp_path / "out", "train")]
        assert answers.count("true") / 400 == pytest.approx(0.5, abs=0.1)


def test_a_sum_of_zero_is_only_padding() -> None:
    zeros: Any = SimpleNamespace(below=lambda count: 0, within=lambda span: span[0])
    for task, padding in (("addition", "0"), ("addition-negatives", "#")):
        assert TASKS[task].draw(zeros, (1, 8)).target == [padding] * 12


@pytest.mark.parametrize("task", ["reverse", "copy", "addition", "intersection"])
def test_test_lines_are_named_by_their_lengths(task: str, tmp_path: Path) -> None:
    assert main(["tasks", task, str(tmp_path / "out"), *SMALL]) == 0
    names = lines(tmp_path / "out" / "test.groups")
    for name, (source, _) in zip(names, pairs(tmp_path / "out", "test"), strict=True):
        low, _, high = name.partition("-")
        assert int(low) <= solved(task, source)[0] <= int(high or low)
    assert task != "copy" or {"41-45", "46-50", "76-80"} <= {*names}


def test_a_seed_makes_the_same_text_on_every_machine(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main(["tasks", "sort", str(tmp_path / name), *SMALL, "--seed", seed]) == 0
    first, same, other = (lines(tmp_path / name / "train.src") for name in "abc")
    assert first == same != other
    assert hashlib.sha256("\n".join(first[:9]).encode()).hexdigest()[:8] == "4e82d63f"


def scan_text() -> str:
    rows = [
        f"IN: jump {n} times {word} OUT: {'I_JUMP ' * n}" for n in range(1, 9) for word in "xyz"
    ]
    return "".join(f"{row.strip()}\n" for row in rows)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small text in SCAN's form in place of the published one."""
    path = tmp_path / "site" / "tasks.txt"
    path.parent.mkdir()
    path.write_text(scan_text())
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(scan, "TASKS_FILE", Archive(path.name, path.as_uri(), checksum))
    return path


def test_scan_is_fetched_and_split_by_actions(published: Path, tmp_path: Path) -> None:
    out, packed = tmp_path / "out", tmp_path / "tasks.txt.gz"
    words = ["tasks", "scan", "--cutoff", "6", "--valid", "2"]
    assert main([*words, str(out)]) == 0
    split = {name: pairs(out, name) for name in SPLITS}
    assert {name: len(examples) for name, examples in split.items()} == {
        **{"train": 14, "valid": 2, "test_short": 2, "test": 6}
    }
    all_pairs = sorted(pair for examples in split.values() for pair in examples)
    rows = [line.removeprefix("IN: ").split(" OUT: ") for line in lines(published)]
    assert all_pairs == sorted(map(tuple, rows))
    assert lines(out / "test.groups") == ["7"] * 3 + ["8"] * 3
    packed.write_bytes(gzip.compress(published.read_bytes()))
    published.unlink()  # `--from` needs no download, and a complete folder is not made again
    assert main([*words, str(tmp_path / "again"), "--from", str(packed)]) == 0
    assert main([*words, str(out)]) == 0
    assert [pairs(tmp_path / "again", name) for name in SPLITS] == [*split.values()]


def test_scan_that_is_not_there_or_another_is_refused(
    published: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["tasks", "scan", str(tmp_path / "out"), "--valid", "2", "--cutoff"]
    assert main([*words, "8", "--from", str(published)]) == 1
    refusal = "`--cutoff` must leave pairs for training and for the test, but is 8"
    assert refusal in capfd.readouterr().err
    assert main([*words, "6", "--from", str(published), "--valid", "5"]) == 1
    assert "`--valid` must be at most 4, a quarter of the pairs" in capfd.readouterr().err
    published.write_text(scan_text() + "IN: run OUT: I_RUN\n")
    assert main([*words, "6", "--from", str(published)]) == 1
    assert "must be SCAN's tasks.txt with the SHA-256" in capfd.readouterr().err
    broken = tmp_path / "tasks.txt.gz"
    broken.write_bytes(gzip.compress(b"IN: run OUT: I_RUN")[:-9])
    assert main([*words, "6", "--from", str(broken)]) == 1
    assert "is not a valid gzip file" in capfd.readouterr().err
    published.unlink()
    assert main([*words, "6"]) == 1
    assert "SCAN could not be fetched" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
