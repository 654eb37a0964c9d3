"""The quizzes: official formats, answers solved from the text, balance, no list in two splits."""

from __future__ import annotations

import collections
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prepared_text import contents

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.understanding.quiz_lists import Draws, words
from fairseq_floater.data.understanding.quizzes import write_quizzes
from fairseq_floater.errors import UsageError

SCALE = 0.05
NUMBER = {word: place for place, word in enumerate(words())}
SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = ("not_entailment", "entailment")
# Where each task keeps its sentences and its label (columns as published), and what its labels are.
GLUE: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "SST-2": (("sentence",), "label", {"0", "1"}),
    "MRPC": (("#1 String", "#2 String"), "Quality", {"0", "1"}),
    "QQP": (("question1", "question2"), "is_duplicate", {"0", "1"}),
    "STS-B": (SENTENCES, "score", {"0.000", "1.000", "2.000", "3.000", "5.000"}),
    "MNLI": (SENTENCES, "gold_label", {"entailment", "neutral", "contradiction"}),
    "QNLI": (("question", "sentence"), "label", {*ENTAILMENT}),
    "RTE": (SENTENCES, "label", {*ENTAILMENT}),
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
Row = tuple[tuple[str, ...], str]


@pytest.fixture(scope="module")
def quizzes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quizzes") / "out"
    write_quizzes(out, scale=SCALE)
    return out


