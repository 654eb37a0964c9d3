"""Load the models of checkpoints and compare their outputs. Not a test file."""

import helpers
import torch

from fairseq_floater.checkpoints.reading import load_checkpoint

# Bound on a report's difference, which is in float32; `difference` below is in float64.
ROUNDING = 5e-6


def loaded(path, **options):
    """The model that a checkpoint describes, with its parameters."""
    state = load_checkpoint(path)
    model = helpers.build(**{**vars(state["cfg"]["model"]), **options})
    model.load_state_dict(state["model"], strict=True)
    return model.eval()


def difference(a, b):
    source, target = helpers.sentence(9), helpers.shifted(helpers.sentence(7))
    with torch.no_grad():
        first, second = (torch.log_softmax(m.double()(source, None, target)[0], -1) for m in (a, b))
    return float((first - second).abs().max())
