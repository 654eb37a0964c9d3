"""An update with FLOATER's exact gradient launches few more kernels than fairseq's own."""

import pytest

from benchmarks.bench import Bench
from benchmarks.contestants import contestants
from benchmarks.parts import launch_rows
from benchmarks.records import Records
from benchmarks.settings import Settings

BASE_WIDTH = 512


def launches_of(length, width=32, encoders=("floater",), shortest=None):
    """Return the kernels launched in an update at base depth, by contestant, the baseline first."""
    # Make the flow as strong as at base width, so that it needs as many iterations.
    scale = 0.01 * (BASE_WIDTH / width) ** 0.5
    options = [f"--floater-init-scale {scale}"]
    for side in ("encoder", "decoder"):
        options += [f"--{side}-embed-dim {width}", f"--{side}-ffn-embed-dim {width}"]
    settings = Settings(
        encoders=encoders,
        tokens=2 * length,
        length=(shortest or length, length),
        vocabulary=(100,),
        model_options=" ".join(options).split(),
    )
    compared = contestants(settings, "no folder")
    bench = Bench(settings, compared, lambda message: None, Records({}, None))
    return {row["contestant"]: row["kernels"] for row in launch_rows(bench)}


@pytest.mark.parametrize(("length", "shortest"), [(64, 40), (256, None)], ids=["padded", "whole"])
def test_an_update_launches_at_most_three_tenths_more_than_fairseqs(length, shortest):
    found = launches_of(length, shortest=shortest)
    assert found["fairseq"] < found["floater"] <= 1.3 * found["fairseq"], found


def test_the_count_does_not_depend_on_the_width():
    encoders = ("rope", "sinusoidal")
    assert launches_of(20, 32, encoders) == launches_of(20, 64, encoders)
