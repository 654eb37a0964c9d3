"""Valid and refused options of encoders."""

import helpers as h
import pytest

from fairseq_floater.position_encoders import POSITION_ENCODERS, all_options

NAN, INF = float("nan"), float("inf")
ODD = {"encoder_embed_dim": 27, "encoder_attention_heads": 3}
RELATIVE = {"target": "relative"}
CROSS = {"position_cross": "relative"}
XL = {**RELATIVE, "floater_relative": "xl"}
GAP = {"position_separator": "w8", "floater_gap": 1.0}
SINUSOID = {"floater_start": "sinusoid", "target": "hidden"}
# An encoder, its option, values out of range, and the rule in the error message.
OUT_OF_RANGE = [
    ("t5", "t5_buckets", [-4, 0, 2, 6, 30], "a multiple of 4"),
    ("tupe", "t5_buckets", [6], "a multiple of 4"),
    ("t5", "t5_max_distance", [16], "more than 16, half of --t5-buckets"),
    ("tupe", "t5_max_distance", [16], "more than 16, half of --t5-buckets"),
    ("fire", "fire_threshold", [0, -16], "at least 1"),
    ("cope", "cope_positions", [1, 0, -4], "at least 2"),
    ("shaw", "shaw_clip", [0], "at least 1"),
    ("shaw", "shaw_clip", [1.5, INF], "of type int"),
    ("shaw", "shaw_per_head", ["false"], "of type bool"),
    ("nezha", "nezha_clip", [-1], "at least 0"),
    ("nezha", "nezha_clip", ["far"], "of type int"),
    ("rope", "rope_base", [1.0, 0.0, -3.0, INF, NAN], "more than 1"),
    ("rope", "rope_partial", [0.0, -0.5, 1.5, NAN], "more than 0 and at most 1"),
    ("xpos", "rope_base", [1.0], "more than 1"),
    ("xpos", "xpos_scale_base", [0.0, -512.0, INF, NAN], "positive"),
    ("deberta", "deberta_distance", [0], "at least 1"),
    (
        "deberta",
        "deberta_buckets",
        [5, 2, -4, 66],
        "an even number from 4 to --deberta-distance, 64",
    ),
    ("deberta", "deberta_absolute", [-1], "at least 0"),
    ("deberta", "deberta_absolute", [3], "at most .* 2"),
    ("conv", "conv_kernel", [1, 2, 4, 0, -3], "an odd number of at least 3"),
    ("learned", "learned_hierarchy", [1, -3], "at least 2"),
    ("learned", "learned_hierarchy_alpha", [0.0, 0.5, 1.0, NAN], ".*"),
    ("rotation_flow", "rotation_frequency", [0.0, -1.0, INF, NAN], "positive"),
    ("rope", "position_jitter", [0.0, -0.1, 0.6, NAN], r"more than 0 and at most 0\.5"),
    ("rope", "position_random", [1, "2.5", "float:0", "float:inf", "int:3"], "a whole number"),
    ("none", "attention_log_length", [1.0, -3.0, NAN], "more than 1"),
    ("none", "position_sides", ["source"], "both with --position-encoder none"),
    ("forget", "attention_kind", ["linear"], "softmax"),
    ("floater", "floater_delta", [0.0], "positive"),
    ("floater", "floater_delta", ["wide"], "of type float"),
    ("floater", "floater_time_scale", [-1.0], "positive"),
    ("floater", "floater_lr_scale", [0.0], "positive"),
    ("floater", "floater_init_scale", [-0.1], "at least 0"),
    ("floater", "floater_update_interval", [0], "at least 1"),
    ("floater", "floater_update_interval", [2.5], "of type int"),
    ("floater", "base_layers", [1], "0"),
]
# Options that exclude each other or the encoder.
REFUSED = [
    ("rope", {"rope_partial": 0.01}, "leaves a pair, but a head has 32 and --rope-partial is 0.01"),
    ("rope", {"encoder_embed_dim": 30, "decoder_embed_dim": 30}, "even number.* but a head has 15"),
    ("xpos", {"encoder_embed_dim": 30, "decoder_embed_dim": 30}, "xpos needs an even number"),
    ("tener", ODD, "tener needs an even number of channels.* a head has 9"),
    (
        "rotation_flow",
        {**ODD, **RELATIVE, "floater_relative": "bias"},
        "even number of channels, but a row of biases has 3",
    ),
    ("xl", ODD, "xl needs an even number of channels.* side has 27"),
    ("complex", {**ODD, "encoder_embed_dim": 63}, "complex needs an even number.* has 63"),
    (
        "nezha",
        {"decoder_embed_dim": 60, "decoder_output_dim": 60, "decoder_attention_heads": 4},
        "even number of channels, but a head has 15; .* target side",
    ),
    ("deberta", {"deberta_absolute": 2, "blocks": "input"}, "must be at most .* 1, but is 2"),
    (
        "tupe",
        {"tupe_positions": "learned", "position_stretch": "0.5:2"},
        r"`--position-stretch` must come with .*floater, .* but that is tupe \(tupe-positions learned",
    ),
    ("floater", {"floater_relative": "bias"}, "`--floater-relative` must come with"),
    ("rotation_flow", {"floater_relative": "bias"}, "`--floater-relative` must come with"),
    ("floater", {"floater_delta": 0.2, **RELATIVE}, r"`--floater-delta` must be 0\.1 with"),
    ("floater", {"floater_time": "log", **RELATIVE}, "`--floater-time` must be linear with"),
    ("floater", {"floater_update_interval": 2, **RELATIVE}, "interval` must be 1 with"),
    ("floater", {"floater_theta": "block", **RELATIVE}, "`--floater-theta` must be shared with"),
    ("floater", {**XL, "floater_delta": 0.2}, r"`--floater-delta` must be 0\.1 .* ln\(1"),
    ("floater", {**XL, "floater_time": "late"}, "must be linear, log or log:T"),
    ("rotation_flow", {**RELATIVE, "floater_time": "log"}, "`--floater-time` must be linear"),
    ("rotation_flow", {"floater_time": "log"}, "must be linear .* --position-target hidden"),
    ("floater", {**RELATIVE, "xl_v": "off"}, "must come with `--floater-relative xl`.* keys"),
    ("rotation_flow", {"xl_projection": "on"}, "must come with `--floater-relative xl`"),
    ("rotation_flow", {**ODD, **XL}, "even number of channels, but the source side has 27"),
    (
        "floater",
        {**GAP, **RELATIVE},
        r"`--floater-gap` must be 0\.0 with --position-target relative",
    ),
    ("floater", {"floater_gap": 1.0}, "`--floater-gap` must come with `--position-separator`"),
    ("floater", {**GAP, "position_separator": "<s2>"}, "of the source dictionary, but is '<s2>'"),
    ("floater", {**GAP, "position_stretch": "1:2"}, "must not come with `--position-stretch`"),
    ("floater", {**GAP, "floater_gap": 0.01234}, "a multiple of `--floater-delta`"),
    ("rope", GAP, "`--floater-gap` must be 0 with --position-encoder rope, but is 1.0"),
    ("xpos", {"position_segments": True}, "must be off with --position-encoder xpos"),
    ("sinusoidal", {**ODD, "position_separator": "w8", "position_segments": True}, "multiple of 4"),
    (
        "deberta",
        {
            **{"deberta_share": True, "position_cross": "relative"},
            **{"encoder_embed_dim": 32, "decoder_embed_dim": 64},
        },
        "needs stacks of equal width, but they have 32 and 64",
    ),
    ("floater", {**SINUSOID, "target": "qkv"}, "`--floater-start` must be zero with .* qkv"),
    ("floater", {**SINUSOID, **RELATIVE}, "`--floater-start` must be zero with .* relative"),
    ("floater", {"floater_start": "rotation"}, "must be zero with .* qkv, but is rotation"),
    ("floater", {**SINUSOID, "floater_time": "log"}, "`--floater-time` must not be log with"),
    ("floater", {**SINUSOID, "floater_init_scale": 0.1}, r"-scale` must not be 0\.1 with"),
    ("floater", {**SINUSOID, "position_combine": "multiply"}, "begin with rows of zeros"),
    (
        "floater",
        {"floater_step_size": -1.0, **RELATIVE},
        "`--floater-step-size` must be positive",
    ),
    (
        "floater",
        {"position_shift": "500", "no_token_positional_embeddings": True, **RELATIVE},
        "change nothing",
    ),
    ("none", {"attention_kind": "linear", "attention_log_length": 9}, "must be 0 with .* is 9"),
    ("floater", {"attention_kind": "linear", **RELATIVE}, "`--attention-kind` must be softmax"),
    ("floater", {"floater_step_size": 0.0}, "`--floater-step-size` must be positive"),
    ("floater", {"floater_gradient": "adjoint"}, "solver` must be one of .* adjoint, but is auto"),
    ("floater", {"ddp_backend": "fully_sharded"}, "-backend` must not be fully_sharded"),
    (
        "floater",
        {"encoder_xformers_att_config": "{}"},
        "`--encoder-xformers-att-config` must not be",
    ),
    (
        "floater",
        {"decoder_xformers_att_config": "{}"},
        "`--decoder-xformers-att-config` must not be",
    ),
    (
        "floater",
        {"floater_freeze": True, "floater_train": "all"},
        "means .* transformer`, but .* is all",
    ),
    ("floater", {"floater_autonomous": True, "floater_time_scale": 2.0}, "must be 1 .* is 2"),
    ("floater", {"floater_start": "bias", "target": "hidden"}, "must be zero .* hidden"),
    ("rnn", {"floater_freeze": True}, "-train` must be all .* rnn, but is transformer"),
    ("rnn", {"floater_start": "bias"}, "-start` must be zero .* rnn, but is bias"),
    ("t5", {"floater_train": "rest"}, "-train` must be all .* t5, but is rest"),
    ("rope", {"position_cross_ratio": 2.0}, "must come with `--position-cross relative`"),
    ("rope", {**CROSS, "position_sides": "source"}, "must come with `--position-sides` both"),
    ("rope", {**CROSS, "no_cross_attention": True}, "no logits of cross-attention"),
    ("learned", {**CROSS, "target": "hidden"}, "its target qkv puts source and target positions"),
    ("none", {**CROSS, "target": "hidden"}, "it knows no distance between two tokens"),
    ("rope", {"encoder_layers": 0}, "`--encoder-layers` must be at least 1"),
    ("none", {"decoder_layers": 0}, "`--decoder-layers` must be at least 1"),
    (
        "tupe",
        {**CROSS, "tupe_positions": "learned", "position_cross_ratio": 1.5},
        "must be a whole number",
    ),
    ("none", {"linear_kernel": "cosine"}, "must come with `--attention-kind linear`.*softmax"),
    ("none", {"linear_cross": True}, "must come with `--attention-kind linear`.*softmax"),
    (
        "none",
        {"attention_kind": "linear", "cross_self_attention": True},
        "off with `--attention-kind linear",
    ),
    ("learned", {"position_eval": "interpolate:5"}, "it has no fractional positions"),
    ("floater", {"position_eval": "interpolate:5"}, "own positions underneath"),
    ("t5", {"position_eval": "ntk:5"}, "only rope, xpos, nezha, xl, tener have the frequencies"),
    ("tupe", {"position_eval": "cap:5"}, "table of distances alone"),
    ("rope", {"position_eval": "cap"}, "must be none or one of interpolate:T"),
    ("rope", {"position_eval": "window:1"}, "T and W at least 2"),
    ("rope", {"position_eval": "grouped:4"}, "must be none or one of interpolate:T"),
    ("rope", {**CROSS, "position_cross_ratio": 0.7, "position_eval": "interpolate:5"}, "twice"),
    ("rope", {"rope_values": True, "position_eval": "yarn:5"}, "would apply it to values"),
    *(
        ("rope", {"attention_kind": "linear", "position_eval": law}, "has no logits")
        for law in ("cap:4", "grouped:3:2", "logn:5", "window:2", "yarn:5")
    ),
]


