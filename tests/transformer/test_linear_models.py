"""Models with linear attention: the contract of positions, fairseq's options, and what is refused."""

import logging

import forcing
import helpers as h
import pytest
import torch

from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.hooks import AttentionHooks
from fairseq_floater.position_encoders.in_attention import AttentionPositions

COSINE, CROSS = {"linear_kernel": "cosine"}, {"linear_cross": True}
MODELS = {
    "rope": ("rope", "all", "attention", {}),
    "rope-cosine": ("rope", "all", "attention", COSINE),
    "rope-input-cross": ("rope", "input", "attention", CROSS),
    "rope-options": (
        *("rope", "all", "attention"),
        {"rope_partial": 0.5, "rope_values": True, "rope_learned": True},
    ),
    "xpos": ("xpos", "all", "attention", {"xpos_scale_base": 8.0}),
    "xpos-cosine": ("xpos", "all", "attention", COSINE | {"xpos_scale_base": 8.0}),
    "none-cosine-cross": ("none", "all", "hidden", COSINE | CROSS),
    "sinusoidal-hidden": ("sinusoidal", "all", "hidden", {}),
    "floater-qkv-cross": ("floater", "all", "qkv", CROSS),
    "learned-qkv-cosine": ("learned", "input", "qkv", COSINE),
}
every_model = pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
LINEAR = {"attention_kind": "linear"}


def built(case, **options):
    encoder, blocks, target, own = case
    return h.build(encoder, blocks, target, **LINEAR, **own, **options)


def seen(case, **options):
    """A model in evaluation mode with random, clearly visible positions."""
    return h.randomise_positions(built(case, **options)).eval()


@pytest.mark.parametrize("base", ["auto", "drop"])
@every_model
def test_padding_changes_nothing_and_decoding_is_teacher_forcing(case, base):
    model = seen(case, position_base=base)
    for left in (True, False):
        batch = h.source_batch(left), h.target_batch(left)
        forcing.assert_steps_equal_one_pass(model, *batch)
        forcing.assert_padding_moves_nothing(model, *batch)


@every_model
def test_states_are_reordered_with_their_beams(case):
    model = seen(case)
    for beam in (1, 2):  # a sum for each beam, and for each sentence
        forcing.assert_beams_keep_their_sentence(model, beam)


@every_model
def test_a_step_keeps_no_more_after_many_tokens_than_after_one(case):
    model = seen(case)
    encoder_out = model.encoder(h.sentence(6), src_lengths=torch.tensor([6]))
    target_in, state, kept = h.shifted(h.sentence(30)), {}, []
    with torch.no_grad():
        for t in range(30):
            model.decoder(target_in[:, : t + 1], encoder_out, incremental_state=state)
            kept.append(sum(x.numel() for s in state.values() for x in s.values() if x is not None))
    assert len(set(kept)) == 1 and kept[0] > 0


@every_model
def test_beams_and_ensembles(case):
    forcing.assert_ensembles_score_as_one_pass([seen(case, seed=seed) for seed in (0, 1)])


