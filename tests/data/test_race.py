"""RACE's folders: questions in a fixed order, as fairseq's sentence_ranking reads them."""

import json
from argparse import Namespace

import pytest
from fairseq.tasks.sentence_ranking import SentenceRankingTask

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.understanding import race
from fairseq_floater.errors import UsageError, UserError

PASSAGE = "The third of four\nis  three,\tthey said.   We see it."
FIELDS = {
    "answers": ["B", "D"],
    "options": [["one", "two", "three", "four"], ["a", "b", "c", "d"]],
    "questions": ["What is third?", "It is _ and _ ."],
    "article": PASSAGE,
    "id": "middle1.txt",
}
FIRST = ["What is third? one", "What is third? two", "What is third? three", "What is third? four"]
SECOND = [f"It is {c} and {c} ." for c in "abcd"]


@pytest.fixture
def raw(tmp_path):
    files = {"high/2": "high", "middle/10": "ten", "middle/9": PASSAGE}
    for split in ("train", "dev"):
        for name, article in files.items():
            path = tmp_path / "raw" / split / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**FIELDS, "article": article}))
    return tmp_path / "raw"


def loaded(out, split, max_positions=512, max_option_length=128):
    """The split as fairseq has it, in order, and its dictionary."""
    options = {"data": str(out), "criterion": "sentence_ranking", "num_classes": 4, "seed": 1}
    options |= {"init_token": 0, "separator_token": 2, "no_shuffle": True, "dataset_impl": "mmap"}
    options |= {"shorten_method": "truncate", "shorten_data_split_list": ""}
    options |= {"max_option_length": max_option_length, "max_positions": max_positions}
    task = SentenceRankingTask.setup_task(Namespace(**options))
    data = task.load_dataset(split)
    return [data[k] for k in range(len(data))], task.source_dictionary


def test_fairseq_ranks_each_question_and_option_before_its_passage(raw, vocabulary, tmp_path):
    made = race.prepare(raw, tmp_path / "out", vocabulary)
    examples, dictionary = loaded(tmp_path / "out", "valid")

    def numbers(text):
        return [dictionary.index(word) for word in vocabulary.subwords.encode(text)]

    passage = numbers("The third of four is three, they said. We see it.")
    for example, options in zip(examples[:2], (FIRST, SECOND), strict=True):
        for k, option in enumerate(options, start=1):
            tokens = example[f"net_input{k}.src_tokens"].tolist()
            assert tokens == [0, *numbers(option), 2, 2, *passage, 2]
    assert [example["target"] for example in examples] == [1, 3] * 3
    assert made.summary["splits"] == {
        split: {**made.summary["splits"]["valid"], "questions": 6} for split in ("train", "valid")
    }
    warning = "train has 6 questions, but 87,866 are published for RACE."
    assert made.summary["warnings"][0] == warning


def test_questions_come_by_group_and_number_and_have_names(raw, vocabulary, tmp_path):
    race.prepare(raw, tmp_path / "out", vocabulary)
    references = json.loads((tmp_path / "out" / "references.valid.json").read_text())
    names = ["middle/9/0", "middle/9/1", "middle/10/0", "middle/10/1", "high/2/0", "high/2/1"]
    assert list(references) == names
    assert references["middle/9/1"] == {"answer": "D", "group": "middle"}
    assert references["high/2/0"] == {"answer": "B", "group": "high"}


@pytest.mark.parametrize(("positions", "option"), [(512, 128), (100, 50)])
def test_options_may_take_128_tokens_or_half_of_all(positions, option, raw, vocabulary, tmp_path):
    made = race.prepare(raw, tmp_path / "out", vocabulary, max_positions=positions)
    lengths = {"max_positions": positions, "max_option_length": option}
    assert made.summary["parameters"] == lengths


def test_a_test_set_is_prepared_where_there_is_one(raw, vocabulary, tmp_path):
    (raw / "dev").rename(raw / "test")
    with pytest.raises(TextDataError, match="dev/middle and .*/dev/high must hold the files"):
        race.prepare(raw, tmp_path / "out", vocabulary)
    (raw / "dev" / "middle").mkdir(parents=True)
    (raw / "dev" / "middle" / "1.txt").write_text(json.dumps(FIELDS))
    made = race.prepare(raw, tmp_path / "out", vocabulary)
    sizes = {split: counts["questions"] for split, counts in made.summary["splits"].items()}
    assert sizes == {"train": 6, "valid": 2, "test": 6}


@pytest.mark.parametrize(("positions", "option"), [(20, 8), (30, 12), (24, 22)])
def test_nothing_is_left_for_fairseq_to_cut_and_ends_are_kept(
    positions, option, raw, vocabulary, tmp_path
):
    lengths = {"max_positions": positions, "max_option_length": option}
    made = race.prepare(raw, tmp_path / "out", vocabulary, **lengths)
    counts = made.summary["splits"]["valid"]
    assert counts["cut_passages"] > 0
    short = loaded(tmp_path / "out", "valid", positions, option)[0]
    whole = loaded(tmp_path / "out", "valid", 512, 128)[0]
    for a, b in zip(short, whole, strict=True):
        rows = [a[f"net_input{k}.src_tokens"].tolist() for k in range(1, 5)]
        assert rows == [b[f"net_input{k}.src_tokens"].tolist() for k in range(1, 5)]
        assert max(map(len, rows)) <= positions
        for row in rows:
            assert row.count(2) == 3 and row[-1] == 2
            assert row.index(2) < option
    assert (counts["cut_options"] > 0) == (option < 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"article": None}, "`article` must be of type str"),
        ({"answers": ["B"]}, "as many answers as options and questions"),
        ({"answers": ["B", "E"]}, "answer 2 must be A to D, but is 'E'"),
        ({"options": [["a", "b", "c", "d"], ["a", "b", "c"]]}, "question 2 must have four options"),
    ],
)
def test_bad_files_are_one_sentence_and_leave_nothing(change, message, raw, vocabulary, tmp_path):
    path = raw / "dev" / "middle" / "9.txt"
    path.write_text(json.dumps({**FIELDS, **change}))
    with pytest.raises(UserError, match=message) as error:
        race.prepare(raw, tmp_path / "out", vocabulary)
    assert str(path) in str(error.value)
    assert [left.name for left in tmp_path.iterdir()] == ["raw"]


def test_a_split_without_questions_is_refused(raw, vocabulary, tmp_path):
    for path in (raw / "dev").glob("*/*.txt"):
        path.write_text(json.dumps({**FIELDS, "answers": [], "options": [], "questions": []}))
    with pytest.raises(TextDataError, match="raw/dev must hold questions, but holds none"):
        race.prepare(raw, tmp_path / "out", vocabulary)


@pytest.mark.parametrize(("option", "positions"), [(2, 512), (128, 129)])
def test_an_option_must_leave_room_for_a_passage(raw, vocabulary, tmp_path, option, positions):
    lengths = {"max_option_length": option, "max_positions": positions}
    with pytest.raises(UsageError, match="`--max-option-length` must be above 2 and leave room"):
        race.prepare(raw, tmp_path / "out", vocabulary, **lengths)
