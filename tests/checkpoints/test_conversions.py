"""Warm starts from this package's checkpoints: any encoder into any other, exact where possible."""

import pytest
import torch
from checkpoint_models import ROUNDING, difference, loaded
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from helpers import TINY, save_donor, save_model

from fairseq_floater import FloaterTransformerModel
from fairseq_floater.checkpoints.reading import is_position, load_checkpoint
from fairseq_floater.position_encoders import POSITION_ENCODERS


def trained(state):
    """Set positions and the biases of projections to random values that show in the output."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in state.items():
        if (is_position(name) and not name.endswith("lr_scale")) or name.endswith("_proj.bias"):
            tensor.copy_(0.05 * torch.randn(tensor.shape, generator=generator))


@pytest.fixture()
def own_donor(tmp_path):
    """Save a checkpoint of this package by its encoder and options: `t5 t5_buckets=16`."""

    def saved(options, change=trained):
        encoder, *options = options.split()
        options = dict(option.split("=") for option in options)
        return save_model(tmp_path / "donor.pt", encoder, change=change, **options)

    return saved


@pytest.fixture()
def convert(start):
    return lambda donor, encoder: start(donor, f"--position-encoder {encoder}")


EXACT = [
    # The same encoder, or one whose constants become parameters that start at the same values.
    ("rope", "rope"),
    ("shaw", "shaw"),
    ("floater target=hidden", "floater --position-target hidden"),
    ("conv", "conv"),
    ("rope", "rope --rope-learned"),
    ("alibi", "alibi --alibi-slopes learned"),
    # fairseq's sinusoid, into encoders that take it over or start without an effect of their own.
    ("sinusoidal blocks=input", "t5 --position-base keep"),
    ("sinusoidal blocks=input", "nezha --position-base keep"),
    ("sinusoidal blocks=input no_token_positional_embeddings=1", "tupe --position-base keep"),
    ("sinusoidal blocks=input", "floater --floater-init-scale 0"),
    ("sinusoidal blocks=input", "learned"),
    # Rows at the input become fairseq's learned table, or those of every block.
    ("learned blocks=input", "shaw --position-base keep"),
    ("learned blocks=input", "learned"),
    ("learned blocks=input", "learned --learned-hierarchy 20"),
    # Nothing to keep: here even the decoder knows order only by its mask.
    ("none", "t5"),
    ("none", "tupe"),
    ("none", "shaw"),
    ("none", "learned --position-target qkv"),
]


@pytest.mark.parametrize(("donor", "into"), EXACT)
def test_conversions_that_are_exact(own_donor, convert, donor, into):
    path = own_donor(donor)
    report, out = convert(path, into)
    assert report.difference <= ROUNDING
    assert difference(loaded(out), loaded(path)) <= 1e-6
    assert "start    the donor's function" in report.format_text()


NEW, DROPPED = (f"fairseq's own positions are {what}" for what in ("new", "left out"))
NOT_EXACT = [
    ("rope", "t5", "the donor's rope is left out", 0),
    ("t5", "rope", "the donor's t5 is left out", 2),
    ("t5", "t5 --t5-buckets 16", "the donor's t5 is left out, --t5-buckets was 32 and is 16", 2),
    ("rope", "rope --rope-base 100", "--rope-base was 10000.0 and is 100.0", 0),
    ("rope", "sinusoidal --position-blocks input", f"the donor's rope is left out, {NEW}", 0),
    ("floater", "alibi", f"the donor's floater is left out, {DROPPED}", 27),
    ("sinusoidal blocks=input", "rope", DROPPED, 0),
    ("sinusoidal blocks=input", "alibi --position-base keep", "alibi acts from the start", 0),
    ("learned blocks=input", "sinusoidal", f"the donor's learned is left out, {NEW}", 2),
]


@pytest.mark.parametrize(("donor", "into", "why", "count"), NOT_EXACT)
def test_conversions_that_are_not_say_in_a_line_what_was_dropped(
    own_donor, convert, donor, into, why, count
):
    path = own_donor(donor)
    report, out = convert(path, into)
    assert report.difference > 1e-4
    last = report.format_text().splitlines()[-1]
    assert last.startswith("start    not the donor's function: ") and last.endswith(f"batch; {why}")
    before, after = (load_checkpoint(p)["model"] for p in (path, out))
    dropped = [name for name in before if is_position(name)] if "left out" in why else []
    assert len(dropped) == count
    assert report.ignored == dropped
    for name in before.keys() - set(dropped):
        assert torch.equal(before[name], after[name]), name


def test_what_a_plain_donor_loses_is_said_too(donor, convert):
    report, _ = convert(donor, "rope")
    assert report.format_text().endswith("; fairseq's own positions are left out")


def test_every_encoder_leaves_and_every_encoder_enters(own_donor, convert):
    """Each encoder is a donor once, and once the target of the donor before it."""
    names = list(POSITION_ENCODERS)
    for name, into in zip(names, [*names[1:], names[0]]):
        path = own_donor(name, change=None)
        report, out = convert(path, into)
        assert load_checkpoint(out)["cfg"]["model"].position_encoder == into
        assert set(report.ignored) == {n for n in load_checkpoint(path)["model"] if is_position(n)}
        assert (f"the donor's {name} is left out" in report.changed) == (name != "none")


def test_a_donor_of_your_own_architecture_keeps_its_encoder(tmp_path, monkeypatch, convert):
    mine = "floater_transformer_mine"
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, mine, FloaterTransformerModel)
    monkeypatch.setitem(ARCH_CONFIG_REGISTRY, mine, ARCH_CONFIG_REGISTRY[TINY])
    path = save_donor(tmp_path / "donor.pt", arch=mine, position_encoder="learned")
    positions = {name for name in load_checkpoint(path)["model"] if is_position(name)}
    assert set(convert(path, "rope")[0].ignored) == positions
    report, _ = convert(path, "learned")
    assert not report.ignored and not report.changed


def test_another_scale_of_the_logits_stays_with_the_queries(own_donor, convert):
    """TUPE with positions at zero is a model without positions, except for the scale of its logits."""

    def silent(state):
        trained(state)
        for name, tensor in state.items():
            if "query_projection" in name or name.endswith("positions.weight"):
                tensor.zero_()

    path = own_donor("tupe", silent)
    _, out = convert(path, "none")
    assert difference(loaded(out), loaded(path)) <= 1e-6


def test_p0_that_stood_for_biases_goes_back_to_them(tmp_path, own_donor, convert):
    path = own_donor("sinusoidal blocks=input")
    words = "floater --floater-start bias --floater-init-scale 0 --floater-lr-scale 4"
    report, flow = convert(path, words)
    assert "p(0) starts at the donor's biases" in report.format_text()
    flow = flow.rename(tmp_path / "flow.pt")
    report, out = convert(flow, "sinusoidal --position-blocks input")
    assert difference(loaded(out), loaded(path)) <= 1e-6
    assert len([name for name in report.ignored if is_position(name)]) == len(report.ignored) > 0


def test_rows_that_fairseq_holds_ask_for_its_option(own_donor, convert):
    path = own_donor("learned blocks=input")
    report, out = convert(path, "t5 --position-base keep")
    assert "--encoder-learned-pos --decoder-learned-pos" in report.format_text()
    before, after = (load_checkpoint(p)["model"] for p in (path, out))
    rows = after["encoder.embed_positions.weight"][2:]
    assert torch.equal(rows, before["encoder.layers.0.positions.weight"][:, 0])


def test_a_donor_without_the_base_does_not_take_it_from_the_new_model(own_donor, convert):
    """Options decide what fairseq-train will build; the donor's own flag is not inherited."""
    path = own_donor("rotation_flow no_token_positional_embeddings=1")
    report, out = convert(path, "floater")
    assert not load_checkpoint(out)["cfg"]["model"].no_token_positional_embeddings
    assert "fairseq's own positions are new" in report.format_text()
    same = "rotation_flow --no-token-positional-embeddings"
    assert convert(path, same)[0].difference == 0
