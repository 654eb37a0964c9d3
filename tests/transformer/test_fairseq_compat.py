"""The model beside fairseq's own Transformer, and under fairseq's own options."""

import copy
import itertools
import math

import forcing
import helpers as h
import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.optim.adam import Adam
from fairseq.sequence_generator import SequenceGenerator

from fairseq_floater.position_encoders.transforms import Places

# Models that are fairseq's Transformer: to the letter, and until the flow is trained.
pytestmark = pytest.mark.usefixtures("measured_once")
SAME = {
    "sinusoidal-input-hidden": ("sinusoidal", "input", "hidden"),
    **{f"floater-{b}-{t}": ("floater", b, t) for b in ("all", "input") for t in ("qkv", "hidden")},
}
same_as_fairseq = pytest.mark.parametrize("case", SAME.values(), ids=SAME)
PRENORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}


def build_same(case, seed=0, **args):
    if case[0] == "floater":
        args["floater_init_scale"] = 0.0
    return h.build(*case, seed=seed, **args)


# Equality with fairseq's Transformer.


@h.every_case
def test_one_seed_starts_the_transformer_around_every_encoder_alike(encoder, blocks, target):
    expected = h.plain(seed=3).state_dict()
    actual = h.build(encoder, blocks, target, seed=3).state_dict()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    if (encoder, blocks, target) in (("sinusoidal", "input", "hidden"), ("none", "all", "qkv")):
        assert list(actual) == list(expected)


@same_as_fairseq
@pytest.mark.parametrize("options", [{}, PRENORM], ids=["postnorm", "prenorm"])
def test_log_probabilities_are_fairseqs(case, options):
    donor = h.plain(seed=7, **options).eval()
    model = build_same(case, **options).eval()
    missing, unexpected = model.load_state_dict(donor.state_dict(), strict=False)
    assert not unexpected and all("positions." in name for name in missing)
    assert bool(missing) == (case[0] == "floater")
    batch = h.source_batch(), h.target_batch()
    real = batch[1].ne(h.PAD)
    # A step of ours sums in another order, by torch's fused attention.
    for run, allowed in ((h.log_probs, 1e-6), (h.stepwise_log_probs, 2e-6)):
        assert h.difference(run(model, *batch)[real], run(donor, *batch)[real]) <= allowed


@same_as_fairseq
def test_beam_search_finds_fairseqs_hypotheses(case):
    donor = h.plain(seed=7).eval()
    model = build_same(case).eval()
    model.load_state_dict(donor.state_dict(), strict=False)
    source = h.source_batch(lengths=(7, 11, 4, 9))
    expected, actual = h.generated([donor], source), h.generated([model], source)
    assert len(actual) == len(expected) == 16
    forcing.assert_same_hypotheses(actual, expected, 1e-5)
    for ours, theirs in zip(actual, expected):
        assert h.difference(ours["attention"], theirs["attention"]) <= 1e-5
    assert len({tuple(h["tokens"].tolist()) for h in actual}) > 8


@same_as_fairseq
def test_training_with_dropout_is_fairseqs(case):
    options = {"dropout": 0.3, "activation_dropout": 0.1, "attention_dropout": 0.2}
    forcing.assert_same_gradients(build_same(case, seed=3, **options), h.plain(seed=3, **options))


