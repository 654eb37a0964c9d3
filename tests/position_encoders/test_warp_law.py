"""Valid `--position-stretch`, `-shift`, `-jitter` and `-random`, and encoders that take them."""

import logging
from argparse import Namespace

import pytest
from helpers import build

from fairseq_floater.position_encoders import POSITION_ENCODERS, distance_warning
from fairseq_floater.position_encoders.warp_law import Drawing, Shifting, Stretching, WarpLaw

ALONE = {"no_token_positional_embeddings": True}


def law(**options):
    names = ("stretch", "shift", "jitter", "random")
    return WarpLaw.read(Namespace(**{f"position_{n}": options.get(n) for n in names}))


def made(encoder, target=None, **options):
    target = target or POSITION_ENCODERS[encoder].targets[0]
    return build(encoder, target=target, **{**ALONE, **options})


def test_what_is_not_asked_for_leaves_positions_alone():
    assert law() is None
    assert made("sinusoidal").encoder.warp_law is None


def test_every_form_of_a_stretch_and_a_shift_is_read():
    assert law(stretch="0.5:2.5") == WarpLaw(Stretching(0.5, 2.5))
    assert law(stretch="1/1.03:1.03:log") == WarpLaw(Stretching(1 / 1.03, 1.03, log=True))
    assert law(shift="500") == WarpLaw(shift=Shifting(0, 500, whole=True))
    assert law(shift="500:shared") == WarpLaw(shift=Shifting(0, 500, whole=True, shared=True))
    assert law(shift="-5:5") == WarpLaw(shift=Shifting(-5.0, 5.0))
    assert law(shift="-5:5:shared", jitter=0.5) == WarpLaw(
        shift=Shifting(-5.0, 5.0, shared=True), jitter=0.5
    )
    assert law(random="64") == WarpLaw(random=Drawing(64))
    assert law(random="float:1.5") == WarpLaw(random=Drawing(1.5, whole=False))
    assert law(shift="fill:9:shared").shift == Shifting(0, 9, whole=True, shared=True, fill=True)
    assert Shifting.read("500").highest == 499 and Shifting.read("2:5").highest == 5


@pytest.mark.parametrize(
    "text", ["2", "1:2:3", "0:1", "2:1", "a:b", "1:inf", "", "log", "1:log", "1/0:2"]
)
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="`--position-stretch` must be LOW:HIGH"):
        Stretching.read(text)


NO_SHIFTS = ["", "1", "0", "-3", "2.5", "5:5", "5:1", "a:b", "1:2:3", "shared"]
NO_SHIFTS += ["fill", "fill:1", "fill:-5:5", "9:fill"]


@pytest.mark.parametrize("text", NO_SHIFTS)
def test_a_shift_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"`--position-shift` must be .* but is '"):
        Shifting.read(text)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"stretch": "0.5:2.5"}, 4),
        ({"shift": "500"}, 1),
        ({"shift": "500", "stretch": "1:2"}, 4),
        ({"shift": "-5:5"}, 16),
        ({"jitter": 0.5, "stretch": "1:2"}, 16),
        ({"random": "2048"}, 1),
        ({"random": "float:2048"}, 16),
        ({"random": "float:2"}, 2048),
    ],
)
def test_positions_are_as_fine_as_what_moves_them(options, rows):
    assert law(**options).rows_per_token == rows


def test_distances_that_training_can_give_are_known():
    assert law(stretch="0.5:2.5").furthest(11) == 25
    assert law(shift="500").furthest(11) == 10
    assert law(jitter=0.5, stretch="1:2").furthest(11) == 22
    assert law(random="64").furthest(11) == 63 == law(random="float:63.9").furthest(11)
    args = made("t5", position_random=64, t5_max_distance=70).cfg
    assert "no distance above 63" in distance_warning(args, 11)
    args.t5_max_distance = 63
    assert distance_warning(args, 11) is None


WITHOUT_EFFECT = {
    "rope": {"position_shift": "500"},
    "t5": {"position_shift": "-5:5", "position_jitter": 0.5},
    "deberta": {"position_shift": "500:shared"},
    "shaw": {"position_jitter": 0.2},
}


@pytest.mark.parametrize(("encoder", "options"), WITHOUT_EFFECT.items())
def test_what_would_change_nothing_is_refused(encoder, options):
    with pytest.raises(ValueError, match=f"{encoder}.* change nothing"):
        made(encoder, **options)


def test_it_is_taken_where_it_changes_something():
    made("rope", rope_values=True, position_shift="500")
    made("deberta", deberta_absolute=1, position_shift="500")
    made("deberta", deberta_buckets=8, position_jitter=0.2)
    made("shaw", position_jitter=0.2, position_stretch="0.5:2")
    made("shaw", position_jitter=0.3)


@pytest.mark.parametrize("option", ["stretch", "shift", "jitter", "random"])
def test_encoders_without_real_positions_are_refused(option):
    value = {"stretch": "1:2", "shift": "500", "jitter": 0.5, "random": 64}[option]
    for encoder in ("learned", "rnn", "none", "conv", "token-rnn", "cope", "forget"):
        words = f"`--position-{option}` must come with --position-encoder .*, but that is {encoder} instead"
        with pytest.raises(ValueError, match=words):
            made(encoder, **{f"position_{option}": value})
    with pytest.raises(ValueError, match=f"`--position-{option}` must come with `--no-token"):
        build("floater", target="qkv", **{f"position_{option}": value})


def test_positions_that_are_drawn_are_not_moved_too():
    with pytest.raises(
        ValueError, match="`--position-random` must be alone, but .*`--position-stretch`"
    ):
        made("rope", position_random=64, position_stretch="1:2")


def test_a_place_before_the_first_is_refused_where_there_is_none():
    for options in ({"position_shift": "-5:5"}, {"position_jitter": 0.5}):
        with pytest.raises(ValueError, match=r"before position 0, where .*tupe has no rows"):
            made("tupe", **options)
        with pytest.raises(ValueError, match=r"before position 0, where .*floater has no rows"):
            made("floater", floater_update_interval=2, **options)
    made("tupe", position_jitter=0.5, position_shift="0.5:9")
    made("tupe", position_shift="500", position_stretch="0.5:2:log")
    made("floater", floater_update_interval=2, position_shift="500")


def test_the_log_names_what_training_does(caplog):
    caplog.set_level(logging.INFO, "fairseq_floater")
    made("rope")
    assert (
        "position encoder: encoder:rope|target:attention|blocks:all|base:no|version" in caplog.text
    )
    made("rope", position_stretch="1:2", position_jitter=0.5)
    assert "|position-stretch:1:2|position-jitter:0.5|" in caplog.text
