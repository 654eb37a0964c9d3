"""Check which of the project's goals a benchmark reaches on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contestants import BASELINE
from benchmarks.timing import Row
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.shared_options import BFLOAT16, FLOAT32, INT8
from fairseq_floater.position_encoders.signal import PositionSignal

# The shape and the tokens of an update that goals are set for.
ARCH, TOKENS = "floater_transformer_wmt_en_de", 4096
SIGNALS = [n for n, encoder in POSITION_ENCODERS.items() if issubclass(encoder, PositionSignal)]
SIMPLE = (*SIGNALS, "rope")
OTHERS = [name for name in POSITION_ENCODERS if name not in (*SIMPLE, "cope")]


@dataclass(frozen=True)
class Goal:
    """The largest ratio to fairseq's Transformer that ``encoders`` may have.

    Attributes:
        sentences: translated at once; None: the goal is about training.
    """

    title: str
    part: str
    limit: float
    encoders: Sequence[str] = tuple(POSITION_ENCODERS)
    weights: str = FLOAT32
    sentences: int | None = None

    def is_about(self, row: Row) -> bool:
        parts = row["contestant"].split()
        weights = [word for word in parts if word in (BFLOAT16, INT8)] or [FLOAT32]
        return (
            parts[0] in self.encoders
            and weights == [self.weights]
            and row.get("sentences") == self.sentences
        )


def _translating(sentences: int, weights: str, limit: float) -> Goal:
    title = f"translation, {sentences} at once, {weights}"
    return Goal(title, "generation", limit, weights=weights, sentences=sentences)


GOALS = (
    _translating(1, FLOAT32, 0.80),
    _translating(1, BFLOAT16, 0.60),
    _translating(1, INT8, 0.40),
    _translating(16, FLOAT32, 0.70),
    _translating(16, INT8, 0.40),
    _translating(64, FLOAT32, 0.65),
    Goal("an update, signals and rope", "update", 1.00, SIMPLE),
    Goal("an update, others except cope", "update", 1.15, OTHERS),
    Goal("memory, signals and rope", "memory", 1.00, SIMPLE),
    Goal("memory, all encoders", "memory", 1.25),
)


def verdicts(parts: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield, for each goal that was measured, whether it holds and which contestants miss it."""
    for goal in GOALS:
        rows = [row for row in parts.get(goal.part, ()) if row["contestant"] != BASELINE]
        ratios: dict[str, float] = {}
        for row in filter(goal.is_about, rows):
            name = row["contestant"]
            ratios[name] = max(row["ratio"], ratios.get(name, 0.0))
        missing = [f"`{n}` {r:.3f}" for n, r in ratios.items() if r > goal.limit]
        if ratios:
            verdict = f"missed by {', '.join(missing)}" if missing else "holds"
            yield f"{goal.title}, at most {goal.limit:.2f}: {verdict}"