@h.every_signal_case
def test_positions_enter_where_the_equations_say(encoder, blocks, target):
    """The same by hooks on fairseq's Transformer: on block inputs, or on q, k, v (12 and 13)."""
    model = h.visible(encoder, blocks, target)
    bare = model.encoder.embed_positions is None
    reference = h.plain(no_token_positional_embeddings=bare).eval()
    reference.load_state_dict(model.state_dict(), strict=False)
    batch = h.sentence(9), h.shifted(h.sentence(7, seed=1))

    def add(rows):  # [T, C] to an output [T, B, C]
        return lambda module, inputs, output: output + rows.unsqueeze(1)

    def add_to_input(rows):
        return lambda module, inputs: (inputs[0] + rows.unsqueeze(1), *inputs[1:])

    hooks = {"q": "self_attn", "k": "self_attn", "v": "self_attn"}
    for stack, name, signal in h.signals(model):
        theirs = reference.encoder if stack is model.encoder else reference.decoder
        pairs = [
            (mine, other)
            for mine, other in zip(stack.layers, theirs.layers)
            if getattr(mine, name) is not None
        ]
        if not pairs:
            continue
        of_source = stack is model.encoder or name == "source_positions"
        length = batch[0 if of_source else 1].size(1)
        table = signal.rows(Places(length), [getattr(mine, name) for mine, _ in pairs]).detach()
        for slot, (_, other) in enumerate(pairs):
            for s, stream in enumerate(signal.spec.streams):
                rows = table[:, s, slot]
                if stream == "hidden":
                    other.register_forward_pre_hook(add_to_input(rows))
                else:
                    attention = getattr(other, hooks.get(stream, "encoder_attn"))
                    projection = getattr(attention, f"{stream[-1]}_proj")
                    projection.register_forward_hook(add(rows))
    for module in reference.modules():
        if hasattr(module, "skip_embed_dim_check"):
            module.skip_embed_dim_check = True  # fairseq's attention then calls its projections
    assert h.difference(h.log_probs(model, *batch), h.log_probs(reference, *batch)) <= h.TOLERANCE


def test_searches_with_several_beam_sizes_do_not_disturb_each_other():
    """Nor the teacher forcing that follows: a batch of sentences is no beam."""
    model = h.visible("floater", target="qkv")
    source = h.source_batch(lengths=(7, 11, 4, 5, 9))
    batch = source, h.target_batch(lengths=(9, 5, 12, 3, 4))
    before = h.log_probs(model, *batch)
    generators = {
        n: SequenceGenerator([model], h.dictionary(), beam_size=n, max_len_b=25) for n in (1, 5, 3)
    }
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(h.PAD).sum(1)}}
    for size in (5, 1, 3, 5, 1):
        with torch.no_grad():
            together = generators[size].generate([model], sample)
        for row, best in zip(source, together, strict=True):
            alone = row[row.ne(h.PAD)][None]
            scores = h.log_probs(model, alone, h.shifted(best[0]["tokens"][None]))
            expected = scores.gather(2, best[0]["tokens"][None].unsqueeze(2)).mean()
            assert abs(float(expected) - float(best[0]["score"])) <= h.TOLERANCE
    assert h.difference(h.log_probs(model, *batch), before) == 0


def test_copies_in_another_order_are_not_taken_for_beams():
    model = h.visible("floater", target="qkv")
    source, target_in = h.source_batch(), h.target_batch()
    encoder_out = model.encoder(source, src_lengths=source.ne(h.PAD).sum(1))
    order = torch.arange(len(source)).repeat(2)  # sentence after sentence, twice
    copied = model.encoder.reorder_encoder_out(encoder_out, order)
    output = model.decoder(target_in[order][:, :1], encoder_out=copied, incremental_state={})
    expected = model.decoder(target_in[:, :1], encoder_out=encoder_out, incremental_state={})
    assert h.difference(output[0], expected[0][order]) <= h.TOLERANCE


@h.every_encoder
def test_beams_and_ensembles(encoder, blocks, target):
    forcing.assert_ensembles_score_as_one_pass(
        [h.visible(encoder, blocks, target, seed=seed) for seed in (0, 1)]
    )


def test_a_search_adds_the_sources_biases_once_and_keeps_one_key_a_sentence(monkeypatch):
    model = h.visible("floater", target="qkv")
    calls = []
    signal = model.decoder.source_positions
    monkeypatch.setattr(
        signal, "forward", lambda *args, inner=signal.forward: calls.append(1) or inner(*args)
    )
    keys = []
    attention = model.decoder.layers[0].encoder_attn
    attention.k_proj.register_forward_pre_hook(lambda _, inputs: keys.append(inputs[0].size(1)))
    hypotheses = h.generated([model], h.source_batch(lengths=(7, 11, 4)))
    assert max(len(h["tokens"]) for h in hypotheses) > 2  # several steps
    assert calls == [1]
    assert keys == [3]  # sentences, not beams


# fairseq's options.


