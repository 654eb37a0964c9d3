"""Warm start from RoBERTas, of today and of 2019, into every position encoder."""

from argparse import Namespace

import pytest
import torch
from fairseq import options as options_parser
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from helpers import dictionary, difference, padded, save_donor, save_state, sentence
from roberta_models import FLAGS, SHAPE, TINY, logits, roberta, save_as_of_2019

from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_floater.cli import main
from fairseq_floater.position_encoders import POSITION_ENCODERS

POSITIONS = 24
TRANSFORMER = "floater_transformer_tiny"
TABLE = "encoder.sentence_encoder.embed_positions.weight"


def trained(seed=3, **options):
    """Return fairseq's own RoBERTa with random biases and norms, as after training."""
    model = roberta(arch="roberta", seed=seed, **{**SHAPE, "max_positions": POSITIONS, **options})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "layer_norm" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def save(path, model, arch="roberta", **options):
    """Write a checkpoint as fairseq's trainer does."""
    args = Namespace(arch=arch, **{**SHAPE, "max_positions": POSITIONS, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    return save_state(path, model, args, {"_name": "masked_lm"})


@pytest.fixture()
def donor(tmp_path):
    return save(tmp_path / "donor.pt", trained())


@pytest.fixture()
def start(start):
    """Start a RoBERTa from a donor; return the report and the checkpoint."""
    return lambda donor, options="", arch=TINY, **how: start(donor, options, arch, **how)


def loaded(path, arch=TINY):
    state = load_checkpoint(path)
    model = roberta(**{**vars(state["cfg"]["model"]), "arch": arch})
    model.load_state_dict(state["model"], strict=True)
    return model.eval()


def batch():
    """Return one full row and two rows padded on the right."""
    return padded([sentence(POSITIONS), sentence(9), sentence(4)], left=False)


ZERO = "--floater-init-scale 0"


@pytest.mark.parametrize("begin", ["zero", "bias"])
@pytest.mark.parametrize("blocks", ["all", "input"])
def test_logits_and_heads_are_the_donors(start, donor, begin, blocks):
    report, out = start(donor, f"{ZERO} --floater-start {begin} --position-blocks {blocks}")
    assert report.difference <= 1e-6 and not report.ignored
    model, source = loaded(out), trained()
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


def test_the_start_at_biases_knows_the_learning_rates_multiple(start, donor):
    report, _ = start(donor, f"{ZERO} --floater-start bias --floater-lr-scale 4")
    assert report.difference <= 1e-6


@pytest.mark.parametrize("encoder", POSITION_ENCODERS)
@pytest.mark.parametrize("base", ["auto", "keep"])
def test_into_every_encoder(start, donor, encoder, base):
    report, out = start(donor, f"--position-encoder {encoder} --position-base {base}")
    before, after = (load_checkpoint(path)["model"] for path in (donor, out))
    model = loaded(out)
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
    "options",
    ["--no-token-positional-embeddings", "--position-encoder rope", "--position-base drop"],
)
def test_without_the_table_any_length_will_do(start, donor, options):
    options += f" --max-positions {4 * POSITIONS}"
    _, out = start(donor, options)
    assert load_checkpoint(out)["cfg"]["model"].max_positions == 4 * POSITIONS
    tokens = padded([sentence(3 * POSITIONS)], left=False)
    assert logits(loaded(out), tokens).isfinite().all()
    with pytest.raises(CheckpointError, match="the new model has no learned table"):
        start(donor, options, extend="tile")


def test_a_donor_without_the_table_asks_for_a_start_without_it(start, donor, tmp_path):
    _, out = start(donor, "--position-encoder rope")
    with pytest.raises(CheckpointError, match="pass --position-base drop"):
        start(out.rename(tmp_path / "rope.pt"), "--position-encoder floater")


def test_hydras_donor_does_not_name_its_length(start, tmp_path):
    donor = save(tmp_path / "donor.pt", roberta(**SHAPE, arch=TINY, max_positions=POSITIONS), TINY)
    state = load_checkpoint(donor)
    state["cfg"]["model"].max_positions = None
    torch.save(state, donor)
    assert start(donor, "--position-encoder rope --position-base keep")[0].difference is not None


def test_a_donor_of_2019(tmp_path, start):
    model = trained().half().float()
    path = save_as_of_2019(tmp_path / "model.pt", model.state_dict(), POSITIONS)
    report, out = start(path, ZERO)
    again = loaded(out)
    assert all(p.dtype == torch.float32 for p in again.parameters())
    assert report.difference <= 1e-6
    assert difference(logits(again, batch()), logits(model, batch())) <= 1e-6


def test_heads_of_the_donor_are_ignored_and_listed(tmp_path, start):
    model = trained()
    model.register_classification_head("mnli", num_classes=3)
    report, out = start(save(tmp_path / "donor.pt", model), ZERO)
    assert len(report.ignored) == 4
    assert all(name.startswith("classification_heads.mnli.") for name in report.ignored)
    assert report.difference <= 1e-6
    assert not [name for name in load_checkpoint(out)["model"] if "heads" in name]


@pytest.mark.parametrize("options", [{"untie_weights_roberta": True}, {"activation_fn": "relu"}])
def test_the_generic_architecture_takes_the_donors_shape(tmp_path, start, options):
    source = trained(**options)
    report, out = start(save(tmp_path / "donor.pt", source, **options), ZERO, "floater_roberta")
    assert report.difference <= 1e-6
    model = loaded(out, "floater_roberta")
    assert difference(logits(model, batch()), logits(source, batch())) <= 1e-6


def test_a_donor_of_berts_layer_norm_names_the_option_that_training_needs(tmp_path, start):
    model = trained()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-12
    donor = save(tmp_path / "donor.pt", model, arch="floater_bert", layer_norm_eps=1e-12)
    report, _ = start(donor, ZERO, "floater_roberta")
    assert report.difference <= 1e-6
    parser = options_parser.get_training_parser("masked_lm")
    args = options_parser.parse_args_and_arch(parser, ["data", *report.train])
    assert args.layer_norm_eps == 1e-12 and args.encoder_embed_dim == 64
    assert not start(save(tmp_path / "plain.pt", trained()), ZERO)[0].notes


# Length.


@pytest.mark.parametrize(("way", "row"), [("tile", 6), ("last", 23)])
@pytest.mark.parametrize("encoder", ["floater", "learned"])
def test_a_longer_table(start, donor, way, row, encoder):
    options = f"--max-positions 40 --position-encoder {encoder} {ZERO}"
    report, out = start(donor, options, extend=way)
    assert report.difference <= 1e-5
    model = loaded(out)
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


@pytest.mark.parametrize(
    ("options", "how", "words"),
    [
        ("--max-positions 40", {}, "`--max-positions` must be 24.*--extend tile"),
        ("--max-positions 20", {}, "`--max-positions` must be at least 24.* is 20"),
        ("", {"extend": "tile"}, "`--extend` must come with `--max-positions` above 24"),
        ("", {"arch": "floater_roberta_base"}, "another shape: its --encoder-embed-dim is 64"),
        ("", {"arch": TRANSFORMER}, "is not a Transformer: .*'roberta'"),
    ],
)
def test_what_is_refused(tmp_path, start, donor, options, how, words):
    with pytest.raises(CheckpointError, match=words):
        start(donor, options, **how)
    assert not (tmp_path / "out.pt").exists()


def test_a_named_architecture_takes_the_donors_shape_as_options(start, donor):
    assert start(donor, " ".join(FLAGS), "floater_roberta_base")[0].copied


def test_a_transformer_is_no_donor_of_a_roberta(tmp_path, start):
    path = save_donor(tmp_path / "donor.pt")
    with pytest.raises(CheckpointError, match="is not a RoBERTa: .* is 'transformer_tiny'"):
        start(path)
    with pytest.raises(ValueError, match="`--extend` must come with"):
        start(path, arch=TRANSFORMER, extend="last")


def write_dictionary(folder, change=None):
    """Write the donors' dictionary without its last word, which is <mask>; ``change`` renames a word."""
    words = Dictionary()
    for symbol in dictionary().symbols[4:-1]:
        words.add_symbol(symbol if symbol != change else "other")
    folder.mkdir(exist_ok=True, parents=True)
    words.save(str(folder / "dict.txt"))
    return str(folder)


def test_dictionaries(tmp_path, start, donor):
    start(donor, data=write_dictionary(tmp_path / "same"))
    write_dictionary(tmp_path / "glue" / "input0")
    start(donor, data=str(tmp_path / "glue"))
    other = write_dictionary(tmp_path / "other", change="w3")
    start(donor, data=other)  # the donor's words are not known
    write_dictionary(tmp_path)  # beside the donor, as the import of a donor leaves it
    with pytest.raises(CheckpointError, match="other/dict.txt is not .*dict.txt.* 7 is 'other'"):
        start(donor, data=other)
    (tmp_path / "other" / "dict.txt").write_text("a 1\n")
    with pytest.raises(CheckpointError, match="has 6 entries.*with 40"):
        start(donor, data=other)
    with pytest.raises(CheckpointError, match="There is no dictionary"):
        start(donor, data=str(tmp_path / "none"))


def test_from_one_encoder_of_ours_into_another(tmp_path, start, donor):
    _, out = start(donor, "--position-encoder learned --position-blocks input")
    trained = out.rename(tmp_path / "trained.pt")
    into = "--position-encoder shaw --position-base"
    report, out = start(trained, f"{into} keep")
    assert report.difference <= 1e-6
    assert torch.equal(*(load_checkpoint(path)["model"][TABLE][2:] for path in (donor, out)))
    report, _ = start(trained, f"{into} drop")
    assert report.format_text().endswith("; fairseq's own positions are left out")


def test_on_the_command_line(tmp_path, donor, capsys):
    words = ["warm-start", str(donor), str(tmp_path / "out.pt"), "--arch", TINY]
    words += ["--extend", "last", "--max-positions", "30", *ZERO.split()]
    assert main(words) == 0
    assert "the donor's function" in capsys.readouterr().out
