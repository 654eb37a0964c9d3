"""Figure 3 as the paper has it: the tables of several models side by side."""

import json

import pytest
from helpers import save_model

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.cli import main
from fairseq_floater.results import position_drawing
from fairseq_floater.results.position_figure import plot_models


def test_several_models_share_one_picture_and_its_colours(tmp_path, monkeypatch):
    """Each panel shows a model's own rows or fairseq's underneath; the sinusoid's are the largest."""
    cases = {"sinusoidal": "base", "learned": "hidden", "floater": "q", "rnn": "hidden"}
    paths = [
        str(save_model(tmp_path / f"{n}.pt", n, "input", "hidden" if n == "rnn" else None))
        for n in cases
    ]
    images, image = [], position_drawing._image

    def recorded(axes, values, *options, **style):
        images.append((axes, values, options[1:3]))
        return image(axes, values, *options, **style)

    monkeypatch.setattr(position_drawing, "_image", recorded)
    picture, result = tmp_path / "out.png", tmp_path / "out.json"
    words = [*paths, str(picture), "--length", "9", "--json", str(result)]
    assert main(["plot", "positions", *words]) == 0
    assert picture.stat().st_size > 10_000
    panels = json.loads(result.read_text())["panels"]
    assert [panel["encoder"] for panel in panels] == [*cases]
    titles = [axes.get_title() for axes, *_ in images]
    expected = [f"encoder, block 1, {stream}" for stream in cases.values()]
    assert [title.split("\n")[1] for title in titles] == expected
    [limits] = {limits for *_, limits in images}
    largest = images[0][1].abs().flatten().sort().values[int(0.99 * (9 * 64 - 1))]
    assert limits[1] == -limits[0] == float(largest)


def test_a_model_without_rows_has_no_panel(tmp_path):
    cases = (("learned", "hidden"), ("rope", "attention"))
    paths = [save_model(tmp_path / f"{n}.pt", n, target=t) for n, t in cases]
    with pytest.raises(CheckpointError, match=r"rope\.pt has no position table .* RoPE"):
        plot_models([*map(str, paths)], str(tmp_path / "out.png"))
