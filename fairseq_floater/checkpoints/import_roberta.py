"""Convert Hugging Face's RoBERTa or BERT, or fairseq's RoBERTa of 2019, to a current checkpoint."""

from __future__ import annotations

import argparse
import copy
import math
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from torch import Tensor

from fairseq_floater.checkpoints.dictionaries import MASK, load_dictionaries, read_dictionary
from fairseq_floater.checkpoints.families import TOKENS, architecture
from fairseq_floater.checkpoints.hugging_face import HEAD, WEIGHTS, Source, read_hugging_face
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    config_of,
    fresh_state,
    load_checkpoint,
    refuse_existing,
    save_checkpoint,
)
from fairseq_floater.checkpoints.rebuild import BareTask, parse_fairseq
from fairseq_floater.checkpoints.roberta_tasks import roberta_args
from fairseq_floater.files import write_whole
from fairseq_floater.transformer.bert import FAIRSEQ_EPS
from fairseq_floater.transformer.shapes import ROBERTA_SHAPE, ROBERTA_SIZES
from fairseq_floater.verbs import as_options, dashed

# Options of fairseq's RoBERTa that fix its tensors, what it computes, and how training continues.
_OPTIONS = (
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("max_positions", "activation_fn", "encoder_normalize_before", "untie_weights_roberta"),
    *("dropout", "attention_dropout", "activation_dropout", "layer_norm_eps"),
)
_NAMED_SHAPES = {
    ROBERTA_SIZES[f"floater_{name}"]: name for name in ("roberta_base", "roberta_large")
}
# The format version of fairseq's stack, which is 3. fairseq converts a stack of an older version.
_VERSION = "encoder.sentence_encoder.version"


class _Meter:
    """Stand-in for a meter class of 2019, which an old checkpoint may hold and nothing reads."""


_METERS: list[Any] = [
    (_Meter, f"fairseq.meters.{name}") for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")
]


