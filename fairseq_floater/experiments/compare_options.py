"""Options of a comparison (`scripts/compare.sh`, `s2l.sh`, `tasks.sh`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_floater.experiments.commands import add_config, add_node_options, seeds
from fairseq_floater.experiments.tables import add_table_options
from fairseq_floater.experiments.variants import TOLD, read_evals, read_windows
from fairseq_floater.position_encoders.registry import encoder_names
from fairseq_floater.verbs import positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`compare.run` reads, except ``by_length`` (whether `s2l` is required)."""
    add = parser.add_argument
    parser.set_defaults(task=(), variants=[])  # only `tasks.sh` sets a task
    add_config(parser)
    add_table_options(parser, "names or patterns of systems: 'rope-*,*-stretch_*'")
    text = (
        "all, or names with commas: rope,t5,floater. Runs the baseline of CONFIG and these, some in "
        "several forms, which --list shows (default: the systems that CONFIG lists)"
    )
    add("--encoders", type=encoder_names, metavar="NAMES", help=text)
    text = (
        "what --encoders start from: scratch (random parameters, without fairseq's sinusoid) or donor (a "
        "trained Transformer); default: as the baseline"
    )
    add("--start", choices=("scratch", "donor"), help=text)
    text = "also run each system with --position-stretch LOW:HIGH, if it takes this option"
    add("--stretch", metavar="LOW:HIGH", help=text)
    text = (
        "also run each system with these options of the model, if it takes them: --also='--position-cross "
        "relative'; may be given again"
    )
    add("--also", action="append", default=[], metavar="OPTIONS", help=text)
    text = (
        "also translate with positions changed at test time, as --position-eval SPEC (docs/options.md): "
        "interpolate:80,cap:80"
    )
    add("--eval", action="extend", type=read_evals, dest="variants", metavar="SPEC,SPEC", help=text)
    text = "also translate with hypotheses as long as their references, to see what stopping early costs"
    add("--told-length", action="append_const", const=TOLD, dest="variants", help=text)
    text = (
        "also translate sources of more than T tokens in windows of T that share O (a quarter of T) and "
        "are joined where they agree; may be given again"
    )
    add(
        "--windows", action="append", type=read_windows, dest="variants", metavar="T[:O]", help=text
    )
    text = "also score exact match (always done for text of whole words)"
    add("--exact-match", action="store_true", help=text)
    text = "run each system under each of these seeds (default: the configuration's)"
    add("--seeds", type=seeds, metavar="1,2,3", help=text)
    text = "folder of your parallel text: train, valid and test* files"
    add("--raw", type=Path, metavar="DIR", help=text)
    text = (
        "run of protocol.sh --encoder plain, the donor of all seeds; made there if it is missing (default: "
        "a donor for each seed)"
    )
    add("--donor", type=Path, metavar="DIR", help=text)
    text = "trainings side by side (default: 1 on GPUs; the number of cores, at most 4, on the CPU)"
    add("--jobs", type=positive, metavar="N", help=text)
    add_node_options(parser)
