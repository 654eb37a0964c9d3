"""Say how a warm-started checkpoint came about and how far it is from its donor."""

from __future__ import annotations

from dataclasses import dataclass, field

# Tokens of the sentences that start and donor are compared on: past some tens an untrained flow
# is far from its donor, whatever it will learn.
MEASURED = 16
# Largest difference of log-probabilities, in float32, of one and the same function.
_EXACT = 1e-5


@dataclass
class WarmStartReport:
    """The fate of each tensor, and how far the new model is from its donor.

    ``difference`` is the largest absolute difference of log-probabilities on 4 random sentences of
    16 tokens, or None for an adaptive softmax; ``changed`` says what of the donor's positions
    is another in the new model.
    """

    donor: str
    output: str
    arch: str
    encoder: str
    copied: list[str] = field(default_factory=list)
    new: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    difference: float | None = None

    def format_text(self) -> str:
        lines = [
            f"donor    {self.donor}",
            f"output   {self.output}  (--arch {self.arch}, position encoder {self.encoder})",
            f"copied   {len(self.copied)} tensors",
            f"new      {len(self.new)} tensors, {sum(self.new.values()):,} parameters in all",
            *(f"           {name} ({count:,})" for name, count in self.new.items()),
            f"ignored  {len(self.ignored)} tensors of the donor",
            *(f"           {name}" for name in self.ignored),
            "reset    optimizer, learning-rate scheduler, epoch and update count",
            *(f"note     {note}" for note in self.notes),
        ]
        exact = self.difference is not None and self.difference <= _EXACT
        if self.difference is None or exact:
            lines += [f"changed  {change}" for change in self.changed]
        if self.difference is None:
            return "\n".join(lines)
        why = ", ".join(self.changed) or f"{self.encoder} acts from the start"
        if exact:
            beyond = f"the batch is of {MEASURED} tokens a sentence, what is changed may act on longer ones"
            why = beyond if self.changed else ""
        lines.append(
            f"start    {'' if exact else 'not '}the donor's function: log-probabilities differ by at most "
            f"{self.difference:.2e} on a random batch{'; ' * bool(why)}{why}"
        )
        return "\n".join(lines)
