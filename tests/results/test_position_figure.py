"""The figure of position tables: which rows it reads, what it says of them, and what it refuses."""

import dataclasses
import json

import helpers
import pytest
import roberta_toy
import torch
from helpers import TINY, save_donor, save_model

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.cli import main
from fairseq_floater.position_encoders.sinusoidal import sinusoid_rows
from fairseq_floater.results.position_drawing import dimension_order
from fairseq_floater.results.position_figure import plot_positions, read_positions

DIM = 64


def encoder_rows(rows):
    """A change that makes ``rows`` [N, C] the learned table of the encoder's first block."""

    def change(parameters):
        weight = parameters["encoder.layers.0.positions.weight"]
        weight.zero_()
        weight[: len(rows), 0] = rows

    return change


def draw(checkpoint, output=None, **options):
    return plot_positions(checkpoint, output or checkpoint.with_suffix(".png"), **options)


def named(figure):
    return {(t["stack"], t["block"], t["stream"]): t for t in figure.tables}


@pytest.mark.parametrize("encoder", ["floater", "learned", "sinusoidal"])
@helpers.every_target
def test_the_rows_are_those_that_the_blocks_receive(tmp_path, encoder, target, undrawn):
    path = save_model(tmp_path / "model.pt", encoder, "all", target)
    figure = draw(path, trained_length=4, blocks=["all"])
    tables, _ = read_positions(path, trained_length=4, blocks=["all"])
    read = {(t.stack, t.block, t.stream): t.rows for t in tables}
    model = helpers.build(encoder, "all", target)
    model.load_state_dict(torch.load(path, weights_only=True)["model"])
    found = {key: table for key, table in named(figure).items() if key[2] != "base"}
    for stack, name, signal in helpers.signals(model.eval()):
        parts = helpers.parts(stack, name)
        with torch.no_grad():
            table = signal(12, parts, torch.float32)
        for i, stream in enumerate(signal.spec.streams):
            for j in range(len(parts)):
                side = "encoder" if stack is model.encoder else "decoder"
                measures, rows = found.pop((side, j + 1, stream)), table[:, i, j]
                torch.testing.assert_close(read[side, j + 1, stream], rows.double())
                assert measures["norms"]["3T"] == pytest.approx(float(rows[11].norm()), rel=1e-5)
                steps = rows.diff(dim=0).norm(dim=1)
                near = [measures[part]["distance"] for part in ("up_to_T", "past_T")]
                expected = [float(steps[:3].min()), float(steps[3:].min())]
                assert near == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert not found