def made(how, encoder, options):
    return how(encoder, **{"target": POSITION_ENCODERS[encoder].targets[0], **options})


@pytest.mark.parametrize("option", [o for o in all_options() if o.choices], ids=lambda o: o.name)
def test_a_word_that_is_no_choice_is_refused(option):
    owners = [name for name, cls in POSITION_ENCODERS.items() if option in cls.options]
    options = {"position_encoder": (owners or ["floater"])[0], option.dest: "other"}
    end = "; FLOATER_USER_DIR adds" if option.name == "--position-encoder" else r"\.$"
    rule = f"`{option.name}` must be one of .* but is 'other' instead{end}"
    with pytest.raises(ValueError, match=rule):
        h.build(**options)


@pytest.mark.parametrize(("encoder", "dest", "values", "rule"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(encoder, dest, values, rule):
    flag = "--" + dest.replace("_", "-")
    for value in values:
        with pytest.raises(ValueError, match=rf"`{flag}` must be {rule}.* but is '?{value}'? ?"):
            made(h.build, encoder, {dest: value, "no_token_positional_embeddings": True})


@pytest.mark.parametrize(("encoder", "options", "words"), REFUSED)
def test_options_that_exclude_each_other_are_refused(encoder, options, words):
    with pytest.raises(ValueError, match=words):
        made(h.build, encoder, options)


@pytest.mark.parametrize("encoder", ["t5", "cope"])
def test_it_starts_as_no_positions(encoder):
    model, none = made(h.build, encoder, {}).eval(), h.build("none").eval()
    none.load_state_dict(model.state_dict(), strict=False)
    assert not any(p.any() for p in h.position_parameters(model))
    batch = h.source_batch(), h.target_batch()
    assert h.difference(h.log_probs(model, *batch), h.log_probs(none, *batch)) <= h.TOLERANCE


@pytest.mark.parametrize(
    ("encoder", "usual", "learned"),
    [
        ("rope", {"rope_base": 300.0}, {"rope_learned": True}),
        ("xl", {}, {"xl_learned": True}),
        ("alibi", {}, {"alibi_slopes": "learned"}),
    ],
)
def test_learned_numbers_start_as_the_fixed_ones_and_learn(encoder, usual, learned):
    models = [made(h.build, encoder, o).eval() for o in (usual, {**usual, **learned})]
    added = models[1].load_state_dict(models[0].state_dict(), strict=False).missing_keys
    outputs = (h.log_probs(model, h.source_batch(), h.target_batch()) for model in models)
    assert h.difference(*outputs) <= h.TOLERANCE
    h.loss_of(models[1]).backward()
    assert len(added) == 2 and all(models[1].get_parameter(name).grad.all() for name in added)
