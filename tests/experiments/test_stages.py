"""The arguments that are made from configurations, and the command line around them."""

import pytest
from command_lines import parsed, value
from fairseq.models import ARCH_MODEL_REGISTRY
from toy import ROOT

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System, system_from_words

ROBERTA = {*(ROOT / "configs").glob("roberta_*.yaml")}  # of experiments/roberta
CONFIGS = sorted({*(ROOT / "configs").glob("*.yaml")} - ROBERTA)
RESULTS = sorted((ROOT / "configs" / "results").glob("*.yaml"))
RUNS = [
    System(),
    System("plain"),
    System("learned", "input"),
    System("floater", "all", "hidden", scratch=True, base=False),
    System("none", scratch=True),
    System("rope"),
]


# One system for each stage with every configuration; the others with one.
STAGES = {run.stage: run for run in RUNS}
SOME = [(path, run) for path in CONFIGS for run in STAGES.values()]
SOME += [(CONFIGS[0], run) for run in RUNS if run not in STAGES.values()]


@pytest.mark.parametrize(
    ("path", "run"), SOME, ids=[f"{path.stem}-{run.name}" for path, run in SOME]
)
def test_training_arguments_are_fairseqs(path, run):
    experiment, stage = Experiment(path), run.stage
    args = parsed(experiment.arguments(stage, run, data="some data", work="some work"))
    assert args.data == "some data"
    plain = stage == "donor" or run.encoder == "plain"
    assert ARCH_MODEL_REGISTRY[args.arch].__name__ == (
        "TransformerModel" if plain else "FloaterTransformerModel"
    )
    assert args.encoder_embed_dim == args.decoder_embed_dim
    peak = float(experiment.config.optimisation["lr"])
    assert args.lr == [peak / 2 if stage == "finetune" else peak]
    assert args.max_epoch == experiment.config.budget.of(stage).get("max-epoch", 0)
    if not plain:
        assert args.position_encoder == run.encoder
        assert args.position_target == run.resolved_target
        assert args.no_token_positional_embeddings == (not run.base)


@pytest.mark.parametrize("path", [*CONFIGS, *RESULTS], ids=lambda p: p.stem)
def test_inference_arguments_are_fairseqs_and_lose_no_sentence(path):
    experiment = Experiment(path)
    words = experiment.arguments("generate", System())
    args = parsed(words, "generate")
    assert args.required_batch_size_multiple == 1
    assert (args.beam, args.lenpen) == ((1, 1.0) if experiment.bpe == "none" else (4, 0.6))
    # fairseq's output is plain text: it undoes the subwords and, where used, Moses' tokens.
    pieces = {"sentencepiece": ("sentencepiece", None), "subword-nmt": ("subword_nmt", "moses")}
    pieces["none"] = (None, None)
    assert (args.post_process, args.tokenizer) == pieces[experiment.bpe]
    words = Experiment(path).arguments("validate", System())
    assert parsed(words, "validate").cpu


@pytest.mark.parametrize("processes", [0, 1, 2, 4, 8, 32])
def test_tokens_an_update_are_kept_on_any_number_of_gpus(processes):
    experiment = Experiment(ROOT / "configs" / "text_base.yaml")
    frequency, tokens = experiment.config.budget.update(processes)
    words = experiment.arguments("donor", System(), machines=Machines(processes))
    assert value(words, "--update-freq") == str(frequency)
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
    some = system_from_words("--encoder floater --blocks 0,2")
    assert (some.name, some.short_name) == ("floater-0_2-qkv", "floater-0_2")
    assert "--position-blocks 0,2" in " ".join(some.model_options())
    assert system_from_words(" ".join(some.words())) == some
    with pytest.raises(UsageError, match="must be all, input, or numbers with commas.*'0;2'"):
        system_from_words("--encoder floater --blocks 0;2")


def test_options_of_a_run_reach_its_name_its_arguments_and_its_record():
    run = system_from_words("--encoder rnn -- --rnn-layers 2 --rnn-input vector")
    assert run.name == "rnn-all-qkv-rnn-layers_2-rnn-input_vector"
    assert system_from_words("--encoder rnn --model-options=--rnn-layers=2").options == (
        "--rnn-layers=2",
    )
    words = Experiment(ROOT / "configs" / "numbers_en_de.yaml").arguments("finetune", run, seed=7)
    assert value(words, "--rnn-layers") == "2"
    assert value(words, "--seed") == "7"
    assert run.settings()["options"] == "--rnn-layers 2 --rnn-input vector"


