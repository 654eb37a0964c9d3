"""From raw text to binarised data: every line in its place, every fault a sentence."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import toy
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_floater.data import sentencepiece_subwords
from fairseq_floater.data.binarised import binarise
from fairseq_floater.data.number_words import write_numbers
from fairseq_floater.data.parallel_text import (
    LINE_BREAKS,
    TextDataError,
    check_parallel,
    find_splits,
    read_lines,
)
from fairseq_floater.data.prepare import Preparation, finish, main
from fairseq_floater.data.sentencepiece_subwords import (
    Segmenter,
    train_subword,
    write_dictionary,
)
from fairseq_floater.data.subwords import encode_split

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_text.sh"
PARAMETERS = {"src": "en", "tgt": "de", "bpe": "sentencepiece", "vocab": 60}
PARAMETERS |= {"max_len": 250, "max_ratio": 0.0, "character_coverage": 1.0}
VOCAB = ("--src", "en", "--tgt", "de", "--vocab", "60")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    write_numbers(folder, train=400, valid=20, test=30, test_long=10, max_number=99)
    return folder


@pytest.fixture
def raw(numbers: Path, tmp_path: Path) -> Path:
    """A copy of the corpus that a test may spoil."""
    return Path(shutil.copytree(numbers, tmp_path / "raw"))


@pytest.fixture(scope="module")
def model(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "spm.model"
    learn(numbers, path, 60)
    return path


def learn(raw: Path, path: Path, vocab: int) -> None:
    pairs = list(zip(text_lines(raw / "train.en"), text_lines(raw / "train.de"), strict=True))
    train_subword(iter(pairs), len(pairs), path, vocab_size=vocab)


def text_lines(path: Path) -> list[str]:
    """The lines as the strictest reader sees them."""
    return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refused(raw: Path, out: Path, message: str, **changes: Any) -> None:
    force = changes.pop("force", False)
    with pytest.raises(TextDataError, match=f"^{message}$"):
        encode_all(raw, out, force=force, **changes)


def encode_all(raw: Path, out: Path, force: bool = False, workers: int = 1, **changes: Any) -> None:
    Preparation(raw, out, {**PARAMETERS, **changes}, force=force, workers=workers).encode()


# Reading


def test_splits_are_found_in_a_fixed_order(tmp_path: Path) -> None:
    ours = ("test_b.en", "test-a.de.gz", "test.2014.en", "test.de")
    for name in (*ours, "tests", "testing.fr", "test,c.en"):
        (tmp_path / name).touch()
    found = find_splits(tmp_path, "en", "de")
    assert found == ["train", "valid", "test", "test-a", "test.2014", "test_b"]


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\r\n\ntwo\u2028three\x0bfour\rfive\x85\nlast".encode())
    assert list(read_lines(path)) == ["one", "", "two three four five ", "last"]


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda raw: (raw / name).write_bytes(content)


def _delete(name: str) -> Callable[[Path], object]:
    return lambda raw: (raw / name).unlink()


def _zip(name: str, size: int | None, keep: bool = False) -> Callable[[Path], object]:
    def spoil(raw: Path) -> None:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes())[:size])
        if not keep:
            (raw / name).unlink()

    return spoil


FAULTS = {
    "missing": (_delete("train.en"), r"\S+/train\.en is missing \(so is train\.en\.gz\)\."),
    "one side of a test": (_delete("test.de"), r"\S+/test\.de is missing \(so is test\.de\.gz\)\."),
    "unequal": (
        _write("valid.de", b"eins\nzwei\n"),
        r"\S+/valid\.en has 20 lines, but \S+/valid\.de has 2\.",
    ),
    "empty": (_write("test.en", b""), r"\S+/test\.en is empty\."),
    "not UTF-8": (
        _write("train.de", b"gut\nf\xfcnf\n"),
        r"\S+/train\.de, line 2 is not valid UTF-8 \(byte 2 of it\)\.",
    ),
    "NUL": (_write("test.en", b"a\nb\nc\0\n"), r"\S+/test\.en, line 3 holds a NUL character\."),
    "cut gzip": (_zip("train.en", 500), r"\S+/train\.en\.gz is no whole gzip file: .+\."),
    "no gzip": (
        lambda raw: (raw / "test.en").rename(raw / "test.en.gz"),
        r"\S+/test\.en\.gz is no whole gzip file: .+\.",
    ),
    "plain and zipped": (
        _zip("train.en", None, keep=True),
        r"\S+/train\.en and \S+/train\.en\.gz are both there; remove one of them\.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_text_is_refused(
    raw: Path, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, message = FAULTS[fault]
    spoil(raw)
    assert main(["encode", str(raw), str(tmp_path / "out"), *VOCAB]) == 1
    assert re.fullmatch(message + "\n", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_pairs_are_counted(numbers: Path) -> None:
    counts = check_parallel(numbers, "en", "de", ["train", "valid", "test"])
    assert counts == {"train": 400, "valid": 20, "test": 30}


# Subwords


def test_the_model_is_the_same_every_time(numbers: Path, model: Path, tmp_path: Path) -> None:
    learn(numbers, tmp_path / "again.model", 60)
    assert (tmp_path / "again.model").read_bytes() == model.read_bytes()


def test_long_text_is_sampled_evenly(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(zip(text_lines(numbers / "train.en"), text_lines(numbers / "train.de")))
    half, all_of_it = tmp_path / "half.model", tmp_path / "all.model"
    train_subword(iter(pairs[::2]), 200, half, vocab_size=60)
    monkeypatch.setattr(sentencepiece_subwords, "SUBWORD_PAIRS", 200)
    learn(numbers, all_of_it, 60)
    assert all_of_it.read_bytes() == half.read_bytes()


def test_an_impossible_vocabulary_is_told_what_is_possible(raw: Path, tmp_path: Path) -> None:
    for vocab, pattern in ((5_000, r"at most (\d+) "), (10, r"at least (\d+), ")):
        with pytest.raises(TextDataError, match=rf"^`vocab` must be {pattern}.*\.$") as caught:
            encode_all(raw, tmp_path / str(vocab), vocab=vocab)
        limit = re.search(pattern, str(caught.value))
        assert limit is not None
        # The same OUT_DIR takes the right number: nothing was made with the wrong one.
        encode_all(raw, tmp_path / str(vocab), vocab=int(limit[1]))
        assert (tmp_path / str(vocab) / "spm").is_dir()


def test_the_dictionary_is_the_models(model: Path, tmp_path: Path) -> None:
    assert write_dictionary(model, tmp_path / "dict.txt") == 57  # without <unk>, <s> and </s>
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    assert dictionary.symbols[4:] == [pieces.id_to_piece(i) for i in range(3, 60)]


def encode(
    model: Path, folder: Path, pairs: list[tuple[str, str]], split: str, **limits: Any
) -> Any:
    for name in ("spm", "raw"):
        (folder / name).mkdir(parents=True)
    folders = (folder / "spm", folder / "raw")
    return encode_split(Segmenter(model), iter(pairs), split, ("en", "de"), folders, **limits)


def test_limits_hold_for_train_and_valid_alone(model: Path, tmp_path: Path) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode
    short, long = "two", "two, two, two"
    lengths = [len(pieces(text)) for text in (short, long)]
    pairs = [(short, long), ("", short), (long, "\u3000"), (long, long), (short, short)]
    for k, (max_len, max_ratio, dropped, kept) in enumerate(
        [
            (0, 0.0, (2, 0, 0), [0, 3, 4]),
            (lengths[1], lengths[1] / lengths[0], (2, 0, 0), [0, 3, 4]),  # equal is allowed
            (lengths[1] - 1, 0.0, (2, 2, 0), [4]),
            (0, lengths[1] / lengths[0] - 0.01, (2, 0, 1), [3, 4]),
        ]
    ):
        limits = {"max_len": max_len, "max_ratio": max_ratio}
        counts = encode(model, tmp_path / f"valid{k}", pairs, "valid", **limits)
        assert tuple(counts["dropped"].values()) == dropped
        assert (counts["lines"], counts["kept"], counts["empty_kept"]) == (5, len(kept), 0)
        for lang, side in (("en", 0), ("de", 1)):
            wanted = [pairs[i][side] for i in kept]
            assert text_lines(tmp_path / f"valid{k}" / "raw" / f"valid.{lang}") == wanted
        counts = encode(model, tmp_path / f"test{k}", pairs, "test_x", **limits)
        assert (counts["kept"], counts["empty_kept"]) == (5, 2)
        assert sum(counts["dropped"].values()) == 0
        assert len(text_lines(tmp_path / f"test{k}" / "spm" / "test_x.en")) == 5


def test_a_split_without_pairs_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TextDataError, match=r"^No pair of `train` is left: of 1 lines 1 empty, 0"):
        encode(model, tmp_path, [("", "eins")], "train")


def test_unknown_text_never_becomes_a_symbol_of_fairseq(tmp_path: Path) -> None:
    # sentencepiece hands on a run of unknown characters as one piece, here `<pad>` itself.
    train_subword(iter([("12 21", "22 11")] * 9), 9, tmp_path / "spm.model", vocab_size=7)
    write_dictionary(tmp_path / "spm.model", tmp_path / "dict.txt")
    encode(tmp_path / "spm.model", tmp_path, [("1 <pad>", "</s> 2 <s>")], "test")
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    for lang, known in (("en", 2), ("de", 2)):
        text = (tmp_path / "spm" / f"test.{lang}").read_text(encoding="utf-8")
        ids = dictionary.encode_line(text, add_if_not_exist=False, append_eos=False).tolist()
        assert not {dictionary.pad(), dictionary.bos(), dictionary.eos()} & set(ids)
        assert len([i for i in ids if i != dictionary.unk()]) >= known


def test_odd_characters_keep_every_line_in_its_place(raw: Path, tmp_path: Path) -> None:
    spaces = [chr(c) for c in range(1, 0x3001) if chr(c).isspace() and chr(c) != "\n"]
    assert set(LINE_BREAKS) < set(spaces)
    odd = [f"x{c}y{c}" for c in spaces] + ["\u200b", "ﬁ ², ½", "😀", "▁", "\t"]
    for split in ("train", "test"):
        for lang in ("en", "de"):
            with (raw / f"{split}.{lang}").open("a", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in odd)
    out = tmp_path / "out"
    encode_all(raw, out, vocab=100)
    counts = json.loads((out / "spm" / "counts.json").read_text())
    assert counts["test"]["kept"] == counts["test"]["lines"] == 30 + len(odd)
    for split, lang in (("train", "en"), ("test", "en"), ("test", "de")):
        for folder in ("spm", "raw")[: 1 + (split == "test")]:
            text = (out / folder / f"{split}.{lang}").read_text(encoding="utf-8")
            assert text.count("\n") == len(text.removesuffix("\n").split("\n"))
            assert len(text.splitlines()) == counts[split]["kept"]  # whoever reads it
    pieces = {line.rsplit(" ", 1)[0] for line in text_lines(out / "dict.txt")}
    assert all(piece.split() == [piece] for piece in pieces)
    sp = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
    for line, text in zip(text_lines(out / "spm" / "test.en"), text_lines(out / "raw" / "test.en")):
        assert sp.decode(line.split(" ")) == sp.decode(sp.encode(text, out_type=str))


# The steps


def test_gzipped_text_gives_the_same(raw: Path, numbers: Path, tmp_path: Path) -> None:
    for name in ("train.en", "test.de"):
        _zip(name, None)(raw)
    encode_all(raw, tmp_path / "a")
    encode_all(numbers, tmp_path / "b", workers=2)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    del a["prepare.json"], b["prepare.json"]
    assert a == b
    assert set(a) > {"raw/valid.de", "raw/test_long.en", "spm/train.de", "dict.txt", "tests.json"}
    assert "raw/train.en" not in a


def test_broken_off_steps_start_over(
    numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    encode_all(numbers, out)
    whole = contents(out)

    def again() -> str:
        capsys.readouterr()
        encode_all(numbers, out)
        assert contents(out) == whole
        return capsys.readouterr().err

    assert again() == "spm.model is there already: skipped.\nspm is there already: skipped.\n"
    (out / "spm").rename(out / ".spm.tmp")  # killed while encoding
    (out / ".spm.tmp" / "test.de").unlink()
    assert again() == "spm.model is there already: skipped.\n"
    shutil.rmtree(out / "raw")
    (out / "dict.txt").unlink()
    assert again() == "spm.model is there already: skipped.\n"
    (out / "spm.model").unlink()
    assert again() == "Learning 60 subwords from 400 pairs.\n"


def test_other_settings_or_text_are_refused(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    encode_all(raw, out)
    before = contents(out)
    advice = "choose another OUT_DIR or add --force\\."
    refused(raw, out, rf"\S+/out was made with `vocab` 60, not 70; {advice}", vocab=70)
    with (raw / "valid.en").open("a") as file:
        file.write("one\n")
    refused(raw, out, rf"\S+/out was made with another valid\.en; {advice}")
    # Even with --force the old data stays until the new text is known to be sound.
    refused(raw, out, r"\S+/valid\.en has 21 lines, but \S+/valid\.de has 20\.", force=True)
    assert contents(out) == before
    with (raw / "valid.de").open("a") as file:
        file.write("eins\n")
    encode_all(raw, out, vocab=70, force=True)
    assert len(text_lines(out / "dict.txt")) == 67
    assert len(text_lines(out / "raw" / "valid.de")) == 21


def test_what_others_made_is_never_removed(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "bin").mkdir(parents=True)
    (tmp_path / "out" / "bin" / "tool").touch()
    message = r"\S+/out holds `bin`, which was not made here; choose another OUT_DIR\."
    refused(raw, tmp_path / "out", message, force=True)
    assert (tmp_path / "out" / "bin" / "tool").exists()
    refused(raw, tmp_path, r"RAW_DIR must not be \S+/raw, because output goes there; .+\.")


@pytest.mark.parametrize(
    "options",
    [
        ("--src", "zh-CN", "--tgt", "de", "--vocab", "60"),
        ("--src", "de", "--tgt", "de", "--vocab", "60"),
        ("--src", "en", "--tgt", "de", "--vocab", "0"),
        ("--src", "en", "--tgt", "de", "--vocab", "8k"),
        (*VOCAB, "--max-ratio", "0.5"),
        (*VOCAB, "--max-len", "-1"),
        (*VOCAB, "--character-coverage", "1.5"),
        (*VOCAB, "--workers", "0"),
        VOCAB[:4],
    ],
)
def test_bad_options(raw: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["encode", str(raw), str(raw / "out"), *options, "--dry-run"])
    assert caught.value.code == 2


# The script


def script(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return toy.run(["bash", SCRIPT, *arguments], code=code)


@pytest.fixture(scope="module")
def prepared(
    numbers: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """What the script makes in a folder where it was killed before."""
    out = tmp_path_factory.mktemp("prepared") / "my data"
    for name in (".spm.tmp", ".bin.tmp"):
        (out / name).mkdir(parents=True)
        (out / name / "train.en-de.en.idx").write_bytes(b"half")
    return out, script(numbers, out, *VOCAB, "--workers", "2")


def test_the_whole_script(prepared: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, run = prepared
    assert re.search(r"^test_long +test1 +10 +0 +0 +0 ", run.stdout, re.MULTILINE)
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        *("spm.model", "dict.txt", "tests.json", "summary.json", "prepare.json"),
    }
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
    assert second.stderr.count("is there already: skipped.") == 3
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


def test_a_dry_run_prints_commands_and_makes_nothing(numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "my data"
    printed = script(numbers, out, *VOCAB, "--max-ratio=1.5", "--force", "--dry-run").stdout
    assert [line.split()[2] for line in printed.splitlines()] == [
        "fairseq_floater.data.prepare",
        "fairseq_cli.preprocess",
        "fairseq_floater.data.prepare",
    ]
    assert "--max-ratio=1.5 --force" in printed
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
    assert nowhere[-1] == f"There is no folder {tmp_path / 'none'}."
    unwritable = script(numbers, tmp_path / "file" / "out", *VOCAB, code=1).stderr.splitlines()
    assert re.fullmatch(r"\S+/file/out\S*: Not a directory\.", unwritable[-1])


def test_the_script_refuses_bad_usage(numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, message in (
        ((numbers, *VOCAB), "the following arguments are required: OUT_DIR"),
        ((numbers, out, "--src", "en"), "the following arguments are required: --tgt"),
        ((numbers, out, *VOCAB, "--fast"), "unrecognized arguments: --fast"),
        ((numbers, out, "--vocab"), "argument --vocab: expected one argument"),
    ):
        assert message in script(*arguments, code=2).stderr
    assert "example:" in script("--help").stdout
    assert script(numbers, out, *VOCAB[:-1], "0", code=2).stderr.count("Traceback") == 0
    assert not out.exists()
