"""Configurations, the arguments made from them, and the command line around them."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from helpers import VOCABULARY, build, every_case
from roberta_models import roberta

from fairseq_floater.checkpoints.averaging import AverageReport
from fairseq_floater.checkpoints.reading import position_parameters
from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError
from fairseq_floater.experiments import info
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.info import COSTS, added_parameters, costs
from fairseq_floater.experiments.run_folder import write_validation
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System, system_from_words
from fairseq_floater.figures import Bar, grouped_bars, legend, new_figure
from fairseq_floater.position_encoders import in_attention
from fairseq_floater.position_encoders.registry import ENCODERS
from fairseq_floater.records import ReportError
from fairseq_floater.results.table import collect as collect_results
from fairseq_floater.results.table import plot_scores
from fairseq_floater.transformer.shapes import ARCHITECTURES, SIZES

ROOT = Path(__file__).resolve().parents[2]
ROBERTA = {*(ROOT / "configs").glob("roberta_*.yaml")}  # of experiments/roberta
CONFIGS = sorted({*(ROOT / "configs").glob("*.yaml")} - ROBERTA)
RUNS = [
    System(),
    System("plain"),
    System("learned", "input"),
    System("floater", "all", "hidden", scratch=True, base=False),
    System("none", scratch=True),
    System("rope"),
]


def parsed(words):
    """The words through fairseq-train's own parser."""
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, words)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.name)
@pytest.mark.parametrize("stage", ["donor", "finetune", "scratch"])
def test_training_arguments_are_fairseqs(path, run, stage):
    experiment = Experiment(path)
    args = parsed(experiment.arguments(stage, run, data="some data", work="some work"))
    assert args.data == "some data"
    plain = stage == "donor" or run.encoder == "plain"
    assert ARCH_MODEL_REGISTRY[args.arch].__name__ == (
        "TransformerModel" if plain else "FloaterTransformerModel"
    )
    assert args.encoder_embed_dim == args.decoder_embed_dim
    peak = float(experiment.config.optimisation["lr"])
    assert args.lr == [peak / 2 if stage == "finetune" else peak]
    assert args.max_epoch == experiment.config.budget.of(stage)["max-epoch"]
    if not plain:
        assert args.position_encoder == run.encoder
        assert args.position_target == run.resolved_target
        assert args.no_token_positional_embeddings == (not run.base)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_inference_arguments_are_fairseqs_and_lose_no_sentence(path):
    experiment = Experiment(path)
    words = experiment.arguments("generate", System())
    args = options.parse_args_and_arch(options.get_generation_parser(), words)
    assert args.required_batch_size_multiple == 1
    assert (args.beam, args.lenpen) == (4, 0.6)
    # What leaves fairseq is text: of subwords, and of Moses tokens too.
    pieces = {"sentencepiece": ("sentencepiece", None), "subword-nmt": ("subword_nmt", "moses")}
    assert (args.post_process, args.tokenizer) == pieces[experiment.bpe]
    words = Experiment(path).arguments("validate", System())
    assert options.parse_args_and_arch(options.get_validation_parser(), words).cpu


def test_a_donor_has_the_seed_of_its_run_unless_it_is_shared():
    experiment = Experiment(CONFIGS[0])
    for donor, seed in ((None, "3"), ("shared", str(experiment.config.seed))):
        words = experiment.arguments("donor", System("floater"), work="w", seed=3, donor=donor)
        assert words[words.index("--seed") + 1] == seed
        assert words[words.index("--save-dir") + 1] == f"{donor or 'w/plain'}/checkpoints"


@pytest.mark.parametrize("processes", [0, 1, 2, 4, 8, 32])
def test_tokens_an_update_are_kept_on_any_number_of_gpus(processes):
    experiment = Experiment(ROOT / "configs" / "text_base.yaml")
    frequency, tokens = experiment.tokens_per_update(processes)
    words = experiment.arguments("donor", System(), machines=Machines(processes))
    assert words[words.index("--update-freq") + 1] == str(frequency)
    assert frequency == {0: 8, 1: 8, 2: 4, 4: 2, 8: 1, 32: 1}[processes]
    assert tokens == (32_768 if processes < 32 else 131_072)
    assert ("--cpu" in words) == (processes == 0)
    assert ("--fp16" in words) == (processes > 0)
    assert ("--load-checkpoint-on-all-dp-ranks" in words) == (processes > 1)


