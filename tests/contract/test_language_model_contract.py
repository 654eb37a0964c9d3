"""The contract of every position encoder of the registry in a language model, a decoder alone."""

from argparse import Namespace

import forcing
import helpers as h
import pytest
import torch
from fairseq import models
from omegaconf import OmegaConf

from fairseq_floater import FloaterLanguageModel
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.kept_table import UNLIMITED_POSITIONS

SIZES = {"embed_dim": 64, "ffn_embed_dim": 64, "layers": 2, "attention_heads": 2}
SIZES |= {"input_dim": 64, "output_dim": 64}
SHAPE = {f"decoder_{name}": size for name, size in SIZES.items()}


def language_model(encoder=None, blocks="all", target=None, seed=0, arch="transformer_lm", **args):
    """Build a model through fairseq's registries; without ``encoder``, fairseq's own."""
    if encoder is not None:
        arch = f"floater_{arch}"
        args = (
            h.options_of(target) | args | {"position_encoder": encoder, "position_blocks": blocks}
        )
    limits = {"tokens_per_sample": 16, "max_target_positions": 16, "add_bos_token": False}
    args = {**SHAPE, **limits, "dropout": 0.0, **args}
    torch.manual_seed(seed)
    return models.build_model(Namespace(arch=arch, **args), h.task())


def visible(*case, **args):
    """Return a model in eval mode whose positions show in its output."""
    return h.randomise_positions(language_model(*case, **args)).eval()


def scores(model, tokens):
    """Log-probabilities of a teacher-forced pass: [B, T, V]."""
    return h.normalised(model, model(tokens))


@torch.no_grad()
def stepwise(model, tokens):
    state = {}
    outputs = [
        model.decoder(tokens[:, : t + 1], incremental_state=state) for t in range(tokens.size(1))
    ]
    return torch.cat([h.normalised(model, output) for output in outputs], dim=1)


@h.every_case
def test_a_text_alone_is_the_text_in_a_padded_batch_and_step_by_step(encoder, blocks, target):
    model = visible(encoder, blocks, target)
    for left in (True, False):
        batch = h.target_batch(left)
        together, real = scores(model, batch), batch.ne(h.PAD)
        assert h.difference(stepwise(model, batch)[real], together[real]) <= h.TOLERANCE
        for tokens, row in zip(batch, together):
            alone = tokens[tokens.ne(h.PAD)][None]
            assert h.difference(row[tokens.ne(h.PAD)], scores(model, alone)[0]) <= h.TOLERANCE
            assert h.difference(stepwise(model, alone), scores(model, alone)) <= h.TOLERANCE


@h.every_case
def test_no_token_sees_a_later_one_and_the_order_of_earlier_ones_matters(encoder, blocks, target):
    model, tokens = visible(encoder, blocks, target), h.sentence(9)
    before = scores(model, tokens)
    changed = tokens.clone()
    changed[0, 6:] = tokens[0, [7, 6, 0]]
    assert h.difference(scores(model, changed)[:, :6], before[:, :6]) == 0
    swapped = scores(model, tokens[:, [0, 4, 2, 3, 1, 5, 6, 7, 8]])
    change = h.difference(swapped[:, 8], before[:, 8])
    assert change > 1e-3  # without an encoder too: the causal mask tells the order


@h.most_cases
def test_length(encoder, blocks, target):
    model = visible(encoder, blocks, target)
    if POSITION_ENCODERS[encoder].inductive:
        assert model.max_positions() == UNLIMITED_POSITIONS
        assert scores(model, h.sentence(700)).isfinite().all()
        return
    assert model.max_positions() == 16
    with pytest.raises(ValueError, match="17 tokens.*16 positions.*--max-target-positions"):
        scores(model, h.sentence(17))


@h.every_case
def test_every_parameter_gets_a_gradient(encoder, blocks, target):
    model = h.randomise_positions(language_model(encoder, blocks, target)).train()
    tokens = h.target_batch()
    forcing.assert_losses_reach(model, lambda: h.gold_loss(scores(model, tokens), tokens))


@h.every_mechanism
def test_it_starts_with_fairseqs_parameters_and_leaves_its_random_state(encoder, blocks, target):
    fairseqs = language_model()
    state = torch.get_rng_state()
    model = language_model(encoder, blocks, target)
    assert torch.equal(torch.get_rng_state(), state)
    parameters = dict(model.named_parameters())
    for name, parameter in fairseqs.named_parameters():
        assert torch.equal(parameters[name], parameter)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"arch": "transformer_lm_gpt"},
        {"arch": "transformer_lm_gpt2_tiny", "share_decoder_input_output_embed": True},
        {"decoder_input_dim": 32, "decoder_output_dim": 32},
        {
            "arch": "transformer_lm_baevski_wiki103",
            "adaptive_input": True,
            "adaptive_input_cutoff": "10,20",
            "adaptive_softmax_cutoff": "10,20",
            "tie_adaptive_weights": True,
        },
    ],
    ids=["base", "gpt", "tied", "projected", "adaptive"],
)
def test_the_sinusoid_at_the_input_is_fairseqs_language_model(options):
    fairseqs, model = language_model(**options), language_model("sinusoidal", "input", **options)
    tokens = h.target_batch()
    for one in (fairseqs, model):
        one.eval()
    real = tokens.ne(h.PAD)
    assert h.difference(model(tokens)[0][real], fairseqs(tokens)[0][real]) == 0


def test_hydras_options_build_the_same_model_whose_length_is_the_tasks():
    options = OmegaConf.create({**SHAPE, "dropout": 0.0, "position_encoder": "learned"})
    task = h.task()
    task.args = Namespace(tokens_per_sample=16, max_target_positions=None)
    torch.manual_seed(0)
    model = FloaterLanguageModel.build_model(options, task)
    tokens = h.target_batch()
    assert model.max_positions() == 16
    assert h.difference(model(tokens)[0], language_model("learned")(tokens)[0]) == 0
    task.args.tokens_per_sample = 64  # of an evaluation
    assert FloaterLanguageModel.build_model(options, task).max_positions() == 16


@pytest.mark.parametrize(
    ("moved", "value"),
    [("stretch", "0.5:2.5"), ("shift", "fill:20:shared"), ("jitter", 0.4), ("random", 40)],
)
def test_training_moves_positions_and_evaluation_does_not(moved, value):
    options = {f"position_{moved}": value, "position_base": "drop"}
    model = h.randomise_positions(language_model("floater", **options))
    tokens = h.sentence(9)
    first, second = scores(model, tokens), scores(model, tokens)
    assert h.difference(first, second) > 1e-3
    assert h.difference(scores(model.eval(), tokens), scores(model, tokens)) == 0


def test_positions_that_depend_on_the_length_of_the_text():
    model, trained = visible("rope", position_eval="interpolate:8"), visible("rope")
    text = h.sentence(12)
    assert h.difference(scores(model, text), scores(trained, text)) > 1e-3
    with pytest.raises(ValueError, match="the length of the text, which is not known yet"):
        stepwise(model, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_sides": "source"}, "--position-sides` must be both or target"),
        ({"position_cross": "relative"}, "--position-cross` must be off with a decoder alone"),
        ({"blocks": "0,2"}, "--position-blocks` must name blocks from 0 to 1"),
    ],
)
def test_options_that_a_decoder_alone_cannot_take_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        language_model("rope", **options)
