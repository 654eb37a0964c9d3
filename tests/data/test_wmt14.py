"""WMT14 from archives to binarised data, on a stand-in of the same names, layout and formats."""

import hashlib
import json
import random
import re
import shlex
import shutil
import tarfile
import time
from pathlib import Path

import pytest
import wmt14_stand_in as stand_in
from toy import killed, run

from fairseq_floater.cli import main
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.wmt14 import corpora, sources
from fairseq_floater.data.wmt14.recipe import archives_of

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_wmt14.sh"
REHEARSAL = ("--rehearsal", "--vocab", 60, "--workers", 1)
MADE = ("corpus", "bpe", "raw", "bin")
FILES = ("bpe.codes", "dict.txt", "tests.json", "summary.json", "wmt14.json", "corpus.json")


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wmt14")
    stand_in.build(folder / "archives", folder / "numbers")
    return folder / "archives"


def prepare(pair, out, *words, code=0):
    return run(["bash", SCRIPT, pair, "--out", out, *words], code=code)


@pytest.fixture(scope="module")
def undisturbed(archives, tmp_path_factory):
    """The data of a pair, made without interruption."""
    made = {}

    def make(pair):
        if pair not in made:
            out = tmp_path_factory.mktemp("undisturbed") / pair
            made[pair] = out, prepare(pair, out, "--mirror", archives, *REHEARSAL)
        return made[pair]

    return make


def hashes(out):
    """Return {file: SHA-256} of the results, without logs, locks and download records."""
    paths = [out / name for name in FILES]
    paths += [path for name in MADE for path in (out / name).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.name != "preprocess.log"
    }


def test_the_recipes_are_whole():
    assert sum(c.lines for c in sources.RECIPES["en-de"].corpora) == 4_520_620
    assert sum(c.lines for c in sources.RECIPES["en-fr"].corpora) == 40_842_333
    for recipe in sources.RECIPES.values():
        assert recipe.test.lines == 3003
        for archive in archives_of(recipe, "newstest2013"):
            assert archive.url.startswith("https://")
            for digest, length in ((archive.sha256, 64), (archive.md5, 32)):
                assert digest is None or (len(digest) == length and int(digest, 16))


def assembled(recipe, archives, tmp_path, **options):
    corpora.assemble(recipe, archives, tmp_path / "corpus", **options)
    return json.loads((tmp_path / "corpus" / "counts.json").read_text())


def test_one_line_in_so_many_is_held_out(archives, tmp_path):
    recipe = stand_in.as_published(archives, "en-de")
    counts = assembled(recipe, archives, tmp_path)
    assert counts["splits"] == {"train": 1089, "valid": 11, "test": stand_in.TEST_LINES}
    assert counts["repaired"] == {"en": 0, "de": 0}
    for lang in ("en", "de"):
        everything = []
        for corpus in recipe.corpora:
            archive, member = archives / corpus.archive.name, corpus.member.format(lang=lang)
            everything += [line.decode() for line in corpora.member_lines(archive, member)]
        files = {split: tmp_path / "corpus" / f"{split}.{lang}" for split in counts["splits"]}
        text = {split: path.read_text().splitlines() for split, path in files.items()}
        assert text["valid"] == everything[99::100]
        assert text["train"] == [x for i, x in enumerate(everything, 1) if i % 100]
        original = archives.parent / "numbers" / "en-de" / f"test.{lang}"
        assert text["test"] == original.read_text().splitlines()


def test_newstest2013_for_validation_leaves_all_text_for_training(archives, tmp_path):
    recipe = stand_in.as_published(archives, "en-fr")
    counts = assembled(recipe, archives, tmp_path, valid="newstest2013")
    assert counts["splits"] == {"train": sum(stand_in.LINES.values()), "valid": 12, "test": 12}
    original = archives.parent / "numbers" / "en-fr" / "valid.fr"
    assert (tmp_path / "corpus" / "valid.fr").read_text() == original.read_text()