# In the first block alone: of each kind of encoder one.
MOST = [c for c in h.CASES if c[1] == "all" or c[0] in ("floater", "learned", "rope", "conv")]
CHECKPOINTED = [("checkpoint_activations", case) for case in MOST]
CHECKPOINTED += [
    ("offload_activations", ("floater", "all", target)) for target in ("qkv", "hidden")
]


@pytest.mark.parametrize(
    ("option", "case"),
    CHECKPOINTED,
    ids=["-".join((option, *case)) for option, case in CHECKPOINTED],
)
def test_activation_checkpointing(option, case):
    """With dropout: the second forward pass has to draw the masks of the first."""
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


@pytest.mark.parametrize(("encoder", "blocks", "target"), MOST, ids=lambda word: word)
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


@h.every_case
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
    if target == "attention":  # their tables are of no block, or the state dict's own
        return
    for expected, actual in zip(whole, h.tables(pruned), strict=True):
        # Products of two rows and of three may be summed in another order.
        kept = expected[:, :, [0, 2] if blocks == "all" else [0]]
        torch.testing.assert_close(actual, kept, rtol=1e-5, atol=1e-6)


@h.every_case
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_only_block_with_positions_may_not_be_pruned(encoder, blocks, target, side):
    options = {f"{side}_layers": 3, f"{side}_layers_to_keep": "1,2"}
    owners = [s for s in h.signals(h.build(encoder, blocks, target)) if s[2].receives(0)]
    if blocks == "all" or not owners:
        model = h.build(encoder, blocks, target, **options)
        assert len(getattr(model, side).layers) == 2
    else:
        with pytest.raises(ValueError, match=f"`--{side}-layers-to-keep`.*layer 0.*'1,2'"):
            h.build(encoder, blocks, target, **options)


VARIANTS = {
    "prenorm": PRENORM,
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


def test_noise_on_weights_that_fairseq_cannot_find_is_refused():
    h.build("rope", target="attention", quant_noise_scalar=0.1)
    for encoder, target in (("floater", "qkv"), ("token-rnn", "stage")):
        with pytest.raises(ValueError, match="`--quant-noise-scalar` must be 0"):
            h.build(encoder, target=target, quant_noise_scalar=0.1)


@pytest.mark.parametrize("encoder", ["floater", "rnn", "rotation_flow"])
def test_the_dynamics_of_a_model_start_apart(encoder):
    """Those of source positions in the encoder, of target and of source positions in the decoder."""
    found = [dict(p.named_parameters()) for _, _, p in h.signals(h.build(encoder, target="qkv"))]
    assert len(found) == 3
    matrices = [n for n, p in found[0].items() if p.dim() == 2]
    assert matrices
    for one, other in itertools.combinations(found, 2):
        assert not any(torch.equal(one[name], other[name]) for name in matrices)


@h.every_target
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_variants_of_fairseqs_transformer(options, target):
    model = h.randomise_positions(h.build("floater", target=target, **options))
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


@h.every_target
@pytest.mark.parametrize("blocks", ["all", "input"])
def test_the_sinusoid_is_fairseqs(blocks, target):
    """Rows, offset and, at every block n, equation 7's second term: the sinusoid of n."""
    model = h.build("sinusoidal", blocks, target).eval()
    rows = model.encoder.embed_positions(h.sentence(8))[0]
    numbers = SinusoidalPositionalEmbedding.get_embedding(3, rows.size(1))[1:]
    for table in h.tables(model, 8):
        for n, number in enumerate(numbers[: table.size(2)]):
            own = rows if target == "qkv" or n > 0 else 0 * rows  # the base is there already
            expected = own + number if blocks == "all" else own
            for stream in table[:, :, n].unbind(1):
                assert h.difference(stream, expected) <= 1e-6
    assert len(h.tables(model)) == (3 if target == "qkv" else 2 if blocks == "all" else 0)


# Modes and compilers of torch.


@h.every_encoder
def test_a_look_in_inference_mode_leaves_nothing_that_training_cannot_use(encoder, blocks, target):
    model = h.build(encoder, blocks, target).eval()
    with torch.inference_mode():
        h.loss_of(model)
    h.gradients(model)


def test_torchscript_is_refused_in_a_sentence():
    with pytest.raises(NotImplementedError, match="torch.jit.script does not take a model"):
        torch.jit.script(h.build("rope", target="attention"))
