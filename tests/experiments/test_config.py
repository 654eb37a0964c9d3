"""What a configuration may say, and what is refused in one sentence."""

from pathlib import Path

import pytest
import yaml
from toy import ROOT

from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.roberta.stages import RobertaExperiment
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System

S2L = ROOT / "configs" / "numbers_s2l.yaml"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(systems=["--encoder floater", "--blocks all"]), "a system twice"),
        (lambda s: s.update(baseline="bert"), "`s2l: baseline` must be one of .*'bert'"),
        (lambda s: s.update(systems=[]), "must list one line of options"),
        (lambda s: s.update(systems="--encoder floater"), "`s2l: systems` has the wrong type"),
        (
            lambda s: s["systems"].append({"options": "--encoder rnn", "name": "x"}),
            "`options` and `label`",
        ),
        (
            lambda s: s["systems"].append({"options": "--encoder rnn", "label": "sinusoid"}),
            "has two labelled sinusoid; give one a `label`",
        ),
        (lambda s: s.pop("threshold"), "`s2l` has no `threshold`"),
        (lambda s: s.update(edge=3), r"`s2l` has the unknown key edge; did you mean edges\?"),
    ],
)
def test_a_bad_s2l_section_is_refused(tmp_path, change, words):
    config = yaml.safe_load(S2L.read_text())
    change(config["s2l"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=words):
        Experiment(path)


def test_a_bad_compare_section_is_refused(tmp_path):
    config = yaml.safe_load((ROOT / "configs" / "text_tiny.yaml").read_text())
    path = tmp_path / "config.yaml"
    for section, words in (
        ({"systems": ["--encoder rope"], "baseline": "t5"}, "`compare: baseline` must be one of"),
        ({"systems": []}, "`compare: systems` must list one line of options"),
        ({"baseline": None}, "`compare` has no `systems`"),
        ({"systems": ["--encoder rope"], "threshold": 3}, "unknown key threshold"),
    ):
        path.write_text(yaml.safe_dump({**config, "compare": section}))
        with pytest.raises(ConfigError, match=words):
            Experiment(path)
    short_to_long = yaml.safe_load(S2L.read_text())
    path.write_text(yaml.safe_dump({**short_to_long, "compare": config["compare"]}))
    assert Experiment(path).comparison.baseline == short_to_long["s2l"]["baseline"]


def write(tmp_path, change):
    config = yaml.safe_load((ROOT / "configs" / "text_tiny.yaml").read_text())
    change(config)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("budget"), "the file has no `budget`"),
        (lambda c: c.update(extra=1), "the file has the unknown key extra"),
        (lambda c: c["data"].pop("vocab"), "`data` has no `vocab`"),
        (
            lambda c: c["optimisation"].update({"update-freq": 4}),
            "`optimisation: update-freq` must be left out, since `budget: tokens-per-update` sets it",
        ),
        (
            lambda c: c["budget"]["scratch"].update(seed=1),
            "`budget: scratch: seed` must be left out",
        ),
        (lambda c: c["data"].update(tests=[]), "`data: tests` must be at least one test set"),
        (
            lambda c: c["budget"].update({"max-tokens": 0}),
            "`budget: max-tokens` must be a positive",
        ),
        (lambda c: c["budget"].update({"average": "five"}), "`budget: average` has .* 'five'"),
        (lambda c: c["budget"].update({"max-token": 3}), r"did you mean max-tokens\?"),
        (lambda c: c["shape"].update(arch="bert"), "`shape: arch` must be one of .*'bert'"),
        (lambda c: c["optimisation"].update(lr="fast"), "`optimisation: lr` must be a number"),
        (lambda c: c["generation"].pop("beam"), "`generation` has no `beam`"),
        (
            lambda c: c["generation"].update(beam=0),
            "`generation: beam` must be a whole number above",
        ),
        (lambda c: c["data"].update(wmt14="en-fr"), "`data: wmt14` must be en-de, as `languages`"),
        (
            lambda c: c["data"].update(wmt14="en-de", max_len=9),
            "`data: max-len` must be 250 with",
        ),
        (lambda c: c["data"].update(subwords="none"), "`data: vocab` must be left out with"),
        (
            lambda c: c["data"].update(subwords="bpe", vocab=None),
            "`data: subwords` must be one of none",
        ),
        (lambda c: c["data"].update({"spm-model": "m"}), "`data: vocab` must be left out with"),
        (
            lambda c: c["data"].update({"spm-model": "m", "subwords": "none", "vocab": None}),
            "`data: spm-model` must be left out with",
        ),
        (
            lambda c: c["data"].update(
                {"spm-model": "m", "vocab": None, "normalization": "identity"}
            ),
            "`data: normalization` must be left out with",
        ),
        (
            lambda c: c["data"].update(normalization="NFC"),
            "`data: normalization` must be one of nmt_nfkc, identity",
        ),
        (lambda c: c["languages"].update(source=False), "in quotes if YAML reads it as"),
    ],
)
def test_a_bad_configuration_names_file_key_and_rule(tmp_path, capsys, change, words):
    path = write(tmp_path, change)
    with pytest.raises(ConfigError, match=words):
        Experiment(path)
    assert main(["args", str(path), "donor"]) == 2
    assert "config.yaml" in capsys.readouterr().err


