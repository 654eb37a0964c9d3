"""Choose what of a model with FLOATER is trained, and where p(0) starts: options and rules."""

from __future__ import annotations

from typing import Any

from fairseq_floater.position_encoders.options import Option

ALL, FLOW, DYNAMICS, TRANSFORMER, REST = SCOPES = ("all", "flow", "dynamics", "transformer", "rest")
ZERO, BIAS = STARTS = ("zero", "bias")
TRAINING_OPTIONS = (
    Option(
        "--floater-train",
        None,
        "what is trained: all; flow: h and p(0) alone; dynamics: h alone; transformer: neither; rest: "
        "all but h; default: all. Heads that a task adds are trained always",
        str,
        SCOPES,
    ),
    Option("--floater-freeze", False, "the same as --floater-train transformer", bool),
    Option(
        "--floater-start",
        ZERO,
        "p(0) of target qkv after a warm start: zero, or the donor's biases of q, k, v, which leave "
        "zeros behind (bias)",
        str,
        STARTS,
    ),
)


def scope(options: dict[str, Any]) -> str:
    """Return what is trained, one of :data:`SCOPES`, by complete options."""
    if options["floater_freeze"]:
        return TRANSFORMER
    trained: str = options["floater_train"] or ALL
    return trained


def trains_dynamics(options: dict[str, Any]) -> bool:
    """Return whether h is trained."""
    return scope(options) in (ALL, FLOW, DYNAMICS)


def trains_start(options: dict[str, Any]) -> bool:
    """Return whether p(0) is trained."""
    return scope(options) in (ALL, FLOW, REST)


def trains_transformer(options: dict[str, Any]) -> bool:
    """Return whether the Transformer around the flow is trained."""
    return scope(options) in (ALL, TRANSFORMER, REST)


def check_training(options: dict[str, Any], target: str) -> None:
    """Refuse options that contradict each other.

    Raises:
        ValueError: ``--floater-freeze`` with another scope, or ``--floater-start bias`` where no bias
            stands for p(0).
    """
    trained = options["floater_train"]
    if options["floater_freeze"] and trained not in (None, TRANSFORMER):
        raise ValueError(
            f"`--floater-train` must be {TRANSFORMER} with `--floater-freeze`, which means that, but is "
            f"{trained} instead; leave one of the two out."
        )
    if options["floater_start"] == BIAS and target != "qkv":
        raise ValueError(
            f"`--floater-start` must be {ZERO} with `--position-target` {target}, but is {BIAS} "
            "instead: only p(0) of target qkv stands where the biases of q, k and v do."
        )


def check_encoder(args: Any) -> None:
    """Refuse what is said of h and p(0) where the encoder has none, by options on a Namespace.

    Raises:
        ValueError: a scope of training, or a start, for another encoder.
    """
    if args.position_encoder == "floater":
        return
    # No `vars`: Hydra's configuration keeps its keys elsewhere.
    trained = scope({"floater_freeze": args.floater_freeze, "floater_train": args.floater_train})
    for flag, value, rule in (
        ("--floater-train", trained, ALL),  # --floater-freeze is short for one of its values
        ("--floater-start", args.floater_start, ZERO),
    ):
        if value != rule:
            raise ValueError(
                f"`{flag}` must be {rule} with --position-encoder {args.position_encoder}, but is {value} "
                "instead: only floater has a flow h and initial positions p(0)."
            )


def training_warning(options: dict[str, Any], target: str) -> str | None:
    """Return a warning where h alone is trained and every p(0) stays at zero, else None."""
    if scope(options) != DYNAMICS or options["floater_start"] != ZERO or target != "qkv":
        return None
    return (
        "`--floater-train dynamics` with `--floater-start zero` keeps every p(0) where it starts, at zero: "
        "all blocks, and q, k and v alike, get one trajectory; a warm start with `--floater-start bias` "
        "gives each its own, `--floater-train flow` trains them."
    )
