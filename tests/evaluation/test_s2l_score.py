"""Scores per bin: exact sums, paired bootstrap, losses, and every misfit refused by name."""

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from fairseq_floater.cli import main
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.lines import ScoringError
from fairseq_floater.evaluation.metrics import sentence_counts
from fairseq_floater.evaluation.s2l.figure import plot_s2l
from fairseq_floater.evaluation.s2l.options import S2LError, SplitOptions
from fairseq_floater.evaluation.s2l.score import score
from fairseq_floater.evaluation.s2l.score_report import BinScore, Comparison, Measure, S2LScores
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.evaluation.s2l.systems import SystemFiles
from fairseq_floater.experiments.stages import Experiment

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"{first}{second}" for first in "bdfgk" for second in ("an", "el", "ir", "os", "ut")]


def sentence(generator, length):
    return " ".join(generator.choice(WORDS, length))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A split whose test set has bins [8, 12), [12, 20), [20, inf) of raw text in word pieces."""
    place = tmp_path_factory.mktemp("s2l")
    generator = np.random.default_rng(3)
    raw = place / "raw"
    raw.mkdir()
    for name, lengths in {
        "train": [4, 5, 6] * 5,
        "valid": [5, 6],
        "test": [5, 6, 7, *generator.integers(8, 30, 120)],
    }.items():
        for lang in ("en", "de"):
            words = [sentence(generator, n) for n in lengths]
            encoded = [" ".join("\u2581" + w for w in line.split()) for line in words]
            (raw / f"{name}.{lang}").write_text("".join(f"{line}\n" for line in encoded))
    options = SplitOptions("en", "de", edges=(8, 12, 20), encoded=True)
    split(raw, place / "split", options)
    return place / "split"


def text(folder, name, lang="de"):
    lines = (folder / f"{name}.{lang}").read_text().split("\n")[:-1]
    return [line.replace(" ", "").replace("\u2581", " ").strip() for line in lines]


def damaged(references, seed, share=0.3):
    generator = np.random.default_rng(seed)
    return [
        " ".join(w if generator.random() > share else generator.choice(WORDS) for w in r.split())
        for r in references
    ]


def generated(path, sources, hypotheses, probability=-1.0, extra=0):
    """What fairseq-generate prints, in an order of its own."""
    blocks = []
    for i, (source, hypothesis) in enumerate(zip(sources, hypotheses)):
        scores = " ".join([f"{probability:.4f}"] * (len(hypothesis.split()) + 1 + extra))
        blocks.append(
            f"S-{i}\t{source}\nT-{i}\tx\nH-{i}\t-0.5\t{hypothesis}\n"
            f"D-{i}\t-0.5\t{hypothesis}\nP-{i}\t{scores}\n"
        )
    np.random.default_rng(0).shuffle(blocks)
    path.write_text("".join(blocks))
    return path


@pytest.fixture
def systems(folder, tmp_path):
    """Two systems of two seeds each, with losses; `good` is clearly better than `bad`."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    found = []
    for name, share, loss in (("bad", 0.5, -2.0), ("good", 0.1, -1.0)):
        files = SystemFiles(name)
        for seed in (1, 2):
            hypotheses = damaged(references, seed, share)
            files.hypotheses.append(generated(tmp_path / f"{name}{seed}", sources, hypotheses))
            files.losses.append(
                generated(tmp_path / f"{name}{seed}.loss", sources, references, loss * seed)
            )
        found.append(files)
    return found


def test_bins_sum_to_sacrebleus_corpus_score_to_the_last_digit(folder):
    references = text(folder, "test")
    hypotheses = damaged(references, 5)
    counts, score_of = sentence_counts(BLEU(), hypotheses, references)
    assert counts.shape == (len(references), 10)
    exact = BLEU().corpus_score(hypotheses, [references]).score
    thirds = [counts[k::3].sum(0) for k in range(3)]
    assert score_of(sum(thirds)) == exact == score_of(counts.sum(0))
    for part in (slice(0, 40), slice(40, None)):
        expected = BLEU().corpus_score(hypotheses[part], [references[part]]).score
        assert score_of(counts[part].sum(0)) == expected


