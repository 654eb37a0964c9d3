"""Published exact match on the tasks, which is shown beside ours.

The numbers are from the authors' code, abstracts, or results for each example. The tables of Ontañón et al.
2022 and Csordás et al. 2021 are missing, because they could not be consulted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# SCAN's lengths above a cutoff of 25. The last entry stands for all of them.
_LENGTHS = ("26", "27", "28", "30", "32", "33", "36", "40", "48", "")
_DECODERS = {
    "no positions": (1.00, 1.00, 0.94, 0.95, 0.65, 0.91, 0.61, 0.03, 0, 0.797),
    "t5": (0.99, 0.98, 0.92, 0.92, 0.64, 0.86, 0.14, 0.37, 0.09, 0.799),
    "alibi": (0.68, 0.80, 0.79, 0.40, 0.13, 0.11, 0, 0, 0, 0.438),
    "rope": (0.47, 0.31, 0.39, 0.23, 0.28, 0.21, 0.23, 0.05, 0, 0.283),
    "sinusoid": (0.35, 0, 0, 0, 0, 0, 0, 0, 0, 0.057),
}
_LENGTH_TOLD = dict(
    zip(
        (22, 24, 25, 26, 27, 28, 30, 32, 33, 36, 40),
        (0.58, 0.54, 0.69, 0.82, 0.88, 0.85, 0.89, 0.82, 1, 1, 1),
    )
)
_KAZEMNEJAD = (
    "Kazemnejad et al. 2023: decoders without encoders, 107 M parameters, means of 3 seeds; ours have "
    "encoders too, and are small."
)
_NEWMAN = "Newman et al. 2020: the best before 2021, told the length of the output, as ours by --told-length."
_CSORDAS = (
    "Csordás et al. 2021: a universal Transformer (blocks share parameters) with Transformer-XL's positions, "
    "50,000 updates of 256 pairs; ours have blocks of their own and fewer updates."
)


class Published(NamedTuple):
    """A published system, its exact match by group of test sentences, and how its set-up differs."""

    label: str
    shares: dict[str, float]
    setup: str


def published(parameters: dict[str, Any]) -> list[Published]:
    """Return the published systems of a task; ``parameters`` are those that its text was made with."""
    cutoff = parameters["cutoff"] if parameters["task"] == "scan" else None
    rows = []
    if cutoff in _LENGTH_TOLD:
        rows.append(Published("length told", {"test": _LENGTH_TOLD[cutoff]}, _NEWMAN))
    if cutoff == 26:
        rows.append(Published("xl, universal", {"test": 1.0}, _CSORDAS))
    if cutoff == 25:
        groups = [f"test, {length}" if length else "test" for length in _LENGTHS]
        rows += [
            Published(f"{name}, decoder", dict(zip(groups, shares)), _KAZEMNEJAD)
            for name, shares in _DECODERS.items()
        ]
    return rows
