"""An encoder is one file and one line of the registry, and reading the registry needs no torch."""

import argparse
import sys
from argparse import Namespace

import pytest
from toy import run

from fairseq_floater import position_encoders
from fairseq_floater.position_encoders import (
    POSITION_ENCODERS,
    complete,
    registry,
    trained_limit,
)
from fairseq_floater.position_encoders.none import NoPositions
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.transformer.translation import FloaterTransformerModel


@pytest.mark.parametrize("name", POSITION_ENCODERS)
def test_a_line_says_what_the_class_says(name):
    encoder, entry = POSITION_ENCODERS[name], registry.ENCODERS[name]
    assert (encoder.name, encoder.targets[0]) == (name, entry.target)
    # The README says that the file named after the encoder computes the positions.
    assert entry.path == f"{name.replace('-', '_')}.{encoder.__name__}"
    assert set(encoder.targets) <= set(registry.TARGETS)


def test_the_help_of_the_options_is_made_from_the_registry():
    parser = argparse.ArgumentParser(prog="p", formatter_class=argparse.RawTextHelpFormatter)
    position_encoders.add_args(parser)
    text = " ".join(parser.format_help().split())
    assert "where positions come from: " + ", ".join(registry.ENCODERS) in text
    assert "default: qkv for floater and rnn, hidden for the other signals" in text
    for option in position_encoders.all_options():
        assert option.name in text


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("from fairseq_floater import position_encoders", set()),
        ("import fairseq_floater.experiments.system", set()),
        (
            "from fairseq_floater import position_encoders as p; p.POSITION_ENCODERS['none']",
            {"torch"},
        ),
    ],
    ids=["registry", "system", "class"],
)
def test_torch_is_imported_with_a_class_only(code, needs):
    code = f"import sys; sys.argv = ['floater']\n{code}\nprint({{'torch', 'fairseq'}} & {{*sys.modules}})"
    assert run([sys.executable, "-c", code], new=True).stdout == f"{needs or 'set()'}\n"


def test_one_line_more_is_one_encoder_more(monkeypatch):
    monkeypatch.setitem(registry.ENCODERS, "silent", registry.Entry("none.NoPositions", "hidden"))
    assert list(POSITION_ENCODERS)[-1] == "silent"
    assert POSITION_ENCODERS["silent"] is NoPositions


def test_an_encoder_of_your_own_has_a_new_name(monkeypatch):
    for names in ("ENCODERS", "DEFAULT_TARGETS"):
        monkeypatch.setattr(registry, names, {**getattr(registry, names)})

    class MyPositions(NoPositions):
        name = "mine"

    for _ in range(2):  # as a notebook may
        assert registry.register_position_encoder(MyPositions) is POSITION_ENCODERS["mine"]
    assert registry.DEFAULT_TARGETS["mine"] == "hidden"
    with pytest.raises(ValueError, match="`name` must be new, but 'none' is an encoder of this"):
        registry.register_position_encoder(NoPositions)

    class Other(NoPositions):
        name = "mine"

    with pytest.raises(ValueError, match="`name` must be new, but 'mine' is that of .*MyPositions"):
        registry.register_position_encoder(Other)
    # Scripts would read these as another system.
    for name in ("plain", "all", "roberta", "-x", "mex,hat", "my/hat"):
        Other.name = name
        with pytest.raises(ValueError, match=f"`name` must have letters, .*is '{name}' instead"):
            registry.register_position_encoder(Other)


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        (lambda: Option("--rope-base", 4.0, "", float), "`--rope-base` is declared twice"),
        (lambda: Option("--dropout", 4.0, "", float), "`--dropout` is declared twice"),
        (lambda: Option("hat-width", 4.0, "", float), "must begin with --, but is 'hat-width'"),
        (lambda: Option("--hat-width", 4.0, ""), "default of --hat-width must be of type str"),
    ],
)
def test_an_option_of_your_own_has_a_new_name_and_a_type(option, refusal, monkeypatch):
    class MyPositions(NoPositions):
        name = "mine"

    monkeypatch.setitem(registry.ENCODERS, "mine", registry.Entry(MyPositions, "hidden"))
    with pytest.raises(ValueError, match=refusal):
        MyPositions.options = (option(),)
        FloaterTransformerModel.add_args(argparse.ArgumentParser())


@pytest.mark.parametrize(
    "options",
    [
        {"position_encoder": "t5", "t5_max_distance": 30},
        {"position_encoder": "tupe", "t5_max_distance": 30},
        {"position_encoder": "shaw", "shaw_clip": 30},
        {"position_encoder": "nezha", "nezha_clip": 30},
        {"position_encoder": "deberta", "deberta_distance": 30},
        {"position_encoder": "cope", "cope_positions": 30},
        {"position_encoder": "fire", "fire_threshold": 30},
        {"position_encoder": "nezha", "nezha_clip": 0},  # 0 clips no distance
        {"position_encoder": "alibi"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_distances_that_training_lacks_are_known(options):
    args = Namespace(**options)
    complete(args)
    name = next((f"--{o.replace('_', '-')}" for o in options if options[o] == 30), None)
    assert trained_limit(args, 11) == (name and (name, 30, 10))
    assert trained_limit(args, 31) is None
