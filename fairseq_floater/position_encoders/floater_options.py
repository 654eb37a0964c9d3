"""Declare the options of FLOATER that its files share: the solver's, time, and the form over distances."""

from __future__ import annotations

from typing import Any

from fairseq_floater.ode import ENGINES, GRADIENTS
from fairseq_floater.ode.clock import DEFAULT_BEND, LINEAR
from fairseq_floater.ode.flow_solver import AUTO
from fairseq_floater.position_encoders.options import Option

SOLVER_OPTIONS = (
    Option("--floater-delta", 0.1, "time between neighbouring tokens", float),
    Option(
        "--floater-time",
        LINEAR,
        "time of token i: delta i (linear), or delta T ln(1 + i / T) (log:T; log: T = "
        f"{DEFAULT_BEND:g}), so that tokens past the trained length lie little later than it",
        str,
    ),
    Option(
        "--floater-solver",
        AUTO,
        "auto: by device and measured error; "
        + "; ".join(
            f"{e.name}: {e.summary}" + (f", step {e.default_step}" if e.default_step else "")
            for e in ENGINES.values()
        ),
        str,
        (AUTO, *ENGINES),
    ),
    Option("--floater-step-size", None, "solver step in units of time", float),
    Option("--floater-gradient", "direct", "adjoint: torchdiffeq's solvers only", str, GRADIENTS),
)
RELATIVE_OPTION = Option(
    "--floater-relative",
    None,
    "with --position-target relative: the flow over distances is added to keys (keys, default), to "
    "keys and values (values), or to the logits (bias)",
    str,
    ("keys", "values", "bias"),
)
# Variants of a flow over distances that a comparison of all encoders runs.
RELATIVE_FORMS = (
    "--target relative",
    "--target relative -- --floater-relative values",
    "--target relative -- --floater-relative bias",
)


def check_relative_option(options: dict[str, Any], target: str) -> None:
    """Raise ValueError where ``--floater-relative`` is given for a flow that is not over distances."""
    if options["floater_relative"] is not None and target != "relative":
        raise ValueError(
            "`--floater-relative` must come with `--position-target relative`, but that is "
            f"{target} instead."
        )