@dataclass
class ImportReport:
    """The model that was written, and what became of each tensor."""

    source: str
    output: str
    dictionary: str
    entries: int
    arch: str
    options: dict[str, Any]
    copied: int
    new: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def format_text(self) -> str:
        flags = shlex.join(as_options(dashed(self.options)))
        lines = [
            f"source      {self.source}",
            f"output      {self.output}  (--arch {self.arch} {flags})",
            f"dictionary  {self.dictionary}  ({self.entries:,} entries, `<mask>` among them)",
            f"copied      {self.copied} tensors",
            f"new         {len(self.new)} tensors, at random"
            if self.new
            else "new         no tensors",
            *(f"              {name} ({count:,})" for name, count in self.new.items()),
            f"ignored     {len(self.ignored)} tensors of the source",
            *(f"              {name}" for name in self.ignored),
            *(f"note        {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def import_roberta(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    encoder_json: str | os.PathLike[str] | None = None,
    seed: int = 1,
    force: bool = False,
) -> ImportReport:
    """Write a checkpoint for ``--finetune-from-model`` and warm-start, and its dict.txt beside it.

    Args:
        source: a Hugging Face folder with a RoBERTa or a BERT, or a checkpoint of fairseq's RoBERTa
            with dict.txt beside it.
        encoder_json: GPT-2's encoder.json; default: the one in the folder.
        seed: of the masked-LM head, if the source has none.
        force: replace ``output`` and its dict.txt.

    Raises:
        CheckpointError: a file is missing or truncated; the kind, shape or vocabulary of the model
            does not fit; or ``output`` exists.
        UsageError: options of the model that fairseq does not know.
    """
    source, output = Path(source), Path(output)
    refuse_existing(output, force, *(source / name for name in WEIGHTS))
    if source.is_file():
        model_source = _read_fairseq(source)
    else:
        model_source = read_hugging_face(source, Path(encoder_json or source / "encoder.json"))
    dictionary = output.parent / "dict.txt"
    keeps = dictionary.exists() and not force
    if keeps and read_dictionary(dictionary).symbols != model_source.dictionary.symbols:
        raise CheckpointError(
            f"{dictionary} is another model's dictionary; choose another folder or pass --force."
        )
    args = _training_options(model_source, output.parent)
    model, new = _build(model_source, args, seed)
    _save(model, args, output, None if keeps else model_source.dictionary)
    return ImportReport(
        source=str(source),
        output=str(output),
        dictionary=str(dictionary),
        entries=len(model_source.dictionary) + 1,
        arch=args.arch,
        options=model_source.options,
        copied=len(model_source.tensors),
        new=new,
        ignored=model_source.ignored,
        notes=model_source.notes,
    )


def _save(
    model: RobertaModel, args: argparse.Namespace, output: Path, dictionary: Dictionary | None
) -> None:
    """Write a checkpoint, and its dictionary beside it: both or neither."""
    names = {"criterion_name": "masked_lm"}
    state = fresh_state(config_of(args), args, model.state_dict(), names)
    if dictionary is None:
        save_checkpoint(state, output)
        return

    def write(temporary: Path) -> None:
        dictionary.save(str(temporary))
        save_checkpoint(state, output)

    # Renamed to dict.txt only after the checkpoint is saved.
    write_whole(output.parent / "dict.txt", write)


def _read_fairseq(path: Path) -> Source:
    """Read a checkpoint of fairseq's RoBERTa, old or new, and the dict.txt beside it."""
    with torch.serialization.safe_globals(_METERS):
        state = load_checkpoint(path)
    args = roberta_args(state, path)
    ARCH_CONFIG_REGISTRY[architecture(args)](args)
    args.max_positions = getattr(args, "max_positions", None) or args.tokens_per_sample
    known_options = {name: getattr(args, name) for name in _OPTIONS if hasattr(args, name)}
    tensors = {n: t.float() if t.is_floating_point() else t for n, t in state["model"].items()}
    load_dictionaries(state, args, path, str(path.parent))  # compares sizes
    return Source(path, known_options, tensors, read_dictionary(path.parent / "dict.txt"))


def _training_options(source: Source, data: Path) -> argparse.Namespace:
    """Return all options of a masked-LM training; a known shape is given by its architecture's name."""
    shape = tuple(source.options[name] for name in ROBERTA_SHAPE)
    arch = _NAMED_SHAPES.get(shape, "roberta")
    if not math.isclose(source.options.get("layer_norm_eps", FAIRSEQ_EPS), FAIRSEQ_EPS):
        arch = "floater_bert"
    else:
        source.options.pop("layer_norm_eps", None)
    if arch in _NAMED_SHAPES.values():
        for name in ROBERTA_SHAPE:
            del source.options[name]
    flags = [str(data), "--arch", arch, "--task", "masked_lm", "--criterion", "masked_lm"]
    flags += ["--tokens-per-sample", str(source.options["max_positions"])]
    flags += as_options(dashed(source.options))
    return parse_fairseq(flags, f"{source.path}: fairseq's RoBERTa refuses its options")


def _build(
    source: Source, args: argparse.Namespace, seed: int
) -> tuple[RobertaModel, dict[str, int]]:
    """Build the model with the source's tensors. Return it and the sizes of its new tensors.

    The names of dropped tensors are added to ``source.ignored``.
    """
    torch.manual_seed(seed)
    dictionary: Dictionary = copy.deepcopy(source.dictionary)
    dictionary.add_symbol(MASK)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, BareTask(dictionary, dictionary))
    state = model.state_dict()
    tensors = dict(source.tensors)
    model.upgrade_state_dict(tensors)  # renames tensors of 2019, drops classification heads
    tensors[_VERSION] = state[_VERSION]
    if not source.options.get("untie_weights_roberta") and TOKENS in tensors:
        tensors.setdefault(f"{HEAD}weight", tensors[TOKENS])
    source.ignored += [n for n in source.tensors if ".classification_heads." in f".{n}"]
    _check(tensors, state, source.path)
    new = {n: t.numel() for n, t in state.items() if n not in tensors}
    model.load_state_dict({**state, **tensors}, strict=True)
    return model, new


def _check(tensors: dict[str, Tensor], state: dict[str, Tensor], path: Path) -> None:
    """Check that ``tensors`` are the model's, with or without the masked-LM head."""
    unknown = [name for name in tensors if name not in state]
    if unknown:
        raise CheckpointError(f"{path} holds {unknown[0]}, which fairseq's RoBERTa does not have.")
    missing = [name for name in state if name not in tensors]
    head = [name for name in state if name.startswith(HEAD) and name != f"{HEAD}weight"]
    if missing not in ([], head):
        raise CheckpointError(f"{path} lacks {missing[0]}, a tensor of fairseq's RoBERTa.")
    odd = next((name for name, t in tensors.items() if t.shape != state[name].shape), None)
    if odd is not None:
        raise CheckpointError(
            f"{path} contradicts itself: by its options {odd} is {list(state[odd].shape)}, "
            f"but it is {list(tensors[odd].shape)}."
        )
