"""The figure of a comparison: every system has its row, and every translation the row of its model."""

import re
import struct

from fairseq_floater.evaluation.s2l.bin_scores import BinScore, SeedMean
from fairseq_floater.evaluation.s2l.figure import plot_s2l, variant_rows
from fairseq_floater.evaluation.s2l.report import S2LScores


def report_of(labels, scores):
    """A report of one group, with a (BLEU, loss) for each label."""
    report = S2LScores("split", labels, None, "nrefs:1", "tokens", 1000, 1, None)
    report.sentences = report.mean_length = {"all": 10}
    found = (BinScore(bleu, loss, 50.0, 1.0, None) for bleu, loss in scores)
    report.scores["all"] = dict(zip(labels, found))
    return report


def test_many_systems_have_a_line_each_in_the_figure(tmp_path):
    """Bars of more than nine systems cannot be told apart, so the figure grows with the systems instead."""

    def drawn(systems, has_loss=True):
        labels = {f"s{number}": f"system {number}" for number in range(systems)}
        means = (SeedMean(n, (n - 1, n + 1), [n, n + 0.5], None) for n in range(systems))
        scores = [(mean, mean if has_loss else None) for mean in means]
        plot_s2l(report_of(labels, scores), tmp_path / "f.png")
        return struct.unpack(">II", (tmp_path / "f.png").read_bytes()[16:24])  # width and height

    (_, two), (width, twelve), (same, forty) = drawn(2), drawn(12), drawn(40, has_loss=False)
    assert forty > twelve and forty > two and width == same
    assert twelve > drawn(12, has_loss=False)[1]  # each measure has its lines


def test_a_system_without_a_loss_has_its_line_in_the_figure_too(tmp_path):
    labels = {f"s{number}": f"system {number}" for number in range(12)}
    score = SeedMean(1, None, [1], None)
    losses = [None, *(SeedMean(-number, None, [1], None) for number in range(11))]
    plot_s2l(report_of(labels, [(score, loss) for loss in losses]), tmp_path / "f.svg")
    drawn = re.findall("<!-- (system .*) -->", (tmp_path / "f.svg").read_text())
    assert drawn == [f"system {number}" for number in (*range(11, 0, -1), 0)] * 2


def test_further_translations_stand_in_the_line_of_their_model(tmp_path):
    """A system's name may itself hold a point, as that of a stretched system does."""
    systems = {f"s{number}-1.5": f"system {number}" for number in range(6)}
    variants = {f"{name}.cap_80": f"{label}, cap:80" for name, label in systems.items()}
    scores = [(SeedMean(1, None, [1], None), None)] * 12
    plot_s2l(report_of(systems | variants, scores), tmp_path / "f.svg")
    text = re.findall("<!-- ((?:system|as|cap).*) -->", (tmp_path / "f.svg").read_text())
    assert text == [*systems.values(), "as trained", "cap:80"]


def test_a_row_of_the_figure_is_of_one_model():
    labels = {"t_1": "t 1", "t_1.5": "t 1.5", "t_1.cap_80": "t 1, cap:80"}
    assert {label: row for label, (row, _) in variant_rows(labels).items()} == {
        "t 1": "t 1",
        "t 1.5": "t 1.5",
        "t 1, cap:80": "t 1",
    }