def test_every_bin_has_sacrebleus_own_scores(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    hypotheses = damaged(references, 5)
    path = generated(tmp_path / "g", sources, hypotheses)
    report = score(folder, [SystemFiles("one", [path])], bootstrap=0)
    bins = [row.split("\t")[1] for row in (folder / "test.tsv").read_text().split("\n")[1:-1]]
    assert list(report.scores) == ["[8, 12)", "[12, 20)", "[20, inf)", "all"]
    for name in report.scores:
        members = [i for i, b in enumerate(bins) if name in (b, "all")]
        h, r = ([lines[i] for i in members] for lines in (hypotheses, references))
        found = report.scores[name]["one"]
        assert found.bleu.value == BLEU().corpus_score(h, [r]).score
        assert found.chrf == CHRF().corpus_score(h, [r]).score
        assert report.sentences[name] == len(members)
        assert found.bleu.interval is None and found.loss is None
    assert report.signature == str(_signature())


def _signature():
    bleu = BLEU()
    bleu.corpus_score(["x"], [["x"]])
    return bleu.get_signature().format()


def test_a_system_against_itself_has_p_1_and_a_better_one_has_a_small_p(folder, systems):
    bad, good = systems
    same = SystemFiles("same", good.hypotheses, good.losses)
    report = score(folder, [good, bad, same], baseline="good", bootstrap=300)
    for name in report.scores:
        assert report.scores[name]["same"].bleu_gain.p_value == 1
        assert report.scores[name]["same"].bleu_gain.difference == 0
        assert report.scores[name]["same"].loss_gain.p_value == 1
        gain = report.scores[name]["bad"].bleu_gain
        assert gain.difference < -20 and gain.p_value < 0.02
        found = report.scores[name]["good"].bleu
        low, high = found.interval
        assert low < found.value < high


def test_p_values_are_corrected_and_losses_ranked(folder, systems):
    bad, good = systems
    same, twin = (SystemFiles(name, good.hypotheses, good.losses) for name in ("same", "twin"))
    report = score(folder, [good, bad, same, twin], baseline="same", bootstrap=300)
    found = report.to_json_dict()["bins"]["all"]["systems"]
    gain = found["bad"]["bleu_against_baseline"]
    assert gain["p_value"] == pytest.approx(1 / 301) and gain["p_value_holm"] == 3 * gain["p_value"]
    # Two seeds, one of which is twice as far: over seeds as well, the difference may be chance.
    assert gain["p_seeds"] >= gain["p_value"] and gain["p_seeds_holm"] >= gain["p_seeds"]
    assert found["same"]["bleu_against_baseline"]["p_value_holm"] is None
    ranks = {name: one["rank_by_loss"] for name, one in found.items()}
    placed = {name: rank["place"] for name, rank in ranks.items()}
    assert placed == {"good": 1, "bad": 4, "same": 1, "twin": 1}
    assert all(1 <= rank["best"] <= rank["place"] <= rank["worst"] <= 4 for rank in ranks.values())
    text = report.format_text()
    assert re.search(r"^\| rank by loss \| \[8, 12\) .* \| all \|$", text, re.MULTILINE)
    assert re.search(r"^\| bad \| 4 \(", text, re.MULTILINE)
    assert "corrected (Holm) for the number of comparisons of a table, 3;" in text


def test_seeds_give_a_mean_and_a_spread(folder, systems):
    report = score(folder, systems, bootstrap=50)
    for found in report.scores["all"].values():
        assert len(found.bleu.per_seed) == 2
        assert found.bleu.value == pytest.approx(np.mean(found.bleu.per_seed))
        assert found.bleu.spread == pytest.approx(np.std(found.bleu.per_seed, ddof=1))
    # Losses of 2 and 4 bits a token for the seeds of `bad`, 1 and 2 for `good`.
    assert report.scores["all"]["bad"].loss.per_seed == [2, 4]
    assert report.scores["all"]["good"].loss.value == 1.5
    assert "Means over up to 2 training seeds" in report.format_text()


def test_hypotheses_that_reach_the_length_limit_are_counted(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    # As long as fairseq lets them be under 1 x source (with end symbol) + 3: the end symbol on top.
    long = [" ".join(["the"] * (len(s.split()) + 1 + 3)) for s in sources]
    mixed = [h if i % 2 else r for i, (h, r) in enumerate(zip(long, references))]
    path = generated(tmp_path / "g", sources, mixed)
    report = score(folder, [SystemFiles("x", [path])], length_limit=(1, 3), bootstrap=0)
    assert report.scores["all"]["x"].cut_off == pytest.approx(0.5, abs=0.01)
    looser = score(folder, [SystemFiles("x", [path])], length_limit=(1, 4), bootstrap=0)
    assert looser.scores["all"]["x"].cut_off == 0
    plain = tmp_path / "plain"
    plain.write_text("".join(h + "\n" for h in mixed))
    untold = score(folder, [SystemFiles("x", [plain])], length_limit=(1, 3), bootstrap=0)
    assert untold.scores["all"]["x"].cut_off is None
    assert untold.scores["all"]["x"].bleu.value == report.scores["all"]["x"].bleu.value


def test_small_bins_and_early_stops_are_warned_of(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    short = [" ".join(r.split()[: len(r.split()) // 2]) for r in references]
    path = generated(tmp_path / "g", sources, short)
    report = score(folder, [SystemFiles("short", [path])], bootstrap=0)
    small = [name for name in report.scores if report.sentences[name] < 100]
    assert small
    for name in small:
        assert any(w.startswith(f"{name} holds") for w in report.warnings)
    (early,) = (w for w in report.warnings if "stop early" in w)
    ratios = {of["short"].length_ratio: name for name, of in report.scores.items()}
    assert early.endswith(f"At its shortest: short {min(ratios):.2f} in {ratios[min(ratios)]}")
    whole = generated(tmp_path / "whole", sources, references)
    fine = score(folder, [SystemFiles("whole", [whole])], bootstrap=0)
    assert not any("stop early" in w for w in fine.warnings)
    assert not any(w.startswith("all holds") for w in report.warnings)


def test_the_trained_lengths_come_first(folder, systems, tmp_path):
    references, sources = text(folder, "test_short"), text(folder, "test_short", "en")
    path = generated(tmp_path / "short", sources, references)
    report = score(
        folder, systems, short_systems=[SystemFiles("good", [path])], baseline="good", bootstrap=50
    )
    assert next(iter(report.scores)) == "[1, 8)"
    assert list(report.scores["[1, 8)"]) == ["good"]
    assert round(report.scores["[1, 8)"]["good"].bleu.value, 2) == 100


def test_the_command_writes_table_json_and_figures(folder, systems, tmp_path, capsys):
    words = ["s2l", "score", str(folder), "--baseline", "bad", "--bootstrap", "50"]
    for files in systems:
        for path, loss in zip(files.hypotheses, files.losses):
            words += ["--hypotheses", f"{files.name}={path}", "--losses", f"{files.name}={loss}"]
    figures = [tmp_path / "f.png", tmp_path / "f.svg"]
    assert main([*words, "--json", str(tmp_path / "s.json"), "--figure", *map(str, figures)]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "s.json").read_text())
    value = found["bins"]["all"]["systems"]["good"]["bleu"]["value"]
    assert re.search(rf"\| good +\| {value:.1f} ±", out)
    assert "difference from bad" in out and "loss: bits per token" in out
    assert "p is two-sided" in out
    assert "Lengths are counted in source tokens without the end symbol" in out
    assert figures[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in figures[1].read_bytes()
    assert main([*words, "--figure", str(tmp_path / "g.png"), str(tmp_path / "f.txt")]) == 2
    assert not (tmp_path / "g.png").exists()
    assert "must end in one of png, svg, pdf" in capsys.readouterr().err


def test_one_table_holds_what_training_on_changed():
    labels = {"rope": "RoPE", "rope-before": "RoPE, before", "none": "no positions"}
    report = S2LScores("split", labels, None, "nrefs:1", "tokens", 0, 1, None)
    bleu, loss = ({"rope": v, "rope-before": w, "none": 0} for v, w in ((30, 2.5), (1.5, 9)))
    for name in ("[1, 9)", "all"):
        report.sentences[name], report.mean_length[name] = 120, 5.5
        report.scores[name] = {
            system: BinScore(
                *(Measure(of[system], None, [of[system]], None) for of in (bleu, loss)), 0, 1, None
            )
            for system in labels
        }
    rows = report.format_text().splitlines()
    assert rows[2:6] == [
        "| system |  | [1, 9) | all |",
        "|---|---|---|---|",
        "| RoPE | BLEU | 2.5 → 30.0 | 2.5 → 30.0 |",
        "|  | loss | 9.00 → 1.50 | 9.00 → 1.50 |",
    ]
    assert sum("→" in row for row in rows) == 2
    del report.scores["[1, 9)"]["rope-before"]
    assert "| RoPE | BLEU | - → 30.0 | 2.5 → 30.0 |" in report.format_text()


def test_a_warm_start_before_training_on_is_scored_but_no_contestant(folder, systems):
    bad, good = systems
    start = SystemFiles("good-before", bad.hypotheses, bad.losses)
    alone = score(folder, systems, baseline="bad", bootstrap=300)
    beside = score(folder, [bad, start, good], baseline="bad", bootstrap=300)
    for name, scores in beside.scores.items():
        assert scores["good-before"].loss.value == alone.scores[name]["bad"].loss.value
        assert scores["good-before"].loss_gain is None and scores["good-before"].rank is None
        assert scores["good"].rank == alone.scores[name]["good"].rank
        assert scores["good"].loss_gain == alone.scores[name]["good"].loss_gain
    assert "for the number of comparisons of a table, 1;" in beside.format_text()


def test_the_table_is_narrow_and_the_json_is_whole():
    section = Experiment(ROOT / "configs" / "numbers_s2l.yaml").s2l
    labels = {entry.system.name: entry.label for entry in section.listed()}
    report = S2LScores("split", labels, section.baseline, "nrefs:1", "tokens", 1000, 1, (2, 20))
    bleu, loss = (
        Measure(34.56, (30.1, 39.9), [33, 36], None),
        Measure(2.34, (2.1, 2.5), [2.3, 2.4], None),
    )
    for name in ("[48, inf)", "all"):
        report.sentences[name], report.mean_length[name] = 1200, 51.2
        gains = (Comparison(-12.34, 0.0012), Comparison(-0.123, 0.0123))
        found = BinScore(bleu, loss, 56.7, 0.987, 0.021, *gains)
        report.scores[name] = dict.fromkeys(labels, found)
    text = report.format_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * (2 + len(labels))
    assert max(map(len, rows)) <= 100
    values = "34.6 ±2.1", "-12.3 (0.001)", "2.34 ±0.07", "-0.12 (0.012)", "0.99 "
    row = f"| {'rotation_flow, stretched':<31} | {' | '.join(values)} |"
    assert rows.count(row) == 2
    assert not any(name in text for name in labels)
    found = report.to_json_dict()
    assert (found["labels"], found["systems"]) == (labels, list(labels))
    one = found["bins"]["all"]["systems"]["floater-all-qkv"]
    assert (one["bleu"]["low"], one["bleu"]["high"], one["chrf"]) == (30.1, 39.9, 56.7)
    assert (one["cut_off"], one["loss_against_baseline"]["p_value"]) == (0.021, 0.0123)


def test_many_systems_have_a_line_each_in_the_figure(tmp_path):
    """Bars of more than nine systems cannot be told apart: the figure grows with the systems instead."""

    def drawn(systems, has_loss=True):
        labels = {f"s{number}": f"system {number}" for number in range(systems)}
        report = S2LScores("split", labels, None, "nrefs:1", "tokens", 1000, 1, None)
        report.sentences = report.mean_length = {"all": 10}
        report.scores["all"] = {}
        for number, name in enumerate(labels):
            measure = Measure(number, (number - 1, number + 1), [number, number + 0.5], None)
            loss = measure if has_loss else None
            report.scores["all"][name] = BinScore(measure, loss, 50.0, 1.0, None)
        plot_s2l(report, tmp_path / "f.png")
        return struct.unpack(">II", (tmp_path / "f.png").read_bytes()[16:24])  # width and height

    (_, two), (width, twelve), (same, forty) = drawn(2), drawn(12), drawn(40, has_loss=False)
    assert forty > twelve and forty > two and width == same


def spoilt(folder, tmp_path, change):
    """A system whose generate output, as lines, went through ``change``."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    path = generated(tmp_path / "spoilt.txt", sources, references)
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    return SystemFiles("x", [path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ls: [x for x in ls if x[2:].split("\t")[0] != "7"], r"lacks 1 \(7\)"),
        (lambda ls: ls + [x for x in ls if x[1:4] == "-7\t"], r"line \d+ brings sentence 7 of"),
        (
            lambda ls: [x for x in ls if int(x[2:].split("\t")[0]) < 100],
            r"spoilt\.txt` must have 120 sentences, as the test set, but has 100",
        ),
        (
            lambda ls: [re.sub(r"^(S-\d+\t).*", r"\1another text", x) for x in ls],
            r"must translate the test set's sentences, but line 1 has another source",
        ),
        (
            lambda ls: [re.sub(r"^(S-7\t).*", "\\1\u2581th e \u2581x", x) for x in ls],
            r"must be in the test set's tokens, \d+ in sentence 7, but line \d+ has 3",
        ),
        (
            lambda ls: [re.sub(r"^(D-\d+\t-0.5\t)(.*)", "\\1\u2581\\2", x) for x in ls],
            r"must hold whole words",
        ),
    ],
    ids=["missing", "repeated", "too few", "other text", "other tokens", "pieces"],
)
def test_hypotheses_that_do_not_fit_are_refused(folder, tmp_path, change, message):
    with pytest.raises(ScoringError, match=message):
        score(folder, [spoilt(folder, tmp_path, change)], bootstrap=0)


def test_losses_that_do_not_fit_are_refused(folder, systems, tmp_path):
    bad, _ = systems
    lines = bad.losses[0].read_text().splitlines(keepends=True)
    missing = tmp_path / "missing"
    missing.write_text("".join(x for x in lines if not x.startswith("P-3\t")))
    broken = tmp_path / "broken"
    broken.write_text("".join(re.sub(r"^(P-3\t).*", r"\1none", x) for x in lines))
    infinite = tmp_path / "infinite"
    infinite.write_text("".join(re.sub(r"^(P-3\t).*", r"\1-1.0 nan", x) for x in lines))
    cut = tmp_path / "cut"
    cut.write_text("".join(re.sub(r"^(P-3\t\S+) .*", r"\1", x) for x in lines))
    double = tmp_path / "double"
    double.write_text("".join([*lines, *lines]))
    for path, message in (
        (infinite, r"finite numbers on P lines, but line \d+ has '-1.0 nan'"),
        (double, r"line \d+ brings sentence \d+ of line \d+ again"),
        (bad.hypotheses[0], "must be of fairseq-generate --score-reference, but sentence"),
        (missing, r"P line for each of 120 sentences, but has 119 \(none for 3\)"),
        (broken, r"finite numbers on P lines, but line \d+ has 'none'"),
    ):
        with pytest.raises(ScoringError, match=message):
            score(folder, [SystemFiles("x", bad.hypotheses[:1], [path])], bootstrap=0)
    files = SystemFiles("x", bad.hypotheses, [bad.losses[0], cut])
    with pytest.raises(S2LError, match="losses of x count 1 tokens in sentence 3, those of x"):
        score(folder, [files], bootstrap=0)
    with pytest.raises(S2LError, match="x has 2 files of hypotheses, but 1 of losses"):
        score(folder, [SystemFiles("x", bad.hypotheses, bad.losses[:1])], bootstrap=0)


def test_wrong_usage_is_told(folder, systems, tmp_path, capsys):
    with pytest.raises(UsageError, match="`--baseline` must be one of bad, good, but is 'ugly'"):
        score(folder, systems, baseline="ugly")
    with pytest.raises(UsageError, match="`--short` names ugly"):
        score(folder, systems, short_systems=[SystemFiles("ugly", ["f"])])
    with pytest.raises(ScoringError, match="`tokenize` must be one of"):
        score(folder, systems, tokenize="words")
    with pytest.raises(ScoringError, match="`bootstrap` must be 0"):
        score(folder, systems, bootstrap=-5)
    with pytest.raises(UsageError, match="must not be negative"):
        score(folder, systems, length_limit=(float("nan"), 3))
    with pytest.raises(UsageError, match="At least one system"):
        score(folder, [])
    with pytest.raises(S2LError, match=r"split\.json is not what"):
        score(tmp_path, systems)
    name = f"x={systems[0].hypotheses[0]}"
    words = ["s2l", "score", str(folder), "--hypotheses", name]
    assert main([*words, "--losses", "y=file"]) == 2
    assert main([*words, "--max-len-a", "2"]) == 2
    assert main(["s2l", "score", str(folder), "--hypotheses", f"x={tmp_path / 'none'}"]) == 1
    assert "must be a readable file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit:
        main(["s2l", "score", str(folder), "--hypotheses", "nameless"])
    assert exit.value.code == 2


def test_a_table_of_origins_of_another_form_or_length_is_refused(folder, systems, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "split")
    lines = (copy / "test.tsv").read_text().split("\n")
    (copy / "test.tsv").write_text("\n".join([*lines[:5], "5\tbin\tnine", *lines[6:]]))
    with pytest.raises(S2LError, match=r"test\.tsv is no table of `floater s2l split`"):
        score(copy, systems)
    (copy / "test.tsv").write_text("\n".join(lines[:50]) + "\n")
    with pytest.raises(S2LError, match=r"test\.en has 120 lines, but test\.tsv beside it has 49"):
        score(copy, systems)
