"""Evaluate from short to long (paper, section 4.3, Figure 2): `floater s2l split` and `score`.

A model is trained on pairs with a short source and tested on pairs with a longer source than any it
saw, in bins of source length. ``split.py`` makes the data, ``run_scores.py`` scores the runs of systems
under several seeds, by bin as on whole test sets (`floater compare`); intervals and p-values are made in
``group_scores.py``.
"""
