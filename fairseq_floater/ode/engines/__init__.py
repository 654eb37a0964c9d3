"""List the engines: one file and one line each.

`solve`, `auto`, the help of ``--floater-solver`` and `python -m benchmarks speed` read this table.
"""

from fairseq_floater.ode.engines import adams, collocation, reference, rk4_hermite
from fairseq_floater.ode.engines.engine import Engine

#: by name
ENGINES = {
    engine.name: engine
    for engine in (
        adams.ENGINE,
        collocation.ENGINE,
        rk4_hermite.ENGINE,
        reference.RK4,
        reference.MIDPOINT,
        reference.DOPRI5,
    )
}


def engines_for(case: str) -> list[Engine]:
    """Return the engines that ``auto`` tries for a ``case`` (`Engine.auto_steps`), in the order of trial.

    Engines that begin with a coarser step come first, because they are faster.
    """
    engines = [engine for engine in ENGINES.values() if case in engine.auto_steps]
    return sorted(engines, key=lambda engine: -engine.auto_steps[case][0])