def test_runs_have_names_of_their_own():
    names = [
        System(encoder, blocks, target, scratch, base).name
        for encoder in ("floater", "learned")
        for blocks in ("all", "input")
        for target in ("qkv", "hidden")
        for scratch in (True, False)
        for base in (True, False)
    ]
    assert len(set(names)) == len(names)
    assert System().name == "floater-all-qkv"


def test_options_of_a_run_reach_its_name_its_arguments_and_its_record():
    run = system_from_words("--encoder rnn -- --rnn-layers 2 --rnn-input vector")
    assert run.name == "rnn-all-qkv-rnn-layers_2-rnn-input_vector"
    words = Experiment(ROOT / "configs" / "numbers_en_de.yaml").arguments("finetune", run, seed=7)
    assert words[words.index("--rnn-layers") + 1] == "2"
    assert words[words.index("--seed") + 1] == "7"
    assert run.settings()["options"] == "--rnn-layers 2 --rnn-input vector"


def test_options_of_a_run_overrule_the_configuration():
    experiment = Experiment(ROOT / "configs" / "numbers_en_de.yaml")
    run = system_from_words(
        "--encoder rope --scratch -- --dropout 0.3 --encoder-layers=3 --lr 0.01"
    )
    for stage in ("finetune", "scratch"):
        args = parsed(experiment.arguments(stage, run))
        assert (args.dropout, args.encoder_layers, args.lr) == (0.3, 3, [0.01])
    donor = parsed(experiment.arguments("donor", run))
    assert (donor.dropout, donor.encoder_layers) == (0.1, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--encoder rope --scratch -- --max-epoch 3", "`--max-epoch` cannot be given after `--`"),
        ("--encoder rope -- --max-tokens=99", "`--max-tokens` cannot be given after `--`"),
        ("--encoder plain -- --dropout 0.3", "`--encoder plain` takes no options after `--`"),
    ],
)
def test_options_of_a_run_that_would_change_its_budget_are_refused(words, message):
    run = system_from_words(words)
    with pytest.raises(UsageError, match=message):
        Experiment(ROOT / "configs" / "numbers_en_de.yaml").arguments(run.stage, run)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--encoder bert", "cannot be read: .*'bert'"),
        ("--encoders floater", "unknown option --encoders"),
        ("--encoder rnn -- 2", "`--model-options` must begin with an option"),
    ],
)
def test_a_system_that_cannot_be_read_is_refused(words, message):
    with pytest.raises(UsageError, match=message):
        system_from_words(words)


S2L = ROOT / "configs" / "numbers_s2l.yaml"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(systems=["--encoder floater", "--blocks all"]), "one of them twice"),
        (lambda s: s.update(baseline="bert"), "`s2l: baseline` must be one of .*'bert'"),
        (lambda s: s.update(systems=[]), "must list one line of options"),
        (lambda s: s.update(systems=["--encoder 'x"]), "config.yaml: `s2l: systems`: .*cannot be"),
        (lambda s: s.update(systems="--encoder floater"), "`s2l: systems` is of the wrong kind"),
        (lambda s: s.update(systems=[{"options": "--encoder rnn"}, 7]), "`options` and `label`"),
        (
            lambda s: s["systems"].append({"options": "--encoder rnn", "name": "x"}),
            "`options` and `label`",
        ),
        (
            lambda s: s["systems"].append({"options": "--encoder rnn", "label": 32 * "x"}),
            "1 to 31 char",
        ),
        (
            lambda s: s["systems"].append({"options": "--encoder rnn", "label": "sinusoid"}),
            "has two labelled sinusoid; give one a `label`",
        ),
        (lambda s: s.pop("threshold"), "`s2l` lacks threshold"),
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
        ({"baseline": None}, "`compare` lacks systems"),
        ({"systems": ["--encoder rope"], "threshold": 3}, "unknown key threshold"),
    ):
        path.write_text(yaml.safe_dump({**config, "compare": section}))
        with pytest.raises(ConfigError, match=words):
            Experiment(path)
    short_to_long = yaml.safe_load(S2L.read_text())
    path.write_text(yaml.safe_dump({**short_to_long, "compare": config["compare"]}))
    assert Experiment(path).comparison.baseline == short_to_long["s2l"]["baseline"]


