"""The encoders, and forms of them, that the contract walks. Not a test file."""

from fairseq_floater.position_encoders import POSITION_ENCODERS

# Forms of an encoder that the contract walks too, by names that begin with their target.
FORMS = {
    "relative-xl": {"floater_relative": "xl"},
    "hidden-block": {"floater_theta": "block", "floater_autonomous": True},
    "hidden-none": {"rnn_input": "none"},
    "relative-xl-linear": {"floater_relative": "xl", "floater_time": "linear", "xl_v": "off"},
}
CASES = [
    (encoder, blocks, target)
    for encoder in POSITION_ENCODERS
    for blocks in ("all", "input")
    for target in POSITION_ENCODERS[encoder].targets
] + [
    ("floater", "all", "relative-xl"),
    ("floater", "all", "hidden-block"),
    ("rnn", "all", "hidden-none"),
    ("rotation_flow", "all", "relative-xl-linear"),
]


def options_of(target):
    """The options that a case's target stands for, by ``dest``."""
    return {"position_target": target and target.partition("-")[0], **FORMS.get(target, {})}
