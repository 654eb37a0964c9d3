"""The numbers of the paper's Tables 2 to 6."""

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
# Architecture -> size in the columns.
SIZES = {
    "transformer": "base",
    "transformer_wmt_en_de": "base",
    "transformer_wmt_en_de_big": "big",
    "transformer_vaswani_wmt_en_de_big": "big",
    "transformer_vaswani_wmt_en_fr_big": "big",
}
# Table 6 (En-De, base, all blocks): encoder, layers, input -> BLEU, thousands of parameters.
TABLE_6 = {
    ("floater", None, None): (28.57, 526.3),
    ("rnn", "1", "scalar"): (27.99, 263.2),
    ("rnn", "2", "scalar"): (28.16, 526.3),
    ("rnn", "1", "vector"): (27.99, 1050.0),
}

# Table 3 (GLUE, dev sets): (size, system) -> scores in the order of `GLUE`.
GLUE = ("cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte")
_TABLE_3 = {
    ("base", "roberta"): (63.6, 94.8, 88.2, 91.9, 91.2, 87.6, 92.8, 78.7),
    ("base", "floater"): (63.4, 95.1, 89.0, 91.7, 91.5, 87.7, 93.1, 80.5),
    ("large", "roberta"): (68.0, 96.4, 90.9, 92.2, 92.4, 90.2, 94.7, 86.6),
    ("large", "floater"): (69.0, 96.7, 91.4, 92.2, 92.5, 90.4, 94.8, 87.0),
}
# Tables 3 to 5: (size, task) -> system -> numbers: one for GLUE; all, middle and high of RACE's test set
# (Table 4); exact match and F1 on SQuAD's dev set (Table 5).
TABLES_345: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    **{
        (size, task): {system: (_TABLE_3[size, system][i],) for system in ("roberta", "floater")}
        for size in ("base", "large")
        for i, task in enumerate(GLUE)
    },
    ("large", "race"): {"roberta": (82.8, 86.5, 81.3), "floater": (83.3, 87.1, 81.7)},
    ("large", "squad1"): {"roberta": (88.9, 94.6), "floater": (88.9, 94.6)},
    ("large", "squad2"): {"roberta": (86.5, 89.4), "floater": (86.6, 89.5)},
}
