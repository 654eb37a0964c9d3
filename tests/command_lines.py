"""Read command lines: the arguments of fairseq's commands, the commands of a dry run. Not a test file."""

import shlex

from fairseq import options

PARSERS = {
    "train": options.get_training_parser,
    "validate": options.get_validation_parser,
    "generate": options.get_generation_parser,
}


def parsed(words, tool="train"):
    """Parse the arguments of fairseq-TOOL."""
    return options.parse_args_and_arch(PARSERS[tool](), words)


def value(words, option):
    """Return the last value of an option."""
    indices = [i for i, word in enumerate(words) if word == option]
    return words[indices[-1] + 1]


def commands(printed):
    """Return the commands of a dry run as lists of words, without the files for their output."""
    lines = (line for line in printed.splitlines() if not line.startswith("#"))
    return [shlex.split(line.partition(" > ")[0]) for line in lines]
