"""What `scripts/protocol.sh` asks of a run's folder, one start of Python a question."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_floater.errors import exit_code, shown
from fairseq_floater.files import write_text
from fairseq_floater.records import ReportError, check_fields, read_json

# Options that follow from how many GPUs there are.
_OF_THE_MACHINE = {
    *("--update-freq", "--ddp-backend", "--cpu", "--fp16", "--load-checkpoint-on-all-dp-ranks"),
    *("--distributed-world-size", "--distributed-init-method", "--distributed-backend"),
    "--distributed-no-spawn",
}
# What a stage after the training made: all that must go where its arguments are others.
_RESULTS = {
    "generate": "generate.* and scores.*",
    "score-reference": "losses.* and score-reference.args",
}


def write_validation(log: str, output: str) -> None:
    """Keep the losses that fairseq-validate printed last in ``log`` as JSON.

    Raises:
        ReportError: the log holds no validation.
    """
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"valid on '(\S+)' subset \| (loss .+)", text)
    if not found:
        raise ReportError(f"{log} holds no line of fairseq-validate's; see its end.")
    subset, fields = found[-1]
    try:
        pairs = (field.split(" ", 1) for field in fields.split(" | "))
        values = {name: float(value) for name, value in pairs}
    except ValueError:
        raise ReportError(f"{log} ends in a validation without numbers: {shown(fields)}.") from None
    write_text(output, json.dumps({"subset": subset, **values}, indent=2) + "\n")


def field(path: str, *keys: str) -> str:
    """A value of a JSON file.

    Raises:
        ReportError: no such file or key.
    """
    found = read_json(Path(path))
    try:
        return str(functools.reduce(lambda value, key: value[key], keys, found))
    except (KeyError, TypeError, IndexError):
        raise ReportError(f"{path} holds no {' '.join(keys)}.") from None


def check_data(folder: str, settings: str, *, rehearsal: bool) -> None:
    """Make sure that ready data are what a configuration describes.

    Args:
        folder: what prepare_text.sh or prepare_wmt14.sh made.
        settings: the configuration's ``settings.args``.
        rehearsal: whether WMT14's archives may be a stand-in's.

    Raises:
        ReportError: other languages, subwords or vocabulary; or a stand-in taken for WMT14.
    """
    wanted = _settings(Path(settings))
    summary = Path(folder) / "summary.json"
    made = check_fields(summary, read_json(summary), {}).get("parameters", {})
    check_fields(summary, made, {})
    names = (("src", "source"), ("tgt", "target"), ("bpe", "bpe"), ("vocab", "vocab"))
    for ours, key in names:
        # A vocabulary of None is that of a ready model, as short-to-long has it.
        if made.get(ours) is not None and str(made[ours]) != wanted[key]:
            raise ReportError(f"{folder} was made with {ours} {made[ours]}, not {wanted[key]}.")
    if wanted["wmt14"]:
        record = Path(folder) / "wmt14.json"
        found = check_fields(record, read_json(record), {"pair": str})
        if found["pair"] != wanted["wmt14"] or found.get("rehearsal") != rehearsal:
            of = "a rehearsal's" if found.get("rehearsal") else "WMT14's"
            raise ReportError(f"{folder} holds {of} {found['pair']}, not what is asked for.")


def _settings(path: Path) -> dict[str, str]:
    """The ``key=value`` lines of a ``settings.args``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def check_same(folder: str, stage: str, staging: str) -> None:
    """Make sure that a run goes on under the arguments it was started with; its machine may differ.

    Args:
        folder: the run's, with ``<stage>.args`` and ``<stage>.tokens`` of the time it was started.
        stage: one of :data:`fairseq_floater.experiments.stages.STAGES`.
        staging: where the arguments of now are.

    Raises:
        ReportError: an option has another value, or an update another number of tokens.
    """
    before, tokens = Path(folder) / f"{stage}.args", Path(folder) / f"{stage}.tokens"
    if not before.is_file():
        return
    old, new = _arguments(before), _arguments(Path(staging) / f"{stage}.args")
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changes = [f"{name} was {_value(old, name)} and is {_value(new, name)} now" for name in names]
    configured = _settings(Path(staging) / "settings.args")["configured_tokens"]
    if tokens.is_file() and (found := tokens.read_text(encoding="utf-8").strip()) != configured:
        changes.append(f"tokens-per-update was {found} and is {configured} now")
    if changes:
        results = _RESULTS.get(stage)
        remove = f"remove {results} there" if results else f"remove {folder}"
        raise ReportError(
            f"{folder} was started with other arguments of {stage}: {'; '.join(changes)}. "
            f"Set back what has changed, use another --work, or {remove}."
        )


def _arguments(path: Path) -> dict[str, str]:
    """Of a file of words, one a line: each option with its values; what comes first is the data."""
    found: dict[str, list[str]] = {"the data folder": []}
    name = "the data folder"
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for word in text.removesuffix("\n").split("\n"):
        if word.startswith("--"):
            name = word
            found.setdefault(name, [])
        else:
            found[name].append(word)
    return {name: " ".join(words) for name, words in found.items() if name not in _OF_THE_MACHINE}


def _value(arguments: dict[str, str], name: str) -> str:
    return (arguments[name] or "given") if name in arguments else "not given"


def resume(folder: str, world: int) -> str:
    """Make sure that ``folder/checkpoints`` can be gone on from by ``world`` processes; says from where.

    fairseq counts its place in an epoch in batches of each process. Within an epoch another number of
    processes would train parts of it twice, or leave them out.

    Raises:
        CheckpointError: the last checkpoint lies within an epoch and was saved by another number.
    """
    from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
    from fairseq_floater.checkpoints.resume import repair_last

    sentence = repair_last(Path(folder) / "checkpoints")
    noted = Path(folder) / "world"
    before = _processes(noted) if noted.is_file() else world
    last = Path(folder) / "checkpoints" / "checkpoint_last.pt"
    if before != world and last.is_file():
        place = (load_checkpoint(last).get("extra_state") or {}).get("train_iterator") or {}
        if place.get("iterations_in_epoch", 0):
            raise CheckpointError(
                f"{last} lies within epoch {place.get('epoch')} and was saved by {before} processes: go on "
                f"with {before}, or put the checkpoint of a whole epoch in its place."
            )
    write_text(noted, f"{world}\n")
    return sentence


def _processes(noted: Path) -> int:
    text = noted.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ReportError(f"{noted} must hold a number of processes, but holds {shown(text)}.")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m fairseq_floater.experiments.run_folder resume|data|same|validation|field ...`."""
    command, *words = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: _run(command, words), Path(words[0]))


def _run(command: str, words: list[str]) -> None:
    if command == "resume":
        print(resume(words[0], int(words[1])))
    elif command == "data":
        check_data(words[0], words[1], rehearsal="--rehearsal" in words[2:])
    elif command == "same":
        check_same(*words)
    elif command == "validation":
        write_validation(*words)
    else:
        print(field(*words))


if __name__ == "__main__":
    sys.exit(main())