def test_other_counts_than_the_published_are_refused(archives, tmp_path):
    recipe = sources.RECIPES["en-de"]
    message = r"^europarl-v7 must have 1,920,209 lines as published, but has 500; "
    with pytest.raises(TextDataError, match=message):
        corpora.assemble(recipe, archives, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def respoil(archives, folder, name, spoil):
    """Copy the archives, with ``spoil(member, content)`` applied in ``name``; None drops a member."""
    shutil.copytree(archives, folder)
    with tarfile.open(archives / name) as old, tarfile.open(folder / name, "w:gz") as new:
        for entry in old:
            content = spoil(entry.name, old.extractfile(entry).read())
            if content is not None:
                entry.size = len(content)
                path = folder / "content"
                path.write_bytes(content)
                with path.open("rb") as file:
                    new.addfile(entry, file)
    return folder


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (lambda content: None, r"holds no file commoncrawl\.de-en\.de\.$"),
        (
            lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
            r"^commoncrawl has 400 lines in en, but 399 in de\.$",
        ),
    ],
    ids=["no file", "a line less"],
)
def test_a_spoilt_archive_is_refused(archives, tmp_path, spoilt, message):
    def spoil(name, content):
        return spoilt(content) if name == "commoncrawl.de-en.de" else content

    name = "training-parallel-commoncrawl.tgz"
    folder = respoil(archives, tmp_path / "archives", name, spoil)
    recipe = stand_in.as_published(folder, "en-de")
    with pytest.raises(TextDataError, match=message):
        corpora.assemble(recipe, folder, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_an_archive_that_broke_off_is_refused(archives, tmp_path):
    folder = Path(shutil.copytree(archives, tmp_path / "archives"))
    path = folder / "training-parallel-europarl-v7.tgz"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(TextDataError, match=r"europarl-v7\.tgz is not a valid archive: "):
        list(corpora.member_lines(path, "training/europarl-v7.de-en.de"))


def test_odd_bytes_keep_every_line_in_its_place(archives, tmp_path):
    odd = "a\u2028b\x0bc\x00d".encode() + b"\xff\r\n"

    def spoil(name, content):
        return odd + content.split(b"\n", 1)[1] if name == "commoncrawl.de-en.de" else content

    name = "training-parallel-commoncrawl.tgz"
    folder = respoil(archives, tmp_path / "archives", name, spoil)
    recipe = stand_in.as_published(folder, "en-de")
    counts = assembled(recipe, folder, tmp_path)
    assert counts["repaired"] == {"en": 0, "de": 1}
    lines = (tmp_path / "corpus" / "train.de").read_bytes().decode().split("\n")
    assert len(lines) == 1089 + 1
    assert lines[495] == "a b cd\ufffd"  # five lines before it are held out


def test_no_path_of_an_archive_becomes_a_path_here(archives, tmp_path):
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as tar:
        for name in ("../../escaped", "/tmp/escaped"):
            tar.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("commoncrawl.de-en.de")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(TextDataError, match=r"holds no file commoncrawl\.de-en\.de\.$"):
        list(corpora.member_lines(evil, "commoncrawl.de-en.de"))
    assert not (tmp_path.parent / "escaped").exists()


def test_the_script_makes_data_and_counts(undisturbed, archives):
    out, done = undisturbed("en-de")
    assert "europarl-v7                      500     1,920,209   differs" in done.stdout
    report = json.loads((out / "wmt14.json").read_text())
    kept = {split: counts["kept"] for split, counts in report["splits"].items()}
    summary = json.loads((out / "summary.json").read_text())
    assert kept == {s: c["kept"] for s, c in summary["splits"].items()}
    assert kept["test"] == stand_in.TEST_LINES
    assert report["parameters"].items() >= {"vocab": 60, "max_ratio": 1.5}.items()
    names = {a.name for a in archives_of(sources.RECIPES["en-de"], "held-out")}
    assert {path.name for path in (out / "archives").glob("*.tgz")} == names
    assert {path.stem for path in (out / "archives").glob("*.sha256")} == names
    made_of = json.loads((out / "corpus.json").read_text())["archives"]
    for name in names:
        assert made_of[name] == hashlib.sha256((archives / name).read_bytes()).hexdigest()
    raw = (out / "raw" / "test.de").read_text()
    assert raw == (archives.parent / "numbers" / "en-de" / "test.de").read_text()


def test_a_second_run_makes_nothing_anew(undisturbed, archives):
    out, first = undisturbed("en-de")
    before = {path: path.stat().st_mtime_ns for name in MADE for path in (out / name).iterdir()}
    again = prepare("en-de", out, "--mirror", archives, *REHEARSAL)
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    other = prepare("en-de", out, "--mirror", archives, *REHEARSAL, "--vocab", 50, code=1)
    assert "made with `vocab` 60, not 50; choose another OUT_DIR or add --force." in other.stderr


def test_a_corpus_of_other_settings_is_not_replaced_unasked(undisturbed, archives):
    out, _ = undisturbed("en-de")
    made_of = (out / "corpus.json").read_text()
    words = ("en-de", out, "--mirror", archives, *REHEARSAL, "--valid", "newstest2013")
    told = prepare(*words, code=1).stderr
    assert "`valid` held-out, not newstest2013; choose another --out or add --force" in told
    assert (out / "corpus.json").read_text() == made_of


def test_the_published_checksums_are_asked_for(archives, tmp_path):
    done = prepare("en-de", tmp_path / "out", "--mirror", archives, code=1)
    assert "training-parallel-europarl-v7.tgz" in done.stderr
    assert "0224c7c710c8a063" in done.stderr
    assert not (tmp_path / "out" / "corpus").exists()


def test_a_corpus_needs_its_archives(tmp_path, capsys):
    assert main(["wmt14", "corpus", "en-de", "--out", str(tmp_path)]) == 1
    message = rf"{tmp_path}/archives/training-\S+ must be fetched first: run scripts/prepare_wmt14"
    assert re.search(message, capsys.readouterr().err)


def test_the_commands_of_a_dry_run(tmp_path):
    done = prepare("en-fr", tmp_path / "my data", "--bpe", "sentencepiece", "--dry-run")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [words[0] for words in commands[:6]] == ["curl"] * 6
    assert commands[2][-1] == "https://www.statmt.org/wmt13/training-parallel-un.tgz"
    assert [words[4] for words in commands[6:]] == ["corpus", "text", "report"]
    options = ["en-fr", "--out", str(tmp_path / "my data"), "--bpe", "sentencepiece"]
    assert all(words[5:] == options for words in commands[6:])
    assert not (tmp_path / "my data").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("en-cs", "--out", "x"), "argument pair: invalid choice: 'en-cs'"),
        (("en-de",), "the following arguments are required: --out"),
    ],
)
def test_bad_usage(words, message):
    assert message in run(["bash", SCRIPT, *words], code=2).stderr


def killed_and_restarted(pair, archives, out, kills, seed):
    """Kill the script and all it started ``kills`` times at random moments, then let it end."""
    moments = random.Random(seed)
    command = ["bash", SCRIPT, pair, "--out", out, "--mirror", archives, *REHEARSAL]
    done = 0
    while done < kills:
        if killed(command, moments.uniform(0.5, 25)):
            done += 1
        else:  # the run ended before: delete a result, so that it must be made again
            shutil.rmtree(out / moments.choice(MADE))
        time.sleep(0.1)
    prepare(pair, out, "--mirror", archives, *REHEARSAL)


@pytest.mark.slow
def test_twenty_kills_change_nothing(undisturbed, archives, tmp_path):
    killed_and_restarted("en-fr", archives, tmp_path / "out", kills=20, seed=2)
    assert hashes(tmp_path / "out") == hashes(undisturbed("en-fr")[0])
