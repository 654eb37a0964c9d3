"""Questions answered by spans: windows, search, loss, head, each against the definition written out."""

import copy
import json
import math
import random
from argparse import Namespace

import pytest
import torch
from fairseq import metrics
from fairseq.data import Dictionary

from fairseq_floater.transformer.question_answering.answer import answer_questions
from fairseq_floater.transformer.question_answering.criterion import (
    QuestionAnsweringCriterion,
    overlap,
    span_loss,
)
from fairseq_floater.transformer.question_answering.spans import (
    Span,
    best_over_windows,
    best_spans,
    text_of,
    windows,
)
from fairseq_floater.transformer.question_answering.task import (
    QuestionAnsweringConfig,
    QuestionAnsweringTask,
)

SHAPE = {"encoder_layers": 1, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32}
SHAPE |= {"encoder_attention_heads": 2, "arch": "roberta"}
NO = float("-inf")


def entry(words, questions):
    """A line of a prepared split, of words separated by a blank."""
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
    """A folder as `floater squad prepare` makes it."""
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


@pytest.fixture
def task(tmp_path):
    return task_of(folder(tmp_path, random_entries()))


@pytest.fixture(params=["roberta", "floater_roberta"])
def model(request, task):
    torch.manual_seed(3)
    return task.build_model(Namespace(**{**SHAPE, "arch": request.param})).eval()


def whole(task):
    """All windows of valid in one batch."""
    data = task.load_dataset("valid")
    return data, data.collater([data[i] for i in range(len(data))])


# Windows


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
    """All spans, the shortest first."""
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
    """Window by window, span by span, with logits large enough to tell windows apart."""
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


# Loss and log


def log_softmax(values):
    return [v - math.log(sum(math.exp(u) for u in values)) for v in values]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_loss_is_the_formula(tmp_path, version):
    task = task_of(folder(tmp_path, random_entries(), version))
    torch.manual_seed(0)
    model = task.build_model(Namespace(**SHAPE)).eval()
    _, batch = whole(task)
    loss, size, log = QuestionAnsweringCriterion(task)(model, batch)
    with torch.no_grad():
        (logits, answerable), _ = model(
            **batch["net_input"], features_only=True, question_answering=True
        )
    spans = there = 0.0
    for row, inside, target, logit in zip(
        logits.double(), batch["inside"], batch["target"].tolist(), answerable.tolist()
    ):
        slots = [0, *inside.nonzero().flatten().tolist()]
        for k in (0, 1):
            spans -= log_softmax(row[slots, k].tolist())[slots.index(target[k])] / 2
        there += math.log1p(math.exp(-logit if target[0] else logit))
    assert size == len(batch["id"])
    assert log["span_loss"].item() == pytest.approx(spans, rel=1e-5)
    expected = spans + 0.5 * there if version == "2.0" else spans
    assert loss.item() == log["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_tokens_outside_the_window_take_no_part_in_the_loss():
    logits = torch.randn(2, 6, 2)
    inside = torch.tensor([[False, False, True, True, False, False]] * 2)
    target = torch.tensor([[2, 3], [0, 0]])
    loss = span_loss(logits, inside, target)
    logits[:, [1, 4, 5]] = 50.0
    assert span_loss(logits, inside, target) == loss


def test_overlap_is_that_of_the_tokens():
    generator = torch.Generator().manual_seed(0)
    answers = torch.randint(8, (40, 3, 2), generator=generator).sort(2).values
    answers[::2, 1:] = -1
    answers[::5] = -1
    span = torch.randint(8, (40, 2), generator=generator).sort(1).values
    exact, f1 = overlap(span, answers)
    for row, (first, last) in enumerate(span.tolist()):
        ours, best = {*range(first, last + 1)}, 0.0
        there = [(a, b) for a, b in answers[row].tolist() if a >= 0]
        for a, b in there:
            theirs = {*range(a, b + 1)}
            best = max(best, 2 * len(ours & theirs) / (len(ours) + len(theirs)))
        assert exact[row] == ((first, last) in there)
        assert f1[row].item() == pytest.approx(best)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_parts_of_a_batch_log_what_the_whole_does(tmp_path, version):
    task = task_of(folder(tmp_path, random_entries(), version))
    model = task.build_model(Namespace(**SHAPE)).eval()
    criterion = QuestionAnsweringCriterion(task)
    data, batch = whole(task)
    half = len(data) // 3
    parts = [
        data.collater([data[i] for i in part]) for part in (range(half), range(half, len(data)))
    ]
    logged = []
    for batches in ([batch], parts):
        with metrics.aggregate() as found:
            criterion.reduce_metrics([criterion(model, b)[2] for b in batches])
        logged.append(found.get_smoothed_values())
    assert logged[0] == pytest.approx(logged[1], abs=2e-3)
    assert logged[0].keys() >= {"loss", "span_loss", "window_exact", "window_f1"}
    assert ("answerable_loss" in logged[0]) == (version == "2.0")
    assert criterion.logging_outputs_can_be_summed()


@pytest.mark.parametrize(
    ("said", "answer", "hits"),
    # Equal logits: the first word is taken.
    [(True, [0, 0], 1), (True, [1, 1], 0), (False, [0, 0], 1), (False, [1, 1], 1)],
)
def test_in_squad_2_a_hit_is_to_say_rightly_whether_there_is_an_answer(
    tmp_path, said, answer, hits
):
    lines = [entry(["w1", "w2"], [("q", ["w3"], [answer]), ("r", ["w3"], [])])]
    task = task_of(folder(tmp_path, lines))
    model = task.build_model(Namespace(**SHAPE)).eval()
    with torch.no_grad():
        model.question_answering.answerable.out_proj.bias.fill_(1e4 if said else -1e4)
        model.question_answering.span.weight.zero_()
    log = QuestionAnsweringCriterion(task)(model, whole(task)[1])[2]
    assert (log["exact"], log["f1"], log["counted"]) == (hits, hits, 2)


# Head


def test_a_donor_without_the_head_loads_and_keeps_its_weights(task, model):
    donor = {k: v for k, v in model.state_dict().items() if "question_answering" not in k}
    donor |= {k: v + 1 for k, v in donor.items() if k.endswith("proj.weight")}
    head = {k: v.clone() for k, v in model.question_answering.state_dict().items()}
    model.load_state_dict(donor, strict=True)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in donor.items())
    assert all(torch.equal(v, model.question_answering.state_dict()[k]) for k, v in head.items())


