"""The experiment with RoBERTa: configurations, arguments, cells, and the commands of dry runs."""

import argparse

import pytest
import yaml
from command_lines import commands, parsed, value
from toy import ROOT, run

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.paper_numbers import GLUE, TABLES_345
from fairseq_floater.experiments.roberta.cells import (
    add_options,
    cells_of,
    entries_of,
    paper_entries,
)
from fairseq_floater.experiments.roberta.stages import RobertaExperiment
from fairseq_floater.experiments.sections import ConfigError
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.transformer import roberta as roberta  # registers ours

CONFIGS = ROOT / "configs"
BASE, TINY = CONFIGS / "roberta_base.yaml", CONFIGS / "roberta_tiny.yaml"
ROBERTA, FLOATER = System(PLAIN), System("floater")
CPU, GPU = Machines(0), Machines(1)
# fairseq's recipes (RoBERTa's README, today's YAML): learning rate, batch, updates, warm-up.
RECIPES = {
    "cola": (1e-5, 16, 5336, 320),
    "sst-2": (1e-5, 32, 20935, 1256),
    "mrpc": (1e-5, 16, 2296, 137),
    "qqp": (1e-5, 32, 113272, 28318),
    "sts-b": (2e-5, 16, 3598, 214),
    "mnli": (1e-5, 32, 123873, 7432),
    "qnli": (1e-5, 32, 33112, 1986),
    "rte": (2e-5, 16, 2036, 122),
}


def finetuning(config, task, system, machines=GPU, seed=1):
    work = CONFIGS.parent
    return RobertaExperiment(config).finetune(
        task, system, data=work / "d", start=work / "s.pt", folder=work / "f",
        machines=machines, seed=seed,
    )  # fmt: skip


def masked_lm(config, stage, system, machines=GPU):
    work = CONFIGS.parent
    return RobertaExperiment(config).masked_lm(
        stage, system, data=work / "d", folder=work / "f", machines=machines
    )


# Cells.


def cells(config=None, *words):
    parser = argparse.ArgumentParser()
    add_options(parser)
    entries = paper_entries() if config is None else entries_of(RobertaExperiment(config))
    return cells_of(parser.parse_args(["--work", "w", "--seeds", "3", *words]), entries)


def test_there_are_38_cells():
    names = [cell.name for cell in cells()]
    assert len(set(names)) == 38
    assert sum(name.startswith("glue-base-") for name in names) == 16


def test_every_cell_of_the_paper_has_a_recipe():
    for size in ("base", "large"):
        experiment = RobertaExperiment(CONFIGS / f"roberta_{size}.yaml")
        assert {*experiment.config.tasks} == {task for s, task in TABLES_345 if s == size}
        of_size = {n for n in paper_entries() if n.config == f"roberta_{size}"}
        assert {*entries_of(experiment)} == of_size


# Arguments.


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("task", GLUE)
def test_glue_is_fine_tuned_by_robertas_recipe(size, task):
    args = parsed(finetuning(CONFIGS / f"roberta_{size}.yaml", task, ROBERTA))
    rate, batch, updates, warm_up = RECIPES[task]
    assert args.lr == [rate]
    assert (args.batch_size, args.update_freq) == (batch, [1])
    assert (args.max_update, float(args.total_num_update), args.max_epoch) == (updates, updates, 10)
    assert args.warmup_updates == warm_up
    assert (args.max_tokens, args.max_positions) == (4400, 512)
    assert (args.dropout, args.attention_dropout, args.weight_decay) == (0.1, 0.1, 0.1)
    assert (args.adam_betas, args.adam_eps, args.clip_norm) == ("(0.9, 0.98)", 1e-6, 0.0)
    assert (args.init_token, args.separator_token) == (0, 2)
    assert (args.fp16_init_scale, args.threshold_loss_scale) == (4, 1.0)
    assert args.fp16 and not args.report_mcc
    regression = task == "sts-b"
    assert args.regression_target == regression
    metric = args.best_checkpoint_metric, args.maximize_best_checkpoint_metric
    assert metric == (("loss", False) if regression else ("accuracy", True))
    assert args.num_classes == {"sts-b": 1, "mnli": 3}.get(task, 2)


def test_race_and_squad_are_fine_tuned_by_robertas_recipes():
    large = CONFIGS / "roberta_large.yaml"
    race = parsed(finetuning(large, "race", ROBERTA, Machines(2)))
    assert (race.batch_size, race.update_freq, race.max_epoch) == (1, [8], 5)
    assert (race.lr, race.lr_scheduler, race.weight_decay) == ([1e-5], "fixed", 0.01)
    assert (race.max_option_length, race.shorten_method) == (128, "truncate")
    assert race.find_unused_parameters
    for task, updates in (("squad1", 3650), ("squad2", 5430)):
        words = finetuning(large, task, ROBERTA)
        assert value(words, "--max-update") == value(words, "--total-num-update") == str(updates)
        assert (value(words, "--lr"), value(words, "--weight-decay")) == ("1.5e-05", "0.01")
        assert int(value(words, "--batch-size")) * int(value(words, "--update-freq")) == 48


