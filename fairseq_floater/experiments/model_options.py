"""Parse a run's options as fairseq will, so that a wrong one costs no hours before it.

And warn of encoders that tell apart distances which the training sentences do not have.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from fairseq import options as fairseq_options

from fairseq_floater.checkpoints.donor import check_options_of_a_warm_start
from fairseq_floater.checkpoints.rebuild import STACKS, longest_sentence
from fairseq_floater.errors import UsageError, refused_options
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
from fairseq_floater.position_encoders import distance_warning
from fairseq_floater.position_encoders.registry import DEFAULT_TARGETS
from fairseq_floater.transformer import (  # noqa: F401  registers them
    question_answering,
    roberta,
    translation,
)

# What argparse says of a mistake goes to stderr, which all threads share.
_ALONE = threading.Lock()


def training_options(
    experiment: Experiment, stage: str, machines: Machines, system: System
) -> argparse.Namespace:
    """Parse the arguments of a stage that trains: donor, finetune or scratch.

    Raises:
        UsageError: fairseq-train, or the encoder, refuses them.
    """
    if stage == "finetune":
        check_options_of_a_warm_start(experiment.arch(system), system.options)
    arguments = experiment.arguments(stage, system, machines=machines)
    return parse_training(arguments, experiment.path, stage)


def parse_training(arguments: list[str], config: Path, stage: str) -> argparse.Namespace:
    """Parse arguments of fairseq-train, of the experiment ``config``'s ``stage``.

    Raises:
        UsageError: fairseq-train, or the encoder, refuses them.
    """
    rule = f"{config}: fairseq-train refuses the options of {stage}"
    return _parsed(fairseq_options.get_training_parser, arguments, rule)


def check_generation(experiment: Experiment, machines: Machines, system: System) -> None:
    """Parse the arguments of the translation.

    Raises:
        UsageError: fairseq-generate refuses them.
    """
    arguments = experiment.arguments("generate", system, machines=machines)
    rule = f"{experiment.path}: fairseq-generate refuses the options of generation"
    _parsed(fairseq_options.get_generation_parser, arguments, rule)


def _parsed(
    parser: Callable[[], argparse.ArgumentParser], arguments: list[str], rule: str
) -> argparse.Namespace:
    place = arguments.index("--user-dir")
    arguments = arguments[:place] + arguments[place + 2 :]  # the plugin is loaded
    try:
        with _ALONE, refused_options(rule):
            return fairseq_options.parse_args_and_arch(parser(), arguments)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{rule}: {error}") from None


def untrained_distances(
    experiment: Experiment, options: argparse.Namespace, data: Path
) -> str | None:
    """Return a sentence that names option, limit, trained length and remedy; None where all is trained.

    Args:
        experiment: whose threshold stands for the trained length until data are made.
        options: of the training, complete.
        data: binarised data.
    """
    if DEFAULT_TARGETS[options.position_encoder] != "attention":
        return None  # signals have no such limit: the data need not be read
    longest = _longest(experiment, data)
    return None if longest is None else distance_warning(options, longest)


def _longest(experiment: Experiment, data: Path) -> int | None:
    """Return the tokens of the longest training sentence, end symbol included, of the shorter side."""
    languages = experiment.config.languages
    if data.is_dir():
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # else it tells what it has loaded
        pair = argparse.Namespace(source_lang=languages.source, target_lang=languages.target)
        lengths = [longest_sentence(str(data), stack, pair) for stack in STACKS]
        return min((n for n in lengths if n is not None), default=None)
    # Sources of fewer tokens than the threshold train, and each ends with one more symbol.
    return None if experiment.config.s2l is None else experiment.config.s2l.threshold