@pytest.mark.parametrize("arch", ["transformer_tiny", TINY])
def test_fairseqs_own_sinusoid_is_the_stream_base(tmp_path, arch, undrawn):
    path = save_donor(tmp_path / "model.pt", arch=arch)
    figure = draw(path, trained_length=10, streams=["base"])
    assert set(named(figure)) == {("encoder", 1, "base"), ("decoder", 1, "base")}
    rows = sinusoid_rows(30, DIM, helpers.PAD)
    cosine = torch.nn.functional.cosine_similarity(rows[1:], rows[:-1], dim=1).max()
    for table in figure.tables:
        assert table["positions"] == 30
        assert table["norms"]["T"] == pytest.approx(float(rows[9].norm()), rel=1e-5)
        assert table["past_T"]["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    assert not figure.warnings


def test_norms_are_means_up_to_each_length(tmp_path, undrawn):
    rows = torch.arange(48.0)[:, None] * torch.ones(DIM) / DIM**0.5
    path = save_model(tmp_path / "model.pt", "learned", change=encoder_rows(rows))
    [table] = draw(path, stack="encoder", trained_length=16).tables
    # The last 16 / 8 rows up to each length, of norms 0, 1, 2, ...
    expected = {"T/2": 6.5, "T": 14.5, "2T": 30.5, "3T": 46.5}
    assert table["norms"] == pytest.approx(expected, rel=1e-5)
    [table] = draw(path, stack="encoder", trained_length=16, length=40).tables
    assert table["norms"]["2T"] is not None
    assert table["norms"]["3T"] is None


@pytest.mark.parametrize(
    ("size", "turn", "words"),
    [
        (lambda i: 1 + 0 * i, lambda i: i, []),
        (lambda i: i + 40, lambda i: i, []),
        (lambda i: i * i + 1, lambda i: i, ["grows past the trained length"]),
        (lambda i: 1 + 0 * i, lambda i: i.clamp(max=20), ["become indistinguishable"]),
    ],
)
def test_it_warns_of_growth_and_of_rows_that_become_one(tmp_path, size, turn, words, undrawn):
    i = torch.arange(48.0)
    rows = torch.zeros(48, DIM)
    rows[:, 0] = size(i) * torch.cos(0.3 * turn(i))
    rows[:, 1] = size(i) * torch.sin(0.3 * turn(i))
    path = save_model(tmp_path / "model.pt", "learned", change=encoder_rows(rows))
    figure = draw(path, stack="encoder", trained_length=16)
    assert len(figure.warnings) == len(words)
    for warning, word in zip(figure.warnings, words):
        assert warning.startswith("encoder, block 1, hidden: ")
        assert word in warning
        assert f"warning: {warning}" in figure.format_text()
    assert not draw(path, stack="encoder", length=48).warnings


def test_rows_that_tell_nothing_apart_are_noted(tmp_path, undrawn):
    figure = draw(save_model(tmp_path / "model.pt", "sinusoidal"), stack="encoder", blocks=["all"])
    [note] = figure.notes
    # Block 1 has the sinusoid from fairseq's base; its own term is the same for every position.
    assert note.startswith("encoder, block 1, hidden: all rows are the same")


def test_a_learned_table_ends_and_the_figure_says_so(tmp_path, undrawn):
    figure = draw(save_model(tmp_path / "m.pt", "learned"), stack="encoder", trained_length=400)
    assert figure.tables[0]["positions"] == 1024
    assert figure.tables[0]["norms"]["3T"] is None
    assert "encoder, hidden: the table ends after 1024 of 1200 positions" in figure.notes


def test_a_flow_is_drawn_as_far_as_it_is_finite(tmp_path, undrawn):
    def grow(parameters):
        for name, tensor in parameters.items():
            if "encoder.positions.dynamics" in name and tensor.dim() == 2:
                tensor.copy_(torch.eye(*tensor.shape) * 6)

    solver = {"floater_solver": "rk4_hermite"}
    path = save_model(tmp_path / "model.pt", target="hidden", change=grow, **solver)
    figure = draw(path, stack="encoder", streams=["hidden"], length=100)
    drawn = figure.tables[0]["positions"]
    assert 4 < drawn < 100
    assert f"encoder, hidden: the flow is not finite past {drawn} of 100 positions" in figure.notes


def test_the_trained_length_is_that_of_the_longest_training_sentence(tmp_path, undrawn):
    roberta_toy.write_pairs(tmp_path / "data", {"en": [5, 9, 7], "de": [3, 6, 4]})
    path = save_model(tmp_path / "model.pt", target="qkv", source_lang="en", target_lang="de")
    figure = draw(path, data=str(tmp_path / "data"))
    assert figure.trained_lengths == {"source": 9, "target": 6}
    rows = {key: table["positions"] for key, table in named(figure).items()}
    assert rows["encoder", 1, "q"] == rows["decoder", 1, "cross_k"] == 27
    assert rows["decoder", 1, "q"] == rows["decoder", 1, "base"] == 18
    with pytest.raises(ValueError, match="`--data` must hold training sentences en-de, but"):
        draw(path, data=str(tmp_path / "nowhere"))


def test_what_is_selected_is_drawn_and_what_is_left_out_is_said(tmp_path, undrawn):
    path = save_model(tmp_path / "model.pt", target="qkv")
    figure = draw(path, length=8)
    cross = {"base", "q", "k", "v", "cross_q", "cross_k", "cross_v"}
    assert {stream for stack, _, stream in named(figure) if stack == "decoder"} == cross
    assert {block for _, block, _ in named(figure)} == {1}
    assert figure.notes == ["only block 1 is shown, of blocks 1, 2"]
    figure = draw(path, length=8, stack="decoder", streams=["cross_k", "q"], blocks=["2"])
    assert set(named(figure)) == {("decoder", 2, "q"), ("decoder", 2, "cross_k")}
    assert not figure.notes
    figure = draw(path, length=8, stack="encoder", streams=["v"], blocks=[1, 2])
    assert set(named(figure)) == {("encoder", 1, "v"), ("encoder", 2, "v")}
    figure = draw(path, length=8, stack="encoder", streams="v", blocks=2)
    assert set(named(figure)) == {("encoder", 2, "v")}
    conv = save_model(tmp_path / "conv.pt", "conv", target="stage", position_base="keep")
    assert draw(conv).notes == ["only fairseq's positions can be drawn, not those of the encoder"]
    assert draw(path, length=8, streams="v", blocks=[]).notes == [
        "only block 1 is shown, of blocks 1, 2"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": ["q"]}, "`--streams` must be one of base, hidden, but is 'q' instead"),
        ({"blocks": [3]}, "`--blocks` must be one of 1, 2, all, but is '3' instead"),
        ({"length": 1}, "`--length` must be at least 2, but is 1 instead"),
        ({"trained_length": 0}, "`--trained-length` must be at least 2, but is 0 instead"),
        ({"output": "x.jpg"}, r"x\.jpg` must end in one of png, svg, pdf\."),
    ],
)
def test_what_does_not_exist_is_refused_and_leaves_no_file(tmp_path, options, words):
    path = save_model(tmp_path / "model.pt", target="hidden")
    output = tmp_path / options.pop("output", "out.png")
    with pytest.raises(ValueError, match=words):
        plot_positions(path, output, **options)
    assert list(tmp_path.iterdir()) == [path]


