"""The encoders, and variants of them, that tests/contract covers. Not a test file."""

from fairseq_floater.position_encoders import POSITION_ENCODERS

# Further variants of an encoder. Their names begin with their position target.
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
ALL_BLOCKS = [case for case in CASES if case[1] == "all"]
# Encoders of each kind; MOST has them with the first block alone, too.
KINDS = ("floater", "learned", "rope", "conv", "sinusoidal")
MOST = ALL_BLOCKS + [case for case in CASES if case[1] == "input" and case[0] in KINDS]
# One case of each way in which an encoder acts, for tests of code that all encoders share.
MECHANISMS = [
    case
    for case in CASES
    if "-".join(case)
    in (
        *("none-all-hidden", "floater-all-qkv", "floater-all-hidden-block", "learned-all-hidden"),
        *("rope-all-attention", "t5-all-attention", "shaw-all-attention", "xl-all-attention"),
        *("cope-all-attention", "forget-all-attention"),
        *("conv-all-stage", "token-rnn-all-stage", "complex-all-stage"),
    )
]


def options_of(target):
    """Return the options, by ``dest``, of a target or of a variant in :data:`FORMS`."""
    return {"position_target": target and target.partition("-")[0], **FORMS.get(target, {})}
