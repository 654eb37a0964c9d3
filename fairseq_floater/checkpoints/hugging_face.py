"""Read Hugging Face models: RoBERTa and BERT as fairseq's RoBERTa, and the parts of a Marian model.

RoBERTa and BERT compute the same function. Hugging Face names their tensors differently, and BERT
numbers its tokens differently. Both add a segment embedding, which here is the same for every token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_floater.checkpoints.families import TOKENS
from fairseq_floater.checkpoints.reading import CheckpointError, load_pickle
from fairseq_floater.checkpoints.vocabularies import read_vocabulary
from fairseq_floater.errors import shown
from fairseq_floater.records import check_shape, read_json

HEAD = "encoder.lm_head."
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_STACK = "encoder.sentence_encoder."
_BLOCK = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
_OUTSIDE_BLOCKS = {
    "embeddings.word_embeddings": f"{_STACK}embed_tokens",
    "embeddings.position_embeddings": f"{_STACK}embed_positions",
    "embeddings.token_type_embeddings": "segments",  # fairseq has no such tensor
    "embeddings.LayerNorm": f"{_STACK}layernorm_embedding",
    # The masked-LM heads of RoBERTa and BERT. Some files hold the bias of a head twice.
    **{f"lm_head.{name}": f"{HEAD}{name}" for name in ("dense", "layer_norm")},
    **dict.fromkeys(("lm_head", "lm_head.decoder"), HEAD[:-1]),
    "cls.predictions.transform.dense": f"{HEAD}dense",
    "cls.predictions.transform.LayerNorm": f"{HEAD}layer_norm",
    **dict.fromkeys(("cls.predictions", "cls.predictions.decoder"), HEAD[:-1]),
}
# Heads that fairseq's RoBERTa trains anew, and index tensors, which are not parameters.
_LEFT_BEHIND = re.compile(
    r"(pooler|cls\.seq_relationship|classifier|qa_outputs)\.|embeddings\.(position|token_type)_ids$"
)
# Names in config.json -> fairseq's options.
_SHAPE = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
}
_DROPOUT = {"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}
# The values that fairseq's RoBERTa implements; a config.json without the key means the same.
_ONLY = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_EPS = {"roberta": 1e-5, "bert": 1e-12}  # of LayerNorm, if config.json has none


@dataclass
class Source:
    """A model that is to become a fairseq checkpoint.

    ``options`` and the names of ``tensors`` are those of fairseq's RoBERTa. ``dictionary`` has no
    ``<mask>``, like its file.
    """

    path: Path
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    dictionary: Dictionary
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_hugging_face(folder: Path, encoder_json: Path) -> Source:
    """Read a model as ``save_pretrained`` writes it: config, weights and vocabulary.

    Args:
        folder: with config.json, model.safetensors or pytorch_model.bin, and vocab.json (RoBERTa),
            vocab.txt (BERT) or tokenizer.json.
        encoder_json: GPT-2's encoder.json, which numbers RoBERTa's tokens.

    Raises:
        CheckpointError: a file is missing or truncated, or fairseq's RoBERTa cannot compute the model.
    """
    config = _read_config(folder / "config.json")
    path, weights = read_weights(folder)
    tensors, ignored = _fairseq_names(path, weights)
    kind = config["model_type"]
    dictionary, order = read_vocabulary(folder, kind, len(tensors[TOKENS]), encoder_json)
    for name in (TOKENS, f"{HEAD}weight", f"{HEAD}bias"):
        if name in tensors:
            tensors[name] = tensors[name][order]
    options = {name: config[key] for key, name in (_SHAPE | _DROPOUT).items() if key in config}
    options["layer_norm_eps"] = config.get("layer_norm_eps", _EPS[kind])
    source = Source(folder, options, tensors, dictionary, ignored)
    _join_positions(source, config.get("pad_token_id", 1) + 1 if kind == "roberta" else 0)
    _tie(source)
    return source


def _read_config(path: Path) -> dict[str, Any]:
    """Read config.json and check that fairseq's RoBERTa computes what it describes."""
    config = read_config(path, _SHAPE, *_EPS)
    for key, only in _ONLY.items():
        if config.get(key, only) != only:
            raise CheckpointError(
                f"{path}: `{key}` must be {only!r}, as in fairseq's RoBERTa, but is "
                f"{shown(config[key])} instead."
            )
    return config


