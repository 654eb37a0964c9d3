"""Describe one system of an experiment as scripts and configurations name it: `--encoder floater ...`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_floater.errors import UsageError
from fairseq_floater.position_encoders.options import option_values
from fairseq_floater.position_encoders.registry import (
    DEFAULT_TARGETS,
    TARGETS,
    YOUR_OWN,
    block_numbers,
    named_blocks,
)
from fairseq_floater.verbs import as_options, shell_words
from fairseq_floater.version import __version__

# The `--encoder` that stands for fairseq's own Transformer, untouched by the plugin.
PLAIN = "plain"
PLAIN_SIGNATURE = f"encoder:{PLAIN}|version:{__version__}"
# Options of systems and machines that fairseq-train would take for its own after `--`.
_BEFORE_DASHES = ("--encoder", "--blocks", "--target", "--scratch", "--no-base", "--data", "--cpu")
_SYSTEM_OPTION = {
    "--position-encoder": "--encoder",
    "--position-blocks": "--blocks",
    "--position-target": "--target",
}
_BLOCK_LABELS = {"input": "input only", "all": "all blocks"}
_LABELS = {"floater": "FLOATER", "sinusoidal": "sinusoid", "rnn": "RNN", "none": "no positions"}


@dataclass(frozen=True)
class System:
    """One system of an experiment: its encoder, where positions enter, and what its training starts from.

    ``options`` are further options of the model, ``("--rnn-layers", "2")``.

    Raises:
        UsageError: an unknown encoder, or options that do not go together.
    """

    encoder: str = "floater"
    blocks: str = "all"
    target: str | None = None
    scratch: bool = False
    base: bool = True
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.encoder not in (*DEFAULT_TARGETS, PLAIN):
            raise UsageError(f"There is no encoder {self.encoder!r}{YOUR_OWN}.")
        if self.encoder == PLAIN and not (self.base or self.scratch):
            raise UsageError(
                "`--no-base` is for systems that train from random parameters or from a donor; "
                f"`--encoder {PLAIN}` without `--scratch` is the donor itself."
            )
        for name in self.given:
            if name in _SYSTEM_OPTION:
                raise UsageError(f"`{name}` is chosen by `{_SYSTEM_OPTION[name]}`, before `--`.")
            if name in _BEFORE_DASHES:
                raise UsageError(
                    f"`{name}` is not an option of the model: write it before `--`, not after it."
                )
        if self.encoder == PLAIN and (self.options or self.target or self.blocks != "all"):
            raise UsageError(
                f"`--encoder {PLAIN}` must not have positions, nor options besides the configuration's, "
                f"because other systems start from it, but was given {' '.join(self.words())}."
            )
        if self.options and not self.options[0].startswith("--"):
            raise UsageError(
                f"`--model-options` must begin with an option, but is {' '.join(self.options)!r}."
            )

    @property
    def resolved_target(self) -> str | None:
        if self.encoder == PLAIN:
            return None
        return self.target or DEFAULT_TARGETS[self.encoder]

    @property
    def name(self) -> str:
        """Return the folder's name: ``plain``, ``floater-all-qkv``, ``floater-all-hidden-scratch-nobase``.

        Further options come last: ``rnn-all-qkv-rnn-layers_2``.
        """
        parts = [self.encoder]
        if self.encoder != PLAIN:
            parts += [_in_a_name(self.blocks), str(self.resolved_target)]
        parts += ["scratch"] if self.scratch else []
        return "-".join([*parts, *self._further])

    @property
    def short_name(self) -> str:
        """Return the encoder and what is not usual: ``floater``, ``floater-input``, ``rnn-rnn-layers_2``."""
        parts = [self.encoder]
        if self.encoder != PLAIN:
            parts += [] if self.blocks == "all" else [_in_a_name(self.blocks)]
            usual = self.resolved_target == DEFAULT_TARGETS[self.encoder]
            parts += [] if usual else [str(self.resolved_target)]
        return "-".join([*parts, *self._further])

    @property
    def _further(self) -> list[str]:
        words = " ".join(self.options).replace(" --", "-").removeprefix("--")
        parts = [] if self.base else ["nobase"]
        return [*parts, _in_a_name(words)] if words else parts

    @property
    def label(self) -> str:
        """Return a short description for tables: ``FLOATER, hidden``; ``sinusoid, warm``.

        It leaves out usual choices: a sinusoid or learned vectors at the input, other encoders at all blocks,
        the default target (except FLOATER's), random parameters, and the usual base (only after a donor).
        """
        if self.encoder == PLAIN:
            return PLAIN
        parts = [_LABELS.get(self.encoder, self.encoder)]
        usual = {"sinusoidal": "input", "learned": "input", "none": self.blocks}
        if self.blocks != usual.get(self.encoder, "all"):
            parts.append(_BLOCK_LABELS.get(self.blocks, f"blocks {self.blocks}"))
        if self.resolved_target != DEFAULT_TARGETS[self.encoder] or self.encoder == "floater":
            parts.append(str(self.resolved_target))
        if self.base == self.scratch and self.joins_base:
            parts.append("with base" if self.base else "no base")
        parts += [] if self.scratch else ["warm"]
        words = re.sub(r"--position-stretch[ =]\S+", "--stretched", " ".join(self.options))
        return ", ".join([*parts, *re.split(r"\s*--", words)[1:]])

    @property
    def joins_base(self) -> bool:
        """Return whether the encoder's rows may be added to fairseq's: a signal's, unless both are equal."""
        numbers = block_numbers(self.blocks)
        # A sinusoid in the first block is fairseq's own. Without that block there is nothing to join.
        has_more = numbers is None or (0 in numbers and len(numbers) > 1)
        joins = has_more or self.encoder != "sinusoidal"
        return joins and self.resolved_target in ("qkv", "hidden")

    def words(self) -> list[str]:
        """Return the options of scripts/protocol.sh for this system; :func:`system_from_words` reads them."""
        blocks = None if self.blocks == "all" else self.blocks
        values = {"encoder": self.encoder, "blocks": blocks, "target": self.target}
        argv = as_options({**values, "no-base": not self.base, "scratch": self.scratch})
        return [*argv, "--", *self.options] if self.options else argv

    def model_options(self) -> list[str]:
        options = [] if self.base else ["--no-token-positional-embeddings"]
        if self.encoder != PLAIN:
            options += ["--position-encoder", self.encoder, "--position-blocks", self.blocks]
            options += ["--position-target", str(self.resolved_target)]
        return [*options, *self.options]

    @property
    def given(self) -> dict[str, str]:
        """Return the value of each further option, by its name with dashes."""
        return option_values(self.options)

    @property
    def stage(self) -> str:
        return "scratch" if self.scratch else "donor" if self.encoder == PLAIN else "finetune"

    def settings(self) -> dict[str, str]:
        return {
            "name": self.name,
            "encoder": self.encoder,
            "blocks": self.blocks,
            "position_target": str(self.resolved_target),
            "scratch": "yes" if self.scratch else "no",
            "base": "yes" if self.base else "no",
            "options": " ".join(self.options),
        }


def add_system_options(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the options that :func:`system_from_args` reads; ``required`` is for ``--encoder``."""
    add_model_options(parser, "--encoder", (PLAIN,), required=required)
    text = "train from random parameters, not from the donor"
    parser.add_argument("--scratch", action="store_true", help=text)


def add_model_options(
    parser: argparse.ArgumentParser,
    name: str,
    further: tuple[str, ...],
    *,
    required: bool = False,
) -> None:
    """Add the options of a position encoder.

    Args:
        name: the option that names the encoder.
        further: values of that option besides encoders.
        required: whether that option must be given; if not, the default is floater.
    """
    choices = (*DEFAULT_TARGETS, *further)
    text = f"position encoder (docs/encoders.md): {', '.join(DEFAULT_TARGETS)}"
    if further:
        text += f"; or {further[0]}: fairseq's own model, the donor"
    add = parser.add_argument
    add(
        name,
        dest="encoder",
        default="floater",
        choices=choices,
        required=required,
        metavar="NAME",
        help=text,
    )
    text = (
        "blocks that receive positions: all (default), input (the first), or numbers from 0: 0,2,4"
    )
    add("--blocks", default="all", type=_blocks, metavar="BLOCKS", help=text)
    text = (
        "where positions enter, as --position-target (docs/options.md; default: the encoder's own)"
    )
    add("--target", default=None, choices=TARGETS, help=text)
    text = "leave out fairseq's own positions, which some encoders add to"
    add("--no-base", action="store_true", help=text)
    text = (
        "options of the model in quotes: --model-options='--rnn-layers 2' is the same as "
        "-- --rnn-layers 2"
    )
    add("--model-options", default="", metavar="WORDS", help=text)


def _blocks(text: str) -> str:
    try:
        return named_blocks(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _in_a_name(words: str) -> str:
    return re.sub(r"[^\w.-]+", "_", words)


def system_from_args(args: argparse.Namespace) -> System:
    options = tuple(shell_words("--model-options", args.model_options))
    scratch = getattr(args, "scratch", False)  # not every script trains from random parameters
    return System(args.encoder, args.blocks, args.target, scratch, not args.no_base, options)


def with_separator(options: Sequence[str], separator: str | None) -> tuple[str, ...]:
    """Return options of the model with a configuration's document separator, unless they name one."""
    if separator is None or "--position-separator" in option_values(options):
        return (*options,)
    return (*options, "--position-separator", separator)


def system_from_words(words: str) -> System:
    """Parse one line of options, as a configuration lists a system; the model's options follow ``--``.

    Raises:
        UsageError: unknown options or values.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_system_options(parser)
    try:
        before, _, options = words.partition(" -- ")
        argv = [*before.split(), *([f"--model-options={options}"] if options else [])]
        args, unknown = parser.parse_known_args(argv)
    except (argparse.ArgumentError, ValueError) as error:
        raise UsageError(f"The system {words!r} cannot be read: {error}.") from None
    if unknown:
        raise UsageError(f"The system {words!r} has the unknown option {unknown[0]}.")
    return system_from_args(args)
