"""Share what every encoder that follows a learned flow does: start values, the solver's state, its log."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_floater.ode import RescaledModule
from fairseq_floater.ode.flow_solver import FlowSolver
from fairseq_floater.position_encoders.base import PositionEncoder


class StartValues(RescaledModule):
    """Hold where the trajectories of one block start, divided by ``--floater-lr-scale``."""

    values: nn.Parameter

    def initial(self) -> Tensor:
        """Return the start in at least float32, in the shape of ``values``."""
        dtype = torch.promote_types(self.values.dtype, torch.float32)
        return self.scaled(self.values.to(dtype))


class FlowPositions(PositionEncoder):
    """Keep the solver of a flow, which knows the number of updates and forgets with the encoder.

    Subclasses set ``solver`` and compute their rows with it.
    """

    solver: FlowSolver
    num_updates = 0

    def statistics(self) -> dict[str, Any]:
        return self.solver.statistics()

    def set_num_updates(self, num_updates: int) -> None:
        """Take the number of updates so far, from fairseq's trainer before each."""
        self.num_updates = num_updates

    def forget(self) -> None:
        super().forget()
        self.solver.forget()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Beside the tensors: torch keeps such metadata, fairseq too. After a validation nothing is known.
        if self.training and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["solver"] = self.solver.state()

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *args)
        if "solver" in metadata:
            self.solver.restore(metadata["solver"])
