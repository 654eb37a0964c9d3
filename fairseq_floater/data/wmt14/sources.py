"""Describe WMT14's En-De and En-Fr data: archives, files in them, published checksums and line counts.

The corpora, and the interval of held-out lines, are those of fairseq's ``prepare-wmt14en2de.sh --icml17``
and ``prepare-wmt14en2fr.sh``, which the paper's B.2 names. The SHA-256 are from TensorFlow Datasets'
``url_checksums/wmt14_translate.txt``, the MD5 of the test sets from sacreBLEU's table of data sets, and the
line counts from WMT14's own page (German) and Lingvo's ``WmtEnFr`` input (French). For the tar files of
the United Nations and 10^9 corpora no checksum is published: the script records one at the first
download.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SITE = "https://www.statmt.org"


@dataclass(frozen=True)
class Archive:
    """A published file: its name, its URL and its published checksums."""

    name: str
    url: str
    sha256: str | None = None
    md5: str | None = None


def listed(archive: Archive, folder: Path, place: str | None, *, check: bool) -> str:
    """Return an archive's line for the scripts: URL, SHA-256, MD5 and file; a dash for no checksum.

    Args:
        place: a mirror's URL; None: the published URL.
        check: whether the archive must be the published one.
    """
    url = archive.url if place is None else f"{place}/{archive.name}"
    checksums = (archive.sha256, archive.md5) if check else (None, None)
    return " ".join([url, *(checksum or "-" for checksum in checksums), str(folder / archive.name)])


def mirror(text: str) -> str:
    """Return the URL of a mirror that is given as a URL or a folder."""
    if "://" not in text:
        return Path(text).resolve().as_uri()
    if not text.startswith(("http://", "https://", "file:///")):
        raise argparse.ArgumentTypeError(
            f"must be a folder or a URL of http://, https:// or file:///, but is {text!r}"
        )
    return text.rstrip("/")


_EUROPARL = Archive(
    "training-parallel-europarl-v7.tgz",
    f"{_SITE}/wmt13/training-parallel-europarl-v7.tgz",
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
_COMMONCRAWL = Archive(
    "training-parallel-commoncrawl.tgz",
    f"{_SITE}/wmt13/training-parallel-commoncrawl.tgz",
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
_NEWS = Archive(
    "training-parallel-nc-v9.tgz",
    f"{_SITE}/wmt14/training-parallel-nc-v9.tgz",
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
_UN = Archive("training-parallel-un.tgz", f"{_SITE}/wmt13/training-parallel-un.tgz")
_GIGA = Archive("training-giga-fren.tar", f"{_SITE}/wmt10/training-giga-fren.tar")
_NEWSTEST2014 = Archive(
    "test-full.tgz", f"{_SITE}/wmt14/test-full.tgz", md5="a8cd784e006feb32ac6f3d9ec7eb389a"
)
# The published name of the archive is test.tgz, the same as in other years.
_NEWSTEST2013 = Archive(
    "wmt13-test.tgz", f"{_SITE}/wmt13/test.tgz", md5="48eca5d02f637af44e85186847141f67"
)


@dataclass(frozen=True)
class Corpus:
    """Describe a part of the training text, or a test set in SGML.

    Attributes:
        member: its path in the archive; ``{lang}`` stands for the language, ``{role}`` for src or ref.
    """

    name: str
    archive: Archive
    member: str
    lines: int


@dataclass(frozen=True)
class Recipe:
    """The data of a language pair.

    Attributes:
        held_out_every: line k * ``held_out_every`` of the training text is held out for validation.
        kept: the share of pairs that published runs of the Perl scripts kept after cleaning.
    """

    target: str
    corpora: tuple[Corpus, ...]
    held_out_every: int
    test: Corpus
    kept: float
    kept_source: str
    valid: Corpus = Corpus("newstest2013", _NEWSTEST2013, "test/newstest2013-src.{lang}.sgm", 3000)

    @property
    def published_lines(self) -> dict[str, int]:
        return {part.name: part.lines for part in (*self.corpora, self.test, self.valid)}


def _newstest2014(pair: str) -> Corpus:
    member = f"test-full/newstest2014-{pair}-{{role}}.{{lang}}.sgm"
    return Corpus("newstest2014", _NEWSTEST2014, member, 3003)


# Longest side of a training pair in subwords; longer side / shorter side, at most.
LIMITS: dict[str, Any] = {"max_len": 250, "max_ratio": 1.5}
RECIPES = {
    "en-de": Recipe(
        target="de",
        corpora=(
            Corpus("europarl-v7", _EUROPARL, "training/europarl-v7.de-en.{lang}", 1_920_209),
            Corpus("commoncrawl", _COMMONCRAWL, "commoncrawl.de-en.{lang}", 2_399_123),
            Corpus(
                "news-commentary-v9", _NEWS, "training/news-commentary-v9.de-en.{lang}", 201_288
            ),
        ),
        held_out_every=100,
        test=_newstest2014("deen"),
        kept=3_960_793 / 4_544_200,
        kept_source="fairseq issue 132, with news-commentary v12",
    ),
    "en-fr": Recipe(
        target="fr",
        corpora=(
            Corpus("europarl-v7", _EUROPARL, "training/europarl-v7.fr-en.{lang}", 2_007_723),
            Corpus("commoncrawl", _COMMONCRAWL, "commoncrawl.fr-en.{lang}", 3_244_152),
            Corpus("un", _UN, "un/undoc.2000.fr-en.{lang}", 12_886_831),
            Corpus(
                "news-commentary-v9", _NEWS, "training/news-commentary-v9.fr-en.{lang}", 183_251
            ),
            Corpus("giga-fren", _GIGA, "giga-fren.release2.fixed.{lang}.gz", 22_520_376),
        ),
        held_out_every=1333,
        test=_newstest2014("fren"),
        kept=35_482_654 / 40_811_694,
        kept_source="fairseq-lua issue 59, which also left out sentences above 175 words",
    ),
}
