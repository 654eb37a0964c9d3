"""Encoders with a table, and a recorder of the tables they compute. Not a test file."""

import helpers as h

from fairseq_floater.position_encoders import POSITION_ENCODERS

# `sinusoidal` at the input computes no table: fairseq's sinusoid is already there.
TABLES = [
    c
    for c in h.CASES
    if POSITION_ENCODERS[c[0]].tabulated and c != ("sinusoidal", "input", "hidden")
]


every_table = h.parametrised(TABLES)
every_signal = h.parametrised([c for c in TABLES if c[2].startswith(("qkv", "hidden"))])
every_endless_table = h.parametrised(
    [c for c in TABLES if POSITION_ENCODERS[c[0]].inductive and c[1] == "all"]
)
every_encoder_without_a_table = h.parametrised(
    [c for c in h.CASES if not POSITION_ENCODERS[c[0]].tabulated]
)
every_kept_table = h.parametrised([c for c in TABLES if c[1] == "all"])
