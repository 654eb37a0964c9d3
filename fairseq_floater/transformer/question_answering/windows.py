"""Read prepared SQuAD, and present it as ``<s> question </s> </s> window </s>``, window by window."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils

from fairseq_floater.transformer.question_answering.spans import windows

# `<s>`, `</s> </s>` and `</s>` stand around a question and its window.
SYMBOLS = 4


@dataclass(frozen=True)
class EncodedPassage:
    """A passage: its text, its subwords, and the characters ``text[start:end]`` of each."""

    text: str
    tokens: np.ndarray
    starts: list[int]
    ends: list[int]


@dataclass(frozen=True)
class EncodedQuestion:
    """A question about a passage, and its answers: first and last subword of the passage."""

    id: str
    passage: EncodedPassage
    tokens: np.ndarray
    answers: list[list[int]]


class WindowSizes(NamedTuple):
    """Limits in tokens: of the whole input, of its question, and from a window to the next."""

    input: int
    question: int
    stride: int


def read_questions(path: Path, dictionary: Dictionary) -> list[EncodedQuestion]:
    """Read a split of prepared SQuAD (``floater squad prepare``)."""

    def encoded(subwords: str) -> np.ndarray:
        # Split at spaces alone: data of 1.2.0 hold other white space, such as U+0085, inside subwords.
        symbols = subwords.split(" ") if subwords else []
        return np.array([dictionary.index(symbol) for symbol in symbols], dtype=np.int64)

    questions = []
    with path.open(encoding="utf-8") as file:
        for entry in map(json.loads, file):
            tokens = encoded(entry["subwords"])
            passage = EncodedPassage(entry["passage"], tokens, entry["starts"], entry["ends"])
            for item in entry["questions"]:
                subwords = encoded(item["subwords"])
                questions.append(EncodedQuestion(item["id"], passage, subwords, item["answers"]))
    return questions


class QuestionWindows(FairseqDataset):
    """All windows of all questions; an item is a window.

    Args:
        questions: in the order of the file.
        dictionary: of their subwords.
        sizes: limits.
        seed: of a random order; None: the file's order.
    """

    def __init__(
        self,
        questions: list[EncodedQuestion],
        dictionary: Dictionary,
        sizes: WindowSizes,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.questions, self.dictionary, self.limits, self.seed = questions, dictionary, sizes, seed
        rows = []
        for number, question in enumerate(questions):
            room = sizes.input - SYMBOLS - min(len(question.tokens), sizes.question)
            parts = windows(len(question.passage.tokens), room, sizes.stride)
            rows += [(number, begin, length) for begin, length in parts]
        # Columns: question, the window's first token in the passage, number of its passage tokens.
        self.rows = np.array(rows, dtype=np.int64).reshape(-1, 3)
        lengths = np.array([min(len(q.tokens), sizes.question) for q in questions], dtype=np.int64)
        self.sizes = SYMBOLS + lengths[self.rows[:, 0]] + self.rows[:, 2]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, begin, length = (int(n) for n in self.rows[index])
        question = self.questions[number]
        question_tokens = question.tokens[: self.limits.question]
        bos, eos = [self.dictionary.bos()], [self.dictionary.eos()]
        text = question.passage.tokens[begin : begin + length]
        shift = len(question_tokens) + 3 - begin  # from a token of the passage to its slot
        # An answer counts only if it lies in the window completely.
        answers = [
            [first + shift, last + shift]
            for first, last in question.answers
            if begin <= first and last < begin + length
        ]
        return {
            "id": index,
            "tokens": torch.from_numpy(np.concatenate([bos, question_tokens, eos, eos, text, eos])),
            "first": len(question_tokens) + 3,
            "length": length,
            "answers": answers,
        }

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """Return a random order, the same in every epoch (fairseq shuffles the batches), or the file's."""
        if self.seed is None:
            return np.arange(len(self))
        with data_utils.numpy_seed(self.seed):
            return np.random.permutation(len(self))

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Join windows to a batch.

        Returns:
            ``net_input`` for the model; ``inside`` [B, T], the tokens of the passage; ``target`` [B, 2],
            first and last slot of the first answer, 0 (``<s>``) without one; ``answers`` [B, A, 2], all
            of them, padded by -1; ``window`` [B, 3], question, first token and slot of the window.
        """
        if not samples:
            return {}
        tokens = [sample["tokens"] for sample in samples]
        source = data_utils.collate_tokens(tokens, self.dictionary.pad(), left_pad=False)
        slots = torch.arange(source.size(1))
        first = torch.tensor([sample["first"] for sample in samples])
        length = torch.tensor([sample["length"] for sample in samples])
        most = max(1, *(len(sample["answers"]) for sample in samples))
        answers = torch.full((len(samples), most, 2), -1)
        for row, sample in zip(answers, samples):
            for k, answer in enumerate(sample["answers"]):
                row[k] = torch.tensor(answer)
        rows = torch.from_numpy(self.rows[[sample["id"] for sample in samples]])
        lengths = torch.tensor([len(t) for t in tokens])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {"src_tokens": source, "src_lengths": lengths},
            "inside": (slots >= first[:, None]) & (slots < (first + length)[:, None]),
            "target": answers[:, 0].clamp(min=0),
            "answers": answers,
            "window": torch.stack((rows[:, 0], rows[:, 1], first), 1),
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
        }
