"""Between two solves, FLOATER's table does not depend on the sentences that a process has seen."""

import copy

import helpers as h
import pytest
import torch

from fairseq_floater.ode import flow_solver, solve
from fairseq_floater.position_encoders import floater


def flow(**args):
    """A model in training mode whose flow is solved at every fourth update."""
    args = {"target": "qkv", "floater_update_interval": 4, "dropout": 0.0, **args}
    return h.randomise_positions(h.build("floater", **args)).train()


def train_on(model, *lengths, first=0):
    """Run updates on one sentence each; change the flow after each, as Adam's momentum would."""
    for update, length in enumerate(lengths, start=first):
        model.set_num_updates(update)
        model.train()  # as fairseq's trainer does before every update
        model.zero_grad()
        h.loss_of(model, h.sentence(length), h.shifted(h.sentence(length))).backward()
        with torch.no_grad():
            for parameter in h.position_parameters(model):
                parameter.mul_(0.9)
    return model


def differences(model, expected):
    """Largest difference of each of ``model``'s tables from the ``expected`` one."""
    rows = len(expected[0])
    return [h.difference(a, b) for a, b in zip(h.tables(model, rows), expected, strict=True)]


FORMS = {
    "qkv": {},
    "hidden": {"target": "hidden", "floater_lr_scale": 2.0},
    "block": {"target": "hidden", "floater_theta": "block"},
    "adjoint": {
        "floater_solver": "rk4",
        "floater_step_size": 0.1,
        "floater_gradient": "adjoint",
    },
}


# Forms differ in what is kept, not when: only the first is tested with every order of lengths, and resumed
# between two solves.
MEETINGS = [("qkv", lengths) for lengths in ((5, 30, 9), (30, 5, 9), (5, 9, 9), (9,))]
MEETINGS += [(form, (5, 30, 9)) for form in ("hidden", "block", "adjoint")]


@pytest.mark.parametrize(
    ("form", "lengths", "first"),
    [(*meeting, 0) for meeting in MEETINGS] + [("qkv", MEETINGS[0][1], 1), ("qkv", (9,), 1)],
    ids=str,
)
def test_rows_between_two_solves_do_not_depend_on_the_sentences_met(form, lengths, first):
    args = FORMS[form]
    solved = h.tables(flow(**args), 40)
    model = train_on(flow(**args), *lengths, first=first)
    model.set_num_updates(3)
    assert max(differences(model, solved)) <= 1e-6  # for more rows than any sentence needed
    model.set_num_updates(4)
    assert min(differences(model, solved)) > 1e-3


@h.every_target
def test_a_longer_sentence_between_two_solves_gives_the_flow_gradients_of_zero(target):
    model = train_on(flow(target=target), 5, 30)
    assert not any(p.grad.any() for p in h.position_parameters(model))
    assert all(p.grad is not None for p in model.parameters())


FORGETS = {
    "evaluation": lambda model: model.eval().train(),
    "load_state_dict": lambda model: model.load_state_dict(model.state_dict()),
    "apply": lambda model: model.double().float(),
}


@pytest.mark.parametrize("forget", FORGETS.values(), ids=FORGETS)
def test_the_last_solve_is_forgotten_where_a_kept_table_is(forget):
    engine = {"floater_solver": "adams"}  # auto solves finer in evaluation than in training
    model = train_on(flow(**engine), 5, 30)
    forget(model)
    current = flow(seed=5, **engine).eval()
    current.load_state_dict(model.state_dict())
    model.set_num_updates(2)
    assert max(differences(model, h.tables(current, 40))) <= 1e-6


def test_the_last_solve_is_copied_with_a_model_and_never_saved():
    model, untouched = train_on(flow(), 5, 30), flow()
    assert list(model.state_dict()) == list(untouched.state_dict())
    assert len(list(model.modules())) == len(list(untouched.modules()))
    twin = copy.deepcopy(model)  # as --store-ema does; a kept graph would fail
    model.set_num_updates(4)
    train_on(model, 5, first=4)
    twin.set_num_updates(3)
    assert max(differences(twin, h.tables(untouched, 40))) <= 1e-6


def test_between_two_solves_the_flow_is_solved_for_longer_sentences_only(monkeypatch):
    lengths = []

    def counted(dynamics, p0, times, **options):
        lengths.append(len(times))
        return solve(dynamics, p0, times, **options)

    monkeypatch.setattr(flow_solver, "solve", counted)
    train_on(flow(), 5, 5, 30, 9, 5, 5)
    assert lengths == [n for n in (5, 30, 5) for _ in range(3)]


def test_without_an_interval_nothing_is_copied(monkeypatch):
    model = flow(floater_update_interval=1)
    monkeypatch.setattr(floater, "LastSolve", None)
    train_on(model, 5, 30)
