"""Name further ways to translate with a trained model: other positions (``--eval``), told lengths."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l.report import TOLD_LENGTH as TOLD_MARK
from fairseq_floater.experiments.forms import is_accepted
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.position_encoders.eval_law import EvalLaw

TOLD_LENGTH = "told length"


@dataclass(frozen=True)
class Look:
    """One of them; ``name`` is a SPEC of ``--position-eval``, or :data:`TOLD_LENGTH`."""

    name: str

    @property
    def mark(self) -> str:
        """Return what the names of its results contain."""
        return TOLD_MARK if self.name == TOLD_LENGTH else "." + re.sub(r"\W+", "_", self.name)

    @property
    def changes_losses(self) -> bool:
        return self.name != TOLD_LENGTH

    @property
    def arguments(self) -> list[str]:
        """Return what fairseq-generate takes besides."""
        if self.name == TOLD_LENGTH:
            return ["--task", "translation_told_length"]
        return ["--model-overrides", f"{{'position_eval': '{self.name}'}}"]

    def suits(self, system: System) -> bool:
        """Return whether a model of ``system`` takes it; fairseq's own has no option of positions."""
        if self.name == TOLD_LENGTH:
            return True
        options = (*system.options, "--position-eval", self.name)
        return system.encoder != PLAIN and is_accepted(replace(system, options=options))


def eval_specs(text: str) -> tuple[str, ...]:
    """Parse ``--eval SPEC,SPEC``."""
    specs = tuple(filter(None, text.split(",")))
    for spec in specs:
        try:
            EvalLaw.read(argparse.Namespace(position_eval=spec))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).replace("position-eval", "eval")) from None
    return specs


def looks_of(specs: Iterable[str], told_length: bool, systems: Iterable[System]) -> list[Look]:
    """Return the looks of a comparison.

    Raises:
        UsageError: no system takes one of them.
    """
    systems = list(systems)
    looks = [Look(spec) for spec in specs] + [Look(TOLD_LENGTH)] * told_length
    for look in looks:
        if not any(map(look.suits, systems)):
            raise UsageError(f"No system takes `--eval {look.name}`.")
    return looks
