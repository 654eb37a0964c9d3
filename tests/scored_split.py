"""Sentences of a short-to-long test set, and fairseq-generate's output for it. Not a test file."""

import numpy as np

WORDS = [f"{first}{second}" for first in "bdfgk" for second in ("an", "el", "ir", "os", "ut")]


def sentence(generator, length):
    return " ".join(generator.choice(WORDS, length))


def text(folder, name, lang="de"):
    lines = (folder / f"{name}.{lang}").read_text().split("\n")[:-1]
    return [line.replace(" ", "").replace("\u2581", " ").strip() for line in lines]


def damaged(references, seed, share=0.3):
    generator = np.random.default_rng(seed)
    return [
        " ".join(w if generator.random() > share else generator.choice(WORDS) for w in r.split())
        for r in references
    ]


def generated(path, sources, hypotheses, probability=-1.0, extra=0):
    """Write what fairseq-generate prints, in shuffled order; ``extra`` adds scores to each P line."""
    blocks = []
    for i, (source, hypothesis) in enumerate(zip(sources, hypotheses)):
        scores = " ".join([f"{probability:.4f}"] * (len(hypothesis.split()) + 1 + extra))
        blocks.append(
            f"S-{i}\t{source}\nT-{i}\tx\nH-{i}\t-0.5\t{hypothesis}\n"
            f"D-{i}\t-0.5\t{hypothesis}\nP-{i}\t{scores}\n"
        )
    np.random.default_rng(0).shuffle(blocks)
    path.write_text("".join(blocks))
    return path
