"""Run `floater <verb>`: parse, call the tool, print. Results go to stdout, progress to stderr.

Exit codes: 0 done, 1 a failure with its reason in one sentence or a check that failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError, UserError, one_line, sentence
from fairseq_floater.records import write_json
from fairseq_floater.requirements import UnsupportedError, check_fairseq, extras_named
from fairseq_floater.verbs import VERBS
from fairseq_floater.version import __version__

# Errors that a user can cause; others keep their traceback.
USER_ERRORS = (UserError, ValueError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        parser = build_parser(argv[0] if argv else None)
    except UnsupportedError as error:
        print(one_line(f"floater: {error}"), file=sys.stderr)
        return 1
    return run_command(parser, argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Run the tool that a command line chooses, and return the exit code.

    A tool returns None or a result with ``format_text()``, which is printed. For ``--json`` the result
    is a dataclass or has ``to_json_dict()``. If its ``failed`` is true, the exit code is 1.

    If the tool takes ``--model-options``, options of the model may follow ``--``.
    """
    dashes = [*argv, "--"].index("--")
    args, unknown_options = parser.parse_known_args(argv[:dashes])
    after_dashes = argv[dashes + 1 :]
    options = vars(args)
    names = ("verb", "part", "run", "unknown", "json", "usage")
    verb, part, run, unknown, json_file, usage = (options.pop(name, None) for name in names)
    if unknown is not None:
        options[unknown] = [*unknown_options, *after_dashes]
    elif unknown_options or (after_dashes and "model_options" not in options):
        unknown_words = [*unknown_options, *after_dashes]
        hint = "; options of the model go after `--`" if "model_options" in options else ""
        similar = get_close_matches(unknown_words[0], usage._option_string_actions, 1, 0.9)
        hint = f"; did you mean `{similar[0]}`?" if similar else hint
        usage.error(f"unrecognized arguments: {shlex.join(unknown_words)}{hint}")
    elif after_dashes:
        _check_after_dashes(after_dashes, usage)
        if options["model_options"]:
            usage.error("give the model's options by --model-options or after `--`, not both")
        options["model_options"] = shlex.join(after_dashes)
    lines_file, inputs = options.get("lines_path"), {**options, "lines_path": None}
    for flag, file, others in (("--json", json_file, options), ("--lines", lines_file, inputs)):
        if file is not None and _same_file(Path(file), others.values()):
            usage.error(f"`{flag}` {file} is also another argument; choose another file")
    # Hide the log messages of models that tools build, but not warnings.
    for package in ("fairseq_floater", "fairseq"):
        logging.getLogger(package).setLevel(logging.WARNING)
    name = " ".join(filter(None, (parser.prog, verb, part)))
    try:
        with extras_named():
            result = _show(run(**options), json_file)
    except USER_ERRORS as error:
        print(one_line(f"{name}: {sentence(error)}"), file=sys.stderr)
        # A plain ValueError is an encoder's refusal of its options.
        return 2 if isinstance(error, UsageError) or type(error) is ValueError else 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 1 if getattr(result, "failed", False) else 0


def _same_file(path: Path, values: Iterable[Any]) -> bool:
    """Return whether one of the values of arguments names the file ``path``; a device does not count."""
    lists = (value if isinstance(value, (list, tuple)) else [value] for value in values)
    others = {Path(v).resolve() for v in chain.from_iterable(lists) if isinstance(v, (str, Path))}
    return path.resolve() in others and not path.is_char_device()


def _check_after_dashes(after_dashes: Sequence[str], usage: argparse.ArgumentParser) -> None:
    """Refuse an option of the command after ``--``, where it would be taken for an option of the model."""
    for word in after_dashes:
        option = word.partition("=")[0]
        if option in usage._option_string_actions:
            usage.error(
                f"`{option}` is not an option of the model: write it before `--`, not after it"
            )


def _show(result: Any, json_file: str | None) -> Any:
    """Print a tool's result, write it as JSON if asked to, and return it."""
    if result is not None:
        # Undecodable bytes are escaped, so that the text prints.
        text = result.format_text().encode("utf-8", "backslashreplace").decode("utf-8")
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader, such as `head`, has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if json_file is not None:
            has_own = hasattr(result, "to_json_dict")
            fields = result.to_json_dict() if has_own else dataclasses.asdict(result)
            write_json(json_file, fields)
    return result


def _add(verb: str, verbs: Any) -> None:
    """Add a verb; raises UnsupportedError if this fails because of fairseq or a missing extra."""
    try:
        with extras_named():
            module = import_module(f"fairseq_floater.{VERBS[verb].module}")
            getattr(module, "add_" + verb.replace("-", "_"))(verbs)
    except UnsupportedError:
        raise
    except Exception:
        check_fairseq()
        raise


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Build the parser of one verb. For any other word, build one that lists all verbs with summaries."""
    parser = argparse.ArgumentParser(
        prog="floater", description="Tools for the position encoders of fairseq_floater."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    if verb in VERBS:
        _add(verb, verbs)
    else:
        for name, (summary, _) in VERBS.items():
            verbs.add_parser(name, help=summary)
    return parser
