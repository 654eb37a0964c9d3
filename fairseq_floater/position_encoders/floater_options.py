"""Declare FLOATER's options, and interpret them for its flows over tokens and over distances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq_floater.ode import ENGINES, GRADIENTS, TORCHDIFFEQ_SOLVERS, Clock, checked_step_size
from fairseq_floater.ode.clock import DEFAULT_BEND, LINEAR
from fairseq_floater.ode.flow_solver import AUTO, engine_for
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.segments import gap_in_tokens
from fairseq_floater.position_encoders.xl import XL_OPTIONS

ALL, FLOW, DYNAMICS, TRANSFORMER, REST = "all", "flow", "dynamics", "transformer", "rest"
SCOPES = (ALL, FLOW, DYNAMICS, TRANSFORMER, REST)
ZERO, BIAS, SINUSOID, ROTATION = "zero", "bias", "sinusoid", "rotation"
SHARED, BLOCK = "shared", "block"
XL = "xl"
RELATIVE_OPTIONS = (
    Option(
        "--floater-relative",
        None,
        "with --position-target relative: the flow over distances is added to keys (keys, default), to "
        "keys and values (values), or to the logits (bias), or scored as Transformer-XL's R is (xl)",
        choices=("keys", "values", "bias", XL),
    ),
    *XL_OPTIONS,
)
TIME_OPTION = Option(
    "--floater-time",
    LINEAR,
    "time of token i: delta i (linear), or delta T ln(1 + i / T) (log:T; log: T = "
    f"{DEFAULT_BEND:g}), so that tokens past the trained length are close to it; with "
    "--floater-relative xl: time of distance d, by default log, ln(1 + |d|)",
)
# Variants of a flow over distances that a comparison of all encoders runs.
RELATIVE_FORMS = (
    "--target relative",
    "--target relative -- --floater-relative values",
    "--target relative -- --floater-relative bias",
    "--target relative -- --floater-relative xl",
)
FLOATER_OPTIONS = (
    Option("--floater-delta", 0.1, "time between neighbouring tokens", float, above=0),
    TIME_OPTION,
    Option(
        "--floater-gap",
        0.0,
        "time that each --position-separator adds: the next token comes delta + gap later",
        float,
        at_least=0,
    ),
    Option(
        "--floater-solver",
        AUTO,
        "auto: by device and measured error; "
        + "; ".join(
            f"{e.name}: {e.summary}" + (f", step {e.default_step}" if e.default_step else "")
            for e in ENGINES.values()
        ),
        choices=(AUTO, *ENGINES),
    ),
    Option("--floater-step-size", None, "solver step in units of time", float, above=0),
    Option(
        "--floater-gradient",
        "direct",
        "of the discrete solve (direct), or by torchdiffeq's adjoint (adjoint, with its solvers only)",
        str,
        GRADIENTS,
    ),
    Option(
        "--floater-time-scale", 1.0, "h sees t / scale: bounds time for long input", float, above=0
    ),
    Option(
        "--floater-init-scale",
        None,
        "std of the initial h and p(0); default 0.01 for qkv (p(0) = 0), Linear's own "
        "initialisation for hidden (p(0) std 0.1); 0 starts exactly as the model without it",
        float,
        at_least=0,
    ),
    Option(
        "--floater-lr-scale",
        1.0,
        "learning-rate multiple of h and p(0); with adam, adamax, adagrad or adafactor",
        float,
        above=0,
    ),
    Option(
        "--floater-update-interval",
        1,
        "K: solve the flow, with a gradient, every K updates, and reuse the table in between",
        int,
        at_least=1,
    ),
    Option(
        "--floater-theta",
        SHARED,
        "h of target qkv and hidden: one for all blocks, as in the paper, or one for each (block)",
        choices=(SHARED, BLOCK),
    ),
    Option("--floater-autonomous", False, "h(p) does not see the time", bool),
    *RELATIVE_OPTIONS,
    Option(
        "--floater-train",
        None,
        "what is trained: all; flow: h and p(0) alone; dynamics: h alone; transformer: neither; rest: "
        "all but h; default: all. Heads that a task adds are always trained",
        choices=SCOPES,
    ),
    Option("--floater-freeze", False, "the same as --floater-train transformer", bool),
    Option(
        "--floater-start",
        ZERO,
        "p(0) of target qkv after a warm start: zero, or the donor's biases of q, k, v, which "
        "become zero (bias); target hidden: the flow begins as fairseq's sinusoid, which it replaces "
        "(sinusoid); target relative: it begins as that of rotation_flow (rotation)",
        choices=(ZERO, BIAS, SINUSOID, ROTATION),
    ),
)

_TARGET_OF_START = {
    BIAS: ("qkv", "only p(0) of target qkv can replace the biases of q, k and v"),
    SINUSOID: (
        "hidden",
        "q, k and v see the projected sinusoid, so each would need a separate h",
    ),
    ROTATION: ("relative", "only vectors of distances begin as those of rotation_flow"),
}


def scope(options: dict[str, Any]) -> str:
    """Return which parameters are trained, one of :data:`SCOPES`, from complete options."""
    return TRANSFORMER if options["floater_freeze"] else str(options["floater_train"] or ALL)


def trains_dynamics(options: dict[str, Any]) -> bool:
    return scope(options) in (ALL, FLOW, DYNAMICS)


def trains_start(options: dict[str, Any]) -> bool:
    return scope(options) in (ALL, FLOW, REST)


def trains_transformer(options: dict[str, Any]) -> bool:
    return scope(options) in (ALL, TRANSFORMER, REST)


# Steps a token for a flow that begins as the sinusoid, whose fastest channel turns by a radian a token: for
# engines that the user names, and for those that `auto` tries.
_STEPS_A_TOKEN = {"adams": 32, "collocation": 4, "rk4_hermite": 16, "rk4": 16, "midpoint": 64}
_STEPS_TRIED = (("adams", 16), ("rk4_hermite", 8), ("rk4_hermite", 16))


def solver_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options``, with a named engine's step if the flow begins as the sinusoid."""
    solver, step = options["floater_solver"], options["floater_step_size"]
    if options["floater_start"] != SINUSOID or step is not None or solver not in _STEPS_A_TOKEN:
        return options
    step = options["floater_delta"] / _STEPS_A_TOKEN[solver]
    return {**options, "floater_step_size": max(step, ENGINES[solver].finest_step)}


