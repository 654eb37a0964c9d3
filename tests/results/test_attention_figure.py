"""The figure of positions inside attention: each term compared with what attention computes."""

import dataclasses
import json

import helpers
import pytest
import torch
from helpers import save_model
from matplotlib.figure import Figure

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.position_encoders import POSITION_ENCODERS
from fairseq_floater.position_encoders.alibi import slopes
from fairseq_floater.position_encoders.in_attention import AttentionPart
from fairseq_floater.position_encoders.rope import RopePart
from fairseq_floater.position_encoders.t5 import T5Positions, log_buckets
from fairseq_floater.position_encoders.transforms import Positions
from fairseq_floater.results.attention_terms import TERMS, Term, read_terms
from fairseq_floater.results.position_figure import plot_positions

HEADS, WIDTH = 2, 32  # of the tiny shape
INSIDE = [name for name in POSITION_ENCODERS if "attention" in POSITION_ENCODERS[name].targets]
TRAINED = {"source": 6, "target": 6}


def terms(model, stack="encoder", length=None):
    found = read_terms(getattr(model, stack), stack, length, TRAINED)
    return {(term.block, term.stream): term for term in found}


def visible(name, **options):
    return helpers.visible(name, "all", "attention", **options)


def test_a_bias_is_what_attention_adds_at_each_distance():
    model = visible("t5", t5_buckets=16, t5_max_distance=10)
    weight = model.encoder.positions.weight
    found = terms(model)
    assert set(found) == {(1, "bias"), (2, "bias")}
    term = found[1, "bias"]
    assert term.distances.tolist() == list(range(-17, 18))
    for d, values in zip(term.distances, term.values.T):
        bucket = int(log_buckets(d.abs().float(), 8, 10)) + 8 * int(d < 0)
        assert torch.equal(values, weight[bucket])
    assert term.image.sum(dim=-1) == pytest.approx([1.0, 1.0])
    assert term.image.log().diff(dim=1) == pytest.approx(term.values.diff(dim=1), abs=1e-4)
    assert term.measure()["alike_from"] == 8  # where the last of 8 buckets begins
    decoder = terms(model, "decoder")[1, "bias"]
    assert decoder.distances.tolist() == list(range(18))
    last = model.decoder.positions.weight[-1]
    assert torch.equal(decoder.values[:, 10:], last[:, None].expand(-1, 8))


def test_measures_are_means_over_heads_before_the_query():
    term = terms(visible("alibi"))[1, "bias"]
    slope = sum(slopes(HEADS)) / HEADS
    measured = term.measure()
    distances = {"1": 1, "T/2": 3, "T": 6, "2T": 12, "3T": 17}
    assert measured["means"] == pytest.approx({k: -slope * d for k, d in distances.items()})
    assert (measured["furthest"], measured["alike_from"]) == (17, None)
    assert term.has_past
    assert not terms(visible("alibi"), length=6)[1, "bias"].has_past
    short = terms(visible("alibi"), length=8)[1, "bias"].measure()["means"]
    assert short["T"] is not None
    assert short["2T"] is None


def test_a_head_that_does_not_see_one_side_has_no_value_there():
    term = terms(visible("alibi", bias_direction="heads"))[1, "bias"]
    hidden = term.values.isnan()
    assert torch.equal(hidden[0], term.distances < 0)
    assert torch.equal(hidden[1], term.distances > 0)
    assert term.image[hidden].abs().max() < 1e-6
    json.dumps(term.measure())


@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_a_turn_is_the_angle_of_each_pair(partial):
    term = terms(visible("rope", rope_partial=partial))[1, "turn"]
    pairs = int(WIDTH * partial) // 2
    w = 10_000 ** (-torch.arange(pairs) / pairs)
    angles = torch.zeros(WIDTH // 2, 35)
    angles[:pairs] = term.distances * w[:, None]
    assert torch.rad2deg(angles.cos().acos()) == pytest.approx(term.image, abs=0.05)
    assert term.values == pytest.approx(angles.cos().mean(dim=0, keepdim=True), abs=1e-3)


RANDOM = torch.Generator().manual_seed(3)
# Row 0 is distance -40. A acts on queries, B on keys, V on values; ALONE needs no token.
A, B, V, ALONE = torch.randn(4, 80, HEADS, WIDTH, generator=RANDOM)


class Reading(AttentionPart):
    """A part that reads queries, keys and weights."""

    needs_weights = True

    def bias(self, q, k, tables):
        rows = tables[0]
        met = torch.einsum("bhtd,tshd->bhts", q, A[rows])
        met = met + torch.einsum("bhsd,tshd->bhts", k, B[rows])
        return met + ALONE[rows][..., 0].permute(2, 0, 1)

    def values(self, weights, tables):
        return torch.einsum("bhts,tshd->bhtd", weights, V[tables[0]])


def test_terms_that_see_tokens_are_read_through_the_hooks(monkeypatch):
    def prepare(self, at: Positions, blocks, dtype):
        return [(at.distances[0] + 40,)] * len(blocks)

    monkeypatch.setattr(T5Positions, "build_block", lambda self, i: Reading(i, self.spec))
    monkeypatch.setattr(T5Positions, "prepare", prepare)
    monkeypatch.setattr(T5Positions, "logit_bias", lambda *_: None)
    found = terms(visible("t5"))
    assert {stream for _, stream in found} == {"bias", "content", "values"}
    rows = found[1, "bias"].distances + 40
    assert torch.equal(found[1, "bias"].values, ALONE[rows][..., 0].T)
    content = torch.cat([A[rows], B[rows]], dim=-1)  # [M, H, 2 D]
    assert found[1, "content"].values == pytest.approx(content.norm(dim=-1).T, abs=1e-4)
    unit = torch.nn.functional.normalize(content, dim=-1)
    cosines = torch.einsum("mhd,nhd->mn", unit, unit) / HEADS
    assert found[1, "content"].image == pytest.approx(cosines, abs=1e-5)
    assert found[1, "values"].values == pytest.approx(V[rows].norm(dim=-1).T, abs=1e-4)
    # For tokens with independent channels, this norm is the standard deviation; draw some to check.
    q = torch.randn(4_000, HEADS, 1, WIDTH, generator=RANDOM)
    k = torch.randn(4_000, HEADS, 3, WIDTH, generator=RANDOM)
    drawn = Reading(0, None).bias(q, k, [torch.tensor([[39, 40, 45]])])[:, :, 0]
    at = [int((found[1, "content"].distances == d).nonzero()) for d in (-1, 0, 5)]
    assert drawn.std(dim=0) == pytest.approx(found[1, "content"].values[:, at], rel=0.1)


def test_vectors_of_one_size_may_still_differ():
    angle = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0])
    image = (angle[:, None] - angle).cos()
    term = Term("decoder", 1, "content", None, torch.arange(5), torch.ones(1, 5), image)
    assert term.measure()["alike_from"] == 2
    assert dataclasses.replace(term, stream="bias").measure()["alike_from"] == 0


