"""Make the dictionaries of a checkpoint's model, or check those of data against it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_floater.checkpoints.families import ROBERTA, architecture, family_of, vocabulary_of
from fairseq_floater.checkpoints.reading import CheckpointError

#: Added by fairseq's tasks to a RoBERTa's dictionary, behind the words of its file.
MASK = "<mask>"


def donor_dictionaries(
    state: dict[str, Any], donor_args: argparse.Namespace, donor: Any, data: str | None
) -> tuple[Dictionary, Dictionary]:
    """Make dictionaries of the donor's sizes; with ``data``, load that folder's and compare them.

    Args:
        state: the donor's checkpoint.
        donor_args: its model options.
        donor: its name in messages.
        data: a folder of binarised data.

    Raises:
        CheckpointError: a checkpoint without embeddings, or dictionaries that are not the donor's.
    """
    if family_of(architecture(donor_args)) is ROBERTA:
        only = _robertas_dictionary(state, donor, data)
        return only, only
    sizes = []
    for side in ("encoder", "decoder"):
        weight = state["model"].get(f"{side}.embed_tokens.weight")
        if not isinstance(weight, Tensor):
            raise CheckpointError(
                f"{donor} has no {side}.embed_tokens.weight; adaptive inputs are not supported."
            )
        sizes.append(len(weight))
    if data is None:
        source = placeholder_dictionary(sizes[0])
        if getattr(donor_args, "share_all_embeddings", False):
            return source, source
        return source, placeholder_dictionary(sizes[1])
    donor_data = task_options_of(state).get("data")
    loaded = []
    for side, size in zip(("source", "target"), sizes):
        language = getattr(donor_args, f"{side}_lang", None)
        path = Path(data.split(os.pathsep)[0]) / f"dict.{language}.txt"
        if not path.is_file():
            raise CheckpointError(f"There is no dictionary {path} for the donor's {side} language.")
        original = Path(donor_data.split(os.pathsep)[0]) / path.name if donor_data else None
        loaded.append(_same_dictionary(path, size, donor, original))
    return loaded[0], loaded[1]


def _robertas_dictionary(state: dict[str, Any], donor: Any, data: str | None) -> Dictionary:
    """Make a RoBERTa's one dictionary, the mask included, as :func:`donor_dictionaries` does."""
    size = vocabulary_of(state["model"])
    if size is None:
        raise CheckpointError(f"{donor} has no encoder.sentence_encoder.embed_tokens.weight.")
    if data is None:
        return placeholder_dictionary(size)
    folder = Path(data.split(os.pathsep)[0])
    candidates = [folder / "dict.txt", folder / "input0" / "dict.txt"]
    path = next((file for file in candidates if file.is_file()), None)
    if path is None:
        raise CheckpointError(f"There is no dictionary {candidates[0]}, nor {candidates[1]}.")
    donor_data = task_options_of(state).get("data")
    known = [Path(donor).parent / "dict.txt"]  # where an imported donor has it
    known += [Path(donor_data.split(os.pathsep)[0]) / "dict.txt"] if donor_data else []
    original = next((file for file in known if file.is_file()), None)
    return _same_dictionary(path, size, donor, original, added=(MASK,))


def task_options_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a checkpoint's task; empty where it has none."""
    task = (state.get("cfg") or {}).get("task") or {}
    return vars(task) if isinstance(task, argparse.Namespace) else task


def _same_dictionary(
    path: Path, size: int, donor: Any, original: Path | None, added: tuple[str, ...] = ()
) -> Dictionary:
    """Load ``path`` if it can be the donor's dictionary: same size, same words where those are known.

    Args:
        path: the dictionary's file.
        size: words of the donor, those in ``added`` included.
        donor: its name in messages.
        original: the file that the donor was trained with, if it is known.
        added: words that the task puts behind those of the file.
    """
    dictionary = Dictionary.load(str(path))
    for word in added:
        dictionary.add_symbol(word)
    if len(dictionary) != size:
        raise CheckpointError(
            f"The dictionary {path} has {len(dictionary)} entries, but {donor} was trained with {size}."
        )
    if original is not None and original.is_file():
        known = Dictionary.load(str(original))
        pairs = enumerate(zip(known.symbols, dictionary.symbols))
        i = next((i for i, (a, b) in pairs if a != b), None)
        if i is not None:
            raise CheckpointError(
                f"The dictionary {path} is not {original}, which {donor} was trained with: entry {i} "
                f"is {dictionary.symbols[i]!r}, there {known.symbols[i]!r}."
            )
    return dictionary


def placeholder_dictionary(size: int) -> Dictionary:
    """Make a dictionary of ``size`` entries: fairseq's four symbols and words that stand for any."""
    dictionary = Dictionary()
    for i in range(size - len(dictionary)):
        dictionary.add_symbol(f"placeholder{i}")
    return dictionary