def solver_candidates(options: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the engines and steps that ``auto`` tries; an empty list stands for the device's."""
    if options["floater_start"] != SINUSOID:
        return []
    return [(engine, options["floater_delta"] / count) for engine, count in _STEPS_TRIED]


def check_solver(options: dict[str, Any]) -> None:
    """Raise ValueError if solver, step and gradient do not go together."""
    solver, gradient = options["floater_solver"], options["floater_gradient"]
    if gradient == "adjoint" and solver not in TORCHDIFFEQ_SOLVERS:
        raise ValueError(
            f"`--floater-solver` must be one of {', '.join(TORCHDIFFEQ_SOLVERS)} (torchdiffeq's) with "
            f"`--floater-gradient` adjoint, but is {solver} instead."
        )
    for device in ("cpu", "cuda"):  # `auto` has other engines on each
        checked_step_size(*engine_for(options, device), gradient)


def floater_faults(options: dict[str, Any], target: str) -> Iterator[str]:
    """Return messages on FLOATER's options that exclude each other."""
    Clock.read(options)
    trained = options["floater_train"]
    if options["floater_freeze"] and trained not in (None, TRANSFORMER):
        yield (
            f"`--floater-freeze` means `--floater-train {TRANSFORMER}`, but `--floater-train` is {trained}: "
            "give only one of the two."
        )
    start = options["floater_start"]
    needed, why = _TARGET_OF_START.get(start, (target, ""))
    if target != needed:
        yield (
            f"`--floater-start` must be {ZERO} with `--position-target` {target}, but is {start} "
            f"instead: {why}."
        )
    if options["floater_autonomous"] and options["floater_time_scale"] != 1:
        yield (
            "`--floater-time-scale` must be 1 with `--floater-autonomous`, but is "
            f"{options['floater_time_scale']:g} instead: h does not see the time."
        )
    gap_in_tokens(options)
    for option in FLOATER_OPTIONS if start == SINUSOID else ():
        value = options[option.dest]
        if option.dest in ("floater_time", "floater_init_scale") and value != option.default:
            yield (
                f"`{option.name}` must not be {value} with `--floater-start` {SINUSOID}, which sets h, "
                "p(0) and linear time."
            )
    yield from relative_faults(options, target)
    check_solver(options)


def relative_faults(options: dict[str, Any], target: str) -> Iterator[str]:
    """Return messages on options of a flow over distances, or of its xl form, that do not apply."""
    form = options["floater_relative"]
    if form is not None and target != "relative":
        yield (
            "`--floater-relative` must come with `--position-target relative`, but that is "
            f"{target} instead."
        )
    for option in XL_OPTIONS:
        if options[option.dest] is not None and form != XL:
            yield (
                f"`{option.name}` must come with `--floater-relative {XL}`, but that is {form or 'keys'} "
                "instead."
            )


def training_warning(options: dict[str, Any], target: str) -> str | None:
    """Return a warning if h alone is trained while every p(0) stays at zero, else None."""
    if scope(options) != DYNAMICS or options["floater_start"] != ZERO or target != "qkv":
        return None
    return (
        "`--floater-train dynamics` with `--floater-start zero` keeps every p(0) at zero: "
        "all blocks, and q, k and v alike, get one trajectory. A warm start with `--floater-start bias` "
        "gives each its own; `--floater-train flow` trains every p(0)."
    )
