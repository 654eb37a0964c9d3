"""Make fairseq's dictionary of a Hugging Face vocabulary, whose tokens may have other numbers there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.errors import first_line, shown
from fairseq_floater.records import read_json

# Names of what fairseq calls <s> <pad> </s> <unk> and, last, <mask>.
_SPECIALS = {
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "bert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
}
# Rows that RoBERTa's dictionary has to be a multiple of something; its BPE never gives them.
_FILLING = "madeupword"


class Vocabulary(NamedTuple):
    """A dictionary, and ``order``: the number in Hugging Face's tensors of each of its entries."""

    dictionary: Dictionary
    order: list[int]


def read_vocabulary(folder: Path, kind: str, size: int, encoder_json: Path | None) -> Vocabulary:
    """Read the vocabulary of a model, with fairseq's special symbols where fairseq has them.

    Args:
        folder: of the model, with vocab.json (RoBERTa) or vocab.txt (BERT), or tokenizer.json.
        kind: ``roberta`` or ``bert``.
        size: rows of the model's embeddings.
        encoder_json: GPT-2's numbers of RoBERTa's tokens, of which its dictionary consists; None:
            ``encoder.json`` of ``folder``.

    Raises:
        CheckpointError: a file is missing or unreadable, or the vocabulary is another model's.
    """
    path, numbers = _numbers(folder, "vocab.json" if kind == "roberta" else "vocab.txt")
    tokens = _by_number(path, numbers)
    if len(tokens) != size:
        raise CheckpointError(
            f"{path} has {len(tokens)} tokens, but the model's embeddings have {size} rows; it must "
            "be the vocabulary that the model was trained with."
        )
    specials = _SPECIALS[kind]
    missing = [token for token in specials if token not in tokens]
    if missing:
        raise CheckpointError(
            f"{path} has no {missing[0]}; a {kind} vocabulary holds {' '.join(specials)}."
        )
    words = [token for token in tokens if token not in specials]
    number = {token: i for i, token in enumerate(tokens)}
    order = [number[token] for token in (*specials[:4], *words, specials[4])]
    if kind == "roberta":
        words = _gpt2_numbers(path, words, encoder_json or folder / "encoder.json")
    return Vocabulary(_dictionary(path, words), order)


def fairseq_dictionary(path: Path, size: int) -> Dictionary:
    """Load the dictionary of a RoBERTa of fairseq's; its embeddings have a row more, for ``<mask>``.

    Raises:
        CheckpointError: there is none, or one of another size.
    """
    if not path.is_file():
        raise CheckpointError(f"There is no dictionary {path}; it comes with the model.")
    dictionary = _load(path)
    if len(dictionary) + 1 != size:
        raise CheckpointError(
            f"The dictionary {path} makes {len(dictionary) + 1} entries, `<mask>` among them, but the "
            f"model's embeddings have {size} rows."
        )
    return dictionary


def check_same_words(path: Path, dictionary: Dictionary) -> None:
    """Refuse a dictionary file with other words than ``dictionary``, which it would be replaced by."""
    if _load(path).symbols != dictionary.symbols:
        raise CheckpointError(
            f"{path} is another model's dictionary; choose another folder or pass --force."
        )


def _load(path: Path) -> Dictionary:
    """Load fairseq's dictionary, which raises whatever its reading meets."""
    try:
        return Dictionary.load(str(path))
    except Exception as error:
        reason = first_line(error)
        raise CheckpointError(f"{path} is no dictionary of fairseq's: {reason}.") from None


def _numbers(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the file that numbers the tokens, and what it says."""
    path, newer = folder / name, folder / "tokenizer.json"
    if not path.is_file() and newer.is_file():
        content = read_json(newer, dict)
        try:
            added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
            return newer, {**content["model"]["vocab"], **added}
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{newer} holds no `model.vocab` of tokens to numbers.") from None
    if not path.is_file():
        raise CheckpointError(f"There is no {path} (nor tokenizer.json), the model's vocabulary.")
    if path.suffix == ".json":
        return path, read_json(path, dict)
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            return path, {line.rstrip("\r\n"): i for i, line in enumerate(file)}
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no UTF-8 text: {error}.") from None


def _by_number(path: Path, numbers: dict[str, Any]) -> list[str]:
    """Return the tokens 0, 1, 2...; a number that lacks or comes twice is an error."""
    if not all(type(number) is int for number in numbers.values()):
        raise CheckpointError(f"{path} is no vocabulary: it must give every token a whole number.")
    tokens = sorted(numbers, key=lambda token: numbers[token])
    for i, token in enumerate(tokens):
        if numbers[token] != i:
            raise CheckpointError(
                f"{path} must number its {len(tokens)} tokens from 0 without a gap, but {i} is not "
                f"among them, or a token is there twice (near {shown(token)})."
            )
    return tokens


def _gpt2_numbers(path: Path, words: Sequence[str], encoder_json: Path) -> list[str]:
    """Return what fairseq's GPT-2 BPE writes for each token: its number in encoder.json."""
    if not encoder_json.is_file():
        raise CheckpointError(
            f"There is no {encoder_json}, which holds the numbers that fairseq's GPT-2 BPE writes; "
            "pass it as --encoder-json (fairseq: gpt2_bpe/encoder.json)."
        )
    encoder = read_json(encoder_json, dict)
    unknown = [w for w in words if w not in encoder and not w.startswith(_FILLING)]
    if unknown:
        raise CheckpointError(
            f"{path} is of another BPE than {encoder_json}: {shown(unknown[0])} is not in that file, "
            f"nor are {len(unknown) - 1} more of {len(words)} tokens."
        )
    return [str(encoder.get(word, word)) for word in words]


def _dictionary(path: Path, words: Sequence[str]) -> Dictionary:
    dictionary = Dictionary()
    for word in words:
        if word in dictionary.indices:
            raise CheckpointError(
                f"{path} holds {shown(word)}, which fairseq's dictionary has already; no such model "
                "can be imported."
            )
        dictionary.add_symbol(word)
    return dictionary
