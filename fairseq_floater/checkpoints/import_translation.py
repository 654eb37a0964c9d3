"""Convert a Marian model of Hugging Face to a fairseq checkpoint that computes the same.

Marian's tensors have fairseq's names. The architecture `floater_marian` (`transformer/translation.py`)
covers what Marian computes differently. Marian numbers its tokens differently, and has no <s>.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_floater.checkpoints.families import STACKS, TRANSLATION
from fairseq_floater.checkpoints.hugging_face import read_config, read_weights
from fairseq_floater.checkpoints.reading import (
    CheckpointError,
    config_of,
    fresh_state,
    refuse_existing,
    save_checkpoint,
)
from fairseq_floater.checkpoints.rebuild import BareTask, parse_fairseq
from fairseq_floater.checkpoints.vocabularies import read_marian_vocabulary
from fairseq_floater.errors import UsageError, shown
from fairseq_floater.files import write_whole
from fairseq_floater.position_encoders.sinusoidal import pair_frequencies
from fairseq_floater.records import read_json
from fairseq_floater.transformer.shapes import MARIAN
from fairseq_floater.transformer.translation import FloaterTransformerModel, marian
from fairseq_floater.verbs import as_options, dashed

_SUBWORDS = ("source.spm", "target.spm")
# Names in config.json -> fairseq's options.
_SIZES = {"layers": "layers", "ffn_dim": "ffn_embed_dim", "attention_heads": "attention_heads"}
_SHAPE = {
    f"{side}_{theirs}": f"{side}_{ours}" for side in STACKS for theirs, ours in _SIZES.items()
}
_SHAPE["d_model"] = "encoder_embed_dim"
_ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
_TABLE = "embed_positions.weight"
_SOURCE, _TARGET = TRANSLATION.embeddings
_OUTPUT, _BIAS = (f"decoder.output_projection.{kind}" for kind in ("weight", "bias"))
# The output bias of <s>, if Marian has no <s>: its probability is 0 in float32.
_NEVER = -100.0


@dataclass
class TranslationImport:
    """The model that was written, and how to use it."""

    source: str
    output: str
    languages: tuple[str, str]
    arch: str
    options: dict[str, Any]
    entries: tuple[int, int]
    copied: int
    ignored: list[str] = field(default_factory=list)

    def format_text(self) -> str:
        folder, checkpoint = shlex.quote(self.output), shlex.quote(f"{self.output}/checkpoint.pt")
        pair = " ".join(f"-{o} {shlex.quote(lang)}" for o, lang in zip("st", self.languages))
        model = shlex.join(["--arch", self.arch, *as_options(dashed(self.options))])
        plugin = '--user-dir "$(floater user-dir)"'
        names = [f"dict.{lang}.txt ({n:,})" for lang, n in zip(self.languages, self.entries)]
        return "\n".join(
            [
                f"source     {self.source}",
                f"output     {checkpoint}  ({model})",
                f"beside it  {', '.join([*names, *_SUBWORDS])}",
                f"copied     {self.copied} tensors",
                *(f"ignored    {name}, which is computed" for name in self.ignored),
                "translate:",
                f"  fairseq-interactive {folder} {plugin} {pair} --path {checkpoint} --beam 4 \\\n"
                f"      --bpe sentencepiece --sentencepiece-model {folder}/{_SUBWORDS[0]}",
                "convert, to rope or any other encoder:",
                f"  floater warm-start {checkpoint} start.pt --arch {self.arch} --data {folder} "
                "--position-encoder rope",
                f"  fairseq-train DATA {plugin} {pair} {model} \\\n"
                "      --position-encoder rope --finetune-from-model start.pt ...",
            ]
        )


def import_translation(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    src: str | None = None,
    tgt: str | None = None,
    force: bool = False,
) -> TranslationImport:
    """Write a checkpoint for translation and warm-start, with dictionaries and sentencepiece models.

    Args:
        source: a Hugging Face folder with a Marian model.
        output: the folder to write ``checkpoint.pt``, ``dict.<language>.txt``, ``source.spm`` and
            ``target.spm`` into.
        src: the source language; None: the one in tokenizer_config.json.
        tgt: the target language.
        force: replace these files.

    Raises:
        CheckpointError: a file is missing or truncated, the model is of another kind or contradicts
            itself, or an output file exists.
        UsageError: fairseq does not know an option of the model, or the languages are unknown.
    """
    source, output = Path(source), Path(output)
    config = _read_config(source / "config.json")
    languages = _languages(source, src, tgt)
    dictionaries = tuple(output / f"dict.{language}.txt" for language in languages)
    checkpoint = output / "checkpoint.pt"
    for path in (checkpoint, *dictionaries, *(output / name for name in _SUBWORDS)):
        refuse_existing(path, force)
    for name in _SUBWORDS:
        if not (source / name).is_file():
            raise CheckpointError(f"There is no {source / name}, the model's subwords.")
    path, weights = read_weights(source)
    tensors, words, ignored = _fairseq_form(source, config, path, weights)
    if languages[0] == languages[1] and words[0] != words[1]:
        raise UsageError(
            "`--src` and `--tgt` must differ, because source and target have vocabularies of their own."
        )
    shape = _options(config, tensors)
    args = _training_options(shape, source, output, languages)
    parameters = _parameters(args, words, tensors, path)
    output.mkdir(parents=True, exist_ok=True)
    for name in _SUBWORDS:
        write_whole(output / name, partial(shutil.copyfile, source / name))
    for file, dictionary in zip(dictionaries, words):
        _write_dictionary(dictionary, file)
    state = fresh_state(config_of(args), args, parameters, {})
    save_checkpoint(state, checkpoint)  # last: if it exists, all files do
    return TranslationImport(
        source=str(source),
        output=str(output),
        languages=languages,
        arch=MARIAN,
        options=shape,
        entries=(len(words[0]), len(words[1])),
        copied=len(weights) - len(ignored),
        ignored=ignored,
    )


def _write_dictionary(dictionary: Dictionary, file: Path) -> None:
    write_whole(file, lambda temporary: dictionary.save(str(temporary)))


def _read_config(path: Path) -> dict[str, Any]:
    """Read config.json and check that `floater_marian` computes what it describes."""
    config = read_config(path, _SHAPE, "marian")
    if config.get("activation_function") not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path}: `activation_function` must be one of {', '.join(_ACTIVATIONS)}, but is "
            f"{shown(config.get('activation_function'))} instead."
        )
    return config


def _languages(folder: Path, src: str | None, tgt: str | None) -> tuple[str, str]:
    """Return source and target language: as given, else from tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    known = read_json(path, dict) if path.is_file() else {}
    source, target = src or known.get("source_lang"), tgt or known.get("target_lang")
    if not (isinstance(source, str) and isinstance(target, str)):
        raise UsageError(f"`--src` and `--tgt` must be given, because {path} names no languages.")
    return source, target


