"""Give no positions: the control model, which knows order by its causal mask alone."""

from __future__ import annotations

from fairseq_floater.position_encoders.signal import PositionSignal


class NoPositions(PositionSignal):
    """Add nothing, and remove fairseq's sinusoid. No block receives positions, so there is no table."""

    name = "none"
    title = "none"
    formula = "-"
    source = "control"
    acts_on = None
    base = "replaced"
    combines = False
    tabulated = False
    data_driven = False

    def receives(self, block_index: int) -> bool:
        return False

    def costs(self) -> tuple[str, ...]:
        return ()
