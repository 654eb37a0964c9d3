"""Evaluate from short to long (paper, section 4.3, Figure 2): `floater s2l split` and `score`.

A model is trained on pairs with short sources and tested on pairs with longer sources, in bins of
source length. ``split.py`` makes the data. ``run_scores.py`` scores the runs of systems over several
seeds, by bin or on whole test sets (`floater compare`). ``group_scores.py`` computes intervals and
p-values.
"""