def _fairseq_form(
    folder: Path, config: dict[str, Any], path: Path, weights: dict[str, Tensor]
) -> tuple[dict[str, Tensor], tuple[Dictionary, Dictionary], list[str]]:
    """Rename the tensors, and put their rows in the order of fairseq's dictionaries.

    Returns:
        The tensors, the dictionaries of source and target, and the names of the dropped tensors.
    """
    ignored = [name for name in weights if name.endswith(_TABLE)]
    for name in ignored:
        if not torch.allclose(weights[name], _sinusoid(*weights[name].shape), atol=0.01):
            raise CheckpointError(
                f"{path}: {name} must be Marian's sinusoid, but holds other rows."
            )
    tensors = {n.removeprefix("model."): t for n, t in weights.items() if n not in ignored}
    shared = tensors.pop("shared.weight", None)
    for name in (_SOURCE, _TARGET):
        if shared is not None:
            tensors.setdefault(name, shared)
        if name not in tensors:
            raise CheckpointError(f"{path} holds neither shared.weight nor {name}.")
    rows = len(tensors[_TARGET])
    tensors[_OUTPUT] = tensors.pop("lm_head.weight", tensors[_TARGET])
    tensors[_BIAS] = tensors.pop("final_logits_bias", torch.zeros(rows)).flatten()
    apart = (folder / "target_vocab.json").is_file()
    if not apart and config.get("share_encoder_decoder_embeddings") is False:
        raise CheckpointError(
            f"There is no {folder / 'target_vocab.json'}, but by config.json source and target have "
            "vocabularies of their own."
        )
    source = read_marian_vocabulary(folder / "vocab.json", len(tensors[_SOURCE]))
    target = read_marian_vocabulary(folder / f"{'target_' * apart}vocab.json", rows)
    keys = ("decoder_start_token_id", "pad_token_id", "eos_token_id")
    numbers = [config.get(key) for key in keys]
    for name in (_SOURCE, _TARGET, _OUTPUT, _BIAS):
        words, order = source if name == _SOURCE else target
        expected = [order[i] for i in (words.pad(), words.pad(), words.eos())]
        if numbers != expected:
            raise CheckpointError(
                f"{folder} contradicts itself: config.json says {', '.join(keys)} = {numbers}, but by "
                f"its vocabulary they are {expected}."
            )
        if name != _SOURCE and len(tensors[name]) != rows:
            raise CheckpointError(f"{path} contradicts itself: {name} does not have {rows} rows.")
        missing = torch.full_like(tensors[name][:1], _NEVER if name == _BIAS else 0.0)
        tensors[name] = torch.cat([tensors[name], missing])[order]
    return tensors, (source[0], target[0]), ignored


