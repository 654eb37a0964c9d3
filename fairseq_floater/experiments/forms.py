"""List the systems of a comparison: those of the configuration, or encoders in the forms they declare.

An encoder's class declares the forms that are worth comparing (``forms``) and whether training may move
its positions, so a new encoder needs no change here.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.config import ListedSystem
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import (
    PLAIN,
    System,
    system_from_words,
    with_separator,
)
from fairseq_floater.position_encoders import add_args, complete, foreign_options, trained_limit
from fairseq_floater.position_encoders.options import option_values
from fairseq_floater.position_encoders.registry import POSITION_ENCODERS
from fairseq_floater.position_encoders.warp_law import Stretching
from fairseq_floater.verbs import shell_words

# The donor trained further, or fairseq's Transformer from random parameters.
_CONTROL = "--encoder sinusoidal --blocks input"


def systems_of(
    experiment: Experiment,
    *,
    encoders: Sequence[str] | None,
    start: str | None = None,
    stretch: str | None = None,
    also: Sequence[str] = (),
) -> tuple[list[ListedSystem], str | None]:
    """Return the systems of a comparison, and the name of its baseline, which is among them.

    Args:
        experiment: its comparison names the baseline. Without a comparison, the baseline is the control.
        encoders: registered names; None for the configuration's systems.
        start: ``scratch`` or ``donor`` for ``encoders`` and the baseline; None keeps the baseline's start.
        stretch: LOW:HIGH; each system that takes ``--position-stretch`` is also run with it.
        also: strings of further model options; each system that takes one is also run with it.

    Raises:
        UsageError: neither ``encoders`` nor systems in the configuration; or no system takes an option.
    """
    section = experiment.comparison if encoders is None else experiment.config.comparison
    systems = section.listed() if section else [listed(system_from_words(_CONTROL))]
    baseline = section.baseline if section else systems[0].system.name
    if encoders is not None:
        systems = [entry for entry in systems if entry.system.name == baseline]
        if systems and start not in (None, "scratch" if systems[0].system.scratch else "donor"):
            systems = [listed(replace(systems[0].system, scratch=start == "scratch"))]
            baseline = systems[0].system.name
        from_scratch = systems[0].system.scratch if systems else start != "donor"
        forms = forms_of(encoders, scratch=from_scratch)
        systems += [form for form in forms if form.system.name != baseline]
    separator = experiment.config.data.separator
    for options in also:
        refusal = f"No system takes `--also {options!r}`."
        systems = with_twins(systems, shell_words("--also", options), refusal, separator)
    if stretch is not None:
        systems = with_stretched(systems, stretch, separator)
    if encoders is not None and experiment.config.s2l is not None:
        systems = within_training(systems, experiment.s2l.threshold, baseline, separator)
    labels = Counter(entry.label for entry in systems)
    # A label leaves out the range of a stretch.
    return [e._replace(label=e.options) if labels[e.label] > 1 else e for e in systems], baseline


def forms_of(encoders: Sequence[str], *, scratch: bool) -> list[ListedSystem]:
    """List the systems of registered ``encoders``, in the forms that their classes declare.

    Trained from random parameters, a signal has no fairseq positions underneath and is the only source
    of positions. Started from a donor, it is added to fairseq's sinusoid, as in the paper.
    """
    forms = []
    for name in encoders:
        for form in POSITION_ENCODERS[name].forms:
            system = replace(system_from_words(f"--encoder {name} {form}"), scratch=scratch)
            forms.append(listed(replace(system, base=not (scratch and system.joins_base))))
    return forms


def with_stretched(
    systems: Sequence[ListedSystem], stretch: str, separator: str | None
) -> list[ListedSystem]:
    """Return :func:`with_twins` for ``--position-stretch``; raises UsageError for an invalid range."""
    try:
        Stretching.read(stretch)
    except ValueError as error:
        raise UsageError(str(error)) from None
    refusal = (
        "No system takes `--stretch`: each keeps fairseq's positions (see `--no-base`), or has no "
        "fractional positions."
    )
    return with_twins(systems, ["--position-stretch", stretch], refusal, separator)


def with_twins(
    systems: Sequence[ListedSystem],
    options: Sequence[str],
    refusal: str,
    separator: str | None,
) -> list[ListedSystem]:
    """Return the systems. Each that takes further ``options`` of the model is followed by a copy with them.

    Raises:
        UsageError: no system takes the options; the message is ``refusal``.
    """
    known, twins = {entry.system.name for entry in systems}, []
    names = option_values(options).keys()
    for entry in systems:
        twins.append(entry)
        if entry.system.encoder == PLAIN or names & entry.system.given.keys():
            continue
        if foreign_options(entry.system.encoder, names):
            continue  # the options would have no effect
        twin = listed(replace(entry.system, options=(*entry.system.options, *options)))
        if twin.system.name not in known and is_accepted(twin.system, separator):
            twins.append(twin)
    if not any(names & entry.system.given.keys() for entry in twins):
        raise UsageError(refusal)
    return twins


def within_training(
    systems: Sequence[ListedSystem],
    threshold: int,
    baseline: str | None,
    separator: str | None,
) -> list[ListedSystem]:
    """Limit the distances that a system tells apart (`--t5-max-distance`, ...) to those in training.

    Longer distances then share the parameter of the longest trained one, so no parameter stays untrained.
    Stretched training has longer distances. The baseline and limits that `--also` sets stay.
    """
    near = (e if e.system.name == baseline else _within(e, threshold, separator) for e in systems)
    return list({entry.system.name: entry for entry in near}.values())


def _within(entry: ListedSystem, longest: int, separator: str | None) -> ListedSystem:
    limit = trained_limit(_complete(entry.system, separator), longest)
    if limit is None or limit[0] in entry.system.given:
        return entry
    option, _, furthest = limit
    near = replace(entry.system, options=(*entry.system.options, option, str(furthest)))
    return listed(near) if is_accepted(near, separator) else entry


def listed(system: System) -> ListedSystem:
    return ListedSystem(system, shlex.join(system.words()), system.label)


def is_accepted(system: System, separator: str | None) -> bool:
    """Return whether a model takes the options of a system, and a configuration's ``separator``."""
    try:
        _complete(system, separator)
    except (argparse.ArgumentError, ValueError):
        return False
    return True


def _complete(system: System, separator: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_args(parser)
    parser.add_argument("--no-token-positional-embeddings", action="store_true")
    system = replace(system, options=with_separator(system.options, separator))
    args, _ = parser.parse_known_args(system.model_options())  # the others may set the shape
    complete(args)
    return args
