"""Windows of a passage, and the search for their best answer against trying every span."""

import math
from argparse import Namespace

import pytest
import torch
from question_tasks import SHAPE, entry, folder, random_entries, task_of, whole

from fairseq_floater.transformer.question_answering.answer import answer_questions
from fairseq_floater.transformer.question_answering.spans import (
    Span,
    best_over_windows,
    best_spans,
    text_of,
    windows,
)

NO = float("-inf")


@pytest.fixture
def task(tmp_path):
    return task_of(folder(tmp_path, random_entries()))


@pytest.fixture(params=["roberta", "floater_roberta"])
def model(request, task):
    torch.manual_seed(3)
    return task.build_model(Namespace(**{**SHAPE, "arch": request.param})).eval()


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 23, 100])
@pytest.mark.parametrize(("room", "stride"), [(1, 1), (8, 3), (8, 8), (8, 20), (200, 5)])
def test_windows_hold_every_token_and_none_of_them_for_nothing(length, room, stride):
    found = windows(length, room, stride)
    assert all(size <= room for _, size in found)
    assert {t for begin, size in found for t in range(begin, begin + size)} == {*range(length)}
    begins = [begin for begin, _ in found]
    assert begins == [k * min(room, stride) for k in range(len(found))]
    assert all(begin + size < length for begin, size in found[:-1])


def test_a_window_is_question_and_part_of_the_passage(tmp_path):
    words = [f"w{i}" for i in range(20)]
    asked = ["w30", "w31", "w32", "w33", "w34"]  # one more than fits
    lines = [entry(words, [("q", asked, [[6, 8], [3, 3]])])]
    task = task_of(folder(tmp_path, lines), window_tokens=18)
    data, batch = whole(task)
    word, eos, symbols = task.dictionary.index, task.dictionary.eos(), [0]
    symbols += [*map(word, asked[:4]), eos, eos]
    for row, (begin, size) in enumerate([(0, 10), (5, 10), (10, 10)]):
        text = [word(w) for w in words[begin : begin + size]]
        assert batch["net_input"]["src_tokens"][row].tolist() == [*symbols, *text, eos]
        assert batch["inside"][row].nonzero().flatten().tolist() == [*range(7, 17)]
        assert data.num_tokens(row) == 18
    assert batch["target"].tolist() == [[13, 15], [8, 10], [0, 0]]
    none = [-1, -1]
    assert batch["answers"].tolist() == [[[13, 15], [10, 10]], [[8, 10], none], [none, none]]
    assert batch["window"].tolist() == [[0, 0, 7], [0, 5, 7], [0, 10, 7]]


def test_an_answer_that_a_window_cuts_is_not_in_it(tmp_path):
    lines = [entry([f"w{i}" for i in range(12)], [("q", ["w30"], [[4, 9]])])]
    _, batch = whole(task_of(folder(tmp_path, lines), window_tokens=13, window_stride=4))
    assert batch["window"][:, 1].tolist() == [0, 4]  # words 0 to 7, 4 to 11
    assert batch["target"].tolist() == [[0, 0], [4, 9]]


def test_only_train_is_shuffled(task, tmp_path):
    lines = (tmp_path / "valid.jsonl").read_bytes()
    (tmp_path / "train.jsonl").write_bytes(lines)
    train, again, valid = (
        task.load_dataset(s).ordered_indices() for s in ("train", "train", "valid")
    )
    assert valid.tolist() == [*range(len(valid))] == sorted(train)
    assert train.tolist() == again.tolist() != valid.tolist()


# Search


def brute_best(start, end, inside, longest):
    """Try all spans; of equal ones the shortest wins."""
    spans = [
        (start[a] + end[a + more], a, a + more)
        for more in range(longest)
        for a in range(len(start) - more)
        if inside[a] and inside[a + more]
    ]
    return max(spans, key=lambda span: span[0], default=(NO, 0, 0))


@pytest.mark.parametrize("longest", [1, 3, 30])
@pytest.mark.parametrize("levels", [3, 10_000], ids=["many ties", "no ties"])
def test_the_best_span_is_the_best_of_all(longest, levels):
    generator = torch.Generator().manual_seed(longest)
    shape = (50, 17)
    start, end = (torch.randint(levels, shape, generator=generator).float() for _ in range(2))
    inside = torch.zeros(shape, dtype=torch.bool)
    for row, part in enumerate(inside):
        part[row % 9 : row % 9 + row % 8] = True  # some rows have no token
    scores, spans = best_spans(start, end, inside, longest)
    wanted = [
        brute_best(*rows, longest) for rows in zip(*(x.tolist() for x in (start, end, inside)))
    ]
    assert [(s, *span) for s, span in zip(scores.tolist(), spans.tolist())] == wanted


def test_windows_of_a_question_join():
    found = [
        (0, Span(1.0, 4, 5, -3.0)),
        (1, Span(NO, 0, 0, 0.5)),
        (0, Span(2.0, 9, 9, -4.0)),
        (0, Span(2.0, 7, 9, -5.0)),
    ]
    assert best_over_windows(found) == {0: Span(2.0, 7, 9, -3.0), 1: Span(NO, 0, 0, 0.5)}
    assert best_over_windows(found[::-1]) == best_over_windows(found)


def test_the_text_is_that_of_the_passage():
    passage, starts, ends = "Ann  has “hats” .", [0, 5, 8, 10, 16], [3, 8, 10, 14, 17]
    assert text_of(passage, starts, ends, Span(1.0, 2, 3, 0.0)) == "“hats"
    assert text_of(passage, starts, ends, Span(1.0, 0, 1, 0.0)) == "Ann  has"
    assert text_of(passage, starts, ends, Span(NO, 0, 0, 0.0)) == ""


def test_answers_are_those_of_all_windows_searched_by_hand(task, model):
    """Search each window and span by hand, with logits large enough to tell windows apart."""
    with torch.no_grad():
        model.question_answering.span.weight.mul_(30)
    data = task.load_dataset("valid")
    assert len(data) > len(data.questions)
    best, there = {}, {}
    for row, (number, begin, length) in enumerate(data.rows.tolist()):
        batch = data.collater([data[row]])
        (logits, answerable), _ = model(
            **batch["net_input"], features_only=True, question_answering=True
        )
        slot = batch["window"][0, 2]
        start, end = logits[0, slot : slot + length].T.tolist()
        passage = data.questions[number].passage
        score, first, last = brute_best(start, end, [True] * length, 3)
        text = passage.text[passage.starts[begin + first] : passage.ends[begin + last]]
        best[number] = max(best.get(number, (NO, "")), (score, text))
        there[number] = max(there.get(number, NO), answerable.item())
    for tokens in (24, 100):  # a window alone, several at once
        found = answer_questions(model, task, "valid", max_tokens=tokens)
        assert [*found.texts.values()] == [best[k][1] for k in range(8)]
        assert [*found.texts] == [q.id for q in data.questions]
        wanted = [1 / (1 + math.exp(there[k])) for k in range(8)]
        assert [*found.no_answer.values()] == pytest.approx(wanted, abs=1e-6)


def test_an_empty_passage_is_answered_by_nothing(tmp_path):
    task = task_of(folder(tmp_path, [entry([], [("q", ["w1"], [])])], version="1.1"))
    model = task.build_model(Namespace(**SHAPE))
    assert answer_questions(model, task, "valid") == ({"q": ""}, None)


def test_logits_that_are_not_finite_are_refused(task, model):
    with torch.no_grad():
        model.question_answering.span.bias[0] = math.nan
    with pytest.raises(ValueError, match="must be finite"):
        answer_questions(model, task, "valid")