def test_checkpoints_that_cannot_be_drawn(tmp_path):
    path = save_model(tmp_path / "none.pt", "none")
    with pytest.raises(CheckpointError, match="has no position table to draw: none, target hidden"):
        draw(path)
    other = tmp_path / "other.pt"
    state = torch.load(save_model(other), weights_only=True)
    state["cfg"]["model"].arch = "lstm"
    torch.save(state, other)
    with pytest.raises(CheckpointError, match="is not a Transformer: its architecture is 'lstm'"):
        draw(other)


@pytest.mark.parametrize(
    ("encoder", "tables", "terms"),
    [
        ("floater", {"base", "q", "k", "v"}, set()),
        ("t5", set(), {"bias"}),
        (None, {"base"}, set()),
    ],
)
def test_positions_of_a_roberta(tmp_path, encoder, tables, terms, undrawn):
    options = {"position_encoder": encoder, "arch": "floater_roberta"} if encoder else {}
    task = {"_name": "masked_lm", "data": "elsewhere", "tokens_per_sample": 10}
    path = roberta_toy.save_model(tmp_path / "roberta.pt", task=task, **options)
    figure = draw(path, blocks=["all"])
    assert {stream for _, _, stream in named(figure)} == tables
    assert {term["stream"] for term in figure.terms} == terms
    assert figure.trained_lengths == {"source": 10} and "10 source tokens" in figure.title
    assert ("RoBERTa" in figure.model) == (encoder is None)
    if "base" in tables:
        state = torch.load(path, weights_only=True)["model"]
        rows = state["encoder.sentence_encoder.embed_positions.weight"][2:]  # behind padding's row
        norm = named(figure)["encoder", 1, "base"]["norms"]["T"]
        assert norm == pytest.approx(float(rows[9].norm()), rel=1e-5)
    assert draw(path, trained_length=5).trained_lengths["source"] == 5
    with pytest.raises(ValueError, match="`--stack` must be one of both, encoder, but is"):
        draw(path, stack="decoder")


