"""The dictionaries of a checkpoint, and the languages and splits of its data."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, data_utils
from torch import Tensor

from fairseq_floater.checkpoints.families import (
    ROBERTA,
    TRANSLATION,
    architecture,
    family_of,
    split_heads,
)
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import first_line

#: fairseq's tasks append this symbol to a RoBERTa's dictionary, after the entries of dict.txt.
MASK = "<mask>"


def task_options_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a checkpoint's task; empty if it has none."""
    task = (state.get("cfg") or {}).get("task") or {}
    return vars(task) if isinstance(task, argparse.Namespace) else task


def first_folder(data: str) -> Path:
    """Return the first folder of fairseq's list of data folders."""
    return Path(data.split(os.pathsep)[0])


def complete_languages(args: argparse.Namespace, state: dict[str, Any], data: str) -> None:
    """Fill in the languages of ``args`` from the task, or as fairseq does from the file names in ``data``.

    The checkpoint of a training without ``-s`` and ``-t`` names no languages.
    """
    folder = first_folder(data)
    inferred = data_utils.infer_language_pair(str(folder)) if folder.is_dir() else (None, None)
    task = task_options_of(state)
    for name, in_data in zip(("source_lang", "target_lang"), inferred):
        setattr(args, name, getattr(args, name, None) or task.get(name) or in_data)


def split_prefix(data: str, split: str, args: argparse.Namespace) -> str:
    """Return the path prefix of a split's files; as in fairseq, either language may come first."""
    pair = (args.source_lang, args.target_lang)
    prefixes = [f"{first_folder(data) / split}.{a}-{b}" for a, b in (pair, pair[::-1])]
    return next((p for p in prefixes if Path(f"{p}.{pair[0]}.idx").is_file()), prefixes[0])


def longest_sentence(data: str | None, stack: str, args: argparse.Namespace) -> int | None:
    """Return the length of the longest training sentence in ``data``, if it can be read.

    Args:
        data: a folder of binarised data.
        stack: ``encoder`` for the source, ``decoder`` for the target.
        args: ``source_lang`` and ``target_lang``.

    Returns:
        Tokens, end symbol included; None if there is no data.
    """
    if data is None:
        return None
    language = args.source_lang if stack == "encoder" else args.target_lang
    dataset = data_utils.load_indexed_dataset(
        f"{split_prefix(data, 'train', args)}.{language}", None
    )
    return None if dataset is None else int(max(dataset.sizes))


def placeholder_dictionary(size: int) -> Dictionary:
    """Make a dictionary of ``size`` entries: fairseq's four symbols and placeholders."""
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"placeholder{i}")
    return dictionary


def read_dictionary(file: Path) -> Dictionary:
    try:
        return Dictionary.load(str(file))
    except Exception as error:  # fairseq may raise any exception here
        reason = first_line(error)
        raise CheckpointError(f"{file} is not a fairseq dictionary: {reason}.") from None


def load_dictionaries(
    state: dict[str, Any], args: argparse.Namespace, path: Any, data: str | None
) -> tuple[Dictionary, Dictionary]:
    """Load the dictionaries in ``data`` and check them; without ``data``, make placeholders.

    Args:
        state: the checkpoint, whose sizes the dictionaries must have.
        args: the checkpoint's model options.
        path: the checkpoint's name in messages.
        data: a folder of binarised data.

    Raises:
        CheckpointError: a checkpoint without embeddings, or dictionaries of another model.
    """
    family = family_of(architecture(args))
    assert family is not None  # the callers have checked
    is_roberta = family is ROBERTA
    tensors = split_heads(state["model"])[0] if is_roberta else state["model"]
    sizes = [_entries(tensors, name) for name in family.embeddings]
    if 0 in sizes:
        raise CheckpointError(f"{path} has no {family.embeddings[sizes.index(0)]}.")
    if data is None:
        is_shared = getattr(args, "share_all_embeddings", False)
        made = [placeholder_dictionary(size) for size in (sizes[:1] if is_shared else sizes)]
        return made[0], made[-1]
    folder, trained_on = first_folder(data), task_options_of(state).get("data")
    in_languages = family is TRANSLATION
    files = _language_files(folder, args) if in_languages else [_only_file(folder)]
    # An imported RoBERTa has its dictionary beside it; a training had it in its data folder.
    originals = [Path(path).parent] if is_roberta else []
    originals += [first_folder(trained_on)] if trained_on else []
    added = [MASK] if is_roberta else []
    made = [
        _same_dictionary(file, size, path, originals, added) for file, size in zip(files, sizes)
    ]
    return made[0], made[-1]


def _entries(tensors: dict[str, Tensor], name: str) -> int:
    """Count the rows of the embedding ``name``; `--adaptive-input` splits it by the words' frequency."""
    adaptive = re.compile(re.escape(name.removesuffix("weight")) + r"embeddings\.\d+\.0\.weight")
    return sum(len(x) for key, x in tensors.items() if key == name or adaptive.fullmatch(key))


def _only_file(folder: Path) -> Path:
    candidates = [folder / "dict.txt", folder / "input0" / "dict.txt"]
    for file in candidates:
        if file.is_file():
            return file
    raise CheckpointError(f"There is no dictionary {candidates[0]}, nor {candidates[1]}.")


def _language_files(folder: Path, args: argparse.Namespace) -> list[Path]:
    files = []
    for side in ("source", "target"):
        files.append(folder / f"dict.{getattr(args, f'{side}_lang', None)}.txt")
        if not files[-1].is_file():
            raise CheckpointError(
                f"There is no dictionary {files[-1]} for the checkpoint's {side} language."
            )
    return files


def _same_dictionary(
    file: Path, size: int, path: Any, originals: list[Path], added: list[str]
) -> Dictionary:
    """Load ``file``, and check its size and, if known, its entries against the checkpoint's dictionary.

    Args:
        size: number of entries of the checkpoint's dictionary, ``added`` included.
        path: the checkpoint's name in messages.
        originals: folders that may hold the dictionary of the checkpoint's training.
        added: symbols that the task appends to the entries of the file.
    """
    dictionary = read_dictionary(file)
    for symbol in added:
        dictionary.add_symbol(symbol)
    if len(dictionary) != size:
        raise CheckpointError(
            f"The dictionary {file} has {len(dictionary)} entries, but {path} was trained with {size}."
        )
    original = next((f / file.name for f in originals if (f / file.name).is_file()), None)
    known = [] if original is None else read_dictionary(original).symbols
    for i, (a, b) in enumerate(zip(known, dictionary.symbols)):
        if a != b:
            raise CheckpointError(
                f"The dictionary {file} is not {original}, which {path} was trained with: entry {i} "
                f"is {b!r}, not {a!r}."
            )
    return dictionary