def read_config(path: Path, sizes: Iterable[str], *kinds: str) -> dict[str, Any]:
    """Read config.json, which must have ``sizes``, and a ``model_type`` of ``kinds``."""
    if not path.is_file():
        raise CheckpointError(f"There is no {path}; a folder of a Hugging Face model has one.")
    # null says the same as no key.
    config = {key: value for key, value in read_json(path, dict).items() if value is not None}
    kind = config.get("model_type")
    if kind not in kinds:
        known = " or ".join(kinds)
        raise CheckpointError(
            f"{path}: `model_type` must be {known}, but is {shown(kind)} instead."
        )
    check_shape(config, dict.fromkeys(sizes, int), f"{path}: the content")
    return config


def _weights_file(folder: Path) -> Path:
    weights = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if weights:
        return weights[0]
    if list(folder.glob("*.index.json")):
        raise CheckpointError(
            f"The weights of {folder} are in several files; save the model in one file (transformers: "
            "save_pretrained with a larger max_shard_size)."
        )
    raise CheckpointError(f"{folder} has no weights: neither {WEIGHTS[0]} nor {WEIGHTS[1]}.")


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the file of a model's weights, and its tensors by name, in float32."""
    path = _weights_file(folder)
    if path.suffix == ".bin":
        tensors = load_pickle(path)
    else:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise CheckpointError(
                f"{path} is not a complete safetensors file ({error}); it may be a partial copy, or "
                "a pointer of Git LFS."
            ) from None
    return path, {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}


def _fairseq_names(path: Path, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors under fairseq's names, and the names of the dropped tensors."""
    renamed, ignored = {}, []
    for name, tensor in tensors.items():
        old_name = re.sub(r"^(roberta|bert)\.", "", name)
        if _LEFT_BEHIND.match(old_name):
            ignored.append(name)
            continue
        part, _, kind = old_name.rpartition(".")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)  # of BERT's first release
        block = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", part)
        new_name = _OUTSIDE_BLOCKS.get(part)
        if block and block[2] in _BLOCK:
            new_name = f"{_STACK}layers.{block[1]}.{_BLOCK[block[2]]}"
        if new_name is None:
            raise CheckpointError(
                f"{path} holds {shown(name)}, which fairseq's RoBERTa does not have."
            )
        renamed[f"{new_name}.{kind}"] = tensor
    return renamed, ignored


def _join_positions(source: Source, first: int) -> None:
    """Build fairseq's position table: zeros up to the padding index, then the rows from ``first`` on."""
    name = f"{_STACK}embed_positions.weight"
    rows = source.tensors[name][first:]
    segments = source.tensors.pop("segments.weight", None)
    if segments is not None:
        rows = rows + segments[0]
        source.notes.append("the vector of segment 0 was added to every position")
        if len(segments) > 1:
            source.notes.append(f"{len(segments) - 1} more of the source's segments were left out")
    unused = rows.new_zeros(source.dictionary.pad() + 1, rows.size(1))
    source.tensors[name] = torch.cat([unused, rows])
    source.options["max_positions"] = len(rows)


def _tie(source: Source) -> None:
    """Drop the head's weight if it equals the token embeddings; fairseq ties them by default."""
    tokens = source.tensors[TOKENS]
    is_tied = torch.equal(source.tensors.get(f"{HEAD}weight", tokens), tokens)
    if is_tied:
        source.tensors.pop(f"{HEAD}weight", None)
    source.options["untie_weights_roberta"] = not is_tied