LABELS = {
    "--encoder sinusoidal --blocks input --scratch": "sinusoid",
    "--encoder floater --target hidden --no-base --scratch": "FLOATER, hidden",
    "--encoder rotation_flow --no-base --scratch -- --position-stretch 0.5:2.5": "rotation_flow, stretched",
    "--encoder sinusoidal --no-base --scratch": "sinusoid, all blocks",
    "--encoder sinusoidal --blocks input": "sinusoid, warm",
    "--encoder floater --target qkv": "FLOATER, warm",
    "--encoder floater --no-base --blocks input": "FLOATER, input only, no base, warm",
    "--encoder rnn --scratch -- --rnn-layers 2 --rnn-input vector": (
        "RNN, with base, rnn-layers 2, rnn-input vector"
    ),
    "--encoder none --no-base --scratch": "no positions",
    "--encoder rope --scratch": "rope",
    "--encoder alibi --no-base": "alibi, warm",
    "--encoder t5 --blocks input --scratch -- --t5-max-distance 24": "t5, input only, t5-max-distance 24",
    "--encoder plain": "plain",
}


@pytest.mark.parametrize(("words", "label"), LABELS.items())
def test_a_system_has_a_label_for_tables(words, label):
    assert system_from_words(words).label == label


def test_every_system_of_the_s2l_configuration_gets_equal_updates():
    experiment = Experiment(S2L)
    epochs = {
        stage: int(words[words.index("--max-epoch") + 1])
        for stage in ("donor", "finetune", "scratch")
        for words in [experiment.arguments(stage, System())]
    }
    assert epochs["scratch"] == epochs["donor"] + epochs["finetune"]
    names = [line.split("\t")[0] for line in experiment.arguments("systems", System())]
    assert {"floater-all-qkv", "floater-all-hidden-scratch-nobase"} <= set(names)
    assert {"sinusoidal-input-hidden", "sinusoidal-input-hidden-scratch"} <= set(names)


def write(tmp_path, change):
    config = yaml.safe_load((ROOT / "configs" / "text_tiny.yaml").read_text())
    change(config)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("budget"), "the file lacks budget"),
        (lambda c: c.update(extra=1), "the file has the unknown key extra"),
        (lambda c: c["data"].pop("vocab"), "`data` lacks vocab"),
        (
            lambda c: c["budget"].update({"max-tokens": 0}),
            "`budget: max-tokens` must be a positive",
        ),
        (lambda c: c["budget"].update({"average": "five"}), "`budget: average` is of .* 'five'"),
        (lambda c: c["budget"].update({"average": 2.5}), "'2.5' of type 'float' could not"),
        (lambda c: c["budget"].update({"donor": 3}), "`budget: donor` is of the wrong kind"),
        (lambda c: c["budget"].update({"max-token": 3}), r"did you mean max-tokens\?"),
        (lambda c: c["shape"].update(arch="bert"), "`shape: arch` must be one of .*'bert'"),
        (lambda c: c["shape"].update(dropout={"a": 1}), "`shape: dropout` must be numbers"),
        (lambda c: c["optimisation"].update(lr="fast"), "`optimisation: lr` must be a number"),
        (lambda c: c["optimisation"].update(lr=10**400), "a number above 0, at most 1000, but"),
        (lambda c: c["generation"].pop("beam"), "`generation` lacks beam"),
        (lambda c: c["data"].update(tests=["../../x"]), "`data: tests` must be a list of names"),
        (lambda c: c["data"].update(wmt14="en-fr"), "`data: wmt14` must be en-de, as `languages`"),
        (lambda c: c["languages"].update(source=False), "in quotes where YAML takes it"),
        (lambda c: c.update(seed=-1), "`seed` must be from 0 to"),
        (lambda c: c.update(shape=[1]), "`shape` must be a section"),
    ],
)
def test_a_bad_configuration_names_file_key_and_rule(tmp_path, capsys, change, words):
    path = write(tmp_path, change)
    with pytest.raises(ConfigError, match=words):
        Experiment(path)
    assert main(["args", str(path), "donor"]) == 2
    assert "config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", "just words", "a: [1\n", "\x00", "", "a: 1\na: 2", "!!bool x"]
)
def test_what_is_no_yaml_is_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        Experiment(path)


def test_a_stage_that_a_configuration_lacks():
    with pytest.raises(ConfigError, match="no built-in corpus"):
        Experiment(ROOT / "configs" / "text_tiny.yaml").arguments("numbers", System())


