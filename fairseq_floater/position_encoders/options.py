"""Declare and check the command-line options of position encoders."""

from __future__ import annotations

import argparse
import logging
import math
import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

ON_OFF = ("on", "off")
#: How a signal's rows enter a block's input: ``--position-combine``.
ADD, MULTIPLY, CONCAT = "add", "multiply", "concat"


def option_values(words: Iterable[str]) -> dict[str, str]:
    """Return each option in a command line's words with its values; "" has the words before the first one.

    Of a repeated option, the last one counts, as in argparse.
    """
    name, values = "", dict[str, list[str]]()
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            values[name] = [value] if value else []
        else:
            values.setdefault(name, []).append(word)
    return {name: " ".join(given) for name, given in values.items()}


@dataclass(frozen=True)
class Option:
    """Declare a command-line option, and its valid values regardless of other options.

    Attributes:
        default: None: not set; the code that reads the option decides.
        choices: all valid values.
        above: a number that every value must exceed.
        below: a number that every value must stay below.
        at_least: the smallest value.
        at_most: the largest value.
        odd: whether values must be odd.
        or_zero: whether 0 is valid too.
        may_be_range: whether a range is valid too. YAML reads 5:20 without quotes as 320.
        why: the end of the message on a value outside the range or the choices, with its punctuation.
    """

    name: str
    default: Any
    help: str
    type: type = str
    choices: Collection[str] | None = field(default=None, hash=False)
    above: float | None = None
    below: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    odd: bool = False
    or_zero: bool = False
    may_be_range: bool = False
    why: str = "."

    def __post_init__(self) -> None:
        types = (int, float) if self.type is float else self.type
        if not self.name.startswith("--"):
            raise ValueError(
                f"The name of an option must begin with --, but is {self.name!r} instead."
            )
        if self.default is not None and not isinstance(self.default, types):
            raise ValueError(f"The default of {self.name} must be of type {self.type.__name__}.")

    @property
    def dest(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        # As with fairseq's model options, the architecture functions set the defaults.
        kwargs: dict[str, Any] = {"default": argparse.SUPPRESS, "help": self.help}
        if self.type is bool:
            kwargs["action"] = "store_true"
        else:
            kwargs.update(type=self.type, choices=self.choices)
        try:
            parser.add_argument(self.name, **kwargs)
        except argparse.ArgumentError:
            raise ValueError(f"`{self.name}` is declared twice; give yours a new name.") from None

    def checked(self, value: Any) -> Any:
        """Return ``value`` in the option's type; Hydra checks neither choices nor our types.

        Raises:
            ValueError: a value of another type, outside the choices or out of range.
        """
        if value is None:
            return None
        if self.may_be_range and isinstance(value, int) and value >= 60:
            logger.warning(
                "`%s` is the number %d. YAML reads 5:20 without quotes as 320: put a range in quotes.",
                self.name,
                value,
            )
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
                f"`{self.name}` must be one of {', '.join(self.choices)}, but is {value!r} instead"
                f"{self.why}"
            )
        if self.type in (int, float) and not self._is_in_range(value):
            raise ValueError(
                f"`{self.name}` must be {self._range()}, but is {value} instead{self.why}"
            )
        return value

    def _limits(self) -> list[tuple[str, Callable[[float, float], bool], float]]:
        limits = (
            ("more than", operator.gt, self.above),
            ("less than", operator.lt, self.below),
            ("at least", operator.ge, self.at_least),
            ("at most", operator.le, self.at_most),
        )
        return [(words, holds, limit) for words, holds, limit in limits if limit is not None]

    def _is_in_range(self, value: float) -> bool:
        if self.or_zero and value == 0:
            return True
        fits_parity = not self.odd or value % 2 == 1
        return (
            math.isfinite(value) and fits_parity and all(h(value, x) for _, h, x in self._limits())
        )

    def _range(self) -> str:
        bounds = " and ".join(f"{words} {limit:g}" for words, _, limit in self._limits())
        if self.odd:
            return f"an odd number of {bounds}"
        return "positive" if bounds == "more than 0" else bounds or "finite"
