"""The number of parameters that encoders add, by their options."""

import pytest

from fairseq_floater.experiments.info import VOCABULARY, added_parameters

# Layers, input, parameters of one recurrence (Table 6: 263.2K, 526.3K, 1,050.0K).
TABLE_6 = [(1, "scalar", 263_168), (2, "scalar", 526_336), (1, "vector", 1_049_600)]
# Added to floater_transformer, with positions in all blocks.
PARAMETERS = [
    ("alibi", {}, 0),
    ("alibi", {"alibi_slopes": "learned"}, 2 * 8),
    ("t5", {}, 2 * 32 * 8),
    ("t5", {"blocks": "input", "t5_buckets": 8}, 2 * 8 * 8),
    ("kerple", {}, 32 + 16),
    ("sandwich", {}, 0),
    ("sandwich", {"position_base": "keep"}, 2),
    ("fire", {}, 660),
    ("cope", {}, 73_728),
    ("cope", {"blocks": "input", "cope_positions": 16}, 3 * 16 * 64),
    ("forget", {}, 73_872),
    ("forget", {"position_base": "keep"}, 73_872 + 12),
    ("shaw", {}, 38_400),
    ("shaw", {"shaw_per_head": True}, 307_200),
    ("shaw", {"shaw_values": "off"}, 19_200),
    ("shaw", {"shaw_clip": 4}, (9 + 5) * 2 * 64 * 6),
    ("nezha", {}, 0),
    ("xl", {}, 3_158_016),
    ("floater", {"floater_theta": "block"}, 18 * 526_336 + 54 * 512),
    ("floater", {"floater_autonomous": True}, 3 * 2 * 512 * 513 + 54 * 512),
    ("rnn", {"rnn_layers": 2, "rnn_input": "none"}, 3 * 2 * 512 * 513 + 54 * 512),
    ("floater", {"floater_theta": "block", "position_target": "hidden"}, 12 * (526_336 + 512)),
    ("xl", {"xl_projection": "off", "xl_v": "off"}, 2 * 6 * 512),
    ("xl", {"xl_projection": "off", "position_base": "keep"}, 2 * 6 * 2 * 512 + 2),
    ("tener", {"tener_key_term": True, "tener_scale": "sqrt"}, 12_288),
    ("tupe", {}, 1_053_184),
    ("tupe", {"t5_buckets": 64}, 1_053_184 + 2 * 32 * 8),
    ("tupe", {"tupe_positions": "learned"}, 1_053_184 + 2 * 1024 * 512),
    ("rope", {"rope_partial": 0.3}, 0),
    ("rope", {"rope_partial": 0.3, "rope_learned": True}, 2 * 9),
    ("xpos", {}, 0),
    ("xpos", {"rope_learned": True}, 2 * 32),
    ("deberta", {"deberta_absolute": 6, "deberta_p2c": "paper"}, 6_428_672),
    ("deberta", {"deberta_share": True}, 131_072 + 2 * 2 * 512),
    ("deberta", {"deberta_share": True, "deberta_buckets": 16}, 2 * 32 * 512 + 2 * 2 * 512),
    ("conv", {}, 6 * 4_096),
    ("conv", {"blocks": "input", "conv_kernel": 5}, 2 * 512 * (5 + 1)),
    ("token-rnn", {}, 3_151_872),
    ("token-rnn", {"blocks": "input"}, 3_151_872),
    ("complex", {}, 2 * VOCABULARY * 256),
    ("complex", {"complex_omega": "shared"}, 2 * 256),
    ("complex", {"complex_omega": "fixed"}, 0),
    ("learned", {"learned_hierarchy": 64}, 12 * 64 * 512),
    ("sinusoidal", {"position_combine": "concat"}, 1_049_600),
    ("learned", {"position_combine": "concat", "blocks": "input"}, 2 * 1024 * 512 + 1_049_600),
    *(("rnn", {"rnn_layers": n, "rnn_input": z}, 3 * k + 54 * 512) for n, z, k in TABLE_6),
    *(
        (encoder, {"position_target": "relative", "floater_relative": form}, count)
        for encoder, form, count in (
            ("floater", "keys", 2 * 2 * 64 * 66 + 6 * (2 + 1) * 64),
            ("floater", "values", 2 * 2 * 64 * 66 + 2 * 6 * (2 + 1) * 64),
            ("floater", "bias", 2 * 2 * 8 * 10 + 6 * (2 + 1) * 8),
            ("floater", "xl", 3_158_016 + 2 * 2 * 512 * 514 + (2 + 1) * 512),
            ("rotation_flow", "xl", 3_158_016 + 2 * 256 + (2 + 1) * 512),
            ("rotation_flow", "values", 2 * 32 + 2 * 6 * (2 + 1) * 64),
            ("rotation_flow", "bias", 2 * 4 + 6 * (2 + 1) * 8),
        )
    ),
]


@pytest.mark.parametrize(("encoder", "options", "count"), PARAMETERS)
def test_the_parameters_are_those_of_the_docstrings(encoder, options, count):
    options = {"blocks": "all", **options}
    assert sum(added_parameters("floater_transformer", encoder, **options).values()) == count
