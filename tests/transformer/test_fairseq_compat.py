"""The model against fairseq's own Transformer, and in fairseq's searches."""

import forcing
import helpers as h
import pytest
import torch
from fairseq.modules import FairseqDropout
from fairseq.sequence_generator import SequenceGenerator

from fairseq_floater.position_encoders.transforms import Places

# Models equal to fairseq's Transformer: `sinusoidal` always, `floater` until its flow is trained.
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


@h.most_cases
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
    # Our decoding step uses torch's fused attention, which sums in another order.
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
    assert len({tuple(best["tokens"].tolist()) for best in actual}) > 8


@same_as_fairseq
def test_training_with_dropout_is_fairseqs(case):
    options = {"dropout": 0.3, "activation_dropout": 0.1, "attention_dropout": 0.2}
    forcing.assert_same_gradients(build_same(case, seed=3, **options), h.plain(seed=3, **options))


def test_dropout_has_fairseqs_names():
    """`--retain-dropout-modules` chooses by them which dropout stays on in a search."""

    def names(model):
        modules = model.named_modules()
        return {name: m.module_name for name, m in modules if isinstance(m, FairseqDropout)}

    assert names(h.build("rope", target="attention")) == names(h.plain())


@h.parametrised([case for case in h.CASES if case[2] == "qkv"])
def test_biases_enter_where_the_equations_say(encoder, blocks, target):
    """Compared with hooks on the projections of fairseq's Transformer (equations 12 and 13)."""
    model = h.visible(encoder, blocks, target)
    bare = model.encoder.embed_positions is None
    reference = h.plain(no_token_positional_embeddings=bare).eval()
    reference.load_state_dict(model.state_dict(), strict=False)
    batch = h.sentence(9), h.shifted(h.sentence(7, seed=1))
    for stack, name, signal in h.signals(model):
        theirs = reference.encoder if stack is model.encoder else reference.decoder
        of_source = stack is model.encoder or name == "source_positions"
        places = Places(batch[0 if of_source else 1].size(1))
        owners = [i for i, block in enumerate(stack.layers) if getattr(block, name) is not None]
        if not owners:
            continue
        table = signal.rows(places, h.parts(stack, name)).detach()  # [T, streams, blocks, C]
        for slot, i in enumerate(owners):
            for s, stream in enumerate(signal.spec.streams):
                attention = "encoder_attn" if stream.startswith("cross") else "self_attn"
                projection = getattr(getattr(theirs.layers[i], attention), f"{stream[-1]}_proj")
                rows = table[:, s, slot, None]
                projection.register_forward_hook(lambda m, i, o, rows=rows: o + rows)
    for module in reference.modules():
        if hasattr(module, "skip_embed_dim_check"):
            module.skip_embed_dim_check = True  # makes fairseq's attention call its projections
    assert h.difference(h.log_probs(model, *batch), h.log_probs(reference, *batch)) <= h.TOLERANCE


def test_searches_with_several_beam_sizes_do_not_disturb_each_other():
    """Nor do they disturb later teacher forcing, whose batch of sentences is not a beam."""
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


@h.every_mechanism
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
    assert max(len(best["tokens"]) for best in hypotheses) > 2  # several steps
    assert calls == [1]
    assert keys == [3]  # sentences, not beams
