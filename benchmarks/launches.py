"""Count the kernels that an update launches: aten calls that are not views.

On a GPU each kernel costs the host a few microseconds, whatever its size. So the many small kernels of
a flow can delay an update. The count does not depend on the width of a model, and can be taken on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fairseq.trainer import Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.batches import Batch
from fairseq_floater.ode import auto
from fairseq_floater.position_encoders.floater import FlowPositions

# Calls that allocate memory, or only read a tensor's metadata.
WITHOUT_KERNEL = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("alias", "detach", "lift_fresh", "promote_types", "set_", "_unsafe_view"),
    )
)
# Updates before the one that is counted: the first chooses engines and fills caches.
WARM_UP = 2


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in WITHOUT_KERNEL:
            self.calls += 1
        return func(*args, **(kwargs or {}))


def update_launches(trained: Trainer, batch: Batch) -> int:
    """Count the kernels of an update's forward and backward pass; the optimiser takes no step."""
    model, criterion = trained.model.train(), trained.criterion
    counting = _Counting()
    for number in range(WARM_UP + 1):
        model.zero_grad(set_to_none=True)
        with nullcontext() if number < WARM_UP else counting:
            criterion(model, batch)[0].backward()
    return counting.calls


@contextmanager
def engines_of_a_gpu(model: Any) -> Iterator[None]:
    """Solve the flows of a ``model`` on the CPU as on a GPU: with its engines, checked once per solve."""
    flows = [module for module in model.modules() if isinstance(module, FlowPositions)]
    solvers = [solver for flow in flows for solver in flow.solvers.values()]
    before, auto.CANDIDATES["cpu"] = auto.CANDIDATES["cpu"], auto.CANDIDATES["cuda"]
    for solver in solvers:
        solver.forget()
        solver.record.check_each = False
    try:
        yield
    finally:
        auto.CANDIDATES["cpu"] = before
        for solver in solvers:
            solver.forget()
            solver.record.check_each = None
