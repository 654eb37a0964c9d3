"""The systems of a comparison: those that a configuration lists, and registered encoders in their forms."""

import argparse
from functools import partial

import pytest
from fairseq import options
from number_systems import CONFIG, CONTROL, ROPE, SINUSOID, STRETCH, T5
from toy import ROOT

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.forms import (
    forms_of,
    listed,
    systems_of,
    with_stretched,
)
from fairseq_floater.experiments.paper_numbers import TABLE_2
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import system_from_words
from fairseq_floater.position_encoders.registry import (
    ENCODERS,
    POSITION_ENCODERS,
    encoder_names,
)


def test_every_registered_encoder_has_forms_that_fairseq_reads(tmp_path):
    forms = forms_of(tuple(ENCODERS), scratch=True)
    assert {entry.system.encoder for entry in forms} == set(ENCODERS)
    experiment = Experiment(CONFIG)
    for entry in forms:
        words = experiment.arguments("scratch", entry.system, work=str(tmp_path))
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        assert args.position_encoder == entry.system.encoder


@pytest.mark.parametrize("start", ["scratch", "donor"])
def test_forms_have_names_labels_and_options_of_their_own(start):
    forms = with_stretched(forms_of(tuple(ENCODERS), scratch=start == "scratch"), STRETCH, None)
    for distinct in ("name", "label"):
        assert len({getattr(entry.system, distinct) for entry in forms}) == len(forms)
    for entry in forms:
        assert system_from_words(entry.options) == entry.system
        assert entry.system.scratch == (start == "scratch")


def test_forms_differ_in_nothing_but_the_encoder():
    forms = {entry.system.name: entry.system for entry in forms_of(tuple(ENCODERS), scratch=True)}
    # Only fairseq's own Transformer keeps its sinusoid; the others have nothing underneath.
    assert {name for name, run in forms.items() if run.joins_base and run.base} == set()
    assert forms[SINUSOID].base and not forms["sinusoidal-all-hidden-scratch-nobase"].base
    targets = [run.resolved_target for run in forms.values() if run.encoder == "floater"]
    assert set(targets) == {"hidden", "qkv", "relative"}


def test_no_vector_is_for_a_distance_that_training_does_not_have():
    chosen, _ = systems_of(
        Experiment(CONFIG), encoders=("t5", "shaw"), start="scratch", stretch=STRETCH
    )
    near = {s.system.name for s in chosen}
    assert {T5, "shaw-all-attention-scratch"} < near
    # With a stretch of 2.5, training has distances up to 2.5 * 23.
    assert (
        f"t5-all-attention-scratch-position-stretch_{STRETCH.replace(':', '_')}-t5-max-distance_57"
        in near
    )


@pytest.mark.parametrize(("distance", "more"), [(23, []), (64, [64])])
def test_a_limit_that_is_asked_for_stays_and_no_system_comes_twice(distance, more):
    also = [f"--t5-max-distance {distance}"]
    chosen, _ = systems_of(Experiment(CONFIG), encoders=("t5",), start="scratch", also=also)
    names = [s.system.name for s in chosen if s.system.encoder == "t5"]
    assert names == [T5, *(f"t5-all-attention-scratch-t5-max-distance_{n}" for n in more)]


def test_the_separator_of_the_configuration_is_given(tmp_path):
    config = tmp_path / "documents.yaml"
    config.write_text(f"extends: {CONFIG}\ndata: {{separator: <s2>}}\n")
    also = ["--position-segments"]
    chosen, _ = systems_of(Experiment(config), encoders=("rope",), start="scratch", also=also)
    assert "rope-all-attention-scratch-position-segments" in {s.system.name for s in chosen}


def test_two_stretches_have_two_labels():
    also = [f"--position-stretch {low}:2" for low in (0.5, 1)]
    chosen, _ = systems_of(Experiment(CONFIG), encoders=("rope",), start="scratch", also=also)
    assert len({s.label for s in chosen}) == len(chosen) == 4  # with the control


