"""The warning about distances that an encoder distinguishes and training does not have."""

import pytest
from fake_launcher import FakeLauncher
from roberta_toy import write_pairs
from toy import ROOT

from fairseq_floater.experiments.model_options import parse_training, untrained_distances
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import system_from_words

CONFIG = ROOT / "configs" / "numbers_en_de.yaml"
S2L = ROOT / "configs" / "numbers_s2l.yaml"  # trains on sources of fewer than 24 tokens


def warning(words, config=S2L, data="nowhere"):
    experiment, system = Experiment(config), system_from_words(words)
    options = parse_training(experiment.arguments(system.stage, system), config, system.stage)
    threshold = experiment.s2l.threshold if experiment.config.s2l else None
    return untrained_distances(options, ROOT / data, threshold)


def test_the_threshold_of_a_split_stands_for_the_trained_length():
    assert warning("--encoder t5 --scratch") == (
        "`--t5-max-distance` is 128, but training has no distance above 23 (sentences of up to 24 "
        "tokens); longer ones are new to the model. Pass `--t5-max-distance 23` or less."
    )
    assert warning("--encoder t5 -- --t5-max-distance 24").startswith("`--t5-max-distance` is 24")
    assert warning("--encoder t5", CONFIG) is None  # no split, and no data yet


@pytest.mark.parametrize(
    "words",
    [
        "--encoder floater",
        "--encoder alibi",
        "--encoder t5 -- --t5-max-distance 23",
        "--encoder t5 -- --position-stretch 0.5:6",  # training has distances up to 138
    ],
)
def test_nothing_is_said_where_nothing_is_wrong(words):
    assert warning(words) is None


def test_a_stretch_counts_as_far_as_it_goes():
    found = warning("--encoder t5 -- --position-stretch 0.5:2.5")
    assert "no distance above 57 " in found


def test_data_tell_the_trained_length_of_the_shorter_side(tmp_path, capfd):
    write_pairs(tmp_path / "bin", {"en": [5, 40, 7], "de": [3, 30, 4]})
    found = warning("--encoder t5", CONFIG, tmp_path / "bin")
    assert "no distance above 29 (sentences of up to 30 tokens)" in found
    assert "The other side" not in found
    assert warning("--encoder t5 -- --t5-max-distance 29", CONFIG, tmp_path / "bin") is None
    assert "The other side has up to 40 tokens" in warning(
        "--encoder t5 -- --t5-max-distance 35", CONFIG, tmp_path / "bin"
    )
    assert capfd.readouterr() == ("", "")
    (tmp_path / "empty").mkdir()
    assert warning("--encoder t5", data=tmp_path / "empty") is None


def test_a_run_says_it_once_before_it_trains(tmp_path, monkeypatch):
    said = []
    launcher = FakeLauncher()
    monkeypatch.setattr(launcher, "say", lambda text: said.append((text, len(launcher.steps))))
    write_pairs(tmp_path / "data" / "bin", {"en": [5, 12], "de": [3, 9]})
    system = system_from_words("--encoder t5 --scratch")
    Protocol(RunRequest(Experiment(CONFIG), system, tmp_path), launcher).run()
    [(text, steps)] = [found for found in said if "warning" in found[0]]
    assert text.startswith("t5-all-attention-scratch: warning: `--t5-max-distance` is 128, but")
    assert launcher.steps[steps].startswith("train")