def test_what_is_trained_in_each_stage():
    for words in (masked_lm(BASE, "flow", System("t5")), finetuning(BASE, "rte", System("t5"))):
        assert not any(word.startswith("--floater-") for word in words)
    # Options of the command line win in the stage, not in fine-tuning.
    flow = System("floater", options=("--floater-train", "flow"))
    assert value(masked_lm(BASE, "flow", flow), "--floater-train") == "flow"
    assert value(finetuning(BASE, "rte", flow), "--floater-train") == "rest"
    assert not any(
        "floater" in word for word in finetuning(BASE, "rte", ROBERTA) if word[:1] == "-"
    )


def test_options_of_the_command_line_overrule_the_recipe():
    longer = System("t5", options=("--max-positions", "1024", "--dropout=0.2"))
    for words in (masked_lm(BASE, "flow", longer), finetuning(BASE, "rte", longer)):
        args = parsed(words)
        assert (args.max_positions, args.dropout) == (1024, 0.2)


@pytest.mark.parametrize("target", ["hidden", "relative"])
def test_a_start_at_biases_is_of_the_target_that_has_them(target):
    args = parsed(masked_lm(BASE, "flow", System("floater", target=target)))
    assert (args.position_target, args.floater_start) == (target, "zero")


def test_a_longer_model_takes_as_many_tokens():
    longer = System("t5", options=("--max-positions=1024",))
    machines = Machines(8)
    experiment = RobertaExperiment(BASE)
    assert experiment.share("rte", System("t5"), machines).max_tokens == 550
    assert experiment.share("rte", longer, machines).max_tokens == 1024


@pytest.mark.parametrize("size", ["base", "large"])
def test_fairseq_reads_floaters_arguments(size):
    config = CONFIGS / f"roberta_{size}.yaml"
    stage, tuned = (
        parsed(masked_lm(config, "flow", FLOATER)),
        parsed(finetuning(config, "rte", FLOATER)),
    )
    for args in (stage, tuned):
        assert args.encoder_embed_dim == (1024 if size == "large" else 768)
        assert (args.position_encoder, args.position_target) == ("floater", "qkv")
        assert (args.floater_delta, args.floater_start) == (0.01, "bias")
    assert (stage.floater_train, tuned.floater_train) == ("dynamics", "rest")
    assert (stage.lr, stage.max_update, stage.warmup_updates) == ([0.001], 900, 54)
    assert (stage.weight_decay, stage.tokens_per_sample) == (0.0, 512)


def test_other_encoders_train_for_the_same_updates():
    ours, other = (masked_lm(BASE, "flow", system) for system in (FLOATER, System("t5")))
    for option in ("--max-update", "--warmup-updates", "--max-tokens", "--update-freq"):
        assert value(ours, option) == value(other, option)
    assert (value(ours, "--lr"), value(other, "--lr")) == ("0.001", "0.0001")


