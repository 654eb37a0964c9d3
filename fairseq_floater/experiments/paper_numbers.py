"""The numbers of the paper's Tables 2 and 6."""

from __future__ import annotations

# (size, source, target) of Table 2's columns, and its rows in this order.
COLUMNS = (("base", "en", "de"), ("base", "en", "fr"), ("big", "en", "de"), ("big", "en", "fr"))
TABLE_2 = {
    ("all", "floater"): (28.6, 41.6, 29.2, 42.7),
    ("all", "sinusoidal"): (28.2, 40.6, 28.4, 42.0),
    ("all", "learned"): (26.9, 40.9, 28.3, 42.0),
    ("input", "floater"): (28.3, 41.1, 29.1, 42.4),
    ("input", "sinusoidal"): (27.9, 40.4, 28.4, 41.8),
    ("input", "learned"): (27.8, 40.9, 28.5, 42.4),
}
# Table 6 (En-De, base, all blocks): encoder, layers, input -> BLEU, thousands of parameters.
TABLE_6 = {
    ("floater", None, None): (28.57, 526.3),
    ("rnn", "1", "scalar"): (27.99, 263.2),
    ("rnn", "2", "scalar"): (28.16, 526.3),
    ("rnn", "1", "vector"): (27.99, 1050.0),
}