def test_a_saved_head_comes_back(task, model):
    other = copy.deepcopy(model)  # as `--store-ema` does
    with torch.no_grad():
        for parameter in other.question_answering.parameters():
            parameter.add_(1)
    sample = whole(task)[1]["net_input"]
    first, second = (
        m(**sample, features_only=True, question_answering=True)[0] for m in (model, other)
    )
    assert not any(map(torch.equal, first, second))  # each uses its own head
    other.load_state_dict(model.state_dict(), strict=True)
    third, _ = other(**sample, features_only=True, question_answering=True)
    assert all(map(torch.equal, first, third))


def test_the_head_changes_nothing_else(task, model):
    tokens = torch.tensor([[0, 5, 6, 2, 2, 7, 2]])
    with torch.no_grad():
        features, _ = model(tokens, features_only=True)
        (logits, answerable), _ = model(tokens, features_only=True, question_answering=True)
        head = model.question_answering
        assert features.shape == (1, 7, 16)
        assert torch.equal(logits, head.span(features))
        assert torch.equal(answerable, head.answerable(features)[:, 0])


def test_a_data_parallel_wrapper_sees_the_head(task, model, tmp_path):
    """lm_head is unused, so that the wrapper searches the model's output for what takes part."""
    alone = copy.deepcopy(model)
    batch = whole(task)[1]
    criterion = QuestionAnsweringCriterion(task)
    meeting = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            for trained in (wrapped, alone):
                trained.zero_grad()
                criterion(trained, batch)[0].backward()
    finally:
        torch.distributed.destroy_process_group()
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters()):
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name
    assert model.question_answering.span.weight.grad.any()


@pytest.mark.parametrize("scope", ["all", "flow", "dynamics", "transformer", "rest"])
def test_the_head_trains_whatever_else_does(task, scope):
    shape = {**SHAPE, "arch": "floater_roberta", "floater_train": scope}
    model = task.build_model(Namespace(**shape))
    assert all(p.requires_grad for p in model.question_answering.parameters())


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_positions": 8},
            r"must be above 8, a question of .* and 4 symbols, but is 8 instead",
        ),
        ({"window_tokens": 30}, r"must be at most the model's 24 positions, but is 30 instead"),
        ({"window_stride": 0}, r"`--window-stride` must be at least 1, but is 0 instead"),
        ({"answer_tokens": -1}, r"`--answer-tokens` must be at least 1"),
    ],
)
def test_sizes_that_cannot_work(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        task_of(folder(tmp_path, random_entries()), **options).build_model(Namespace(**SHAPE))


def test_other_models_are_refused(task):
    shape = {**SHAPE, "arch": "transformer_lm_gpt", "tokens_per_sample": 24}
    shape |= {"decoder_layers": 1, "decoder_embed_dim": 16, "decoder_attention_heads": 2}
    with pytest.raises(ValueError, match="must be a RoBERTa"):
        task.build_model(Namespace(**shape))


def test_a_folder_of_other_data_is_refused(tmp_path):
    Dictionary().save(str(tmp_path / "dict.txt"))
    with pytest.raises(ValueError, match="must be a folder of `floater squad prepare`, but"):
        task_of(tmp_path)
