"""The encoder-only model: it starts as fairseq's RoBERTa, and takes every position encoder."""

import argparse

import pytest
import torch
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from helpers import difference, source_batch
from omegaconf import OmegaConf
from roberta_models import SHAPE, logits, plain, roberta

from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.transformer.roberta import FloaterRobertaModel
from fairseq_floater.transformer.shapes import ROBERTA_ARCHITECTURES, ROBERTA_SIZES

every_encoder = pytest.mark.parametrize("encoder", POSITION_ENCODERS)
TABLE = "encoder.sentence_encoder.embed_positions.weight"


@every_encoder
def test_the_transformer_around_starts_as_fairseqs_own(encoder):
    own, theirs = roberta(encoder), plain()
    after = torch.rand(1)
    torch.manual_seed(0)
    ours, theirs = own.state_dict(), theirs.state_dict()
    shared = set(ours) & set(theirs)
    assert set(theirs) - shared <= {TABLE}
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    assert all(".positions." in name for name in set(ours) - shared)
    plain()
    assert torch.equal(torch.rand(1), after)  # and goes on with the same random numbers


def test_what_stands_underneath():
    table = roberta("floater").encoder.sentence_encoder.embed_positions
    assert isinstance(table, LearnedPositionalEmbedding)
    sinusoid = roberta("sinusoidal").encoder.sentence_encoder.embed_positions
    assert isinstance(sinusoid, SinusoidalPositionalEmbedding)
    for encoder in ("learned", "none", "t5", "rope"):
        assert roberta(encoder).encoder.sentence_encoder.embed_positions is None
    kept = roberta("t5", position_base="keep").encoder.sentence_encoder.embed_positions
    assert isinstance(kept, LearnedPositionalEmbedding)


def test_at_init_scale_zero_the_function_is_fairseqs():
    tokens = source_batch(left=False)
    ours = roberta("floater", floater_init_scale=0.0).eval()
    assert difference(logits(ours, tokens), logits(plain().eval(), tokens)) == 0


def test_initialisation_leaves_the_position_encoder_alone():
    """fairseq redraws every linear map and embedding of a RoBERTa; positions start as in any model."""
    rnn, tupe = (roberta(name).encoder.sentence_encoder.positions for name in ("rnn", "tupe"))
    assert not any(m.weight[:, 0].any() for m in rnn.maps)
    assert not tupe.weight.any()


@pytest.mark.parametrize("arch", ROBERTA_ARCHITECTURES)
def test_shapes(arch):
    args = argparse.Namespace()
    from fairseq.models import ARCH_CONFIG_REGISTRY

    ARCH_CONFIG_REGISTRY[arch](args)
    theirs = argparse.Namespace(**(SHAPE if arch.endswith("tiny") else {}))
    ARCH_CONFIG_REGISTRY[ROBERTA_ARCHITECTURES[arch]](theirs)
    assert vars(theirs).items() <= vars(args).items()
    names = ("embed_dim", "layers", "attention_heads", "ffn_embed_dim")
    assert tuple(getattr(args, f"encoder_{n}") for n in names) == ROBERTA_SIZES[arch]


def test_hydras_options_build_the_same_model():
    options = {**SHAPE, "max_positions": 24, "position_encoder": "t5"}
    from helpers import task

    torch.manual_seed(0)
    model = FloaterRobertaModel.build_model(OmegaConf.create(options), task())
    tokens = source_batch()
    assert difference(logits(model.eval(), tokens), logits(roberta("t5").eval(), tokens)) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mha_heads_to_keep": 1}, "`--mha-heads-to-keep` must be -1, but is 1"),
        ({"ffn_blocks_to_remove": 2}, "`--ffn-blocks-to-remove` must be -1, but is 2"),
        (
            {"position_encoder": "none", "attention_kind": "linear", "linear_cross": True},
            "`--linear-cross` must be off",
        ),
        ({"ddp_backend": "fully_sharded"}, "`--ddp-backend` must not be fully_sharded"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        roberta(**options)


def test_the_table_goes_where_it_is_not_wanted():
    """fairseq's own flag, also on a command line, and `--position-base drop` remove it."""
    parser = argparse.ArgumentParser()
    FloaterRobertaModel.add_args(parser)
    args = parser.parse_args(["--no-token-positional-embeddings"])
    assert args.no_token_positional_embeddings
    for options in ({"no_token_positional_embeddings": True}, {"position_base": "drop"}):
        encoder = roberta("floater", **options).encoder
        assert encoder.sentence_encoder.embed_positions is None
        assert encoder.max_positions() > 10_000