@every_model
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_every_parameter_gets_a_finite_gradient(case, left):
    model = h.randomise_positions(built(case)).train()
    h.loss_of(model, h.source_batch(left), h.target_batch(left)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(float(p.grad.abs().max()) > 0 for p in h.position_parameters(model))


@every_model
def test_activation_checkpointing(case):
    checkpointed = built(case, dropout=0.3, checkpoint_activations=True)
    models = map(h.randomise_positions, (checkpointed, built(case, dropout=0.3)))
    forcing.assert_same_gradients(*models)


@every_model
def test_precisions(case):
    model, batch = seen(case), (h.source_batch(), h.target_batch())
    real = batch[1].ne(h.PAD)
    single = h.log_probs(model, *batch)[real]
    bounds = {torch.double: h.TOLERANCE, torch.float16: 0.2, torch.bfloat16: 0.2}
    for dtype, bound in bounds.items():
        model = model.to(dtype)
        for run in (h.log_probs, h.stepwise_log_probs):
            assert h.difference(run(model, *batch)[real].float(), single.float()) <= bound


def test_stretched_positions_train():
    model = built(MODELS["rope"], position_stretch="0.5:2.5", dropout=0.0)
    loss, gradient = h.gradients(model)
    assert loss != h.gradients(built(MODELS["rope"], dropout=0.0))[0]
    assert all(g.isfinite().all() for g in gradient.values())


def test_a_donor_of_softmax_attention_lends_every_tensor(tmp_path):
    options = ["--position-encoder", "rope", "--attention-kind", "linear", "--linear-cross"]
    donor, output = h.save_donor(tmp_path / "donor.pt"), tmp_path / "out.pt"
    report = warm_start(donor, output, arch=h.TINY, model_options=options)
    assert not report.ignored and not report.new
    before, after = (load_checkpoint(path)["model"] for path in (donor, output))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert list(built(MODELS["rope-input-cross"]).state_dict()) == list(h.plain().state_dict())


# Cross-attention.


def test_a_search_sums_the_source_once_a_sentence_and_gives_no_weights():
    model = seen(MODELS["floater-qkv-cross"])
    keys = []
    attention = model.decoder.layers[0].encoder_attn
    attention.k_proj.register_forward_pre_hook(lambda _, inputs: keys.append(inputs[0].size(1)))
    hypotheses = h.generated([model], h.source_batch(lengths=(7, 11, 4)))
    assert max(len(best["tokens"]) for best in hypotheses) > 2  # several steps
    assert keys == [3]  # sentences, not beams
    assert all(best["attention"].numel() == 0 for best in hypotheses)
    softmax = h.generated([seen(MODELS["rope"])], h.source_batch())
    assert all(best["attention"].numel() > 0 for best in softmax)


@pytest.mark.parametrize("asked", [{"alignment_layer": 0}, {"alignment_heads": 1}], ids=str)
def test_no_alignment_without_weights(asked):
    batch = h.shifted(h.sentence(4)), h.sentence(5)
    for case, has_weights in ((MODELS["rope"], True), (MODELS["rope-input-cross"], False)):
        model = seen(case)
        encoder_out = model.encoder(batch[1], src_lengths=torch.tensor([5]))
        if has_weights:
            assert model.decoder(batch[0], encoder_out, **asked)[1]["attn"][0] is not None
            continue
        with pytest.raises(ValueError, match="alignment_layer.*must be None.*`--linear-cross`"):
            model.decoder(batch[0], encoder_out, **asked)
        with pytest.raises(ValueError, match="`--print-alignment` must be left out"):
            model.make_generation_fast_(need_attn=True)


# Encoders and options that linear attention accepts.


@pytest.mark.parametrize("name", POSITION_ENCODERS)
def test_an_encoder_that_needs_logits_is_refused_and_no_other(name):
    encoder = POSITION_ENCODERS[name]
    if encoder.needs_logits:
        words = f"`--attention-kind` must be softmax with --position-encoder {name},.*takes.*rope"
        with pytest.raises(ValueError, match=words):
            h.build(position_encoder=name, **LINEAR)
        return
    model = h.build(position_encoder=name, **LINEAR)
    for stack, attribute, encoder in h.signals(model):
        if not isinstance(encoder, AttentionPositions):
            continue
        assert type(encoder).logit_bias is AttentionPositions.logit_bias
        for block in stack.layers:
            part = type(getattr(block, attribute))
            for hook in ("bias", "values", "scaling"):
                assert getattr(part, hook) is getattr(AttentionHooks, hook)


@pytest.mark.parametrize(
    ("options", "remains"),
    [(LINEAR, "in cross-attention only"), (LINEAR | CROSS, "nowhere"), ({}, None)],
    ids=["linear", "cross", "softmax"],
)
def test_dropout_without_weights_is_warned_of(options, remains, caplog):
    with caplog.at_level(logging.WARNING, logger="fairseq_floater"):
        h.build(position_encoder="rope", attention_dropout=0.1, **options)
    assert ([remains] if remains else []) == [
        r.getMessage().rpartition("it acts ")[2].rstrip(".") for r in caplog.records
    ]
    caplog.clear()
    h.build(position_encoder="rope", attention_dropout=0.0, **options)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_kernels_and_kinds_are_different_models():
    batch = h.source_batch(), h.target_batch()
    options = ({}, COSINE, CROSS)
    models = [h.visible("rope", target="attention", **LINEAR, **o) for o in options]
    outputs = [h.log_probs(m, *batch) for m in (*models, h.visible("rope", target="attention"))]
    for i, one in enumerate(outputs):
        assert all(h.difference(one, other) > 0.01 for other in outputs[:i])
