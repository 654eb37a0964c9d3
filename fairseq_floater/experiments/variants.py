"""Variants of decoding with a trained model: changed positions, told lengths, windows."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fairseq_floater.errors import UsageError
from fairseq_floater.experiments.forms import is_accepted
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.position_encoders.eval_law import EvalLaw


@dataclass(frozen=True)
class Variant:
    """A variant of decoding: a further translation of the test sets with the same checkpoint.

    Attributes:
        name: used in labels and, with special characters replaced, in the file names of results.
        arguments: further arguments of fairseq-generate.
        spec: value of ``--position-eval``; empty if positions, and so losses, stay the same.
    """

    name: str
    arguments: tuple[str, ...]
    spec: str = ""

    @property
    def mark(self) -> str:
        """Return the part of a result's file name that names this variant."""
        return "." + re.sub(r"\W+", "_", self.name)

    @property
    def changes_losses(self) -> bool:
        return bool(self.spec)

    def suits(self, system: System, separator: str | None = None) -> bool:
        """Return whether a model of ``system`` takes this variant; fairseq's model has no position options.

        ``separator`` is the configuration's.
        """
        if not self.spec:
            return True
        changed = replace(system, options=(*system.options, "--position-eval", self.spec))
        return system.encoder != PLAIN and is_accepted(changed, separator)


# The report of scores recognises this variant by its mark.
TOLD = Variant("told length", ("--task", "translation_told_length"))


def read_evals(text: str) -> list[Variant]:
    """Parse ``--eval SPEC,SPEC``."""
    specs = list(filter(None, text.split(",")))
    for spec in specs:
        try:
            if EvalLaw.read(argparse.Namespace(position_eval=spec)) is None:
                raise ValueError(f"`--position-eval` must change something, but is {spec}.")
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).replace("position-eval", "eval")) from None
    overrides = "{{'position_eval': '{}'}}"
    return [Variant(spec, ("--model-overrides", overrides.format(spec)), spec) for spec in specs]


def read_windows(text: str) -> Variant:
    """Parse ``--windows T[:O]``."""
    numbers = text.split(":")
    form = re.fullmatch(r"[1-9]\d*(:\d+)?", text)
    if not form or (len(numbers) > 1 and int(numbers[1]) >= int(numbers[0])):
        raise argparse.ArgumentTypeError(
            f"must be T or T:O, O below T, such as 24:6, but is {text!r} instead"
        )
    options = zip(("--window", "--window-overlap"), numbers)
    return Variant(f"windows {text}", ("--task", "translation_windows", *chain(*options)))


def check_variants(
    variants: Iterable[Variant], systems: Sequence[System], separator: str | None = None
) -> None:
    """Raise UsageError if no system takes one of the variants."""
    for variant in variants:
        if not any(variant.suits(system, separator) for system in systems):
            raise UsageError(f"No system takes `--eval {variant.name}`.")