def test_learned_positions_of_a_plain_transformer(tmp_path, undrawn):
    path = save_donor(tmp_path / "m.pt", encoder_learned_pos=True, encoder_normalize_before=True)
    figure = draw(path, stack="encoder", length=6)
    weight = torch.load(path, weights_only=True)["model"]["encoder.embed_positions.weight"]
    expected = float(weight[helpers.PAD + 1 :][5].norm())
    assert figure.tables[0]["norms"]["T"] == pytest.approx(expected, rel=1e-5)
    assert figure.model == "plain Transformer, learned positions"


def test_the_format_is_that_of_the_ending(tmp_path):
    output = tmp_path / "folder" / "figure.PDF"
    draw(save_model(tmp_path / "model.pt"), output, stack="encoder", streams=["q"], length=6)
    assert output.read_bytes().startswith(b"%PDF")
    assert list(output.parent.iterdir()) == [output]


def test_past_the_trained_length_curves_are_dashed(tmp_path):
    path, output = save_model(tmp_path / "model.pt"), tmp_path / "figure.svg"
    options = {"stack": "encoder", "streams": ["q"], "length": 9}
    draw(path, output, **options)
    assert "stroke-dasharray" not in output.read_text()
    draw(path, output, **options, trained_length=9)
    assert "stroke-dasharray" not in output.read_text()
    draw(path, output, **options, trained_length=5)
    assert output.read_text().count("stroke-dasharray") == 4  # the norm and three components


def test_the_numbers_of_a_logarithmic_axis_are_plain(tmp_path):
    rows = torch.eye(1, DIM) * (1 + torch.arange(48.0)[:, None]) ** 3
    path = save_model(tmp_path / "model.pt", "learned", change=encoder_rows(rows))
    output = tmp_path / "figure.svg"
    draw(path, output, stack="encoder", trained_length=16, length=48)
    drawn = output.read_text()
    assert (
        "<!-- logarithmic -->" in drawn and "<!-- 1000 -->" in drawn and "mathdefault" not in drawn
    )


def test_the_result_is_json_and_a_table(tmp_path, undrawn):
    figure = draw(save_model(tmp_path / "model.pt"), stack="encoder", trained_length=4)
    back = json.loads(json.dumps(dataclasses.asdict(figure)))
    assert back["tables"][0]["norms"].keys() == {"T/2", "T", "2T", "3T"}
    assert back["encoder"] == "floater"
    lines = figure.format_text().splitlines()
    assert lines[0].endswith("target qkv, blocks all, delta 0.1; trained length T: "
                             "4 source and 4 target tokens")  # fmt: skip
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 4
    assert table[2].startswith("| encoder, block 1, base | 12 | 5.657 | 5.657 |")
    figure = draw(save_model(tmp_path / "model.pt", blocks="1"), stack="encoder", streams=["q"])
    assert "target qkv, blocks 2, delta" in figure.model and figure.tables[0]["block"] == 2


def test_orders_make_a_shuffled_matrix_readable():
    shuffled = torch.randperm(DIM)
    sinusoid = sinusoid_rows(40, DIM, helpers.PAD)[:, shuffled]
    name, order = dimension_order(sinusoid)
    assert name == "speed"
    steps = sinusoid[:, order].diff(dim=0).square().mean(dim=0)
    assert (steps.diff() <= 0).all()
    slopes = torch.linspace(-1, 1, DIM)[shuffled]
    name, order = dimension_order(torch.arange(40.0)[:, None] * slopes)
    assert name == "direction"
    assert slopes[order].diff().sign().unique().numel() == 1
    assert sorted(dimension_order(torch.zeros(5, 7))[1].tolist()) == list(range(7))


def test_the_command_draws_and_prints(tmp_path, capsys):
    path = save_model(tmp_path / "model.pt", "floater", "all", "hidden")
    out = tmp_path / "positions.png"
    words = ["plot", "positions", str(path), str(out), "--stack", "encoder"]
    words += ["--trained-length", "6"]
    assert main([*words, "--json", str(tmp_path / "p.json")]) == 0
    assert "| encoder, block 1, hidden | 18 |" in capsys.readouterr().out
    assert out.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "p.json").read_text())["trained_lengths"]["source"] == 6
    assert main([*words, "--streams", "q"]) == 2
    assert "floater plot positions: `--streams` must be one of" in capsys.readouterr().err