def test_a_seed_is_of_every_stage_but_not_of_a_donor_that_is_shared():
    experiment = Experiment(ROOT / "configs" / "numbers_en_de.yaml")
    for stage in ("warm-start", "finetune", "scratch", "donor"):
        for seed, drawn in ((7, "7"), (None, "1")):
            words = experiment.arguments(stage, System(), seed=seed)
            assert value(words, "--seed") == drawn
    words = experiment.arguments("donor", System(), seed=7, donor="shared")
    assert value(words, "--seed") == "1"
    assert value(words, "--save-dir") == "shared/checkpoints"


def test_options_of_a_run_overrule_the_configuration():
    experiment = Experiment(ROOT / "configs" / "numbers_en_de.yaml")
    words = "--encoder rope --scratch -- --dropout 0.3 --encoder-layers=3 --lr 0.01"
    args = parsed(experiment.arguments("scratch", system_from_words(words)))
    assert (args.dropout, args.encoder_layers, args.lr) == (0.3, 3, [0.01])
    warm = system_from_words("--encoder rope -- --dropout 0.3")
    assert parsed(experiment.arguments("finetune", warm)).dropout == 0.3
    assert "--dropout" in experiment.arguments("warm-start", warm)
    assert parsed(experiment.arguments("donor", warm)).dropout == 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--encoder rope --scratch -- --max-epoch 3", "`--max-epoch` cannot be given after `--`"),
        ("--encoder rope -- --seed=2", "`--seed` cannot be given after `--`"),
        (
            "--encoder rope -- --target=qkv",
            "`--target` is not an option of the model: write it before",
        ),
        ("--encoder rope -- --position-encoder t5", "is chosen by `--encoder`, before `--`"),
        ("--encoder plain -- --dropout 0.3", "must not have positions, nor options besides"),
        ("--encoder plain --blocks input", "must not have positions, nor options besides"),
    ],
)
def test_options_that_a_run_cannot_have_are_refused_before_it_begins(words, message):
    with pytest.raises(UsageError, match=message):
        run = system_from_words(words)
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


LABELS = {
    "--encoder sinusoidal --blocks input --scratch": "sinusoid",
    "--encoder floater --target hidden --no-base --scratch": "FLOATER, hidden",
    "--encoder rotation_flow --no-base --scratch -- --position-stretch 0.5:2.5": "rotation_flow, stretched",
    "--encoder sinusoidal --no-base --scratch": "sinusoid, all blocks",
    "--encoder sinusoidal --blocks input": "sinusoid, warm",
    "--encoder floater --target qkv": "FLOATER, qkv, warm",
    "--encoder floater --no-base --blocks input": "FLOATER, input only, qkv, no base, warm",
    "--encoder rnn --scratch -- --rnn-layers 2 --rnn-input vector": (
        "RNN, with base, rnn-layers 2, rnn-input vector"
    ),
    "--encoder none --no-base --scratch": "no positions",
    "--encoder rope --scratch": "rope",
    "--encoder alibi --no-base": "alibi, warm",
    "--encoder t5 --blocks input --scratch -- --t5-max-distance 24": "t5, input only, t5-max-distance 24",
    "--encoder t5 --blocks 2,0 --scratch": "t5, blocks 0,2",
    "--encoder sinusoidal --blocks 1 --scratch": "sinusoid, blocks 1",
    "--encoder plain": "plain",
}


@pytest.mark.parametrize(("words", "label"), LABELS.items())
def test_a_system_has_a_label_for_tables(words, label):
    assert system_from_words(words).label == label


def test_every_system_of_the_s2l_configuration_gets_equal_updates():
    experiment = Experiment(S2L)
    epochs = {
        stage: int(value(words, "--max-epoch"))
        for stage in ("donor", "finetune", "scratch")
        for words in [experiment.arguments(stage, System())]
    }
    assert epochs["scratch"] == epochs["donor"] + epochs["finetune"]
    names = [entry.system.name for entry in experiment.comparison.listed()]
    assert {"floater-all-qkv", "floater-all-hidden-scratch-nobase"} <= set(names)
    assert {"sinusoidal-input-hidden", "sinusoidal-input-hidden-scratch"} <= set(names)


def test_the_separator_of_documents_goes_to_the_subwords_and_the_model(tmp_path):
    text = (ROOT / "configs" / "text_s2l.yaml").read_text()
    (tmp_path / "documents.yaml").write_text(
        text.replace("data:\n", 'data:\n  separator: "<s2>"\n')
    )
    experiment = Experiment(tmp_path / "documents.yaml")
    option = "--position-separator"
    named = [System(options=(option, "<s3>")), System(options=(f"{option}=<s3>",))]
    for stage in ("prepare", "split", "scratch", "warm-start"):
        words = experiment.arguments(stage, System())
        of_stage = "--separator" if stage in ("prepare", "split") else option
        assert value(words, of_stage) == "<s2>"
        for system in named:
            assert "<s2>" not in experiment.arguments(stage, system) or of_stage != option
    assert option not in experiment.arguments("donor", System())
