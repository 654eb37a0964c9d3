"""The model under fairseq's options: checkpointed activations, dropped and pruned blocks, other shapes."""

import copy
import itertools
import math

import forcing
import helpers as h
import pytest
import torch
from fairseq.optim.adam import Adam

CHECKPOINTED = [("checkpoint_activations", case) for case in h.MOST]
CHECKPOINTED += [
    ("offload_activations", ("floater", "all", target)) for target in ("qkv", "hidden")
]


@pytest.mark.parametrize(
    ("option", "case"),
    CHECKPOINTED,
    ids=["-".join((option, *case)) for option, case in CHECKPOINTED],
)
def test_activation_checkpointing(option, case):
    """With dropout, the second forward pass must draw the same masks as the first."""
    encoder, blocks, target = case
    options = {"dropout": 0.3, "attention_dropout": 0.1}
    unwrapped = h.randomise_positions(h.build(encoder, blocks, target, **options))
    model = h.randomise_positions(h.build(encoder, blocks, target, **options, **{option: True}))
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert all(hasattr(layer, "precheckpoint_forward") for layer in layers)  # fairseq's mark
    forcing.assert_same_gradients(model, unwrapped)
    batch = h.source_batch(), h.target_batch()
    twin = copy.deepcopy(model.eval())
    expected = h.log_probs(model, *batch)
    forcing.assert_steps_equal_one_pass(model, *batch)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert h.difference(h.log_probs(twin, *batch), expected) == 0


@h.parametrised([*h.MECHANISMS, ("floater", "input", "qkv"), ("rope", "input", "attention")])
def test_layerdrop_trains(encoder, blocks, target):
    options = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "dropout": 0.0}
    model = h.randomise_positions(h.build(encoder, blocks, target, **options))
    losses = set()
    for seed in range(10):  # decides which blocks are dropped
        torch.manual_seed(seed)
        loss = h.loss_of(model.train())
        loss.backward()
        losses.add(loss.item())
    assert all(math.isfinite(loss) for loss in losses)
    assert len(losses) > 4
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    whole = h.visible(encoder, blocks, target)
    batch = h.source_batch(), h.target_batch()
    assert h.difference(h.log_probs(model.eval(), *batch), h.log_probs(whole, *batch)) == 0


@h.most_cases
def test_kept_blocks_keep_their_positions(encoder, blocks, target):
    three = {"encoder_layers": 3, "decoder_layers": 3}
    keep = {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "0,2"}
    donor = h.visible(encoder, blocks, target, **three)
    pruned = h.build(encoder, blocks, target, seed=5, **three, **keep).eval()
    whole, state = h.tables(donor), copy.deepcopy(donor.state_dict())
    pruned.load_state_dict(state, strict=True, model_cfg=copy.copy(pruned.args))
    for stack in (donor.encoder, donor.decoder):
        del stack.layers[1]
        stack.num_layers = 2
    donor.train().eval()  # forgets the tables of three blocks
    batch = h.source_batch(), h.target_batch()
    assert h.difference(h.log_probs(pruned, *batch), h.log_probs(donor, *batch)) == 0
    if target == "attention":  # these tables belong to no block, or are in the state dict
        return
    for expected, actual in zip(whole, h.tables(pruned), strict=True):
        # Products of two rows and of three may be summed in another order.
        kept = expected[:, :, [0, 2] if blocks == "all" else [0]]
        torch.testing.assert_close(actual, kept, rtol=1e-5, atol=1e-6)


@h.parametrised(
    [(e, b, t) for e, _, t in h.MECHANISMS for b in ("all", "input") if "block" not in t]
)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_only_block_with_positions_may_not_be_pruned(encoder, blocks, target, side):
    options = {f"{side}_layers": 3, f"{side}_layers_to_keep": "1,2"}
    owners = [s for s in h.signals(h.build(encoder, blocks, target)) if s[2].receives(0)]
    if blocks == "all" or not owners:
        model = h.build(encoder, blocks, target, **options)
        assert len(getattr(model, side).layers) == 2
    else:
        with pytest.raises(ValueError, match=f"{side} has only 1, 2 by `--{side}-layers"):
            h.build(encoder, blocks, target, **options)


VARIANTS = {
    "prenorm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "share-all": {"share_all_embeddings": True},
    "share-decoder": {"share_decoder_input_output_embed": True},
    "layernorm-embedding": {"layernorm_embedding": True},
    "no-base": {"no_token_positional_embeddings": True},
    "adaptive-softmax": {"adaptive_softmax_cutoff": "20,30"},
    "quant-noise": {"quant_noise_pq": 0.1},
    "cross-self": {"cross_self_attention": True, "no_cross_attention": True},
    "cross-self-and-cross": {"cross_self_attention": True},
    "narrow-decoder": {"decoder_embed_dim": 32},
    "narrow-decoder-input": {"decoder_input_dim": 32, "decoder_output_dim": 48},
    "learned-base": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no-scale": {"no_scale_embedding": True},
}
AROUND_PROJECTIONS = (
    *("prenorm", "quant-noise", "cross-self", "cross-self-and-cross"),
    *("narrow-decoder", "narrow-decoder-input"),
)


def test_noise_on_weights_that_fairseq_cannot_find_is_refused():
    h.build("rope", target="attention", quant_noise_scalar=0.1)
    for encoder, target in (("floater", "qkv"), ("token-rnn", "stage")):
        with pytest.raises(ValueError, match="`--quant-noise-scalar` must be 0"):
            h.build(encoder, target=target, quant_noise_scalar=0.1)


@pytest.mark.parametrize("encoder", ["floater", "rnn", "rotation_flow"])
def test_the_dynamics_of_a_model_start_apart(encoder):
    """There are three: source positions in the encoder, target and source positions in the decoder."""
    found = [dict(p.named_parameters()) for _, _, p in h.signals(h.build(encoder, target="qkv"))]
    assert len(found) == 3
    matrices = [n for n, p in found[0].items() if p.dim() == 2]
    assert matrices
    for one, other in itertools.combinations(found, 2):
        assert not any(torch.equal(one[name], other[name]) for name in matrices)


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, "hidden") for name in VARIANTS] + [(name, "qkv") for name in AROUND_PROJECTIONS],
)
def test_variants_of_fairseqs_transformer(name, target):
    model = h.randomise_positions(h.build("floater", target=target, **VARIANTS[name]))
    optimizer = Adam(model.parameters(), lr=1e-3)
    loss, gradient = h.gradients(model)
    assert math.isfinite(loss)
    assert all(g.isfinite().all() for g in gradient.values())
    assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))
    optimizer.step()
    assert h.gradients(model)[0] != loss
    model.eval()
    batch = h.source_batch(), h.target_batch()
    forcing.assert_steps_equal_one_pass(model, *batch)
    forcing.assert_padding_moves_nothing(model, *batch)


def test_a_learned_base_keeps_its_limit():
    options = {"encoder_learned_pos": True, "decoder_learned_pos": True}
    options.update(max_source_positions=20, max_target_positions=30)
    assert h.build("floater", **options).max_positions() == (20, 30)


@h.every_encoder
def test_a_look_in_inference_mode_leaves_nothing_that_training_cannot_use(encoder, blocks, target):
    model = h.build(encoder, blocks, target).eval()
    with torch.inference_mode():
        h.loss_of(model)
    h.gradients(model)


def test_torchscript_is_refused_in_a_sentence():
    with pytest.raises(NotImplementedError, match="torch.jit.script does not take a model"):
        torch.jit.script(h.build("rope", target="attention"))
