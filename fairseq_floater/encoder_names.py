"""The names of the position encoders, for tools that need no more of them: torch takes seconds."""

#: `--position-encoder` -> its `--position-target`, where that is not given
DEFAULT_TARGETS = {
    "floater": "qkv",
    "sinusoidal": "hidden",
    "learned": "hidden",
    "rnn": "qkv",
    "rotation_flow": "hidden",
    "none": "hidden",
}
BLOCKS = ("all", "input")
TARGETS = ("qkv", "hidden")
