"""The parameters that `--floater-train` trains, in translation and RoBERTa, and frozen flows."""

import logging

import helpers
import pytest
import roberta_models as robertas
import torch
from fairseq.optim.adam import Adam

from fairseq_floater.position_encoders.floater_options import SCOPES

# Whether h, p(0) and all else are trained.
TRAINED = {
    "all": (True, True, True),
    "flow": (True, True, False),
    "dynamics": (True, False, False),
    "transformer": (False, False, True),
    "rest": (False, True, True),
}
every_scope = pytest.mark.parametrize("scope", SCOPES)


def part_of(name):
    """0 for h, 1 for p(0), 2 for the Transformer."""
    return 0 if ".dynamics." in name else 1 if "positions.values" in name else 2


def build(kind, **options):
    """A FLOATER model with random h and p(0), so that gradients reach all their parameters."""
    options = {"dropout": 0.0, "attention_dropout": 0.0, **options}
    make = helpers.build if kind == "translation" else robertas.roberta
    return helpers.randomise_positions(make("floater", "all", "qkv", **options))


def trained_of(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def loss_of(model):
    if hasattr(model, "decoder"):
        return helpers.loss_of(model)
    tokens = helpers.source_batch()
    if "two" in model.classification_heads:
        head = model(tokens, classification_head_name="two")[0].log_softmax(-1)[:, 0].mean()
    else:
        head = 0
    return head - model(tokens)[0].log_softmax(-1)[..., 7].mean()


@every_scope
@pytest.mark.parametrize("kind", ["translation", "roberta"])
def test_what_is_trained_moves_and_nothing_else(kind, scope):
    model = build(kind, floater_train=scope).train()
    if kind == "roberta":
        model.register_classification_head("two", num_classes=2)  # as a task does after building
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # As in fairseq, only parameters that require gradients: weight decay would move the others too.
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = Adam(trained, lr=0.01, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model.train()).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        expected = TRAINED[scope][part_of(name)] or name.startswith("classification_heads")
        assert torch.equal(parameter, before[name]) != expected, name


@pytest.mark.parametrize("kind", ["translation", "roberta"])
def test_freezing_is_training_the_transformer(kind):
    names = [
        trained_of(build(kind, **options))
        for options in ({"floater_freeze": True}, {"floater_train": "transformer"})
    ]
    assert names[0] == names[1] and {part_of(name) for name in names[0]} == {2}
    assert build(kind, floater_freeze=True, floater_train="transformer")


@every_scope
@pytest.mark.parametrize("kind", ["translation", "roberta"])
def test_biases_that_p0_replaces_are_not_trained_beside_it(kind, scope):
    """Both would get the same gradient, and their sum, which alone matters, twice the step."""
    zero, bias = (
        trained_of(build(kind, floater_train=scope, floater_start=s)) for s in ("zero", "bias")
    )
    projections = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
    replaced = {name for name in zero if "attn" in name and name.endswith(projections)}
    assert bool(replaced) == TRAINED[scope][2]
    # If p(0) is frozen, a start at the biases freezes nothing more.
    assert zero - bias == (replaced if TRAINED[scope][1] else set()) and bias <= zero


@pytest.mark.parametrize("kind", ["translation", "roberta"])
def test_biases_of_blocks_without_p0_are_trained(kind):
    make = helpers.build if kind == "translation" else robertas.roberta
    model = make("floater", "input", "qkv", floater_start="bias")
    stack = helpers.stacks(model)[0]
    first, second = (block.self_attn.q_proj.bias for block in stack.layers)
    assert not first.requires_grad and second.requires_grad
    assert not first.any()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_flow_alone_learns_under_activation_checkpointing(checkpoint):
    options = {"floater_train": "flow", "checkpoint_activations": checkpoint}
    model = build("roberta", **options).train()
    loss_of(model).backward()
    grads = [p.grad for p in model.parameters() if p.requires_grad]
    assert grads and all(g is not None and g.any() for g in grads)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"floater_train": "dynamics"}, True),
        ({"floater_train": "dynamics", "floater_start": "bias"}, False),
        ({"floater_train": "dynamics", "position_target": "hidden"}, False),
        ({"floater_train": "flow"}, False),
        ({}, False),
    ],
)
def test_one_trajectory_for_all_is_warned_of(options, warns, caplog):
    with caplog.at_level(logging.INFO, logger="fairseq_floater"):
        robertas.roberta(**options)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == warns
    assert all("all blocks, and q, k and v alike, get one trajectory" in line for line in said)
    assert ("|floater-train:" in caplog.text) == ("floater_train" in options)


# Training keeps the table of a frozen flow.


@every_scope
def test_a_frozen_flow_is_solved_once(scope, monkeypatch):
    model = build("roberta", floater_train=scope)
    calls = helpers.recorded(model, monkeypatch)
    for update in range(4):
        model.train().set_num_updates(update)
        loss_of(model).backward()
    assert len(calls) == (1 if scope == "transformer" else 4)


def test_a_frozen_flow_is_solved_anew_where_it_changed(monkeypatch):
    model = build("roberta", floater_train="transformer").train()
    calls = helpers.recorded(model, monkeypatch)
    first = loss_of(model)
    model.load_state_dict(model.state_dict())
    assert torch.equal(loss_of(model), first) and len(calls) == 2
    with torch.no_grad():
        model.encoder.sentence_encoder.positions.dynamics.bias2.mul_(2)  # changed in place
    assert not torch.equal(loss_of(model), first) and len(calls) == 3
    model.requires_grad_(True)
    loss_of(model).backward()
    assert len(calls) == 4
    assert model.encoder.sentence_encoder.positions.dynamics.bias2.grad.any()


def test_h_alone_lowers_the_masked_lm_loss():
    """Under masks that training does not use; each position has the same word in every sentence."""
    options = {"floater_train": "dynamics", "dropout": 0.0, "attention_dropout": 0.0}
    model = robertas.roberta("floater", target="qkv", **options)
    words = torch.arange(4, 20)  # a word for each position, which reveals the masked ones

    def loss(seed):
        tokens = words.repeat(16, 1)
        masked = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
        found, _ = model(tokens.masked_fill(masked, 3), masked_tokens=masked)
        return torch.nn.functional.cross_entropy(found, tokens[masked])

    before = float(loss(0).detach())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.003)
    for seed in range(1, 26):
        model.set_num_updates(seed)
        optimizer.zero_grad()
        loss(seed).backward()
        optimizer.step()
    assert float(loss(0).detach()) < before - 0.1
