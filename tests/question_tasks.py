"""A small prepared SQuAD and its task. Not a test file."""

import json
import random

from fairseq_floater.transformer.question_answering.task import (
    QuestionAnsweringConfig,
    QuestionAnsweringTask,
)

SHAPE = {"encoder_layers": 1, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SHAPE |= {"encoder_attention_heads": 2, "arch": "roberta"}


def entry(words, questions):
    """Return an entry of a prepared split; ``words`` are separated by blanks."""
    starts = [sum(len(w) + 1 for w in words[:k]) for k in range(len(words))]
    return {
        "passage": " ".join(words),
        "subwords": " ".join(words),
        "starts": starts,
        "ends": [start + len(word) for start, word in zip(starts, words)],
        "questions": [
            {"id": id_, "subwords": " ".join(asked), "answers": answers}
            for id_, asked, answers in questions
        ],
    }


def folder(path, entries, version="2.0"):
    """Fill a folder as `floater squad prepare` does."""
    dictionary = "".join(f"w{i} 1\n" for i in range(40))
    (path / "dict.txt").write_text(dictionary, encoding="utf-8")
    (path / "summary.json").write_text(json.dumps({"version": version}), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in entries)
    (path / "valid.jsonl").write_text(text, encoding="utf-8")
    return path


def random_entries(passages=4, seed=0):
    """Passages of 3 to 40 words with two questions each; the second has no answer."""
    pick = random.Random(seed)
    entries = []
    for number in range(passages):
        words = [f"w{pick.randrange(40)}" for _ in range(pick.randint(3, 40))]
        first = pick.randrange(len(words))
        answers = [[first, min(first + pick.randrange(4), len(words) - 1)]]
        questions = [(f"{number}a", ["w1", "w2", "w3"], answers), (f"{number}b", ["w4"], [])]
        entries.append(entry(words, questions))
    return entries


def task_of(path, **options):
    config = QuestionAnsweringConfig(data=str(path), seed=1)
    sizes = {"max_positions": 24, "question_tokens": 4, "window_stride": 5, "answer_tokens": 3}
    for name, value in {**sizes, **options}.items():
        setattr(config, name, value)
    return QuestionAnsweringTask.setup_task(config)


def whole(task):
    """Return the valid split and one batch of all its windows."""
    data = task.load_dataset("valid")
    return data, data.collater([data[i] for i in range(len(data))])
