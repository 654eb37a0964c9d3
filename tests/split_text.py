"""Encoded text to split by length, and the options of a split. Not a test file."""

from fairseq_floater.evaluation.s2l.options import SplitOptions

ENCODED = {"source": "en", "target": "de", "encoded": True}


def line(tokens, start=0):
    """A line of so many sentencepieces, each a word."""
    return " ".join(f"\u2581w{start + i}" for i in range(tokens))


def write_sides(folder, name, sources, targets):
    folder.mkdir(exist_ok=True)
    for lang, side in (("en", sources), ("de", targets)):
        (folder / f"{name}.{lang}").write_text("".join(s + "\n" for s in side))


def options(**changes):
    return SplitOptions(**{**ENCODED, "edges": (8, 12, 16), **changes})
