"""Names of systems of configs/numbers_s2l.yaml, which several tests compare."""

from toy import ROOT

CONFIG = ROOT / "configs" / "numbers_s2l.yaml"
CONTROL = "sinusoidal-input-hidden"
STRETCH = "0.5:2.5"
SINUSOID, ROPE, T5 = (
    "sinusoidal-input-hidden-scratch",
    "rope-all-attention-scratch",
    "t5-all-attention-scratch-t5-max-distance_23",
)
