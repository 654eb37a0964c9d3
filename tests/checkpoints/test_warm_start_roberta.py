"""Warm start from RoBERTas, of today and of 2019, into every position encoder."""

import sys
import types
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from helpers import dictionary, difference, padded, save_donor, save_state, sentence
from roberta_models import FLAGS, SHAPE, TINY, logits, roberta, save_as_of_2019

from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main
from fairseq_floater.position_encoders import POSITION_ENCODERS

POSITIONS = 24
TABLE = "encoder.sentence_encoder.embed_positions.weight"


def trained(seed=3, **options):
    """fairseq's own, with the biases and norms that training would leave."""
    model = roberta(arch="roberta", seed=seed, **{**SHAPE, "max_positions": POSITIONS, **options})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "layer_norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def save(path, model, arch="roberta", **options):
    """A checkpoint as fairseq's trainer writes it."""
    args = Namespace(arch=arch, **{**SHAPE, "max_positions": POSITIONS, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    return save_state(path, model, args, {"_name": "masked_lm"})


@pytest.fixture()
def donor(tmp_path):
    return save(tmp_path / "donor.pt", trained())


def start(tmp_path, donor, *options, arch=TINY, **how):
    return warm_start(donor, tmp_path / "out.pt", arch=arch, model_options=options, **how)


def loaded(path, arch=TINY):
    state = load_checkpoint(path)
    model = roberta(**{**vars(state["cfg"]["model"]), "arch": arch})
    model.load_state_dict(state["model"], strict=True)
    return model.eval()


def batch():
    """A full row, and two with padding behind."""
    return padded([sentence(POSITIONS), sentence(9), sentence(4)], left=False)


ZERO = ("--floater-init-scale", "0")


@pytest.mark.parametrize("begin", ["zero", "bias"])
@pytest.mark.parametrize("blocks", ["all", "input"])
def test_logits_and_heads_are_the_donors(tmp_path, donor, begin, blocks):
    options = (*ZERO, "--floater-start", begin, "--position-blocks", blocks)
    report = start(tmp_path, donor, *options)
    assert report.difference <= 1e-6 and not report.ignored
    model, source = loaded(tmp_path / "out.pt"), trained()
    real = batch().ne(1)
    assert difference(logits(model, batch())[real], logits(source, batch())[real]) <= 1e-6
    for one in (source, model):
        one.register_classification_head("two", num_classes=2)
    model.classification_heads.load_state_dict(source.classification_heads.state_dict())
    how = {"classification_head_name": "two"}
    heads = [logits(one.eval(), batch(), **how) for one in (model, source)]
    assert difference(*heads) <= 1e-6
    stack = model.encoder.sentence_encoder
    first, last = stack.layers[0], stack.layers[1]
    moved = begin == "bias"
    assert bool(first.self_attn.k_proj.bias.any()) != moved
    assert bool(first.positions.values.any()) == moved
    assert bool(last.self_attn.q_proj.bias.any()) != (moved and blocks == "all")
    if moved:
        biases = [
            getattr(source.encoder.sentence_encoder.layers[0].self_attn, f"{n}_proj").bias
            for n in "qkv"
        ]
        assert torch.equal(first.positions.values, torch.stack(biases))
        assert "p(0) starts at the donor's biases" in report.format_text()


def test_the_start_at_biases_knows_the_learning_rates_multiple(tmp_path, donor):
    options = (*ZERO, "--floater-start", "bias", "--floater-lr-scale", "4")
    assert start(tmp_path, donor, *options).difference <= 1e-6


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
@pytest.mark.parametrize("base", ["auto", "keep"])
def test_into_every_encoder(tmp_path, donor, encoder, base):
    report = start(tmp_path, donor, "--position-encoder", encoder, "--position-base", base)
    before, after = (load_checkpoint(p)["model"] for p in (donor, tmp_path / "out.pt"))
    model = loaded(tmp_path / "out.pt")
    kept = TABLE in model.state_dict()
    assert report.ignored == ([] if kept else [TABLE])
    folded = ".self_attn.q_proj." if "q_proj times" in report.format_text() else None
    for name in set(before) - set(report.ignored):
        if not (folded and folded in name):
            assert torch.equal(after[name], before[name]), name
    assert logits(model, batch()).isfinite().all()
    if encoder == "learned":
        assert report.difference <= 1e-5


@pytest.mark.parametrize(
    "options", [("--no-token-positional-embeddings",), ("--position-encoder", "rope")], ids=str
)
def test_without_the_table_any_length_will_do(tmp_path, donor, options):
    longer = str(4 * POSITIONS)
    start(tmp_path, donor, *options, "--max-positions", longer)
    assert load_checkpoint(tmp_path / "out.pt")["cfg"]["model"].max_positions == 4 * POSITIONS
    tokens = padded([sentence(3 * POSITIONS)], left=False)
    assert logits(loaded(tmp_path / "out.pt"), tokens).isfinite().all()
    with pytest.raises(CheckpointError, match="the model that starts has no learned table"):
        start(tmp_path, donor, *options, "--max-positions", longer, extend="tile", force=True)


@pytest.mark.parametrize("options", [ZERO, ("--position-encoder", "t5")])
def test_a_donor_of_2019(tmp_path, options):
    model = trained().half().float()
    path = save_as_of_2019(tmp_path / "model.pt", model.state_dict(), POSITIONS)
    report = start(tmp_path, path, *options)
    again = loaded(tmp_path / "out.pt")
    assert all(p.dtype == torch.float32 for p in again.parameters())
    if options is ZERO:
        assert report.difference <= 1e-6
        assert difference(logits(again, batch()), logits(model, batch())) <= 1e-6


def test_a_donor_of_2019_with_fairseqs_own_objects_is_refused_with_a_way_out(tmp_path):
    path = save_as_of_2019(tmp_path / "model.pt", trained().state_dict(), POSITIONS)
    meters = types.ModuleType("fairseq.meters")  # what such a file names; the module is gone
    meters.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    state = torch.load(path, weights_only=True)
    state["extra_state"] = {"train_meters": meters.AverageMeter()}
    sys.modules["fairseq.meters"] = meters
    try:
        torch.save(state, path)
    finally:
        del sys.modules["fairseq.meters"]
    with pytest.raises(
        CheckpointError, match="is refused: .*fairseq.meters.*`floater import-roberta`"
    ):
        start(tmp_path, path)


def test_heads_of_the_donor_are_ignored_and_listed(tmp_path):
    model = trained()
    model.register_classification_head("mnli", num_classes=3)
    path = save(tmp_path / "donor.pt", model)
    report = start(tmp_path, path, *ZERO)
    assert len(report.ignored) == 4
    assert all(name.startswith("classification_heads.mnli.") for name in report.ignored)
    assert report.difference <= 1e-6
    assert not [n for n in load_checkpoint(tmp_path / "out.pt")["model"] if "heads" in n]


@pytest.mark.parametrize("options", [{"untie_weights_roberta": True}, {"activation_fn": "relu"}])
def test_the_generic_architecture_takes_the_donors_shape(tmp_path, options):
    path = save(tmp_path / "donor.pt", trained(**options), **options)
    report = start(tmp_path, path, *ZERO, arch="floater_roberta")
    assert report.difference <= 1e-6
    assert (
        difference(
            logits(loaded(tmp_path / "out.pt", "floater_roberta"), batch()),
            logits(trained(**options), batch()),
        )
        <= 1e-6
    )


def test_a_donor_of_berts_layer_norm_names_the_option_that_training_needs(tmp_path):
    bert = {"layer_norm_eps": 1e-12}
    model = trained()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-12
    path = save(tmp_path / "donor.pt", model, arch="floater_bert", **bert)
    report = start(tmp_path, path, *ZERO, arch="floater_roberta")
    assert report.difference <= 1e-6
    assert any("--layer-norm-eps 1e-12" in note for note in report.notes)
    assert not start(tmp_path, save(tmp_path / "plain.pt", trained()), *ZERO, force=True).notes


def test_512_tokens_at_the_size_of_a_wide_donor(tmp_path):
    wide = {"encoder_embed_dim": 768, "encoder_attention_heads": 12, "encoder_layers": 1}
    options = {**SHAPE, **wide, "max_positions": 512}
    source = trained(**options)
    path = save(tmp_path / "donor.pt", source, **options)
    for begin in ("zero", "bias"):
        start(tmp_path, path, *ZERO, "--floater-start", begin, arch="floater_roberta", force=True)
        tokens = padded([sentence(512), sentence(77)], left=False)
        model, real = loaded(tmp_path / "out.pt", "floater_roberta"), tokens.ne(1)
        assert difference(logits(model, tokens)[real], logits(source, tokens)[real]) <= 1e-5
        with pytest.raises(ValueError, match="513 tokens .* 512 rows"):
            logits(model, sentence(513))


# Length.


@pytest.mark.parametrize(("way", "row"), [("tile", 6), ("last", 23)])
@pytest.mark.parametrize("encoder", ["floater", "learned"])
def test_a_longer_table(tmp_path, donor, way, row, encoder):
    options = ("--max-positions", "40", "--position-encoder", encoder, *ZERO)
    report = start(tmp_path, donor, *options, extend=way)
    assert report.difference <= 1e-5
    model = loaded(tmp_path / "out.pt")
    assert model.max_positions() == 40
    before = load_checkpoint(donor)["model"][TABLE][2:]
    if encoder == "floater":
        table = model.state_dict()[TABLE][2:]
    else:
        table = model.encoder.sentence_encoder.layers[0].positions.weight[:, 0]
    assert len(table) == 40
    assert torch.equal(table[:24], before) and torch.equal(table[30], before[row])
    assert logits(model, sentence(40)).isfinite().all()
    with pytest.raises(ValueError, match="41 tokens"):
        logits(model, sentence(41))


def test_without_the_table_any_length_runs(tmp_path, donor):
    start(tmp_path, donor, "--position-base", "drop")
    assert logits(loaded(tmp_path / "out.pt"), sentence(1500)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "how", "words"),
    [
        (("--max-positions", "40"), {}, "`--max-positions` must be 24.*--extend tile"),
        (("--max-positions", "20"), {}, "`--max-positions` must be at least 24.* is 20"),
        ((), {"extend": "tile"}, "`--extend` must come with `--max-positions` above 24"),
        (FLAGS, {"arch": "floater_roberta_base"}, None),
        ((), {"arch": "floater_roberta_base"}, "another shape: its --encoder-embed-dim is 64"),
        ((), {"arch": "floater_transformer_tiny"}, "is no Transformer: .*'roberta'"),
    ],
)
def test_what_is_refused(tmp_path, donor, options, how, words):
    if words is None:
        assert start(tmp_path, donor, *options, **how).copied
        return
    with pytest.raises(CheckpointError, match=words):
        start(tmp_path, donor, *options, **how)
    assert not (tmp_path / "out.pt").exists()


def test_a_transformer_is_no_donor_of_a_roberta(tmp_path):
    path = save_donor(tmp_path / "donor.pt")
    with pytest.raises(
        CheckpointError, match="is no RoBERTa: its architecture is 'transformer_tiny'"
    ):
        start(tmp_path, path)
    with pytest.raises(ValueError, match="`--extend` must come with"):
        warm_start(path, tmp_path / "o.pt", arch="floater_transformer_tiny", extend="last")


def write_dictionary(folder, change=None):
    """The dictionary of the tests' donors but for its last word, the mask's place."""
    words = Dictionary()
    for symbol in dictionary().symbols[4:-1]:
        words.add_symbol(symbol if symbol != change else "other")
    folder.mkdir(exist_ok=True, parents=True)
    words.save(str(folder / "dict.txt"))
    return str(folder)


def test_dictionaries(tmp_path, donor):
    same = write_dictionary(tmp_path / "same")
    assert start(tmp_path, donor, data=same).copied
    write_dictionary(tmp_path / "glue" / "input0")
    assert start(tmp_path, donor, data=str(tmp_path / "glue"), force=True).copied
    other = write_dictionary(tmp_path / "other", change="w3")
    assert start(tmp_path, donor, data=other, force=True).copied  # nobody knows the donor's words
    write_dictionary(tmp_path)  # beside the donor, as the import of a donor leaves it
    with pytest.raises(
        CheckpointError, match="other/dict.txt is not .*dict.txt.*entry 7 is 'other'"
    ):
        start(tmp_path, donor, data=other, force=True)
    (tmp_path / "other" / "dict.txt").write_text("a 1\n")
    with pytest.raises(CheckpointError, match="has 6 entries.*with 40"):
        start(tmp_path, donor, data=other, force=True)
    with pytest.raises(CheckpointError, match="There is no dictionary"):
        start(tmp_path, donor, data=str(tmp_path / "none"), force=True)


def test_from_one_encoder_of_ours_into_another(tmp_path, donor):
    words = ("--position-encoder", "learned", "--position-blocks", "input")
    start(tmp_path, donor, *words)
    own = (tmp_path / "out.pt").rename(tmp_path / "own.pt")
    into = ("--position-encoder", "shaw", "--position-base")
    report = start(tmp_path, own, *into, "keep")
    assert report.difference <= 1e-6
    tables = (load_checkpoint(p)["model"][TABLE][2:] for p in (donor, tmp_path / "out.pt"))
    assert torch.equal(*tables)
    report = start(tmp_path, own, *into, "drop", force=True)
    assert report.format_text().endswith("; fairseq's own positions are left out")


def test_on_the_command_line(tmp_path, donor, capsys):
    words = ["warm-start", donor, tmp_path / "out.pt", "--arch", TINY, "--extend", "last"]
    words += ["--max-positions", "30", *ZERO, "--floater-start", "bias"]
    assert main([str(word) for word in words]) == 0
    assert "the donor's function" in capsys.readouterr().out
