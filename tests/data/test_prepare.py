"""The steps of preparing text: done once, begun anew where broken off, refused where they would mix."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fuzzing import call
from prepared_text import VOCAB, contents, encode_all, refused, text_lines, zipped
from toy import floater

from fairseq_floater.data.pieces import join_pieces


def test_gzipped_text_gives_the_same(raw: Path, numbers: Path, tmp_path: Path) -> None:
    for name in ("train.en", "test.de"):
        zipped(name, None)(raw)
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

    assert again() == "spm.model exists already: skipped.\nspm exists already: skipped.\n"
    (out / "spm").rename(out / ".spm.tmp")  # killed while encoding
    (out / ".spm.tmp" / "test.de").unlink()
    assert again() == "spm.model exists already: skipped.\n"
    shutil.rmtree(out / "raw")
    (out / "dict.txt").unlink()
    assert again() == "spm.model exists already: skipped.\n"
    (out / "spm.model").unlink()
    assert again() == "Learning 60 subwords from 400 pairs.\n"


def test_test_pairs_in_train_are_told(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lang in ("en", "de"):
        with (raw / f"train.{lang}").open("a") as file:
            file.writelines((raw / f"test.{lang}").read_text().splitlines(keepends=True)[:7])
    encode_all(raw, tmp_path / "out")
    assert "warning: 7 of 30 pairs of test are in train too.\n" in capsys.readouterr().err


def test_characters_that_the_subwords_change_are_told_or_kept(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in raw.glob("*.de"):
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{line}，10\u00a0000 ½\n" for line in lines))
    encode_all(raw, tmp_path / "default", vocab=80)
    warning = (
        "warning: the subwords cannot write 30 of 30 references in test.de, which lowers BLEU: "
    )
    assert warning in capsys.readouterr().err
    encode_all(raw, tmp_path / "identity", vocab=80, normalization="identity")
    assert "cannot write" not in capsys.readouterr().err
    references = text_lines(tmp_path / "identity" / "raw" / "test.de")
    for line, reference in zip(text_lines(tmp_path / "identity" / "spm" / "test.de"), references):
        assert join_pieces(line, "sentencepiece") == reference.replace("\u00a0", " ")
        assert line.split() == line.split(" ")  # fairseq splits at every space of Unicode
    message = r".* was made with `normalization` identity, not None; .*"
    refused(raw, tmp_path / "identity", message, vocab=80)


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


def test_a_language_may_have_a_script(raw: Path, tmp_path: Path) -> None:
    for path in raw.glob("*.en"):
        path.rename(path.with_suffix(".zh-Hans"))
    floater("prepare", raw, tmp_path / "out", "--src", "zh-Hans", *VOCAB[2:])
    assert (tmp_path / "out" / "bin" / "train.zh-Hans-de.zh-Hans.bin").is_file()


def test_what_others_made_is_never_removed(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "bin").mkdir(parents=True)
    (tmp_path / "out" / "bin" / "tool").touch()
    message = r"\S+/out holds `bin`, which floater did not make; choose another OUT_DIR\."
    refused(raw, tmp_path / "out", message, force=True)
    assert (tmp_path / "out" / "bin" / "tool").exists()
    refused(raw, tmp_path, r"RAW_DIR must not be \S+/raw, because output goes there; .+\.")
    model = tmp_path / "data" / "spm.model"
    encode_all(raw, model.parent)
    message = r"--spm-model must not be \S+/spm\.model, because output goes there; .+\."
    refused(raw, model.parent, message, spm_model=model, vocab=None, force=True)
    assert model.is_file()


@pytest.mark.parametrize(
    "options",
    [
        ("--src", "../zh", "--tgt", "de", "--vocab", "60"),
        ("--src", "en", "--tgt", "de", "--vocab", "8k"),
        (*VOCAB, "--max-ratio", "0.5"),
        (*VOCAB, "--character-coverage", "1.5"),
        VOCAB[:4],
        (*VOCAB[:4], "--subwords", "none", "--bpe", "subword-nmt"),
        (*VOCAB, "--bpe", "subword-nmt", "--normalization", "identity"),
        (*VOCAB[:4], "--spm-model", "spm.model", "--normalization", "identity"),
    ],
)
def test_bad_options(raw: Path, options: tuple[str, ...]) -> None:
    code, _, said = call("prepare", raw, raw / "out", *options, "--dry-run")
    assert code == 2 and "prepare: " in said and not (raw / "out").exists()
