"""From raw text to binarised data: `scripts/prepare_text.sh`, run and killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from prepared_text import VOCAB, text_lines

from fairseq_floater.data.binarised import binarise
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.prepare import finish

SCRIPT = toy.ROOT / "scripts" / "prepare_text.sh"


def script(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return toy.run(["bash", SCRIPT, *arguments], code=code)


@pytest.fixture(scope="module")
def prepared(
    numbers: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """What the script makes in a folder in which it was killed before."""
    out = tmp_path_factory.mktemp("prepared") / "my data"
    for name in (".spm.tmp", ".bin.tmp"):
        (out / name).mkdir(parents=True)
        (out / name / "train.en-de.en.idx").write_bytes(b"half")
    return out, script(numbers, out, *VOCAB, "--workers", "2")


def test_the_whole_script(prepared: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, run = prepared
    assert re.search(r"^test_long +test1 +10 +0 +0 +0 ", run.stdout, re.MULTILINE)
    names = {"spm.model", "dict.txt", "tests.json", "summary.json", "prepare.json"}
    assert {path.name for path in out.iterdir() if path.is_file()} == names
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"bin", "raw", "spm"}
    assert json.loads((out / "tests.json").read_text()) == {"test": "test", "test_long": "test1"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["dictionary"] == 57
    assert {s: (c["subset"], c["kept"]) for s, c in summary["splits"].items()} == {
        "train": ("train", 400),
        "valid": ("valid", 20),
        "test": ("test", 30),
        "test_long": ("test1", 10),
    }
    dictionary = Dictionary.load(str(out / "bin" / "dict.de.txt"))
    for split, counts in summary["splits"].items():
        for lang in ("en", "de"):
            data = MMapIndexedDataset(str(out / "bin" / f"{counts['subset']}.en-de.{lang}"))
            decoded = [dictionary.string(ids) for ids in data]
            assert decoded == text_lines(out / "spm" / f"{split}.{lang}")


def test_a_second_run_makes_nothing_anew(
    numbers: Path, prepared: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, first = prepared
    made = {
        p: p.stat().st_mtime_ns for name in ("bin", "spm", "raw") for p in (out / name).iterdir()
    }
    second = script(numbers, out, *VOCAB)
    assert second.stdout == first.stdout
    assert second.stderr.count("exists already: skipped.") == 3
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_binarised_data_that_lost_lines_is_noticed(
    prepared: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(prepared[0], out)
    (out / "bin").rename(out / ".bin.tmp")
    counts = (out / "spm" / "counts.json").read_text()
    (out / "spm" / "counts.json").write_text(counts.replace('"kept": 30', '"kept": 31'))
    message = r"^fairseq-preprocess wrote 30 sentences to \S+test\.en-de\.en, but the text has 31; "
    with pytest.raises(TextDataError, match=message):
        finish(out)
    assert not (out / "bin").exists()
    (out / "spm" / "counts.json").write_text(counts)
    assert finish(out) == json.loads((prepared[0] / "summary.json").read_text())
    assert (out / "bin").is_dir()


@pytest.mark.parametrize("separate", [(), ("--separate-dictionaries",)], ids=["joint", "separate"])
def test_words_stay_whole_and_new_ones_are_unknown(separate: tuple[str], tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    text = {"train": ("walk twice\nrun\n", "I_WALK I_WALK\nI_RUN\n"), "valid": ("run\n", "I_RUN\n")}
    text["test"] = ("run  twice\nfly walk\n", "I_RUN I_RUN\nI_FLY I_WALK\n")
    for split, sides in text.items():
        for lang, side in zip(("en", "de"), sides):
            (raw / f"{split}.{lang}").write_text(side)
    (raw / "test.groups").write_text("2\n3\n")
    words = ("--src", "en", "--tgt", "de", "--subwords", "none", *separate)
    printed = script(raw, out, *words).stdout
    known = {"en": {"walk", "twice", "run"}, "de": {"I_WALK", "I_RUN"}}
    for lang, expected in zip(("en", "de"), ("run twice\n<unk> walk", "I_RUN I_RUN\n<unk> I_WALK")):
        dictionary = Dictionary.load(str(out / "bin" / f"dict.{lang}.txt"))
        entries = {word for word in dictionary.symbols[4:] if "madeup" not in word}
        assert entries == (known[lang] if separate else known["en"] | known["de"])
        data = MMapIndexedDataset(str(out / "bin" / f"test.en-de.{lang}"))
        assert [dictionary.string(ids) for ids in data] == expected.split("\n")
    assert (out / "raw" / "test.groups").read_text() == "2\n3\n"
    assert ("shared by both" in printed) == (not separate)
    again = script(raw, out, *words)
    assert again.stdout == printed and again.stderr.count("skipped") == 2
    (raw / "test.groups").write_text("2\n")
    refused = script(raw, out, *words, "--force", code=1).stderr
    assert "test.groups has 1 lines, but test has 2." in refused


def test_a_dry_run_prints_commands_and_makes_nothing(numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "my data"
    printed = script(numbers, out, *VOCAB, "--max-ratio=1.5", "--force", "--dry-run").stdout
    encode, preprocess, finish = printed.splitlines()
    assert "-m fairseq_floater prepare " in encode and encode.endswith(" --only encode")
    assert "-m fairseq_cli.preprocess " in preprocess and finish.endswith(" --only finish")
    assert "--max-ratio 1.5 " in encode and "--force" in encode
    assert f"--testpref '{out}/spm/test,{out}/spm/test_long' " in printed
    assert not out.exists()


def test_a_stopped_script_leaves_no_process(tmp_path: Path) -> None:
    code = "import sys; sys.argv[0] = 'floater'; from pathlib import Path; "
    code += "from fairseq_floater.data import binarised; "
    code += "binarised.binarise(Path(sys.argv[1]), ['bash', '-c', 'echo $$; exec sleep 60'])"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    log = tmp_path / "binarise.log"
    while not (log.exists() and log.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(20) == 143
    assert not Path(f"/proc/{int(log.read_text())}").exists()


def test_a_failure_of_fairseq_leaves_its_log(tmp_path: Path) -> None:
    message = rf"^Binarising failed; see the end of {tmp_path}/binarise\.log\.$"
    with pytest.raises(TextDataError, match=message):
        binarise(tmp_path, ["bash", "-c", "echo why; exit 3"])
    assert (tmp_path / "binarise.log").read_text() == "why\n"


def test_the_script_fails_in_one_sentence(numbers: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = script(tmp_path / "none", tmp_path / "out", *VOCAB, code=1).stderr.splitlines()
    assert nowhere[-1] == f"floater prepare: There is no folder {tmp_path / 'none'}."
    unwritable = script(numbers, tmp_path / "file" / "out", *VOCAB, code=1).stderr.splitlines()
    assert re.fullmatch(r"floater prepare: \S+/file/out\S*: Not a directory\.", unwritable[-1])
