"""In evaluation a table is computed once, and dropped when parameters may have changed."""

import copy

import contract_cases as cases
import helpers as h
import pytest
import torch
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters

from fairseq_floater.position_encoders import kept_table
from fairseq_floater.position_encoders.kept_table import PositionRangeError
from fairseq_floater.position_encoders.signal import PositionSignal


@h.most_cases
def test_evaluation_computes_the_table_once(encoder, blocks, target, monkeypatch):
    model = h.visible(encoder, blocks, target)
    calls = h.recorded(model, monkeypatch)
    for _ in range(2):
        h.log_probs(model, h.source_batch(), h.target_batch())
    h.stepwise_log_probs(model, h.source_batch(False), h.target_batch())
    expected = 0 if (encoder, blocks, target) not in cases.TABLES else 3 if target == "qkv" else 2
    assert len(calls) == expected
    h.log_probs(model, h.sentence(100), h.shifted(h.sentence(100)))  # longer than the kept table
    grown = sum(signal.table_length is None for _, _, signal in h.signals(model)) if expected else 0
    assert len(calls) == expected + grown
    model.train()
    for _ in range(2):  # training keeps no trained table, even without gradients
        h.log_probs(model, h.source_batch(), h.target_batch())
    assert len(calls) == (3 if is_trained(model) else 2) * expected + grown


def test_steps_towards_rows_out_of_range_compute_few_tables(monkeypatch):
    """A flow may leave the range between the next row and twice as many."""
    model = h.visible("floater", target="hidden")
    calls, encoder = h.recorded(model, monkeypatch), model.encoder.positions
    parts = h.parts(model.encoder, "positions")

    def check(table, *_):
        if len(table) > 110:
            raise PositionRangeError("Position 110 is out of range.")
        return 0.0

    monkeypatch.setattr(kept_table, "check_rows", check)
    with torch.no_grad():
        for length in range(60, 111):
            assert len(encoder(length, parts, torch.float32)) == length
        assert len(calls) <= 16
        with pytest.raises(PositionRangeError):
            encoder(111, parts, torch.float32)


def is_trained(model):
    """Whether tables are computed from parameters."""
    return any(encoder.sources(h.parts(stack, name)) for stack, name, encoder in h.signals(model))


DROPS = {
    "train": lambda model: model.train().eval(),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "half": lambda model: model.half().float(),
    "double": lambda model: model.double().float(),
    "gradients": lambda model: h.raw_log_probs(model, h.source_batch(), h.target_batch()),
}


def for_mechanisms(names, of_all):
    """A mark for each kept table with ``of_all``, one of ``names``; the mechanisms have all names."""
    return pytest.mark.parametrize(
        ("encoder", "blocks", "target", "name"),
        [
            pytest.param(*case, name, id="-".join((*case, name)))
            for case in cases.TABLES
            for name in names
            if case[1] == "all" and (name == of_all or case in h.MECHANISMS)
        ],
    )


@for_mechanisms(DROPS, "train")
def test_the_kept_table_is_dropped_by(encoder, blocks, target, name, monkeypatch):
    drop = DROPS[name]
    model = h.visible(encoder, blocks, target)
    h.log_probs(model, h.source_batch(), h.target_batch())
    drop(model)
    calls = h.recorded(model, monkeypatch)
    h.log_probs(model, h.source_batch(), h.target_batch())
    if drop is DROPS["gradients"] and not is_trained(model):
        assert not calls  # no gradient reaches such a table
    else:
        assert len(calls) == (3 if target == "qkv" else 2)


UNANNOUNCED = {
    "vector_to_parameters": lambda model: vector_to_parameters(
        1.5 * parameters_to_vector(model.parameters()).detach(), model.parameters()
    ),
    "data": lambda model: [p.data.mul_(1.5) for p in h.position_parameters(model)],
    # The sum of every parameter stays the same.
    "order": lambda model: [p.data.copy_(p.data.flip(-1)) for p in h.position_parameters(model)],
    "state-dict-of-a-part": lambda model: [
        module.load_state_dict({k: 1.5 * v for k, v in module.state_dict().items()})
        for module in h.position_modules(model)
        if not isinstance(module, PositionSignal)
    ],
}


@for_mechanisms(UNANNOUNCED, "order")
def test_a_changed_parameter_is_noticed_where_a_batch_begins(encoder, blocks, target, name):
    model = h.visible(encoder, blocks, target)
    h.generated([model], h.source_batch(), 2)
    UNANNOUNCED[name](model)
    fresh = h.build(encoder, blocks, target, seed=5).eval()
    fresh.load_state_dict(model.state_dict())
    found, expected = (h.generated([m], h.source_batch(), 2) for m in (model, fresh))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["positional_scores"], other["positional_scores"])


@pytest.mark.parametrize(("encoder", "target"), [("xl", "attention"), ("rnn", "qkv")])
def test_pruning_is_noticed_where_a_batch_begins(encoder, target):
    model = h.visible(encoder, "all", target)
    before = h.log_probs(model, h.source_batch(), h.target_batch())
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            prune.l1_unstructured(module, "weight", 0.5)
    pruned = h.log_probs(model, h.source_batch(), h.target_batch())
    assert not torch.equal(pruned, before)
    model.train().eval()
    assert torch.equal(pruned, h.log_probs(model, h.source_batch(), h.target_batch()))


@h.every_mechanism
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_nothing_is_saved_and_copies_work(encoder, blocks, target, training):
    model = h.visible(encoder, blocks, target, dropout=0.0)
    names = list(model.state_dict())
    batch = h.source_batch(), h.target_batch()
    model.train(training)
    loss = h.loss_of(model, *batch) if training else h.log_probs(model, *batch)
    assert list(model.state_dict()) == names
    assert not any(t.requires_grad for t in h.tables(model.eval()))
    twin = copy.deepcopy(model.train(training))
    assert h.difference(h.log_probs(twin, *batch), h.log_probs(model, *batch)) == 0
    for parameter in twin.parameters():
        parameter.data.mul_(2)
    assert training == loss.requires_grad
    twin.train().eval()
    assert h.difference(h.log_probs(twin, *batch), h.log_probs(model, *batch)) > 0.01
