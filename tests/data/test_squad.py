"""SQuAD's files made ready for fairseq: answers as subwords, counts, and files that are refused."""

import copy
import json

import pytest
from fairseq.data import Dictionary
from squad_corpus import households, question, squad, vocabulary, write
from toy import floater

from fairseq_floater.data.understanding import squad as preparation
from fairseq_floater.data.understanding.squad_files import read_squad
from fairseq_floater.errors import UserError
from fairseq_floater.transformer.question_answering.windows import read_questions

PASSAGE = "Ann  has a blue hat in Zürich. Ben has a map in the “Red Lion”."
QUESTIONS = [
    question("q1", " What has Ann? ", ["blue hat", "a blue hat", "blue hat"], PASSAGE),
    question("q2", "Where is Ben?", ["“Red Lion”"], PASSAGE),
]
ONE = squad((PASSAGE, QUESTIONS))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return vocabulary(tmp_path_factory.mktemp("words") / "mlm")


@pytest.fixture
def prepare(tmp_path, words):
    """Prepare content as train and valid of SQuAD 1.1; returns the folder."""

    def run(train=ONE, valid=ONE, **options):
        for name, content in (("train", train), ("dev", valid)):
            write(tmp_path / f"{name}-v1.1.json", content)
        preparation.prepare(tmp_path, tmp_path / "out", words, **options)
        return tmp_path / "out"

    return run


def passages(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]


def said(entry, answer):
    """The characters of an answer's subwords."""
    first, last = answer
    return entry["passage"][entry["starts"][first] : entry["ends"][last]]


def test_answers_are_the_subwords_of_their_characters(prepare, words):
    (entry,) = passages(prepare() / "train.jsonl")
    subwords = entry["subwords"].split()
    assert subwords == words.subwords.encode_with_offsets(PASSAGE).subwords
    assert len(subwords) == len(entry["starts"]) == len(entry["ends"])
    first, second = entry["questions"]
    # A subword may hold more than the answer, such as the stop after it. Equal answers are there once.
    assert [said(entry, answer) for answer in first["answers"]] == ["blue hat", "a blue hat"]
    assert said(entry, second["answers"][0]).strip(".") == "“Red Lion”"
    assert first["subwords"].split() == words.subwords.encode("What has Ann?")


def test_other_white_space_shifts_no_answer(prepare, words):
    """U+0085 reaches passages as a wrongly decoded ellipsis; it becomes a space."""
    passage = "Ann has\x85a blue hat."
    out = prepare(squad((passage, [question("q1", "What has Ann?", ["hat"], passage)])))
    (found,) = read_questions(out / "train.jsonl", Dictionary.load(str(words.dictionary)))
    (entry,) = passages(out / "train.jsonl")
    assert entry["subwords"].split(" ") == entry["subwords"].split()
    assert len(found.passage.tokens) == len(entry["starts"])
    assert said(entry, found.answers[0]).strip(".") == "hat"


def test_what_is_beside_the_splits(prepare, words, tmp_path):
    out = prepare()
    assert (out / "dict.txt").read_bytes() == words.dictionary.read_bytes()
    assert (out / "bpe" / "sentencepiece.model").is_file()
    dev = (tmp_path / "dev-v1.1.json").read_bytes()
    assert (out / "references.valid.json").read_bytes() == dev
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["version"] == "1.1"
    counts = summary["splits"]["train"]
    assert counts["passages"] == 1
    assert counts["questions"] == 2
    assert counts["answers"] == 4
    assert counts["unanswerable"] == counts["unknown"] == 0
    train, valid = summary["warnings"]
    assert train.endswith("train-v1.1.json has 2 questions, not the 87,599 of the published file.")
    assert valid.endswith("dev-v1.1.json has 2 questions, not the 10,570 of the published file.")


def test_the_command_prepares_squad_2(tmp_path, words):
    write(tmp_path / "train-v2.0.json", households(8, seed=1, second=True))
    write(tmp_path / "dev-v2.0.json", households(4, seed=2, second=True))
    mlm = words.dictionary.parent
    done = floater("squad", "prepare", tmp_path, tmp_path / "out", "--like", mlm)
    assert "16 questions, not the 130,319" in done.stderr
    assert "8 questions, not the 11,873" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    questions = read_squad(tmp_path / "train-v2.0.json").questions
    none = sum(not q.answers for q in questions)
    assert summary["version"] == "2.0"
    assert 0 < summary["splits"]["train"]["unanswerable"] == none < 8


def test_every_answer_of_other_text_reads_back(prepare):
    out = prepare(households(30, seed=3), households(5, seed=4))
    wanted = {q.id: q.answers[0].text for q in read_squad(out / "references.valid.json").questions}
    for entry in passages(out / "valid.jsonl"):
        for item in entry["questions"]:
            assert wanted[item["id"]] in said(entry, item["answers"][0])


