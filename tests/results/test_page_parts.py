"""What a page is made of: charts, chosen sentences, templates that are shipped, folders that are refused."""

import subprocess
import sys

import pytest
from toy import ROOT

from fairseq_floater.errors import ReportError, UsageError
from fairseq_floater.results.page.charts import Line, Point, Tick, line_chart
from fairseq_floater.results.page.examples import TextPart, choose, compare
from fairseq_floater.results.page.write import write_page


def test_sentences_are_spread_over_a_group_and_words_compared_in_order():
    assert choose([5, 9, 7, 7, 8], [0, 1, 2, 3, 4], 3) == [0, 3, 1]
    assert choose([5, 9, 7], [1, 2], 5) == [2, 1]
    assert choose([5], [], 3) == []
    assert compare("a b c d", "a x c") == [
        TextPart("a", True),
        TextPart("x", False),
        TextPart("c", True),
    ]
    assert compare("a b", "") == []
    # Chinese has no spaces.
    parts = [TextPart("我喜欢吃", True), TextPart("苹果", False), TextPart("。", True)]
    assert compare("我喜欢吃梨。", "我喜欢吃苹果。") == parts


def test_a_chart_puts_values_where_its_ticks_say():
    points = [Point(0, 20, 10, 40), Point(1, 80)]
    x_ticks = [Tick(0, "a"), Tick(1, "b")]
    chart = line_chart("BLEU", "", [Line(0, "a", points)], x_title="", x_ticks=x_ticks)
    ticks = {tick.text: tick.position for tick in chart.y_ticks}
    (x, y, low, high, _, text), (last, top, *_) = chart.lines[0].points
    assert (y, high, top) == (ticks["20"], ticks["40"], ticks["80"])
    assert low == (ticks["0"] + ticks["20"]) / 2
    assert ticks["80"] < ticks["20"]  # upwards: SVG counts from the top
    assert [x, last] == [tick.position for tick in chart.x_ticks] and text == "a: 20"
    powers = line_chart("loss", "", [Line(0, "a", [Point(0, 0.1), Point(100, 5.0)])], x_title="")
    places = {tick.text: tick.position for tick in powers.y_ticks}
    assert "logarithmic" in powers.unit
    decades = [places["0.1"] - places["1"], places["0.5"] - places["5"]]
    assert decades[0] == pytest.approx(decades[1], abs=0.2)
    assert powers.lines[0].points[1].value == places["5"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no scored run"),
        ({"s2l.json": "{}"}, "`labels` must be of type dict"),
        ({"seed-1/a/run.json": "{}"}, "must hold s2l.json or compare.json"),
    ],
)
def test_a_folder_without_scores_is_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ReportError, match=message):
        write_page(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(UsageError, match="must end in .html"):
        write_page(tmp_path, tmp_path / "average.pt")


def test_setup_ships_the_templates(tmp_path):
    words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    for kind in ("html", "css", "js"):
        name = f"fairseq_floater/results/page/page.{kind}"
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