def test_a_configuration_extends_another(tmp_path):
    write(tmp_path, lambda config: config["budget"].update(donor={"max-epoch": 8, "lr": 1}))
    path = tmp_path / "french.yaml"
    path.write_text(
        "extends: config.yaml\nlanguages: {target: fr}\ndata: {max-len: null, tests: [test, news]}\n"
        "budget: {donor: {max-epoch: 2}}"
    )
    config, extended = Experiment(path).config, Experiment(tmp_path / "config.yaml").config
    assert vars(config.languages) == {"source": "en", "target": "fr"}
    assert (config.data.max_len, config.data.tests) == (None, ["test", "news"])
    assert config.budget.donor == {"max-epoch": 2, "lr": 1}
    assert (config.shape, config.generation) == (extended.shape, extended.generation)
    path.write_text("extends: gone.yaml")
    with pytest.raises(ConfigError, match="french.yaml extends .*gone.yaml, which does"):
        Experiment(path)
    (tmp_path / "gone.yaml").write_text("- en")
    with pytest.raises(ConfigError, match="gone.yaml must hold sections"):
        Experiment(path)
    path.write_text("extends: config.yaml\nlanguages: [en, de]")
    with pytest.raises(
        ConfigError, match="french.yaml does not fit .*config.yaml, which it extends"
    ):
        Experiment(path)
    path.write_text("extends: config.yaml\ncompare: null\ns2l: null")
    assert Experiment(path).config.comparison is None


def test_whole_words_reach_every_stage(tmp_path):
    def change(config):
        del config["data"]["vocab"]
        config["data"]["subwords"] = "none"

    experiment = Experiment(write(tmp_path, change))
    words = experiment.arguments("prepare", System())
    assert words[4:6] == ["--subwords", "none"] and "--separate-dictionaries" not in words
    assert "--remove-bpe" not in experiment.arguments("generate", System())
    assert experiment.settings(System())["bpe"] == "none"
    experiment.config.shape["share-all-embeddings"] = False
    assert "--separate-dictionaries" in experiment.arguments("prepare", System())
    s2l = write(
        tmp_path, lambda c: [change(c), c.update(s2l=yaml.safe_load(S2L.read_text())["s2l"])]
    )
    for stage in ("split", "prepare"):
        words = Experiment(s2l).arguments(stage, System())
        assert words[4:6] == ["--subwords", "none"] and "--spm-model" not in words


def test_a_ready_subword_model_is_found_beside_the_configuration(tmp_path):
    def ready(config):
        config["data"].update({"vocab": None, "spm-model": "mine.model"})

    def by_length(config):
        ready(config)
        config["s2l"] = yaml.safe_load(S2L.read_text())["s2l"]

    for change, stage in ((ready, "prepare"), (by_length, "split")):
        words = Experiment(write(tmp_path, change)).arguments(stage, System())
        assert words[4:6] == ["--spm-model", str(tmp_path / "mine.model")]
        assert "--vocab" not in words
    write(tmp_path, ready)
    child = tmp_path / "folder" / "child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../config.yaml")
    words = Experiment(child).arguments("prepare", System())
    assert Path(words[5]).resolve() == (tmp_path / "mine.model").resolve()


def test_the_normalization_is_of_the_step_that_learns_subwords(tmp_path):
    path = write(tmp_path, lambda config: config["data"].update(normalization="identity"))
    words = Experiment(path).arguments("prepare", System())
    assert words[words.index("--normalization") + 1] == "identity"
    by_length = tmp_path / "by_length.yaml"
    by_length.write_text("extends: config.yaml\ns2l: {threshold: 20, edges: [20], systems: ['']}\n")
    split, prepare = (
        Experiment(by_length).arguments(stage, System()) for stage in ("split", "prepare")
    )
    assert split[split.index("--normalization") + 1] == "identity"
    assert "--normalization" not in prepare


def test_a_list_has_commas_for_fairseq_and_is_words_for_the_corpus(tmp_path):
    def change(config):
        config["shape"]["adaptive-softmax-cutoff"] = [50, 100]

    experiment = Experiment(write(tmp_path, change))
    words = experiment.arguments("scratch", System(scratch=True))
    assert words[words.index("--adaptive-softmax-cutoff") + 1] == "50,100"
    words = Experiment(S2L).arguments("numbers", System())
    at = words.index("--numbers-per-line")
    assert words[at + 1 : at + 3] == ["1", "6"]


@pytest.mark.parametrize("text", ["{", "just words", "a: [1\n", "a: 1\na: 2"])
def test_what_is_no_yaml_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        Experiment(path)


def test_a_configuration_of_another_experiment_says_whose_it_is():
    with pytest.raises(
        UsageError, match="roberta_tiny.yaml is for an experiment with RoBERTa .*tables345"
    ):
        Experiment(ROOT / "configs" / "roberta_tiny.yaml")
    with pytest.raises(UsageError, match="text_tiny.yaml is for translation .*protocol.sh"):
        RobertaExperiment(ROOT / "configs" / "text_tiny.yaml")
