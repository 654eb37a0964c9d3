"""Scores per bin: exact sums, paired bootstrap, losses."""

import json
import re

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from scored_split import damaged, generated, text
from toy import ROOT

from fairseq_floater.cli import main
from fairseq_floater.evaluation.s2l.bin_scores import BinScore, Gain, SeedMean
from fairseq_floater.evaluation.s2l.report import S2LScores
from fairseq_floater.evaluation.s2l.run_scores import score_split
from fairseq_floater.evaluation.s2l.systems import SystemFiles
from fairseq_floater.experiments.stages import Experiment


def test_every_bin_has_sacrebleus_own_scores(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    hypotheses = damaged(references, 5)
    path = generated(tmp_path / "g", sources, hypotheses)
    report = score_split(folder, [SystemFiles("one", [path])], bootstrap=0)
    bins = [row.split("\t")[1] for row in (folder / "test.tsv").read_text().split("\n")[1:-1]]
    assert list(report.scores) == ["[8, 12)", "[12, 20)", "[20, inf)", "all"]
    for name in report.scores:
        members = [i for i, b in enumerate(bins) if name in (b, "all")]
        h, r = ([lines[i] for i in members] for lines in (hypotheses, references))
        found = report.scores[name]["one"]
        assert found.bleu.value == BLEU().corpus_score(h, [r]).score
        assert found.chrf == CHRF().corpus_score(h, [r]).score
        assert report.sentences[name] == len(members)
        lengths = [len(sources[i].split()) for i in members]
        assert report.mean_length[name] == pytest.approx(np.mean(lengths))
        assert found.bleu.interval is None and found.loss is None
    assert report.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_told_lengths_tell_what_stopping_costs(folder, tmp_path):
    def translated(name, test, lines):
        return [generated(tmp_path / name, text(folder, test, "en"), lines)]

    short, long = text(folder, "test_short"), text(folder, "test")
    early = [" ".join(line.split()[: len(line.split()) // 2]) for line in long]
    systems = {"early": early, "early.told_length": damaged(long, 3)}
    files, within = (
        [SystemFiles(name, translated(name + test, test, lines)) for name, lines in of_test.items()]
        for test, of_test in (("test", systems), ("test_short", dict.fromkeys(systems, short)))
    )
    report = score_split(folder, files, short_systems=within, bootstrap=0)
    stopped, told = (report.scores["all"][f.name].bleu.value for f in files)
    assert report.stopping == {"early": pytest.approx((told - stopped) / (100 - stopped))}
    assert f"early {report.stopping['early']:.0%}." in report.format_text()
    assert "stopping" not in score_split(folder, files, bootstrap=0).format_text()
    empty = SystemFiles("early", translated("empty", "test_short", ["-"] * len(short)))
    nothing_lost = score_split(folder, files, short_systems=[empty], bootstrap=0)
    assert nothing_lost.stopping == {}
    other = [SystemFiles("other", translated("other", "test_short", short))]
    some = score_split(
        folder,
        [*files, SystemFiles("other", files[0].hypotheses)],
        short_systems=other,
        bootstrap=0,
    )
    assert some.stopping == {}


def test_a_system_against_itself_has_p_1_and_a_better_one_has_a_small_p(folder, systems):
    bad, good = systems
    same = SystemFiles("same", good.hypotheses, good.losses)
    report = score_split(folder, [good, bad, same], baseline="good", bootstrap=300)
    for name in report.scores:
        assert report.scores[name]["same"].bleu.gain.p_value == 1
        assert report.scores[name]["same"].bleu.gain.difference == 0
        assert report.scores[name]["same"].loss.gain.p_value == 1
        gain = report.scores[name]["bad"].bleu.gain
        assert gain.difference < -20 and gain.p_value < 0.02
        found = report.scores[name]["good"].bleu
        low, high = found.interval
        assert low < found.value < high


def test_p_values_are_corrected_and_losses_ranked(folder, systems):
    bad, good = systems
    same, twin = (SystemFiles(name, good.hypotheses, good.losses) for name in ("same", "twin"))
    report = score_split(folder, [good, bad, same, twin], baseline="same", bootstrap=300)
    found = report.to_json_dict()["bins"]["all"]["systems"]
    gain = found["bad"]["bleu_against_baseline"]
    assert gain["p_value"] == pytest.approx(1 / 301) and gain["p_value_holm"] == 3 * gain["p_value"]
    # Of two seeds, one differs twice as much: over seeds, the difference may be due to chance.
    assert gain["p_seeds"] >= gain["p_value"] and gain["p_seeds_holm"] >= gain["p_seeds"]
    assert found["same"]["bleu_against_baseline"]["p_value_holm"] is None
    ranks = {name: one["rank_by_loss"] for name, one in found.items()}
    placed = {name: rank["place"] for name, rank in ranks.items()}
    assert placed == {"good": 1, "bad": 4, "same": 1, "twin": 1}
    assert all(1 <= rank["best"] <= rank["place"] <= rank["worst"] <= 4 for rank in ranks.values())
    text = report.format_text()
    assert re.search(r"^\| rank by loss \| \[8, 12\) .* \| all \|$", text, re.MULTILINE)
    assert re.search(r"^\| bad \| 4 \(", text, re.MULTILINE)
    assert "corrected (Holm) for the comparisons of its column, at most 3;" in text


def test_a_loss_that_is_not_known_counts_as_a_comparison(folder, systems):
    bad, good = systems
    three = [good, bad, SystemFiles("x", bad.hypotheses)]
    variant = SystemFiles("bad.told_length", good.hypotheses)  # shares the loss of `bad`
    report = score_split(folder, [*three, variant], baseline="good", bootstrap=50)
    gain = report.to_json_dict()["bins"]["all"]["systems"]["bad"]["loss_against_baseline"]
    assert gain["p_value_holm"] == pytest.approx(2 * gain["p_value"]) == pytest.approx(2 / 51)


def test_rank_brackets_are_of_every_seed(folder, systems, tmp_path):
    """`good` is ahead on average and under seed 1, and clearly behind under seed 2."""
    references, sources = text(folder, "test"), text(folder, "test", "en")
    generator = np.random.default_rng(8)

    def moved(probability):
        return f"{float(probability[0]) + generator.normal(0, 0.1):.4f}"

    for files, probabilities in zip(systems, ((-2.1, -2.1), (-1.0, -3.0))):
        files.losses.clear()
        for seed, probability in enumerate(probabilities):
            path = generated(tmp_path / f"{files.name}{seed}.l", sources, references, probability)
            # Vary the scores by sentence; otherwise no difference could be told from chance.
            path.write_text(re.sub(r"-\d\.\d{4}", moved, path.read_text()))
            files.losses.append(path)
    found = score_split(folder, systems, bootstrap=100).to_json_dict()["bins"]["all"]["systems"]
    ranks = [found[name]["rank_by_loss"] for name in ("good", "bad")]
    assert [tuple(rank.values()) for rank in ranks] == [(1, 1, 2), (2, 1, 2)]


def test_notes_explain_what_is_shown_alone(folder, systems):
    _, good = systems
    text = score_split(folder, [good], baseline="good", bootstrap=50).format_text()
    for word in ("against", "p is ", "rank", "comparisons"):
        assert word not in text


def test_seeds_give_a_mean_and_a_spread(folder, systems):
    report = score_split(folder, systems, bootstrap=50)
    for found in report.scores["all"].values():
        assert len(found.bleu.per_seed) == 2
        assert found.bleu.value == pytest.approx(np.mean(found.bleu.per_seed))
        assert found.bleu.spread == pytest.approx(np.std(found.bleu.per_seed, ddof=1))
    # Losses of 2 and 4 bits a token for the seeds of `bad`, 1 and 2 for `good`.
    assert report.scores["all"]["bad"].loss.per_seed == [2, 4]
    assert report.scores["all"]["good"].loss.value == 1.5
    # Resampled sentences change neither loss: the interval belongs to the mean, not to a seed.
    of_bad = report.to_json_dict()["bins"]["all"]["systems"]["bad"]["loss_bits_per_token"]
    assert (of_bad["low"], of_bad["value"], of_bad["high"]) == (3, 3, 3)
    assert "Means over up to 2 training seeds" in report.format_text()


def test_hypotheses_that_reach_the_length_limit_are_counted(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    # As long as fairseq lets them be under 1 x source (with end symbol) + 3: the end symbol on top.
    long = [" ".join(["the"] * (len(s.split()) + 1 + 3)) for s in sources]
    mixed = [h if i % 2 else r for i, (h, r) in enumerate(zip(long, references))]
    path = generated(tmp_path / "g", sources, mixed)
    report = score_split(folder, [SystemFiles("x", [path])], length_limit=(1, 3), bootstrap=0)
    assert report.scores["all"]["x"].cut_off == pytest.approx(0.5, abs=0.01)
    more = re.sub(r"(?m)^P-(\d+)\t.*$", r"\g<0>\nP-\1\t-1.0", path.read_text())
    several = tmp_path / "several"
    several.write_text(more)  # a second hypothesis of each sentence
    whole = generated(tmp_path / "whole", sources, references)
    two = SystemFiles("x", [several, whole])
    two = score_split(folder, [two], length_limit=(1, 3), bootstrap=0).scores["all"]["x"]
    one = report.scores["all"]["x"]
    assert two.cut_off == one.cut_off / 2
    assert two.length_ratio == pytest.approx((one.length_ratio + 1) / 2)
    looser = score_split(folder, [SystemFiles("x", [path])], length_limit=(1, 4), bootstrap=0)
    assert looser.scores["all"]["x"].cut_off == 0
    plain = tmp_path / "plain"
    plain.write_text("".join(h + "\n" for h in mixed))
    unknown = [SystemFiles("x", [plain]), SystemFiles("x.windows_20", [path])]
    untold = score_split(folder, unknown, length_limit=(1, 3), bootstrap=0)
    assert [score.cut_off for score in untold.scores["all"].values()] == [None, None]
    assert untold.scores["all"]["x"].bleu.value == report.scores["all"]["x"].bleu.value


def test_small_bins_and_early_stops_are_warned_of(folder, tmp_path):
    references, sources = text(folder, "test"), text(folder, "test", "en")
    short = [" ".join(r.split()[: len(r.split()) // 2]) for r in references]
    path = generated(tmp_path / "g", sources, short)
    report = score_split(folder, [SystemFiles("short", [path])], bootstrap=0)
    small = [name for name in report.scores if report.sentences[name] < 100]
    assert small
    for name in small:
        assert any(w.startswith(f"{name} holds") for w in report.warnings)
    (early,) = (w for w in report.warnings if "stop early" in w)
    ratios = {of["short"].length_ratio: name for name, of in report.scores.items()}
    assert early.endswith(f"The shortest: short {min(ratios):.2f} in {ratios[min(ratios)]}")
    many = score_split(folder, [SystemFiles(f"{n}", [path]) for n in range(7)], bootstrap=0)
    (early,) = (w for w in many.warnings if "stop early" in w)
    assert early.endswith("; and 2 more") and early.count(" in [") == 5
    whole = generated(tmp_path / "whole", sources, references)
    fine = score_split(folder, [SystemFiles("whole", [whole])], bootstrap=0)
    assert not any("stop early" in w or "run on" in w for w in fine.warnings)
    path = generated(tmp_path / "long", sources, [f"{r} {r}" for r in references])
    report = score_split(folder, [SystemFiles("long", [path])], length_limit=(0, 1), bootstrap=0)
    (late,) = (w for w in report.warnings if "run on" in w)
    assert re.search(r"The longest: long 2\.\d\d in \[", late)
    assert re.search(r"^\| system .*\| ratio \| cut off \|$", report.format_text(), re.MULTILINE)
    assert re.search(r"^\| long .*\| 2\.\d\d  \| 100%    \|$", report.format_text(), re.MULTILINE)
    assert not any(w.startswith("all holds") for w in report.warnings)


def test_the_trained_lengths_come_first(folder, systems, tmp_path):
    references, sources = text(folder, "test_short"), text(folder, "test_short", "en")
    path = generated(tmp_path / "short", sources, references)
    short = [SystemFiles("good", [path])]
    report = score_split(folder, systems, short_systems=short, baseline="good", bootstrap=50)
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
    labels = {"rope": "RoPE", "rope-before": "RoPE, before", "none": "no|positions"}
    report = S2LScores("split", labels, None, "nrefs:1", "tokens", 0, 1, None)
    bleu, loss = ({"rope": v, "rope-before": w, "none": 0} for v, w in ((30, 2.5), (1.5, 9)))
    for name in ("[1, 9)", "all"):
        report.sentences[name], report.mean_length[name] = 120, 5.5
        report.scores[name] = {
            system: BinScore(
                *(SeedMean(of[system], None, [of[system]], None) for of in (bleu, loss)), 0, 1, None
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
    assert sum(row.startswith("| no\\|positions |") for row in rows) == 2
    del report.scores["[1, 9)"]["rope-before"]
    assert "| RoPE | BLEU | - → 30.0 | 2.5 → 30.0 |" in report.format_text()


def test_a_warm_start_before_training_on_is_scored_but_no_contestant(folder, systems):
    bad, good = systems
    start = SystemFiles("good-before", bad.hypotheses, bad.losses)
    alone = score_split(folder, systems, baseline="bad", bootstrap=300)
    beside = score_split(folder, [bad, start, good], baseline="bad", bootstrap=300)
    for name, scores in beside.scores.items():
        assert scores["good-before"].loss.value == alone.scores[name]["bad"].loss.value
        assert scores["good-before"].loss.gain is None and scores["good-before"].rank is None
        assert scores["good"].rank == alone.scores[name]["good"].rank
        assert scores["good"].loss.gain == alone.scores[name]["good"].loss.gain
    assert "for the comparisons of its column, at most 1;" in beside.format_text()


def test_the_table_is_narrow_and_the_json_is_whole():
    section = Experiment(ROOT / "configs" / "numbers_s2l.yaml").s2l
    labels = {entry.system.name: entry.label for entry in section.listed()}
    report = S2LScores("split", labels, section.baseline, "nrefs:1", "tokens", 1000, 1, (2, 20))
    bleu = SeedMean(34.56, (30.1, 39.9), [33, 36], None, Gain(-12.34, 0.0012))
    loss = SeedMean(2.34, (2.1, 2.5), [2.3, 2.4], None, Gain(-0.123, 0.0123))
    for name in ("[48, inf)", "all"):
        report.sentences[name], report.mean_length[name] = 1200, 51.2
        found = BinScore(bleu, loss, 56.7, 0.987, 0.021)
        report.scores[name] = dict.fromkeys(labels, found)
    text = report.format_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * (2 + len(labels))
    assert max(map(len, rows)) <= 110
    values = "34.6 ±2.1", "-12.3 (0.001)", "2.34 ±0.07", "-0.12 (0.012)", "0.99 ", "2%     "
    row = f"| {'rotation_flow, stretched':<31} | {' | '.join(values)} |"
    assert rows.count(row) == 2
    assert not any(name in text for name in labels)
    found = report.to_json_dict()
    assert (found["labels"], found["systems"]) == (labels, list(labels))
    one = found["bins"]["all"]["systems"]["floater-all-qkv"]
    assert (one["bleu"]["low"], one["bleu"]["high"], one["chrf"]) == (30.1, 39.9, 56.7)
    assert (one["cut_off"], one["loss_against_baseline"]["p_value"]) == (0.021, 0.0123)