@pytest.mark.parametrize("processes", [1, 2, 4, 8, 16])
def test_the_batch_is_the_recipes_on_any_number_of_gpus(processes):
    machines = Machines(processes)
    for config, task, batch in ((BASE, "rte", 16), (CONFIGS / "roberta_large.yaml", "race", 16)):
        args = parsed(finetuning(config, task, ROBERTA, machines))
        assert args.batch_size * args.update_freq[0] * processes == batch
        assert args.find_unused_parameters == (processes > 1)
    # The limit of tokens is divided like the batch, but not below a whole example.
    tokens = parsed(finetuning(BASE, "rte", ROBERTA, machines)).max_tokens
    assert tokens == max(512, 4400 // processes)
    flow = parsed(masked_lm(BASE, "flow", ROBERTA, machines))
    assert flow.max_tokens * flow.update_freq[0] * processes == 131_072


def test_a_batch_that_cannot_be_shared_is_refused():
    rule = r"`--processes` must divide the batch of 16 of rte, but they are 3 in all; take one of 1, 2, 4"
    with pytest.raises(UsageError, match=rule):
        finetuning(BASE, "rte", ROBERTA, Machines(3))


def test_no_half_precision_on_a_cpu_or_unwanted():
    assert not parsed(finetuning(BASE, "rte", ROBERTA, CPU)).fp16
    assert not parsed(masked_lm(BASE, "flow", ROBERTA, Machines(1, fp16=False))).fp16
    assert "--cpu" in finetuning(BASE, "rte", ROBERTA, CPU)


def test_updates_an_epoch_of_the_recipe():
    experiment = RobertaExperiment(BASE)
    assert round(experiment.updates_an_epoch("rte")) == 204
    assert RobertaExperiment(CONFIGS / "roberta_large.yaml").updates_an_epoch("race") is None


# Bad configurations.


def changed(old, new):
    """``old`` with the values of ``new``, section by section."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: changed(old.get(key), value) for key, value in new.items()}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {"rtf": {}}}, r"`tasks: key` must be one of cola, .*, but is 'rtf' instead"),
        ({"tasks": {"rte": {"lr": -1}}}, r"`tasks: rte: lr` must be a number above 0, but"),
        ({"tasks": {"rte": {"batch": 0}}}, r"`tasks: rte: batch` must be a positive whole number"),
        ({"tasks": {"rte": {"checkpoint": "first"}}}, r"`tasks: rte: checkpoint` must be one of best"),
        ({"tasks": {"rte": 3}}, r"`tasks: rte` must be options, but is 3 instead"),
        ({"data": {"bpe": "wordpiece"}}, r"`data: bpe` must be one of gpt2, sentencepiece"),
        ({"data": {"bpe": "gpt2"}}, r"`data: vocab` must be given with sentencepiece only"),
        ({"data": {"text": "wikitext-103"}}, r"`data: quizzes` must be left out if `text` is given"),
        ({"shape": {"arch": "bert"}}, r"`shape: arch` must be one of roberta, roberta_base"),
        ({"position-loss": {"bins": [64, 32]}}, r"`position-loss: bins` must be rising whole numbers"),
        ({"position-loss": {"bin": [64]}}, r"`position-loss` has the unknown key bin; did you mean bins"),
        ({"budget": {"flow": {"max-update": None}}}, r"`budget: flow` must be limited by max-update"),
        ({"budget": {"flow": {"max-update": 0, "max-epoch": 1}}}, r"must be given total-num-update"),
        ({"tasks": {"rte": {"num-classes": None}}}, r"`tasks: rte` has no `num-classes`"),
        ({"finetune": {"all": {"batch": None}}}, r"`tasks: cola` has no `batch`"),
        ({"masked-lm": 3}, r"`masked-lm` must be a section of keys"),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_one_sentence(tmp_path, change, message):
    settings = changed(yaml.safe_load(TINY.read_text()), change)
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match=message) as error:
        RobertaExperiment(path)
    assert "\n" not in str(error.value)


# Dry runs.


def dry_run(*words, cwd):
    """Return the output of a script's dry run."""
    command = ["bash", ROOT / "scripts" / words[0], *words[1:], "--dry-run"]
    return run(command, cwd=cwd, timeout=600).stdout


def test_a_dry_run_of_all_38_cells(tmp_path):
    words = ("tables345.sh", "--raw", "raw", "--donors", "donors", "--seeds", "1", "--processes", 1)
    text = dry_run(*words, cwd=tmp_path)
    found = commands(text)
    every = cells(None, "--seeds", "1")
    names = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    assert names == [cell.name for cell in every]
    folders = []
    for words in found:
        if "fairseq_cli.train" in words:
            assert value(words, "--user-dir") == str(ROOT / "fairseq_floater")
            folders.append(value(words, "--save-dir").removesuffix("/checkpoints"))
    for cell in every:
        assert str(cell.folder.relative_to("w")) in {f.split("tables345/")[1] for f in folders}
    assert sum("predict" in words for words in found) == 38 + 4 + 2  # MNLI's and RACE's second sets
    assert list(tmp_path.iterdir()) == []


def test_a_stage_of_another_encoder_has_its_own_folder(tmp_path):
    words = ("pretrain_flow.sh", TINY, "--encoder", "t5", "--model-options=--t5-buckets 16")
    found = commands(dry_run(*words, "--processes", 0, cwd=tmp_path))
    folder = "work/tables345/roberta_tiny/mlm-t5-t5-buckets_16"
    assert value(found[-2], "--save-dir") == f"{folder}/checkpoints"
    assert value(found[-1], "--json") == f"{folder}/after.json"


def test_a_longer_table_is_its_warm_starts(tmp_path):
    words = ("pretrain_flow.sh", TINY, "--extend", "tile", "--model-options=--max-positions 240")
    found = commands(dry_run(*words, "--processes", 0, cwd=tmp_path))
    [start] = [w for w in found if "warm-start" in w]
    assert value(start, "--extend") == "tile" and value(start, "--max-positions") == "240"
    lengths = [value(w, "--max-positions") for w in found if "fairseq_cli.train" in w]
    assert lengths == ["128", "240"]
    assert value(found[-1], "--json").endswith("/mlm-floater-max-positions_240/after.json")
