"""Declare and check the command-line options of position encoders."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

ON_OFF = ("on", "off")
ADD, MULTIPLY, CONCAT = "add", "multiply", "concat"
#: How a signal's rows enter a block's input: ``--position-combine``.
COMBINATIONS = (ADD, MULTIPLY, CONCAT)


@dataclass(frozen=True)
class Option:
    """Declare a command-line option.

    Attributes:
        default: None means "decided by the target".
        choices: all values that it takes.
        at_least: the smallest value that it takes.
        why: ends the refusal of a smaller one, with its punctuation.
    """

    name: str
    default: Any
    help: str
    type: type = str
    choices: tuple[str, ...] | None = None
    at_least: int | None = None
    why: str = "."

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        # Defaults stay with the architecture functions, as for fairseq's own model options.
        kwargs: dict[str, Any] = {"default": argparse.SUPPRESS, "help": self.help}
        if self.type is bool:
            kwargs["action"] = "store_true"
        else:
            kwargs.update(type=self.type, choices=self.choices, metavar=None)
        parser.add_argument(self.name, **kwargs)

    def checked(self, value: Any) -> Any:
        """Return ``value`` in the option's type: Hydra knows neither choices nor our types.

        Raises:
            ValueError: a value of another type, outside the choices or too small.
        """
        if value is None:
            return None
        if isinstance(value, bool) and self.choices == ON_OFF:  # as YAML reads these two words
            value = ON_OFF[0] if value else ON_OFF[1]
        try:
            if self.type is int and float(value) != int(value):
                raise ValueError
            if self.type is bool and not isinstance(value, bool):  # "false" would switch it on
                raise ValueError
            value = self.type(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"`{self.name}` must be of type {self.type.__name__}, but is {value!r} instead."
            ) from None
        if self.choices and value not in self.choices:
            raise ValueError(
                f"`{self.name}` must be one of {', '.join(self.choices)}, but is {value!r} instead."
            )
        if self.at_least is not None and value < self.at_least:
            raise ValueError(
                f"`{self.name}` must be at least {self.at_least}, but is {value} instead{self.why}"
            )
        return value