def test_a_stretched_twin_follows_each_system_that_takes_it():
    forms = forms_of(tuple(ENCODERS), scratch=True)
    stretched = {
        s.system.encoder for s in with_stretched(forms, STRETCH, None) if "stretched" in s.label
    }
    assert stretched == {name for name, cls in POSITION_ENCODERS.items() if cls.continuous}
    # A system that is listed already, and one whose base would stay in place, get no twin.
    listed = Experiment(CONFIG).s2l.listed()
    names = [entry.system.name for entry in with_stretched(listed, STRETCH, None)]
    assert len(set(names)) == len(names)
    assert f"{SINUSOID}-position-stretch_0.5_2.5" not in names
    for wrong in ("2", "0:1"):
        with pytest.raises(UsageError, match="`--position-stretch` must be LOW:HIGH"):
            with_stretched(listed, wrong, None)
    rows = Experiment(ROOT / "configs" / "text_tiny.yaml").comparison.listed()
    with pytest.raises(UsageError, match="No system takes `--stretch`"):
        with_stretched(rows, STRETCH, None)
    with pytest.raises(argparse.ArgumentTypeError, match="some of .* but is 'rope,fourier'"):
        encoder_names("rope,fourier")


def test_a_system_of_another_shape_has_a_stretched_twin_unless_it_is_stretched():
    words = ("--encoder rope --scratch -- --encoder-layers=3", "--encoder t5 --scratch")
    given = [listed(system_from_words(word)) for word in words]
    twins = with_stretched(given, STRETCH, None)
    assert [entry.system.options for entry in twins] == [
        ("--encoder-layers=3",),
        ("--encoder-layers=3", "--position-stretch", STRETCH),
        (),
        ("--position-stretch", STRETCH),
    ]
    stretched = [
        listed(system_from_words(f"--encoder rope --scratch -- --position-stretch={STRETCH}"))
    ]
    assert with_stretched(stretched, STRETCH, None) == stretched


def test_any_further_options_make_a_twin_of_each_system_that_takes_them():
    chosen = partial(names_of, Experiment(CONFIG), encoders=("rope", "t5"), start="scratch")
    names, _ = chosen(also=["--attention-kind linear"], stretch=STRETCH)
    linear = f"{ROPE}-attention-kind_linear"
    stretched = "position-stretch_0.5_2.5"
    assert {ROPE, linear, f"{ROPE}-{stretched}", f"{linear}-{stretched}"} < {*names}
    assert not any(name.startswith("t5") and "linear" in name for name in names)
    with pytest.raises(UsageError, match="No system takes `--also '--position-stretch 2'`"):
        chosen(also=["--position-stretch 2"])


def names_of(*args, **options):
    systems, baseline = systems_of(*args, **options)
    return [entry.system.name for entry in systems], baseline


def test_the_baseline_is_always_compared_and_started_like_the_others():
    chosen = partial(names_of, Experiment(CONFIG), start="scratch")
    assert chosen(encoders=("t5", "rope")) == ([SINUSOID, T5, ROPE], SINUSOID)
    names = [SINUSOID, "sinusoidal-all-hidden-scratch-nobase"]
    assert chosen(encoders=("sinusoidal",)) == (names, SINUSOID)
    listed = [entry.system.name for entry in Experiment(CONFIG).s2l.listed()]
    assert chosen(encoders=None) == (listed, SINUSOID)
    warm = names_of(Experiment(CONFIG), encoders=("rope",), start="donor")
    assert warm == ([CONTROL, "rope-all-attention"], CONTROL)
    # The baseline of this configuration starts from a donor.
    chosen = partial(names_of, Experiment(ROOT / "configs" / "text_tiny.yaml"), encoders=("rope",))
    assert chosen() == ([CONTROL, "rope-all-attention"], CONTROL)
    assert chosen(start="scratch") == ([SINUSOID, ROPE], SINUSOID)


def test_a_configuration_without_systems_needs_encoders():
    chosen = partial(names_of, Experiment(ROOT / "configs" / "wmt14_en_de_base.yaml"))
    with pytest.raises(UsageError, match="lists no systems"):
        chosen(encoders=None)
    assert chosen(encoders=("rope",)) == ([CONTROL, "rope-all-attention"], CONTROL)
    assert chosen(encoders=("rope",), start="scratch") == ([SINUSOID, ROPE], SINUSOID)


def test_the_rows_of_table_2_are_listed_for_own_text():
    rows = {(blocks, encoder) for blocks, encoder in TABLE_2}
    for name in ("text_tiny", "text_base", "numbers_en_de"):
        listed, _ = systems_of(Experiment(ROOT / "configs" / f"{name}.yaml"), encoders=None)
        assert {(s.system.blocks, s.system.encoder) for s in listed} == rows
        assert not any(s.system.scratch for s in listed)
