"""Small corpora in SQuAD's official form, and subwords for them. Not a test file."""

import json
import random

from fairseq_floater.data.sentencepiece_subwords import train_subword, write_dictionary
from fairseq_floater.data.understanding.binarise import Vocabulary

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn")
PLACES = ("the old mill", "a garden", "Paris", "the “Red Lion”", "Zürich", "St. Ives")
THINGS = ("boat", "blue hat", "map", "drum", "glass key", "coin")


def question(id_, text, answers, passage, flag=None):
    """Return a question; each answer begins at its first occurrence in the passage."""
    found = [{"text": answer, "answer_start": passage.index(answer)} for answer in answers]
    impossible = {} if flag is None else {"is_impossible": flag}
    return {"id": id_, "question": text, "answers": found, **impossible}


def squad(*paragraphs):
    """Return [(passage, questions)] in SQuAD's official form."""
    parts = [{"context": passage, "qas": questions} for passage, questions in paragraphs]
    return {"version": "x", "data": [{"title": "T", "paragraphs": parts}]}


def households(count, seed, second=False, people=3):
    """Return passages of who has what and where, with two questions each; in 2.0 one may have no answer."""
    pick = random.Random(seed)
    paragraphs = []
    for number in range(count):
        who, where, what = (pick.sample(k, people) for k in (NAMES, PLACES, THINGS))
        facts = zip(who, what, where)
        passage = "  ".join(f"{n} has a {t} in {p}." for n, t, p in facts)
        k = pick.randrange(people)
        gone = second and pick.random() < 0.5
        asked = pick.choice([n for n in NAMES if n not in who]) if gone else who[k]
        flags = (gone, False) if second else (None, None)
        questions = [
            question(
                f"{seed}-{number}-a", f"What has {asked}?", [] if gone else [what[k]], passage
            ),
            question(f"{seed}-{number}-b", f"Where is {who[k]}?", [where[k]], passage),
        ]
        for item, flag in zip(questions, flags):
            item |= {} if flag is None else {"is_impossible": flag}
        paragraphs.append((passage, questions))
    return squad(*paragraphs)


def write(path, content):
    """Write JSON and return the path."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def vocabulary(folder, size=120):
    """Train subwords and a dictionary on households; return them as prepared data would hold them."""
    data = households(60, seed=99)["data"][0]["paragraphs"]
    lines = [(p["context"] + " " + p["qas"][0]["question"],) for p in data]
    lines += [(f"Where is {name}?",) for name in NAMES]
    (folder / "bpe").mkdir(parents=True)
    model = folder / "bpe" / "sentencepiece.model"
    train_subword(iter(lines), len(lines), model, vocab_size=size)
    write_dictionary(model, folder / "dict.txt")
    return Vocabulary.like(folder)