def test_a_turn_alike_at_all_positions_is_none(monkeypatch):
    monkeypatch.setattr(RopePart, "turn", lambda self, x, stream, tables: x + 1)
    assert terms(visible("rope")) == {}


@pytest.mark.parametrize("name", INSIDE)
def test_every_encoder_inside_attention_can_be_drawn(tmp_path, name, undrawn):
    path = save_model(tmp_path / "model.pt", name, change=lambda p: [
        p[key].normal_() for key in p if ".positions." in key
    ])  # fmt: skip
    figure = plot_positions(path, tmp_path / "out.png", trained_length=8, blocks=["all"])
    assert {term["stream"] for term in figure.terms} <= set(TERMS)
    assert {(term["stack"], term["block"]) for term in figure.terms} == {
        (stack, block) for stack in ("encoder", "decoder") for block in (1, 2)
    }
    json.dumps(dataclasses.asdict(figure))


@pytest.mark.parametrize("name", ["rope", "tener"])
def test_a_law_for_evaluation_changes_nothing_of_the_figure(tmp_path, name, undrawn):
    drawn = []
    for law in ("none", "cap:4"):
        path = save_model(tmp_path / f"{law}.pt", name, position_eval=law)
        drawn.append(plot_positions(path, tmp_path / "out.png", trained_length=8).terms)
    assert drawn[0] == drawn[1] != []


def test_learned_rows_are_read_as_far_as_both_sides_of_a_query_have_them(tmp_path, undrawn):
    path = save_model(tmp_path / "model.pt", "tupe", tupe_positions="learned")  # 1,024 rows
    figure = plot_positions(path, tmp_path / "out.png", stack="encoder", trained_length=400)
    assert {term["furthest"] for term in figure.terms} == {511}


def test_the_figure_tells_of_distances_that_training_lacks(tmp_path, undrawn):
    change = {"change": lambda p: p["encoder.positions.weight"].normal_()}
    path = save_model(tmp_path / "model.pt", "t5", t5_max_distance=40, **change)
    figure = plot_positions(path, tmp_path / "out.png", trained_length=40)
    [warning] = figure.warnings
    assert warning.startswith("`--t5-max-distance` is 40, but training has no distance above 39")
    assert not plot_positions(path, tmp_path / "out.png", trained_length=41).warnings
    assert not plot_positions(path, tmp_path / "out.png").warnings
    lines = figure.format_text().splitlines()
    assert lines[2].startswith("| term | distances up to | at 1 | at T/2 |")
    assert lines[4].startswith("| encoder, block 1, bias | 119 |")
    assert "T5 bias, inside attention, blocks all" in lines[0]
    # The decoder's biases are zero.
    assert [term["stack"] for term in figure.terms] == ["encoder"]


def test_biases_at_zero_leave_nothing_to_draw(tmp_path):
    path = save_model(tmp_path / "model.pt", "t5")
    with pytest.raises(CheckpointError, match="T5 bias.* has no positions, or they are zero"):
        plot_positions(path, tmp_path / "out.png")


def test_a_base_underneath_is_drawn_above_the_terms(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **words: drawn.append(self))
    monkeypatch.setattr("fairseq_floater.figures.write_whole", lambda p, f: f(p))
    path = save_model(tmp_path / "model.pt", "alibi", position_base="keep")
    figure = plot_positions(path, tmp_path / "out.png", trained_length=5, stack="encoder")
    assert [t["stream"] for t in (*figure.tables, *figure.terms)] == ["base", "bias"]
    titles = [axes.get_title() for axes in drawn[0].axes if axes.get_title()]
    assert titles[0] == "position matrix"
    assert titles[-2:] == [TERMS["bias"], "attention where contents are equal"]
    figure = plot_positions(path, tmp_path / "out.png", streams=["bias"], length=5)
    assert not figure.tables
    left, right = drawn[-1].axes[:2]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["head 1", "head 2"]
    assert len(left.get_lines()) == len(right.get_lines()) == HEADS
