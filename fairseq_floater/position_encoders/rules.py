"""Refuse options that exclude each other; no other file refuses a combination of options.

Each generator yields the messages on one subject. An encoder's ``faults`` yields those on its options;
FLOATER's also raises, where a parser or a solver finds the fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairseq_floater.position_encoders.eval_law import (
    INTERPOLATE,
    INTERPOLATED_ROWS_PER_TOKEN,
    LOGN,
    WINDOW,
    YARN,
    EvalLaw,
)
from fairseq_floater.position_encoders.fairseq_rules import (
    fairseq_option_faults,
    fairseq_option_warnings,
    one_stack_faults,
)
from fairseq_floater.position_encoders.options import ADD, MULTIPLY
from fairseq_floater.position_encoders.registry import POSITION_ENCODERS, encoder_class
from fairseq_floater.position_encoders.shared_options import (
    BOTH,
    LINEAR,
    LINEAR_OPTIONS,
    OFF,
    SHARED_OPTIONS,
    all_options,
    encoder_options,
    has_base,
    joined,
)
from fairseq_floater.position_encoders.warp_law import WARP_OPTIONS, Shifting, WarpLaw

if TYPE_CHECKING:
    from fairseq_floater.position_encoders.base import PositionEncoder

# The stacks of a translation model, of a RoBERTa and of a language model.
STACKS, ENCODER_ALONE, DECODER_ALONE = ("encoder", "decoder"), ("encoder",), ("decoder",)


def refuse(args: Any, encoder: type[PositionEncoder], stacks: tuple[str, ...] | None) -> None:
    """Raise ValueError with the message of the first rule that complete options break.

    Args:
        args: the model's options, complete; a Namespace or Hydra's DictConfig, which has no ``vars``.
        encoder: the class that ``args`` name.
        stacks: those of the model; None: do not check fairseq's options.
    """
    options, law = encoder_options(args), WarpLaw.read(args)
    messages = chain(
        _position_faults(args, encoder),
        _attention_faults(args, encoder),
        _cross_attention_faults(args, encoder, options),
        _segment_faults(args, options, law),
        _evaluation_faults(args, encoder, options),
        fairseq_option_faults(args) if stacks else (),
        one_stack_faults(args, *stacks) if stacks and len(stacks) == 1 else (),
        () if law is None else _moved_position_faults(args, encoder, options, law),
        encoder.faults(options, args.position_target),
    )
    for message in messages:
        raise ValueError(message)


def _position_faults(args: Any, encoder: type[PositionEncoder]) -> Iterator[str]:
    name, target = args.position_encoder, args.position_target
    if target not in encoder.targets:
        yield (
            f"`--position-target` must be {' or '.join(encoder.targets)} with --position-encoder "
            f"{name}, but is {target} instead."
        )
    if args.position_base == "keep" and getattr(args, "no_token_positional_embeddings", False):
        yield (
            "`--position-base` must not be keep with `--no-token-positional-embeddings`, which drops the "
            "base."
        )
    if name != "floater":
        # --floater-freeze is short for a value of --floater-train.
        trained = "transformer" if args.floater_freeze else args.floater_train or "all"
        for flag, value, rule in (
            ("--floater-train", trained, "all"),
            ("--floater-start", args.floater_start, "zero"),
            ("--floater-gap", args.floater_gap, 0),
        ):
            if value != rule:
                yield (
                    f"`{flag}` must be {rule} with --position-encoder {name}, but is {value} "
                    "instead: only floater has a flow h, its times and initial positions p(0)."
                )
    several = args.position_blocks != "input"
    if args.floater_start == "sinusoid" and several and args.position_combine == MULTIPLY:
        yield (
            "`--position-combine` must not be multiply with `--floater-start sinusoid` in several blocks: "
            "those after the first begin with rows of zeros."
        )
    if encoder.acts_on is None and args.position_sides != BOTH:
        yield (
            f"`--position-sides` must be {BOTH} with --position-encoder {name}, but is "
            f"{args.position_sides} instead: no side has positions."
        )
    enters_input = encoder.combines and target == "hidden"
    if args.position_combine != ADD and not enters_input:
        yield (
            f"`--position-combine` must be add with --position-encoder {name} and "
            f"--position-target {target}, but is {args.position_combine} instead: only "
            f"signals ({_encoders_with('combines')}) of target hidden combine with a block's input."
        )


def _encoders_with(attribute: str, value: bool = True) -> str:
    """Return the names of the encoders whose class has this value of ``attribute``, for a message."""
    classes = POSITION_ENCODERS.items()
    return ", ".join(name for name, cls in classes if getattr(cls, attribute) == value)


def _moved_position_faults(
    args: Any, encoder: type[PositionEncoder], options: dict[str, Any], law: WarpLaw
) -> Iterator[str]:
    """Refuse moved positions that the encoder does not have, or that would change nothing."""
    name, given = encoder.name, _given_warps(args)
    if not encoder.takes_stretch(options):
        set_options = [o for o in encoder.options if options[o.dest] != o.default]
        phrase = ", ".join(f"{o.name.lstrip('-')} {options[o.dest]}" for o in set_options)
        details = f" ({phrase})" if encoder.continuous else ""
        yield (
            f"`{given[0]}` must come with --position-encoder {_encoders_with('continuous')}, but that is "
            f"{name}{details} instead."
        )
    if law.random is not None and len(given) > 1:
        yield (
            f"`--position-random` must be alone, but comes with `{given[0]}` instead: it draws the positions "
            "themselves, so nothing is left to move."
        )
    if law.shift is not None and encoder.is_relative(options):
        yield (
            f"`--position-shift` must not be set with --position-encoder {name}, where it would "
            "change nothing in self-attention: distances alone count, and they stay as they are."
        )
    # A distance changes by at most 2 E; a change of less than half a token is rounded away.
    if 0 < law.jitter < 0.25 and law.stretch is None and encoder.rounds_distances(options):
        yield (
            f"`--position-jitter` must be at least 0.25 with --position-encoder {name}, but is "
            f"{law.jitter} instead: distances are rounded to whole tokens, so it would change nothing."
        )
    if law.reach(1)[0] and not encoder.goes_before_start(options):
        yield (
            f"`{given[-1]}` puts tokens up to {law.jitter - (law.shift or Shifting(0, 0)).low:g} before "
            f"position 0, where --position-encoder {name} has no rows with these options; "
            f"`--position-shift {law.jitter:g}:HIGH` keeps all at 0 or later."
        )
    if has_base(args):
        yield (
            f"`{given[0]}` must come with `--no-token-positional-embeddings` (or "
            "`--position-base drop`): fairseq's own positions underneath would stay as they are."
        )


def _segment_faults(args: Any, options: dict[str, Any], law: WarpLaw | None) -> Iterator[str]:
    """Refuse segments without a separator, an encoder that counts none, and training that moves positions."""
    if args.position_segments and "position_segments" not in options:
        yield (
            f"`--position-segments` must be off with --position-encoder {args.position_encoder}: only "
            "sinusoidal and rope number segments."
        )
    flag = "--position-segments" if args.position_segments else "--floater-gap"
    if not (args.position_segments or args.floater_gap):
        return
    if args.position_separator is None:
        yield f"`{flag}` must come with `--position-separator`, the word that ends a segment."
    if law is not None:
        yield f"`{flag}` must not come with `{_given_warps(args)[0]}`: the data give the positions."


def _given_warps(args: Any) -> list[str]:
    return [option.name for option in WARP_OPTIONS if getattr(args, option.dest) is not None]


def _attention_faults(args: Any, encoder: type[PositionEncoder]) -> Iterator[str]:
    if args.attention_kind != LINEAR:
        for option in LINEAR_OPTIONS:
            if getattr(args, option.dest) != option.default:
                yield (
                    f"`{option.name}` must come with `--attention-kind linear`, but that is "
                    f"{args.attention_kind} instead."
                )
    elif encoder.needs_logits:
        yield (
            f"`--attention-kind` must be softmax with --position-encoder {encoder.name}, which acts on "
            "logits, but is linear instead: linear attention has no logits. It takes "
            f"{_encoders_with('needs_logits', False)}."
        )
    elif args.attention_log_length:
        yield (
            "`--attention-log-length` must be 0 with `--attention-kind linear`, but is "
            f"{args.attention_log_length:g} instead: linear attention has no logits."
        )
    elif getattr(args, "cross_self_attention", False):
        yield (
            "`--cross-self-attention` must be off with `--attention-kind linear`: a state of fixed "
            "size holds either the source's keys or the target's."
        )


def _cross_attention_faults(
    args: Any, encoder: type[PositionEncoder], options: dict[str, Any]
) -> Iterator[str]:
    ratio = args.position_cross_ratio
    if args.position_cross == OFF:
        if ratio != 1:
            yield f"`--position-cross-ratio` {ratio:g} must come with `--position-cross relative`."
        return
    name = encoder.name
    if not encoder.can_cross:
        if encoder.combines:  # a signal
            reason = "its target qkv puts source and target positions into cross-attention"
        elif args.position_target == "attention":
            reason = "it is defined along one sequence, from the tokens between query and key"
        else:
            reason = "it knows no distance between two tokens"
        yield f"`--position-cross` must be off with --position-encoder {name}: {reason}."
    if args.position_sides != BOTH:
        yield (
            f"`--position-cross` relative must come with `--position-sides` {BOTH}, but that is "
            f"{args.position_sides} instead: a distance needs positions on both sides."
        )
    if args.position_segments:
        yield (
            "`--position-cross` must be off with `--position-segments`: each side counts its own segments."
        )
    if args.linear_cross or getattr(args, "no_cross_attention", False):
        yield (
            "`--position-cross` must be off with `--linear-cross` or `--no-cross-attention`: there are no "
            "logits of cross-attention."
        )
    if ratio != int(ratio) and not encoder.takes_stretch(options):
        yield (
            f"`--position-cross-ratio` must be a whole number with --position-encoder {name} and these "
            f"options, but is {ratio:g} instead: they have no fractional positions."
        )


def _evaluation_faults(
    args: Any, encoder: type[PositionEncoder], options: dict[str, Any]
) -> Iterator[str]:
    law = EvalLaw.read(args)
    if law is None:
        return
    reason = ""
    if law.kind == INTERPOLATE and not encoder.takes_stretch(options):
        reason = "it has no fractional positions"
    elif law.kind == INTERPOLATE and has_base(args):
        reason = "fairseq's own positions underneath would stay as they are"
    elif law.reads_lengths and args.position_random is not None:
        reason = "`--position-random` already spaces positions in evaluation"
    elif law.reads_lengths and (args.position_segments or args.floater_gap):
        reason = "`--position-segments` and `--floater-gap` take positions from the data"
    elif law.kind == INTERPOLATE and args.position_cross_ratio * INTERPOLATED_ROWS_PER_TOKEN % 1:
        reason = "positions would be rounded twice with this `--position-cross-ratio`"
    elif law.changes_frequencies and not encoder.has_frequencies:
        reason = f"only {_encoders_with('has_frequencies')} have the frequencies that it changes"
    elif law.changes_distances and not encoder.reads_distances(options):
        reason = "it does not read its logits from a table of distances alone"
    elif args.attention_kind == LINEAR and (law.kind == YARN or not law.reads_lengths):
        reason = "linear attention has no logits and sees all keys"
    elif law.kind == YARN and args.rope_values:
        reason = "its temperature is for logits, and `--rope-values` would apply it to values"
    elif law.kind == LOGN and args.attention_log_length:
        reason = "it was trained with `--attention-log-length`"
    elif law.kind == WINDOW and getattr(args, "cross_self_attention", False):
        reason = "`--cross-self-attention` mixes source and target keys"
    elif law.kind == WINDOW and getattr(encoder.part, "needs_between", False):
        reason = "it sums over all tokens between key and query, hidden ones too"
    if reason:
        yield (
            f"`--position-eval` must not be {args.position_eval} with --position-encoder {encoder.name} and "
            f"these options: {reason}."
        )


def warnings(args: Any) -> Iterator[str]:
    """Return warnings about complete options that have no effect, or a surprising one."""
    read = {*SHARED_OPTIONS, *POSITION_ENCODERS[args.position_encoder].options}
    given = [o for o in all_options() if o not in read and getattr(args, o.dest) != o.default]
    if given:
        names = joined(f"`{o.name}`" for o in given)
        yield f"--position-encoder {args.position_encoder} does not read {names}: no effect."
    yield from fairseq_option_warnings(args)
    encoder = encoder_class(args.position_encoder, args.position_target)
    warning = encoder.warning(encoder_options(args), args.position_target)
    if warning:
        yield warning
