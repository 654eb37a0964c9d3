"""Warn of encoders that tell apart distances which the training sentences of an experiment do not have."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_floater.checkpoints.rebuild import STACKS, longest_sentence
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.position_encoders import distance_warning
from fairseq_floater.position_encoders.registry import DEFAULT_TARGETS


def untrained_distances(
    experiment: Experiment, options: argparse.Namespace, data: Path
) -> str | None:
    """Return a sentence that names option, limit, trained length and remedy; None where all is trained.

    Args:
        experiment: whose threshold stands for the trained length until there are data.
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
        found = [longest_sentence(str(data), stack, pair) for stack in STACKS]
        return min((n for n in found if n is not None), default=None)
    # Sources of fewer tokens than the threshold train, and each ends with a symbol of its own.
    return None if experiment.config.s2l is None else experiment.config.s2l.threshold