def _options(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the options in which the model differs from `floater_marian`'s defaults."""
    defaults = argparse.Namespace()
    marian(defaults)
    shape = {ours: config[theirs] for theirs, ours in _SHAPE.items()}
    if all(getattr(defaults, name) == value for name, value in shape.items()):
        shape = {}
    tied = torch.equal(tensors[_TARGET], tensors[_OUTPUT])
    joint = tied and torch.equal(tensors[_SOURCE], tensors[_TARGET])
    dropouts = ("dropout", "attention_dropout", "activation_dropout")
    others = {name: config[name] for name in dropouts if name in config} | {
        "activation_fn": _ACTIVATIONS[config["activation_function"]],
        "no_scale_embedding": not config.get("scale_embedding", False),
        "share_all_embeddings": joint,
        "share_decoder_input_output_embed": tied and not joint,
    }
    return shape | {n: value for n, value in others.items() if getattr(defaults, n) != value}


def _training_options(
    known_options: dict[str, Any], path: Path, data: Path, languages: tuple[str, str]
) -> argparse.Namespace:
    """Return all options of a training of the model, with no positions but fairseq's own."""
    words = [str(data), "--arch", MARIAN, "--task", "translation", "-s", languages[0]]
    words += ["-t", languages[1], "--position-encoder", "sinusoidal", "--position-blocks", "input"]
    words += as_options(dashed(known_options))
    return parse_fairseq(words, f"{path}: fairseq refuses the model's options")


def _parameters(
    args: argparse.Namespace,
    dictionaries: tuple[Dictionary, Dictionary],
    tensors: dict[str, Tensor],
    path: Path,
) -> dict[str, Tensor]:
    """Return the state of a model with ``tensors``, which must be complete except for position tables."""
    model = FloaterTransformerModel.build_model(args, BareTask(*dictionaries))
    ours = model.state_dict()
    tensors = {**{name: t for name, t in ours.items() if name.endswith(".version")}, **tensors}
    first = dictionaries[0].pad() + 1
    for name in (f"{side}.{_TABLE}" for side in STACKS):
        unused = torch.zeros(first, args.encoder_embed_dim)
        tensors[name] = torch.cat([unused, _sinusoid(len(ours[name]) - first, unused.size(1))])
    for name in {**ours, **tensors}:
        shapes = [list(t[name].shape) if name in t else "missing" for t in (ours, tensors)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"{path} does not fit its config.json: {name} is {shapes[1]}, and by config.json "
                f"{shapes[0]}."
            )
    model.load_state_dict(tensors, strict=True)
    state: dict[str, Tensor] = model.state_dict()
    return state


def _sinusoid(rows: int, channels: int) -> Tensor:
    """Return Marian's positions: sines, then cosines, of i / 10000^(c / (C / 2)); float32 [rows, C]."""
    frequencies = pair_frequencies(channels // 2)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()
