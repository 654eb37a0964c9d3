"""The question-answering task: loss and log against their definition, the head, the options."""

import copy
import math
from argparse import Namespace

import pytest
import torch
from fairseq import metrics
from fairseq.data import Dictionary
from question_tasks import SHAPE, entry, folder, random_entries, task_of, whole

from fairseq_floater.transformer.question_answering.criterion import (
    QuestionAnsweringCriterion,
    overlap,
    span_loss,
)


@pytest.fixture
def task(tmp_path):
    return task_of(folder(tmp_path, random_entries()))


@pytest.fixture(params=["roberta", "floater_roberta"])
def model(request, task):
    torch.manual_seed(3)
    return task.build_model(Namespace(**{**SHAPE, "arch": request.param})).eval()


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
    # With equal logits, the first word is the answer.
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
    """lm_head is unused, so the wrapper searches the model's output for parameters in use."""
    alone = copy.deepcopy(model)
    batch = whole(task)[1]
    criterion = QuestionAnsweringCriterion(task)

    def train():
        wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            for trained in (wrapped, alone):
                trained.zero_grad()
                criterion(trained, batch)[0].backward()

    meeting = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        train()  # frees its wrapper before the group, whose destruction can hang otherwise
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
