"""The model as a module of PyTorch: vectors in, vectors out."""

import pytest
import torch
import torch.nn.functional as F
from encoder_cases import options_of
from helpers import (
    PAD,
    TOLERANCE,
    build,
    difference,
    every_mechanism,
    randomise_positions,
    source_batch,
    target_batch,
)
from torch import nn

from fairseq_floater import PositionedTransformer

SHAPE = {"d_model": 64, "nhead": 2, "dim_feedforward": 64, "dropout": 0.0, "norm_first": True}
LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 2}
TORCHS_NAMES = {
    "self_attn_layer_norm": "norm1",
    "encoder_attn_layer_norm": "norm2",
    "encoder_attn": "multihead_attn",
    "fc1": "linear1",
    "fc2": "linear2",
}


def vectors(length, sentences=3, seed=1):
    return torch.randn(sentences, length, 64, generator=torch.Generator().manual_seed(seed))


def padding(*lengths):
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def test_without_positions_it_computes_what_torchs_transformer_computes():
    torchs = nn.Transformer(**SHAPE, **LAYERS, batch_first=True).eval()
    model = PositionedTransformer("none", **SHAPE, **LAYERS).eval()
    state = torchs.state_dict()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            names = [TORCHS_NAMES.get(word, word) for word in name.split(".")]
            last = 2 if names[0] == "encoder" else 3
            if names[-2] == "final_layer_norm":
                names[-2] = f"norm{last}"
            if names[1] == "layer_norm":
                names[1] = "norm"
            parts = {"q_proj": 0, "k_proj": 1, "v_proj": 2}
            if names[-2] in parts:  # torch holds the three in one matrix
                joined = state[".".join([*names[:-2], f"in_proj_{names[-1]}"])]
                parameter.copy_(joined.chunk(3)[parts[names[-2]]])
            else:
                parameter.copy_(state[".".join(names)])
    src, tgt, of_source, of_target = vectors(9), vectors(6), padding(9, 4, 7), padding(2, 6, 5)
    expected = torchs(
        src,
        tgt,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6),
        src_key_padding_mask=of_source,
        tgt_key_padding_mask=of_target,
        memory_key_padding_mask=of_source,
        tgt_is_causal=True,
    )
    found = model(src, tgt, src_key_padding_mask=of_source, tgt_key_padding_mask=of_target)
    assert difference(found[~of_target], expected[~of_target]) < TOLERANCE


@every_mechanism
def test_it_computes_what_the_translation_model_computes(encoder, blocks, target):
    options = options_of(target) | {"position_blocks": blocks}
    if encoder == "complex":
        options["complex_omega"] = "shared"
    sizes = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    translation = build(encoder, **options | sizes, no_scale_embedding=True)
    translation = randomise_positions(translation).eval()
    model = PositionedTransformer(encoder, **SHAPE, **LAYERS, **options).eval()
    of_words = ("embed_tokens.weight", "output_projection.weight")
    state = translation.state_dict()
    model.load_state_dict({n: t for n, t in state.items() if not n.endswith(of_words)})
    src_tokens, tgt_tokens = source_batch(), target_batch()
    src = translation.encoder.embed_tokens(src_tokens)
    tgt = translation.decoder.embed_tokens(tgt_tokens)
    expected, _ = translation(src_tokens, None, tgt_tokens, features_only=True)
    of_source, of_target = src_tokens == PAD, tgt_tokens == PAD
    found = model(src, tgt, src_key_padding_mask=of_source, tgt_key_padding_mask=of_target)
    assert difference(found[~of_target], expected[~of_target]) < TOLERANCE
    memory, state = model.encode(src, of_source), {}
    steps = [
        model.decode(tgt[:, :t], memory, of_target[:, :t], state) for t in range(1, tgt.size(1) + 1)
    ]
    assert difference(torch.cat(steps, 1)[~of_target], found[~of_target]) < TOLERANCE


@pytest.mark.parametrize("encoder", ["floater", "rope", "t5"])
def test_each_stack_works_alone(encoder):
    reader = PositionedTransformer(encoder, **SHAPE, num_encoder_layers=2, num_decoder_layers=0)
    writer = PositionedTransformer(encoder, **SHAPE, num_encoder_layers=0, num_decoder_layers=2)
    x = vectors(7)
    assert reader(x).shape == x.shape
    before = writer.eval().decode(x)
    state = {}  # a prompt of 5 tokens, then 2 more
    steps = [writer.decode(x[:, :t], state=state) for t in (5, 6, 7)]
    assert difference(torch.cat(steps, 1), before[:, 4:]) < TOLERANCE
    with pytest.raises(ValueError, match="more than the 7 tokens"):
        writer.decode(x, state=state)
    x[:, 4:] = vectors(3, seed=2)
    changed = (writer.decode(x) - before).abs().amax((0, 2)) > 1e-4
    assert changed.tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    "moved",
    [{"position_stretch": "0.5:2.5"}, {"position_shift": "fill:20:shared"}],
    ids=lambda m: [*m][0],
)
def test_training_moves_positions_and_reaches_every_parameter(moved):
    model = PositionedTransformer("floater", **SHAPE, **LAYERS, position_base="drop", **moved)
    src, tgt = vectors(9), vectors(6)
    first, second = model(src, tgt), model(src, tgt)
    assert not torch.equal(first, second)
    second.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    alone = {**SHAPE, "num_encoder_layers": 0, "position_base": "drop"}
    writer = PositionedTransformer("floater", **alone, **moved)
    assert not torch.equal(writer.decode(tgt), writer.decode(tgt))


