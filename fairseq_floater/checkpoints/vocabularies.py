"""Number the tokens of Hugging Face's vocabularies as fairseq's dictionaries do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import shown
from fairseq_floater.records import read_json

FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
# The names of these four symbols, and of <mask> last.
_SPECIALS = {
    "roberta": (*FAIRSEQ_SPECIALS, "<mask>"),
    "bert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
}
# Entries that pad RoBERTa's dictionary to a round size. Its BPE never produces them.
_FILLING = "madeupword"


def read_vocabulary(
    folder: Path, kind: str, size: int, encoder_json: Path
) -> tuple[Dictionary, list[int]]:
    """Read the vocabulary, and put the special symbols where fairseq has them.

    Args:
        folder: of the model.
        kind: ``roberta`` or ``bert``.
        size: rows of the model's embeddings.
        encoder_json: GPT-2's number of each RoBERTa token; fairseq's dictionary holds these numbers.

    Returns:
        The dictionary, and each entry's row in Hugging Face's tensors; ``<mask>`` comes last.
    """
    path, numbers = _token_numbers(folder, "vocab.json" if kind == "roberta" else "vocab.txt")
    specials = _SPECIALS[kind]
    tokens = _checked_tokens(path, numbers, size, kind, specials)
    entries = [token for token in tokens if token not in specials]
    order = [numbers[token] for token in (*specials[:4], *entries, specials[4])]
    if kind == "roberta":
        entries = _gpt2_numbers(path, entries, encoder_json)
    return _dictionary(entries), order


def read_marian_vocabulary(path: Path, size: int) -> tuple[Dictionary, list[int]]:
    """Read vocab.json of a Marian with ``size`` rows, as :func:`read_vocabulary` does.

    If it has no <s>, fairseq's <s> gets row ``size``.
    """
    numbers = _token_numbers(path.parent, path.name)[1]
    tokens = _checked_tokens(path, numbers, size, "Marian", FAIRSEQ_SPECIALS[1:])
    dictionary = _dictionary([token for token in tokens if token not in FAIRSEQ_SPECIALS])
    return dictionary, [numbers.get(token, size) for token in dictionary.symbols]


def _dictionary(entries: Sequence[str]) -> Dictionary:
    dictionary = Dictionary()
    for entry in entries:
        dictionary.add_symbol(entry)
    return dictionary


def _checked_tokens(
    path: Path, numbers: dict[str, int], size: int, kind: str, specials: Sequence[str]
) -> list[str]:
    """Return the tokens in the order of their numbers; ``size`` of them, ``specials`` included."""
    tokens = sorted(numbers, key=numbers.__getitem__)
    if len(tokens) != size:
        raise CheckpointError(
            f"{path} has {len(tokens)} tokens, but the model's embeddings have {size} rows; it must "
            "be the vocabulary that the model was trained with."
        )
    if [numbers[token] for token in tokens] != list(range(size)):
        raise CheckpointError(f"{path} must number its {size} tokens from 0 without a gap.")
    missing = [token for token in specials if token not in numbers]
    if missing:
        raise CheckpointError(
            f"{path} has no {missing[0]}; a {kind} vocabulary holds {' '.join(specials)}."
        )
    return tokens


def _token_numbers(folder: Path, name: str) -> tuple[Path, dict[str, int]]:
    """Return the file that numbers the tokens, and the numbers."""
    path, newer = folder / name, folder / "tokenizer.json"
    if not path.is_file() and newer.is_file():
        content = read_json(newer, {"model": {"vocab": dict}})
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        return newer, {**content["model"]["vocab"], **added}
    if not path.is_file():
        raise CheckpointError(f"There is no {path} (nor tokenizer.json), the model's vocabulary.")
    if path.suffix == ".json":
        return path, read_json(path, dict)
    with path.open(encoding="utf-8", newline="\n") as file:
        return path, {line.rstrip("\r\n"): i for i, line in enumerate(file)}


def _gpt2_numbers(path: Path, entries: Sequence[str], encoder_json: Path) -> list[str]:
    """Return what fairseq's GPT-2 BPE writes for each token: its number in encoder.json."""
    if not encoder_json.is_file():
        raise CheckpointError(
            f"There is no {encoder_json}, which holds the numbers that fairseq's GPT-2 BPE writes; "
            "pass it as --encoder-json (fairseq: gpt2_bpe/encoder.json)."
        )
    encoder = read_json(encoder_json, dict)
    unknown = [w for w in entries if w not in encoder and not w.startswith(_FILLING)]
    if unknown:
        raise CheckpointError(
            f"{path} is of another BPE than {encoder_json}: {shown(unknown[0])} is not in that file, "
            f"nor are {len(unknown) - 1} more of {len(entries)} tokens."
        )
    return [str(encoder.get(entry, entry)) for entry in entries]