def test_args_prints_one_word_a_line(capsys):
    assert main(["args", str(S2L), "split", "--encoder", "plain"]) == 0
    words = Experiment(S2L).arguments("split", System("plain"))
    assert capsys.readouterr().out.splitlines() == words
    assert words[-6:] == ["24", "30", "36", "48", "--max-per-bin", "120"]


@pytest.mark.parametrize(
    "words",
    [
        ["args", "c.yaml", "fly"],
        ["args", "c.yaml", "donor", "--encoder", "fourier"],
        ["args", "c.yaml", "donor", "--blocks", "some"],
        ["args", "c.yaml", "donor", "--target", "v"],
        ["average", "--inputs", "x", "--last", "0", "--output", "y"],
        ["average", "--inputs", "x", "--last", "1", "--best", "1", "--output", "y"],
        ["info", "--unknown"],
        [],
        ["swim"],
    ],
)
def test_bad_usage_exits_with_2(words):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2


def test_parameters_are_the_papers():
    counts = added_parameters("floater_transformer", "floater", "all")
    dynamics = sum(n for name, n in counts.items() if "dynamics" in name)
    assert dynamics == 3 * 526_336 == 1_579_008
    starts = sum(n for name, n in counts.items() if name.endswith(".values"))
    assert starts == (18 + 24 + 12) * 512
    learned = added_parameters("floater_transformer", "learned", "all")
    assert sum(learned.values()) == 12 * 1024 * 512


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sizes_are_fairseqs(arch):
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    size = SIZES[ARCHITECTURES[arch]]
    for side in ("encoder", "decoder"):
        shape = ("embed_dim", "layers", "attention_heads")
        assert tuple(getattr(args, f"{side}_{word}") for word in shape) == size


@every_case
def test_added_parameters_are_those_of_the_model(encoder, blocks, target, monkeypatch):
    monkeypatch.setattr(info, "VOCABULARY", VOCABULARY)
    model = build(encoder, blocks, target)
    found = position_parameters(dict(model.named_parameters()))
    options = {"position_target": target}
    assert added_parameters("floater_transformer_tiny", encoder, blocks, **options) == found


@every_case
def test_added_parameters_are_those_of_a_roberta(encoder, blocks, target, monkeypatch):
    monkeypatch.setattr(info, "ROBERTA_VOCABULARY", VOCABULARY)
    model = roberta(encoder, blocks, target, max_positions=512)
    found = position_parameters(dict(model.named_parameters()))
    options = {"position_target": target}
    assert added_parameters("floater_roberta_tiny", encoder, blocks, **options) == found


def test_the_papers_flows_of_roberta():
    """RoBERTa base and large: one h, and p(0) of q, k and v of each block."""
    for arch, channels, blocks, dynamics in (
        ("base", 768, 12, 1_182_720),
        ("large", 1024, 24, 2_101_248),
    ):
        counts = added_parameters(f"floater_roberta_{arch}", "floater", "all")
        starts = sum(n for name, n in counts.items() if name.endswith(".values"))
        assert (sum(counts.values()) - starts, starts) == (dynamics, 3 * blocks * channels)


def test_info_prints_table_1(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    flow = "1,583,616 | 1,606,656 | elementwise |"
    assert f"| `floater` | absolute | q, k, v | yes | yes | yes | 526,336 | {flow}" in out
    assert "| `sinusoidal` | absolute | input of blocks | yes | no | yes |" in out
    assert "| `learned` | absolute | input of blocks | no | yes | no |" in out
    assert "| `rope` | relative | queries, keys | yes | no | yes | 0 | 0 | 0 | elementwise |" in out
    assert "| `t5` | relative | logits | yes | yes | yes | 256 | 512 | 512 | mask |" in out
    assert "| `none` | - | - | yes | no | yes | 0 | 0 | 0 | - | - |" in out
    assert r"m_h \|i - j\| |" in out
    assert main(["info", "--arch", "bert"]) == 1
    assert "floater_transformer_tiny" in capsys.readouterr().err


def test_costs_are_read_off_what_an_encoder_overrides(monkeypatch):
    arch = "floater_transformer_tiny"
    assert {cost for name in ENCODERS for cost in costs(arch, name)} <= set(COSTS)

    class ReadingPart(in_attention.AttentionPart):
        needs_weights = True

        def bias(self, q, k, tables):
            raise AssertionError("costs are read off the classes")

    from fairseq_floater.position_encoders.t5 import T5Positions

    monkeypatch.setattr(T5Positions, "build_block", lambda self, i: ReadingPart(i, self.spec))
    assert costs(arch, "t5") == ["mask", "weights"]
    monkeypatch.setattr(T5Positions, "logit_bias", in_attention.AttentionPositions.logit_bias)
    assert costs(arch, "t5") == ["mask", "weights"]
    monkeypatch.setattr(ReadingPart, "bias", in_attention.AttentionPart.bias)
    assert costs(arch, "t5") == ["weights"]


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 checkpoint (last 1)"), (5, "5 checkpoints (last 5)")]
)
def test_one_checkpoint_is_no_plural(count, words):
    record = {"path": "checkpoint1.pt", "num_updates": 9, "sha256": 64 * "0"}
    report = AverageReport("average.pt", f"last {count}", count * [record], 1, 0, None)
    assert report.format_text().startswith(f"averaged {words}:")


