"""List the engines: one file and one line each.

`solve`, `auto`, the help of ``--floater-solver`` and `floater benchmark` read this table.
"""

from fairseq_floater.ode.engines import adams, collocation, reference, rk4_hermite

#: by name, in the order in which ``auto`` tries them
ENGINES = {
    engine.name: engine
    for engine in (
        collocation.ENGINE,
        adams.ENGINE,
        rk4_hermite.ENGINE,
        reference.RK4,
        reference.MIDPOINT,
        reference.DOPRI5,
    )
}