def test_weights_without_fairseqs_version_numbers_keep_their_layer_norms():
    model, other = (PositionedTransformer("rope", **SHAPE, **LAYERS) for _ in range(2))
    other.load_state_dict(dict(model.named_parameters()))
    src, tgt = vectors(9), vectors(6)
    assert difference(other.eval()(src, tgt), model.eval()(src, tgt)) < TOLERANCE
    of_encoder = {n: p for n, p in model.state_dict().items() if n.startswith("encoder.layers")}
    missing = other.load_state_dict(of_encoder, strict=False).missing_keys
    assert other.decoder.layer_norm is not None and "decoder.layer_norm.weight" in missing


def test_passes_of_training_count_as_updates():
    model = PositionedTransformer("floater", **SHAPE, **LAYERS, floater_update_interval=2)
    solved = []
    for _ in range(4):
        model.zero_grad()
        model(vectors(9), vectors(6)).square().sum().backward()
        solved.append(bool(model.encoder.positions.dynamics.bias2.grad.any()))
    assert solved == [True, False, True, False]


def test_checkpointed_blocks_learn_from_inputs_without_gradients():
    model = PositionedTransformer("rope", **SHAPE, **LAYERS, checkpoint_activations=True)
    model(vectors(9), vectors(6)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_activations_are_named_as_in_torch():
    x, sizes = vectors(5), {**SHAPE, "num_encoder_layers": 1, "num_decoder_layers": 0}
    outputs = []
    for activation in ("gelu", F.gelu, F.relu):
        torch.manual_seed(1)
        outputs.append(PositionedTransformer("none", activation=activation, **sizes)(x))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])


WRONG_INPUTS = [
    ((vectors(4), vectors(4)[:1]), {}, "equally many sentences, but have 3 and 1"),
    ((vectors(4)[0], vectors(4)), {}, r"must be \[B, T, 64\], but one is \[4, 64\]"),
    ((vectors(4)[..., :32],), {}, r"must be \[B, T, 64\], but one is \[3, 4, 32\]"),
    ((vectors(4),), {"src_key_padding_mask": padding(4)}, r"must be bool \[3, 4\], .*\[1, 4\]"),
    ((vectors(4),), {"src_key_padding_mask": torch.zeros(3, 4)}, "but is torch.float32"),
]


@pytest.mark.parametrize(("inputs", "masks", "message"), WRONG_INPUTS)
def test_an_input_that_does_not_fit_is_refused(inputs, masks, message):
    model = PositionedTransformer("rope", **SHAPE, num_encoder_layers=1, num_decoder_layers=1)
    with pytest.raises(ValueError, match=message):
        model(*inputs, **masks)


def test_a_missing_stack_or_memory_is_named():
    x = vectors(3)
    reader = PositionedTransformer("rope", **SHAPE, num_encoder_layers=1, num_decoder_layers=0)
    writer = PositionedTransformer("rope", **SHAPE, num_encoder_layers=0, num_decoder_layers=1)
    for call in (lambda: reader.decode(x), lambda: reader(x, x)):
        with pytest.raises(ValueError, match="no decoder: num_decoder_layers is 0"):
            call()
    for call in (lambda: writer(x), lambda: writer(x, x), lambda: writer.encode(x)):
        with pytest.raises(ValueError, match="no encoder: num_encoder_layers is 0"):
            call()
    whole = PositionedTransformer("rope", **SHAPE, num_encoder_layers=1, num_decoder_layers=1)
    for call in (lambda: whole.decode(x), lambda: writer.decode(x, whole.encode(x))):
        with pytest.raises(ValueError, match="memory must be the output of `encode`"):
            call()
    with pytest.raises(ValueError, match="must not both be 0"):
        PositionedTransformer("rope", num_encoder_layers=0, num_decoder_layers=0)


def test_it_refuses_options_that_cannot_act():
    with pytest.raises(TypeError, match="Unknown options: rope_bse"):
        PositionedTransformer("rope", rope_bse=1)
    with pytest.raises(ValueError, match="batch_first must be True"):
        PositionedTransformer("rope", batch_first=False)
    with pytest.raises(ValueError, match="`decoding_weights` must be left out"):
        PositionedTransformer("rope", decoding_weights="int8")
    with pytest.raises(ValueError, match="`--rope-base` has no effect: .* rope"):
        PositionedTransformer("floater", rope_base=500)
    with pytest.raises(ValueError, match="`complex_omega` must be shared or fixed"):
        PositionedTransformer("complex")
