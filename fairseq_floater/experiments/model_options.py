"""Parse a run's options as fairseq will, so that a wrong one is refused before hours are spent.

Also warn of encoders that distinguish distances that the training sentences do not have.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

from fairseq import options as fairseq_options

from fairseq_floater.checkpoints.dictionaries import longest_sentence
from fairseq_floater.checkpoints.families import STACKS
from fairseq_floater.checkpoints.rebuild import parse_fairseq
from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.system import System
from fairseq_floater.position_encoders import distance_warning, foreign_options
from fairseq_floater.position_encoders.registry import (
    DEFAULT_TARGETS,
    block_numbers,
    check_depth,
)
from fairseq_floater.transformer import question_answering  # noqa: F401  registers the task


def check_owners(system: System) -> None:
    """Refuse an option of another encoder, which would change the run's name and nothing else."""
    for name, readers in foreign_options(system.encoder, system.options).items():
        raise UsageError(
            f"`{name}` has no effect with `--encoder {system.encoder}`: it is an option of "
            f"{', '.join(readers)}."
        )


def parse_training(arguments: list[str], config: Path, stage: str) -> argparse.Namespace:
    """Parse the arguments of fairseq-train for a ``stage`` of the experiment ``config``.

    Raises:
        UsageError: fairseq-train, or the encoder, refuses them.
    """
    rule = f"{config}: fairseq-train refuses the options of {stage}"
    args = _parsed(fairseq_options.get_training_parser, arguments, rule)
    if not (args.max_update or args.max_epoch or args.stop_time_hours or args.patience > 0):
        raise UsageError(f"{config}: {stage} would never end: give it max-update or max-epoch.")
    # Building the model would refuse a missing block too, but only after the donor has trained.
    if blocks := getattr(args, "position_blocks", None):
        depth = max(args.encoder_layers, getattr(args, "decoder_layers", 0))
        try:
            check_depth(block_numbers(blocks), depth)
        except ValueError as error:
            raise UsageError(f"{rule}: {error}") from None
    return args


def check_generation(arguments: list[str], config: Path) -> None:
    """Parse arguments of fairseq-generate; raises UsageError if it refuses them."""
    rule = f"{config}: fairseq-generate refuses the options of generation"
    _parsed(fairseq_options.get_generation_parser, arguments, rule)


def _parsed(
    parser: Callable[[], argparse.ArgumentParser], arguments: list[str], rule: str
) -> argparse.Namespace:
    index = arguments.index("--user-dir")
    arguments = arguments[:index] + arguments[index + 2 :]  # the plugin is loaded already
    try:
        return parse_fairseq(arguments, rule, parser)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{rule}: {error}") from None


def untrained_distances(
    options: argparse.Namespace, data: Path, threshold: int | None
) -> str | None:
    """Return a warning with option, limit, trained length and remedy; None if all distances are trained.

    Args:
        options: the complete options of the training.
        data: binarised data. Of the longest sentences of the two sides, the shorter one counts.
        threshold: threshold of a split by length. Until data are made, it stands for the longest training
            sentence: at most threshold - 1 tokens and an end symbol.
    """
    if DEFAULT_TARGETS[options.position_encoder] != "attention":
        return None  # signals have no such limit: the data need not be read
    lengths = [threshold]
    if data.is_dir():
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # else it logs what it has loaded
        lengths = [longest_sentence(str(data), stack, options) for stack in STACKS]
    known = [n for n in lengths if n is not None]
    warning = distance_warning(options, min(known)) if known else None
    if warning and not distance_warning(options, max(known)):
        warning += (
            f" The other side has up to {max(known)} tokens: keep the limit if only that side is "
            "longer in testing."
        )
    return warning
