"""A stand-in for WMT14: the same archives, layout and formats, a few thousand lines of number words.

Not a test file: tests of the preparation and of table2.sh build it through :func:`build`.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace

from fairseq_floater.data.number_words import write_numbers
from fairseq_floater.data.wmt14.sources import RECIPES

LINES = {
    "europarl-v7": 500,
    "commoncrawl": 400,
    "un": 300,
    "news-commentary-v9": 200,
    "giga-fren": 200,
}
TEST_LINES = 12
# Members of archives that no recipe uses.
FURTHER = {
    "training-parallel-europarl-v7.tgz": {"training/europarl-v7.cs-en.cs": b"jedna\n"},
    "test-full.tgz": {"test-full/._newstest2014-deen-src.en.sgm": b"\x00\x05"},
}


def build(folder, numbers):
    """Write all archives of both pairs into ``folder``, and their raw text into ``numbers``."""
    folder.mkdir(parents=True, exist_ok=True)
    members = {}
    for pair, recipe in RECIPES.items():
        for name, content in _members(pair, recipe, numbers).items():
            archive, member = name
            members.setdefault(archive, {})[member] = content
    for archive, files in members.items():
        mode = "w:gz" if archive.endswith("gz") else "w"
        with tarfile.open(folder / archive, mode) as tar:
            for member, content in {**files, **FURTHER.get(archive, {})}.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def _members(pair, recipe, numbers):
    """Return {(archive, member): bytes} of one pair."""
    found = {}
    raw = numbers / pair
    total = sum(LINES[corpus.name] for corpus in recipe.corpora)
    sizes = {"train": total, "valid": TEST_LINES, "test": TEST_LINES, "test_long": 1}
    write_numbers(raw, target_language=recipe.target, max_number=99, **sizes)
    for lang in ("en", recipe.target):
        lines = (raw / f"train.{lang}").read_bytes().splitlines(keepends=True)
        for corpus in recipe.corpora:
            text, lines = lines[: LINES[corpus.name]], lines[LINES[corpus.name] :]
            content = b"".join(text)
            member = corpus.member.format(lang=lang)
            if member.endswith(".gz"):
                content = gzip.compress(content, mtime=0)
            found[corpus.archive.name, member] = content
        for split, test in (("test", recipe.test), ("valid", recipe.valid)):
            text = (raw / f"{split}.{lang}").read_text().splitlines()
            for role in ("src", "ref"):
                member = test.member.format(role=role, lang=lang)
                found[test.archive.name, member] = _sgml(test.name, text).encode()
    return found


def _sgml(name, sentences):
    segments = "".join(f'<seg id="{i}"> {s} </seg>\n' for i, s in enumerate(sentences, 1))
    return (
        f'<srcset setid="{name}" srclang="any">\n<doc sysid="ref" docid="a" genre="news">\n'
        f"<hl>\n{segments}</hl>\n</doc>\n</srcset>\n"
    )


def as_published(folder, pair):
    """Return the recipe of ``pair`` with the stand-in's checksums and line counts."""
    recipe = RECIPES[pair]

    def archive(part):
        digest = hashlib.sha256((folder / part.archive.name).read_bytes()).hexdigest()
        return replace(part.archive, sha256=digest, md5=None)

    corpora = tuple(
        replace(corpus, archive=archive(corpus), lines=LINES[corpus.name])
        for corpus in recipe.corpora
    )
    test = replace(recipe.test, archive=archive(recipe.test), lines=TEST_LINES)
    valid = replace(recipe.valid, archive=archive(recipe.valid), lines=TEST_LINES)
    return replace(recipe, corpora=corpora, test=test, valid=valid)
