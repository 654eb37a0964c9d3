"""Models with `--position-stretch`, `-shift` or `-jitter`, and encoders that take them."""

import pytest
import torch
from helpers import build, randomise_positions, raw_log_probs

from fairseq_floater.position_encoders import POSITION_ENCODERS, encoder_class, encoder_options

CONTINUOUS = [name for name, cls in POSITION_ENCODERS.items() if cls.continuous]
CASES = [(name, target) for name in CONTINUOUS for target in POSITION_ENCODERS[name].targets]
every_continuous = pytest.mark.parametrize(("encoder", "target"), CASES)
CAPE = {
    "position_stretch": "1/1.03:1.03:log",
    "position_shift": "-5:5",
    "position_jitter": 0.5,
}
SHAPE = {"position_shift": "500"}


def model_of(encoder, target="hidden", blocks="all", **options):
    options = {"no_token_positional_embeddings": True, "dropout": 0.0, **options}
    return randomise_positions(build(encoder, blocks, target, **options))


def takes(encoder, target, options):
    """Return ``options``, reduced or changed to what the encoder accepts."""
    cls = encoder_class(encoder, target)
    own = encoder_options(build(encoder, target=target).cfg)
    if cls.is_relative(own):
        options = {k: v for k, v in options.items() if k != "position_shift"}
    elif not cls.goes_before_start(own) and "position_jitter" in options:
        options = {**options, "position_shift": "0.5:10"}
    return options


def training_log_probs(model, *batch, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        return raw_log_probs(model.train(), *batch)
