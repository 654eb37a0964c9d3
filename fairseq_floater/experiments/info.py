"""Show the installed versions, and the properties and costs of each encoder: `floater info`.

This does not import fairseq, which would take longer than all the rest.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fairseq_floater.position_encoders import (
    POSITION_ENCODERS,
    complete,
    encoder_class,
    encoder_options,
    has_base,
)
from fairseq_floater.position_encoders.base import EncoderSpec, PositionEncoder
from fairseq_floater.position_encoders.registry import (
    ALL_BLOCKS,
    DEFAULT_TARGETS,
    INPUT_BLOCK,
    block_numbers,
    check_depth,
    named_blocks,
)
from fairseq_floater.position_encoders.shared_options import has_positions
from fairseq_floater.position_encoders.signal import (
    decoder_streams,
    encoder_streams,
    source_streams,
)
from fairseq_floater.records import markdown_table
from fairseq_floater.requirements import versions
from fairseq_floater.transformer.shapes import (
    ARCHITECTURES,
    MAX_POSITIONS,
    ROBERTA_ARCHITECTURES,
    ROBERTA_SIZES,
    SIZES,
)

#: The costs that `PositionEncoder.costs` names, compared with the same model without positions.
COSTS = {
    "elementwise": "a pass over the input or over q, k, v, with attention still fused",
    "recurrence": "one token after the other in training too",
    "mask": "a float mask in fused attention",
    "weights": "attention that forms its weights and is not fused",
}
VOCABULARY = 32_000  # words in each dictionary, for encoders with parameters for each word
ROBERTA_MAX_POSITIONS, ROBERTA_VOCABULARY = 512, 50_265  # of the published RoBERTas
# Prefixes of parameters that a stack owns and its blocks share, in translation and in a RoBERTa.
_SHARED_BY_BLOCKS = ("encoder.positions.", "encoder.sentence_encoder.positions.")


@dataclass
class Info:
    """Versions, device, and one row per encoder with the parameters it adds to ``arch``."""

    arch: str
    versions: dict[str, str]
    device: str
    encoders: list[dict[str, Any]]
    blocks: str = INPUT_BLOCK

    def format_text(self) -> str:
        versions = "  ".join(f"{name} {version}" for name, version in self.versions.items())
        return "\n".join([versions, f"device {self.device}", "", self.encoder_table()])

    def encoder_table(self) -> str:
        """Return Table 1's properties and the parameters of each encoder as a Markdown table."""
        heads = ["encoder", "reference", "acts on", "inductive", "data-driven"]
        few = "input only" if self.blocks == INPUT_BLOCK else f"blocks {self.blocks}"
        heads += ["parameter-efficient", "one dynamics", f"parameters, {few}"]
        heads += ["parameters, all blocks", "cost", "positions"]
        marks = ("inductive", "data_driven", "efficient")
        counts = ("per_dynamics", f"parameters_{self.blocks}", "parameters_all")
        rows = [
            [
                f"`{row['name']}`",
                *(row[key] or "-" for key in ("reference", "acts_on")),
                *("yes" if row[key] else "no" for key in marks),
                *(f"{row[key]:,}" for key in counts),
                ", ".join(row["costs"]) or "-",
                row["formula"],
            ]
            for row in self.encoders
        ]
        blocks = _size(self.arch)[1]
        model = f"{blocks} + {blocks} blocks", f"two dictionaries of {VOCABULARY:,} words"
        if self.arch in ROBERTA_ARCHITECTURES:
            model = f"{blocks} blocks", f"a dictionary of {ROBERTA_VOCABULARY:,} words"
        note = (
            f"Parameters added to the whole `{self.arch}` ({model[0]}; for `complex`, "
            f"{model[1]}); one dynamics: what the encoder's blocks share. Costs: "
            + "; ".join(f"*{name}*, {meaning}" for name, meaning in COSTS.items())
            + "."
        )
        return "\n".join([*markdown_table(heads, rows), "", note])


