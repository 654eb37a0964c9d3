"""`floater info`: parameters, costs and the table of encoders."""

from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY
from helpers import VOCABULARY, build, every_case, options_of
from roberta_models import roberta

from fairseq_floater.checkpoints.reading import position_parameters
from fairseq_floater.cli import main
from fairseq_floater.experiments import info
from fairseq_floater.experiments.info import COSTS, added_parameters, costs
from fairseq_floater.position_encoders import in_attention
from fairseq_floater.position_encoders.registry import ENCODERS
from fairseq_floater.transformer.shapes import ARCHITECTURES, SIZES


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
    options = options_of(target)
    assert added_parameters("floater_transformer_tiny", encoder, blocks, **options) == found


@every_case
def test_added_parameters_are_those_of_a_roberta(encoder, blocks, target, monkeypatch):
    monkeypatch.setattr(info, "ROBERTA_VOCABULARY", VOCABULARY)
    model = roberta(encoder, blocks, target, max_positions=512)
    found = position_parameters(dict(model.named_parameters()))
    options = options_of(target)
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
    assert main(["info", "--blocks", "0,2"]) == 0
    out = capsys.readouterr().out
    assert "parameters, blocks 0,2 | parameters, all blocks" in out
    two = f"{1_583_616 + 9 * 512:,}"  # of each block a p(0) for nine streams
    assert f"526,336 | {two} | 1,606,656 |" in out
    assert main(["info", "--blocks", "6"]) == 2
    assert main(["info", "--arch", "bert"]) == 2
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
