"""Parse a run's options as fairseq will, so that a wrong one costs no hours before it."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from pathlib import Path

from fairseq import options as fairseq_options

from fairseq_floater.checkpoints.donor import check_options_of_a_warm_start
from fairseq_floater.errors import UsageError, refused_options
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
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
    """Parse the arguments of a stage that trains.

    Args:
        experiment: the configuration.
        stage: donor, finetune or scratch.
        machines: what it runs on.
        system: whose model is trained.

    Raises:
        UsageError: fairseq-train, or the encoder, refuses them.
    """
    if stage == "finetune":
        check_options_of_a_warm_start(experiment.arch(system), system.options)
    words = experiment.arguments(stage, system, machines=machines)
    return parse_training(words, experiment.path, stage)


def parse_training(words: list[str], config: Path, stage: str) -> argparse.Namespace:
    """Parse arguments of fairseq-train, of the experiment ``config``'s ``stage``.

    Raises:
        UsageError: fairseq-train, or the encoder, refuses them.
    """
    rule = f"{config}: fairseq-train refuses the options of {stage}"
    return _parsed(fairseq_options.get_training_parser, words, rule)


def check_generation(experiment: Experiment, machines: Machines, system: System) -> None:
    """Parse the arguments of the translation.

    Raises:
        UsageError: fairseq-generate refuses them.
    """
    words = experiment.arguments("generate", system, machines=machines)
    rule = f"{experiment.path}: fairseq-generate refuses the options of generation"
    _parsed(fairseq_options.get_generation_parser, words, rule)


def _parsed(
    parser: Callable[[], argparse.ArgumentParser], words: list[str], rule: str
) -> argparse.Namespace:
    place = words.index("--user-dir")
    words = words[:place] + words[place + 2 :]  # the plugin is loaded
    try:
        with _ALONE, refused_options(rule):
            return fairseq_options.parse_args_and_arch(parser(), words)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{rule}: {error}") from None