@pytest.mark.parametrize("slip", [-2, -1, 1, 2])
def test_a_slipped_offset_is_moved_with_a_warning(prepare, slip):
    moved = copy.deepcopy(ONE)
    moved["data"][0]["paragraphs"][0]["qas"][1]["answers"][0]["answer_start"] += slip
    out = prepare(moved)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert "has 1 answers at most 2 characters away from their offsets" in summary["warnings"][1]
    assert "question q2" in summary["warnings"][1]
    assert passages(out / "train.jsonl") == passages(out / "valid.jsonl")


def change(where, **fields):
    """ONE with other fields of a question, or of its first answer."""
    content = copy.deepcopy(ONE)
    item = content["data"][0]["paragraphs"][0]["qas"][1]
    (item if where == "question" else item["answers"][0]).update(fields)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            squad((PASSAGE, [{**QUESTIONS[0], "answers": [{"text": "hat", "answer_start": 0}]}])),
            r"must have its answers at their offsets in the passages, but none of 1 is at its offset\.",
        ),
        (change("answer", text=" "), r"question q2 has an empty answer\."),
        (change("answer", answer_start="4"), r"`answer_start` must be of type int, but is '4'"),
        (change("question", answers=[]), r"q2 has no answer, which every question of 1\.1 must"),
        (change("question", id="q1"), r"every id must occur once, but q1 comes twice\."),
        (change("question", id=7), r"`id` must be of type str, but is 7"),
        (change("question", is_impossible=True), r"q2 is_impossible, but has 1 answers\."),
        ({"data": []}, r"must hold questions, but holds none\."),
        ([], r"the content must be of type dict"),
        (households(2, 1, second=True), r"dev-v1\.1\.json must be SQuAD 1\.1, but is 2\.0"),
    ],
)
def test_files_that_are_refused_leave_nothing(prepare, tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        prepare(ONE, content)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dev-v1.1.json", "train-v1.1.json"]


@pytest.mark.parametrize("fault", [{"answer_start": 3}, {"answer_start": -9}, {"text": "a castle"}])
def test_an_answer_that_is_not_in_its_place_is_skipped_and_counted(prepare, fault):
    content = change("answer", **fault)
    out = prepare(content, content)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    skipped = [text for text in summary["warnings"] if "1 answers that are not within 2" in text]
    assert len(skipped) == 2 and "the first: question q2" in skipped[0]
    assert [counts["skipped"] for counts in summary["splits"].values()] == [1, 1]
    (train,), (valid,) = (passages(out / f"{split}.jsonl") for split in ("train", "valid"))
    # In training it would count as a question without answer; the scorer wants every id of valid.
    assert [item["id"] for item in train["questions"]] == ["q1"]
    assert [len(item["answers"]) for item in valid["questions"]] == [2, 0]


@pytest.mark.parametrize(("said", "version"), [("v2.0", "2.0"), ("2.0", "2.0"), ("1.1", "1.1")])
def test_a_file_may_say_its_version_where_no_question_does(tmp_path, said, version):
    path = write(tmp_path / "squad.json", {**ONE, "version": said})
    assert read_squad(path).version == version


def test_a_question_of_2_without_answer_must_say_so(prepare):
    content = copy.deepcopy(ONE)
    first, second = content["data"][0]["paragraphs"][0]["qas"]
    first["is_impossible"], second["answers"] = False, []
    with pytest.raises(UserError, match=r"q2 has no answer, but is not marked is_impossible\."):
        prepare(content)


def test_a_folder_of_both_versions_needs_a_choice(prepare, tmp_path):
    for name in ("train", "dev"):
        write(tmp_path / f"{name}-v2.0.json", households(2, seed=1, second=True))
    with pytest.raises(UserError, match=r"but holds both; choose with --data-version\."):
        prepare()
    assert (prepare(version="1.1") / "train.jsonl").is_file()


def test_a_folder_without_the_files(tmp_path, words):
    message = r"must hold train-v1\.1\.json and .*, but holds neither; give"
    with pytest.raises(UserError, match=message):
        preparation.prepare(tmp_path, tmp_path / "out", words)


def test_files_can_be_named(tmp_path, words):
    train = write(tmp_path / "a.json", ONE)
    write(tmp_path / "b.json", ONE)
    options = {"train": train, "valid": "b.json"}
    preparation.prepare(tmp_path, tmp_path / "out", words, **options)
    with pytest.raises(UserError, match=r"c\.json is missing\."):
        preparation.prepare(tmp_path, tmp_path / "o", words, train=train, valid=tmp_path / "c.json")


def test_a_dictionary_of_another_bpe_is_refused(prepare, words, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("318 1\n464 1\n", encoding="utf-8")
    write(tmp_path / "train-v1.1.json", ONE)
    write(tmp_path / "dev-v1.1.json", ONE)
    with pytest.raises(UserError, match="must be of the same BPE"):
        preparation.prepare(tmp_path, tmp_path / "out", words._replace(dictionary=other))