def save_run(folder, name, bleu, before=None):
    run = folder / name
    run.mkdir(parents=True)
    metric = {"signature": f"sig:{name[0]}", "mean": bleu, "half_width": 1.5}
    scores = {
        "bleu": {"score": bleu, **metric},
        "chrf": {"score": 60.0, **metric},
        "length_ratio": 0.98,
    }
    (run / "scores.test.json").write_text(json.dumps(scores))
    (run / "average.json").write_text(
        json.dumps({"position_parameters": 1234, "training_seconds": 61.4})
    )
    if before is not None:
        (run / "before.json").write_text(json.dumps({"loss": before}))


def test_the_table_holds_every_run_with_its_signature(tmp_path):
    save_run(tmp_path, "floater-all-qkv", 31.25, before=2.5)
    save_run(tmp_path, "plain", 30.5)
    text = collect_results(tmp_path).format_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| plain | 30.50 [29.0, 32.0] | 60.0 | 0.98 | 1,234 | 61 | - |")
    assert rows[3].startswith("| floater-all-qkv | 31.25")
    assert rows[3].endswith("| 2.500 |")
    assert "test: sig:p" in text
    assert "test: sig:f" in text


def test_runs_of_seeds_are_named_by_them(tmp_path):
    for name in ("seed-1/plain", "seed-2/rope-all-attention"):
        save_run(tmp_path, name, 30.5)
    found = [run.name for run in collect_results(tmp_path).runs]
    assert found == ["seed-1/plain", "seed-2/rope-all-attention"]


def test_the_figure_is_written_in_the_format_of_its_name(tmp_path):
    save_run(tmp_path, "plain", 30.5)
    save_run(tmp_path, "learned-all-hidden", 28.0)
    results = collect_results(tmp_path)
    plot_scores(results, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes()[:4] == b"\x89PNG"
    plot_scores(results, tmp_path / "scores.svg")
    assert "<svg" in (tmp_path / "scores.svg").read_text()


def test_the_legend_of_long_names_is_whole(tmp_path):
    names = ["plain", "rotation_flow-all-hidden-scratch-nobase-position-stretch_0.5_2.5"]
    with new_figure(tmp_path / "scores.png", 1, 4) as (figure, (axes,)):
        grouped_bars(axes, ["test"], names, {("test", name): Bar(1.0) for name in names})
        legend(figure, axes)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_an_empty_folder_has_no_table(tmp_path, capsys):
    assert main(["table", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "average.json").write_text("{}")
    (tmp_path / "x" / "scores.test.json").write_text("{")
    with pytest.raises(ReportError, match=r"scores\.test\.json is no readable JSON"):
        collect_results(tmp_path)


def test_the_loss_before_the_first_update_is_read_from_fairseqs_log(tmp_path):
    log, out = tmp_path / "before.log", tmp_path / "before.json"
    log.write_text("x | INFO | valid |  | valid on 'valid' subset | loss 3.25 | ppl 9.5 | bsz 12\n")
    write_validation(log, out)
    assert json.loads(out.read_text()) == {"subset": "valid", "loss": 3.25, "ppl": 9.5, "bsz": 12.0}
    log.write_text("nothing\n")
    with pytest.raises(ReportError, match="holds no line"):
        write_validation(log, out)
