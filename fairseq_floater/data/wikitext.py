"""The steps of `scripts/prepare_mlm.sh`, which fetches and unpacks WikiText-103 and GPT-2's BPE.

WikiText's checksum is from data libraries (MLDatasets.jl, MXNet); the BPE's checksums are of the published
files. fairseq's dictionary of the BPE has no known checksum: the script records one at the first download.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from functools import partial
from pathlib import Path

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.wmt14.sources import Archive, listed, mirror
from fairseq_floater.errors import UsageError
from fairseq_floater.files import naming, write_whole
from fairseq_floater.verbs import positive

_NAME = "wikitext-103-raw"
# The README's link is dead (tokenizers issue 1683); the author's own copy requires a User-Agent.
_WIKITEXT = Archive(
    f"{_NAME}-v1.zip",
    f"https://wikitext.smerity.com/{_NAME}-v1.zip",
    "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
)
_BPE_SITE = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe"
_BPE = (
    Archive(
        "encoder.json",
        f"{_BPE_SITE}/encoder.json",
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
    Archive(
        "vocab.bpe",
        f"{_BPE_SITE}/vocab.bpe",
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
)
_DICTIONARY = Archive("dict.txt", f"{_BPE_SITE}/dict.txt")
_SPLITS = ("train", "valid", "test")


def _archives(args: argparse.Namespace) -> list[Archive]:
    is_gpt2 = args.bpe == "gpt2"
    archives = [] if args.text is not None else [_WIKITEXT]
    if is_gpt2 and args.bpe_dir is None:
        archives += _BPE
    if is_gpt2 and args.dict is None:
        archives.append(_DICTIONARY)
    return archives


def _folder(args: argparse.Namespace) -> Path:
    out: Path = args.out
    return out.with_name(f"{out.name}.{'rehearsal' if args.rehearsal else 'archives'}")


def _list_archives(args: argparse.Namespace) -> None:
    for archive in _archives(args):
        check = not (args.rehearsal and archive is _WIKITEXT)
        print(listed(archive, _folder(args), args.mirror, check=check))


def _unpack(args: argparse.Namespace) -> None:
    if args.text is not None:
        return
    archive = _folder(args) / _WIKITEXT.name
    try:
        with zipfile.ZipFile(archive) as file:
            for split in _SPLITS:
                name = f"{_NAME}/wiki.{split}.raw"
                if not (_folder(args) / name).is_file():
                    write_whole(_folder(args) / name, partial(_write_member, file, name))
    except (KeyError, zipfile.BadZipFile) as error:
        raise TextDataError(f"{archive} is not an archive of WikiText-103: {error}.") from None


def _write_member(file: zipfile.ZipFile, name: str, path: Path) -> None:
    with file.open(name) as source, path.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _plain_or_packed(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path


def _print_words(args: argparse.Namespace) -> None:
    if args.text is None:
        texts = {split: _folder(args) / _NAME / f"wiki.{split}.raw" for split in _SPLITS}
    else:
        files = {split: _plain_or_packed(args.text / f"{split}.txt") for split in _SPLITS}
        texts = {split: path for split, path in files.items() if split != "test" or path.is_file()}
    words = [args.out, *(word for split in texts for word in (f"--{split}", texts[split]))]
    words += ["--bpe", args.bpe]
    if args.bpe == "gpt2":
        words += ["--bpe-dir", args.bpe_dir or _folder(args)]
        words += ["--dict", args.dict or _folder(args) / _DICTIONARY.name]
    else:
        words += ["--vocab", args.vocab]
    print("\n".join(map(str, words)))


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "for `floater mlm wikitext` itself; the script runs all steps"
    add("step", choices=("archives", "text", "words"), help=text)
    add("out", type=Path, metavar="OUT")
    text = "gpt2, which RoBERTa uses, or sentencepiece, learned from the text (--vocab N)"
    add("--bpe", choices=("gpt2", "sentencepiece"), required=True, help=text)
    text = (
        "folder of your own text instead: train.txt, valid.txt, optionally test.txt (or .gz); one paragraph "
        "a line, an empty line between documents"
    )
    add("--text", type=Path, metavar="DIR", help=text)
    text = "folder with your own encoder.json and vocab.bpe, instead of fetching them"
    add("--bpe-dir", type=Path, metavar="DIR", help=text)
    text = "dict.txt of the pretrained model (default with gpt2: fairseq's, fetched)"
    add("--dict", type=Path, metavar="FILE", help=text)
    add("--vocab", type=positive, metavar="N", help="subwords to learn")
    text = "take all files only from this URL (http, https, file) or folder, by file name"
    add("--mirror", type=mirror, metavar="PLACE", help=text)
    text = "the text is not the published one: record its checksum"
    add("--rehearsal", action="store_true", help=text)


def run(args: argparse.Namespace) -> None:
    if (args.vocab is None) == (args.bpe == "sentencepiece"):
        raise UsageError("`--vocab` must be given with `--bpe sentencepiece`, and only then.")
    steps = {"archives": _list_archives, "text": _unpack, "words": _print_words}
    with naming(args.out):
        steps[args.step](args)