def collect(arch: str = "floater_transformer", blocks: str = INPUT_BLOCK) -> Info:
    """Collect versions, and count the parameters that each encoder adds to ``blocks`` and to all blocks."""
    known_archs = (*ARCHITECTURES, *ROBERTA_ARCHITECTURES)
    if arch not in known_archs:
        known = ", ".join(known_archs)
        raise ValueError(f"`--arch` must be one of {known}, but is {arch!r} instead.")
    blocks, rows = named_blocks(blocks), []
    check_depth(block_numbers(blocks), _size(arch)[1])
    for name, encoder in POSITION_ENCODERS.items():
        counts = {b: added_parameters(arch, name, b) for b in (blocks, ALL_BLOCKS)}
        usual = {option.dest: option.default for option in encoder.options}
        reference = "relative" if encoder.is_relative(usual) else "absolute"
        rows.append(
            {
                "name": name,
                "reference": reference if encoder.acts_on else None,
                "acts_on": encoder.acts_on,
                "costs": costs(arch, name),
                "inductive": encoder.inductive,
                "data_driven": encoder.data_driven,
                "efficient": encoder.parameter_efficient,
                "target": DEFAULT_TARGETS[name],
                f"parameters_{blocks}": sum(counts[blocks].values()),
                "parameters_all": sum(counts["all"].values()),
                # Parameters of a signal that its blocks share: one dynamics or recurrence.
                "per_dynamics": sum(
                    n for k, n in counts["all"].items() if k.startswith(_SHARED_BY_BLOCKS)
                ),
                "formula": encoder.formula,
                "source": encoder.source,
            }
        )
    return Info(arch, versions(), _device(), rows, blocks)


def added_parameters(arch: str, encoder: str, blocks: str, **options: Any) -> dict[str, int]:
    """Count the parameters that a position encoder adds to ``arch``, by state-dict name.

    Only the encoder's modules are built. ``options`` are the encoder's and the shared ones, by ``dest``.
    """
    counts: dict[str, int] = {}
    for stack, attribute, built in _attached(arch, encoder, blocks, options):
        modules: dict[str, nn.Module] = {f"{stack}.{attribute}": built}
        for index in filter(built.receives, built.spec.blocks):
            modules[f"{stack}.layers.{index}.{attribute}"] = built.build_block(index)
        for prefix, module in modules.items():
            counts |= {f"{prefix}.{name}": p.numel() for name, p in module.named_parameters()}
    return counts


def costs(arch: str, encoder: str, **options: Any) -> list[str]:
    """Return the keys of :data:`COSTS` that apply to a position encoder in ``arch``."""
    attached = _attached(arch, encoder, "all", options)
    return list(dict.fromkeys(cost for _, _, built in attached for cost in built.costs()))


def _attached(
    arch: str, encoder: str, blocks: str, options: dict[str, Any]
) -> list[tuple[str, str, PositionEncoder]]:
    """Build the encoders that the stacks of `transformer/` attach: (stack, attribute, encoder)."""
    args = argparse.Namespace(position_encoder=encoder, position_blocks=blocks, **options)
    complete(args)
    channels, depth, heads = _size(arch)
    alone = arch in ROBERTA_ARCHITECTURES
    places = [
        ("encoder", "positions", encoder_streams(args.position_target)),
        ("decoder", "positions", decoder_streams(args.position_target)),
    ]
    if of_source := source_streams(args):
        places.append(("decoder", "source_positions", of_source))
    if alone:
        places = [("encoder.sentence_encoder", "positions", places[0][2])]
    encoders = []
    for stack, attribute, streams in places:
        side = "target" if (stack, attribute) == ("decoder", "positions") else "source"
        if not has_positions(args, side):
            continue
        spec = EncoderSpec(
            dim=channels,
            streams=streams,
            target=args.position_target,
            side=side,
            max_positions=ROBERTA_MAX_POSITIONS if alone else MAX_POSITIONS,
            padding_idx=1,
            base=has_base(args, "target" if stack == "decoder" else "source"),
            combine=args.position_combine,
            options=encoder_options(args),
            heads=heads,
            blocks=range(depth),
            chosen=block_numbers(args.position_blocks),
            vocabulary=ROBERTA_VOCABULARY if alone else VOCABULARY,
        )
        encoders.append((stack, attribute, encoder_class(encoder, args.position_target)(spec)))
    return encoders


def _size(arch: str) -> tuple[int, int, int]:
    return ROBERTA_SIZES[arch][:3] if arch in ROBERTA_SIZES else SIZES[ARCHITECTURES[arch]]


def _device() -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{len(names)} x {names[0]}"
    return f"CPU, {torch.get_num_threads()} threads"