def glue_rows(folder: Path, task: str, file: str) -> list[Row]:
    """The sentences and labels of a file, by the names of its columns."""
    with (folder / "glue" / task / f"{file}.tsv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    if task == "CoLA":
        assert {len(line) for line in lines} == {4}
        assert all((line[2] == "*") == (line[1] == "0") for line in lines)
        return [((line[3],), line[1]) for line in lines]
    head, rows = lines[0], lines[1:]
    assert {len(row) for row in rows} == {len(head)}
    sentences, label, _ = GLUE[task]
    if head[0] in ("index", "id"):
        assert [row[0] for row in rows] == [str(number) for number in range(len(rows))]
    return [
        (tuple(row[head.index(name)] for name in sentences), row[head.index(label)]) for row in rows
    ]


def glue_files() -> list[tuple[str, str]]:
    files = [(task, split) for task in ("CoLA", *GLUE) for split in ("train", "dev")]
    files.remove(("MNLI", "dev"))
    return [*files, ("MNLI", "dev_matched"), ("MNLI", "dev_mismatched")]


def places(text: str) -> dict[str, int]:
    """Where each word of a list stands; no word comes twice."""
    found = text.split()
    assert len(set(found)) == len(found) and set(found) <= set(NUMBER)
    return {word: place for place, word in enumerate(found)}


def above(text: str, word: str) -> tuple[bool, bool]:
    """Whether the first and the last word of a list are larger than a word of its middle."""
    first, *inner, last = text.split()
    assert word in inner
    return NUMBER[first] > NUMBER[word], NUMBER[last] > NUMBER[word]


def at_places(text: str, question: str) -> str | None:
    """The words at the place, or between the places, that a question names."""
    found = re.fullmatch(r"what comes (\w+)(?: to (\w+))? \?", question)
    assert found is not None
    start, end = (ORDINALS.index(name) for name in (found[1], found[2] or found[1]))
    assert start < end or found[2] is None
    words = text.split()
    return " ".join(words[start : end + 1]) if end < len(words) else None


def solve(task: str, sentences: tuple[str, ...]) -> str:
    """Find the label of an example from its text."""
    if task == "CoLA":
        values = [NUMBER[word] for word in places(sentences[0])]
        return "1" if values == sorted(values) else "0"
    if task == "SST-2":
        values = [NUMBER[word] for word in places(sentences[0])]
        return "1" if values[-1] > values[0] else "0"
    if task == "MRPC":
        return "1" if sentences[0] == sentences[1] else "0"
    if task == "QQP":
        forwards, backwards = (text.split()[1:-1] for text in sentences)
        return "1" if forwards == backwards[::-1] else "0"
    if task == "STS-B":
        first, second = (text.split() for text in sentences)
        return f"{sum(a == b for a, b in zip(first, second, strict=True)):.3f}"
    if task == "QNLI":
        question = re.fullmatch(r"what comes first above (\w+) \?", sentences[0])
        assert question is not None
        return ENTAILMENT[above(sentences[1], question[1])[0]]
    *sides, middle, word = sentences[1].split()
    assert middle == "above"
    ends = above(sentences[0], word)
    if task == "RTE":
        assert sides == ["last"]
        return ENTAILMENT[ends[1]]
    assert sides == ["first", "and", "last"]
    return ("contradiction", "neutral", "entailment")[sum(ends)]


@pytest.mark.parametrize(("task", "file"), glue_files())
def test_labels_of_glue_follow_from_the_text(quizzes: Path, task: str, file: str) -> None:
    rows = glue_rows(quizzes, task, file)
    assert len(rows) == (200 if file == "train" else 20)
    assert [label for _, label in rows] == [solve(task, sentences) for sentences, _ in rows]

    # And they are balanced.
    counts = collections.Counter(label for _, label in rows)
    assert set(counts) == ({"0", "1"} if task == "CoLA" else GLUE[task][2])
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough quizzes to count words in."""
    out = tmp_path_factory.mktemp("many") / "out"
    write_quizzes(out, scale=0.2)
    return out


@pytest.mark.parametrize("task", ["CoLA", *GLUE])
def test_which_words_there_are_says_nothing(many: Path, task: str) -> None:
    """No word's frequency differs between labels by more than chance explains."""
    rows = glue_rows(many, task, "train")
    for place in range(len(rows[0][0])):
        by_label: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for sentences, label in rows:
            by_label[label].update(set(sentences[place].split()))
        share = 1 / len(by_label)
        for word in set().union(*by_label.values()):
            total = sum(counts[word] for counts in by_label.values())
            if total < len(rows):  # words that are in every sentence carry no information
                deviation = (total * share * (1 - share)) ** 0.5
                for counts in by_label.values():
                    assert abs(counts[word] - total * share) < 5 * deviation


def race_files(folder: Path, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for level in ("middle", "high"):
        for path in sorted((folder / "race" / split / level).iterdir()):
            content = json.loads(path.read_text(encoding="utf-8"))
            assert content["id"] == f"{level}{path.name}"
            yield level, content


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_one_option_of_race_is_right(quizzes: Path, split: str) -> None:
    letters: collections.Counter[str] = collections.Counter()
    lengths = collections.defaultdict(set)
    for level, content in race_files(quizzes, split):
        where = places(content["article"])
        lengths[level].add(len(where))
        for question, options, answer in zip(
            content["questions"], content["options"], content["answers"], strict=True
        ):
            values = [NUMBER[word] for word in where]
            order = sorted(values)
            asked = order[{"the largest is _": -1, "the next largest is _": -2}[question]]
            shown = [values[ORDINALS.index(option)] for option in options]
            assert len(set(options)) == 4 and shown["ABCD".index(answer)] == asked
            assert sorted(shown) == [*order[:3], asked]
            letters[answer] += 1
    assert len(set(letters.values())) == 1 and len(letters) == 4
    assert max(lengths["middle"]) < min(lengths["high"])


def squad_questions(folder: Path, split: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    content = json.loads((folder / "squad" / f"{split}-v{version}.json").read_text())
    assert content["version"].endswith(version)
    for article in content["data"]:
        assert article["title"]
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_answers_of_squad_are_the_words_asked_for(quizzes: Path, split: str, version: str) -> None:
    ids, impossible, sizes = [], 0, collections.Counter[int]()
    for text, entry in squad_questions(quizzes, split, version):
        places(text)
        ids.append(entry["id"])
        answer = at_places(text, entry["question"])
        assert [found["text"] for found in entry["answers"]] == ([answer] if answer else [])
        for found in [*entry["answers"], *entry.get("plausible_answers", [])]:
            start = found["answer_start"]
            assert text[start:].startswith(found["text"])
            assert f" {text} "[start] == " " and f"{text} "[start + len(found["text"])] == " "
        assert ("is_impossible" in entry) == (version == "2.0")
        assert entry.get("is_impossible", False) == (answer is None)
        impossible += answer is None
        sizes[len(answer.split()) if answer else 0] += 1
    assert len(set(ids)) == len(ids) == (240 if split == "train" else 24)
    assert impossible == (len(ids) // 2 if version == "2.0" else 0)
    assert min(sizes[1], sizes[2], sizes[3]) > 0


def test_the_donors_text_tells_the_truth(quizzes: Path) -> None:
    text = (quizzes / "mlm" / "train.txt").read_text(encoding="utf-8")
    documents = text.split("\n\n")[:-1]
    assert len(documents) == 600
    kinds: collections.Counter[str] = collections.Counter()
    for document in documents:
        repeated, line = document.split("\n")
        first = list(dict.fromkeys(repeated.split()))
        assert 3 <= len(first) <= 5
        assert repeated.split() == first * (len(repeated.split()) // len(first))
        assert 24 <= len(repeated.split()) <= 30
        found = line.split()
        if found[0] == "the":
            kinds["extreme"] += 1
            place = {"the largest is": -1, "the next largest is": -2}[" ".join(found[:-1])]
            answer = sorted(first, key=NUMBER.__getitem__)[place]
            assert at_places(" ".join(first), f"what comes {found[-1]} ?") == answer
        elif found[0] == "what":
            kinds["place"] += 1
            question, answer = line.split(" ? ")
            assert answer == at_places(" ".join(first), f"{question} ?")
        elif found[0] == "backwards":
            kinds["backwards"] += 1
            assert found[1:] == first[::-1]
        else:
            kinds["rising"] += 1
            assert found == sorted(first, key=NUMBER.__getitem__)
    assert set(kinds) == {"extreme", "place", "backwards", "rising"}


def all_lists(folder: Path, split: str) -> set[frozenset[str]]:
    """The sets of words of all lists of a split, in every quiz."""
    name = "train" if split == "train" else "dev"
    files = [path for path in (folder / "glue").rglob("*.tsv") if path.stem.startswith(name)]
    rows = [row for path in files for row in glue_rows(folder, path.parent.name, path.stem)]
    texts = [sentence for sentences, _ in rows for sentence in sentences]
    texts += [content["article"] for _, content in race_files(folder, split)]
    for version in ("1.1", "2.0"):
        texts += [text for text, _ in squad_questions(folder, name, version)]
    mlm = folder / "mlm" / ("train.txt" if split == "train" else "valid.txt")
    texts += mlm.read_text(encoding="utf-8").split("\n")
    sets = (frozenset(text.split()).intersection(NUMBER) for text in texts)
    return {found for found in sets if len(found) >= 4}  # shorter ones are answers


def test_no_list_is_in_two_splits(quizzes: Path) -> None:
    train, dev = all_lists(quizzes, "train"), all_lists(quizzes, "dev")
    test = {frozenset(content["article"].split()) for _, content in race_files(quizzes, "test")}
    assert len(train) > 1500 and len(dev) > 100 and len(test) == 12
    assert not train & dev and not train & test and not dev & test


def test_no_list_comes_twice_in_a_split(quizzes: Path) -> None:
    for task, file in glue_files():
        place = 1 if task == "QNLI" else 0
        texts = [sentences[place] for sentences, _ in glue_rows(quizzes, task, file)]
        assert len({frozenset(text.split()) for text in texts}) == len(texts)


def test_the_same_arguments_give_the_same_bytes(quizzes: Path, tmp_path: Path) -> None:
    write_quizzes(tmp_path / "same", scale=SCALE)
    assert contents(tmp_path / "same") == contents(quizzes)
    write_quizzes(tmp_path / "other", scale=SCALE, seed=2)
    same = contents(tmp_path / "same")
    assert not [name for name, text in contents(tmp_path / "other").items() if same[name] == text]


def test_scale_makes_longer_files_of_the_same_beginning(quizzes: Path, tmp_path: Path) -> None:
    made = write_quizzes(tmp_path / "out", scale=2 * SCALE)
    assert made.summary["splits"]["CoLA"] == {"train": 400, "dev": 40}
    for name in ("mlm/train.txt", "glue/RTE/train.tsv", "glue/MNLI/dev_matched.tsv"):
        short, long = ((folder / name).read_bytes() for folder in (quizzes, tmp_path / "out"))
        assert long.startswith(short) and len(long) > 1.8 * len(short)


def test_lists_are_the_same_on_every_machine() -> None:
    drawn = [" ".join(found) for found in Draws(1, "RTE", "train").lists(2, (4, 7))]
    first, second = "thirty nineteen seventeen two six zero sixty", "six two forty twelve eighty"
    assert drawn == [first, f"{second} eighteen"]


def test_more_lists_than_there_are_are_refused() -> None:
    message = "`--scale` must be smaller: RTE needs 100 lists of 1 to 1 words for dev, but "
    with pytest.raises(TextDataError, match=rf"^{re.escape(message)}there are only [0-9]\."):
        list(Draws(1, "RTE", "dev").lists(100, (1, 1)))


def test_a_scale_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^`--scale` must be above 0, but is "):
        write_quizzes(tmp_path / "out", scale=0.0)


def test_the_table_counts_the_questions(quizzes: Path) -> None:
    made = write_quizzes(quizzes, scale=SCALE)
    rows = [line.split() for line in made.format_text().splitlines()[:-1]]
    assert ["split", "train", "dev", "test"] in rows
    assert ["RACE", "high", "120", "12", "12"] in rows and ["mlm", "600", "15"] in rows
