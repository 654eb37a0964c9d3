"""What a page reads from a folder: the scored runs, their logs, and bins or whole test sets."""

import json
import re
import shutil

from compared_runs import LABELS, STOPS, changed, labelled, page_of, save_task

from fairseq_floater.cli import main
from fairseq_floater.results.page.comparison import read_comparison
from fairseq_floater.results.page.examples import read_examples
from fairseq_floater.results.page.logs import read_log


def test_runs_that_are_not_whole_and_lengths_that_were_not_scored_are_left_out(copy):
    with changed(copy / "seed-2" / "rope-b" / "run.json") as record:
        record["state"] = "failed"
    with changed(copy / "s2l.json") as scores:
        assert scores["bins"].pop("[1, 8)")
    found = read_comparison(copy)
    assert {s.name: list(s.runs) for s in found.systems} == {"plain-a": ["1", "2"], "rope-b": ["1"]}
    assert {e.group for e in read_examples(found, 2)} == set(scores["bins"]) - {"all"}


def test_runs_that_the_scores_are_not_of_are_left_out(copy):
    """Such runs may be newer than the scores, or belong to seeds that were not asked for."""
    with changed(copy / "s2l.json") as scores:
        assert set(scores["runs"]) == set(LABELS) and len(scores["runs"]["rope-b"]) == 2
        del scores["runs"]["rope-b"][0]
    found = read_comparison(copy)
    assert {s.name: list(s.runs) for s in found.systems} == {"plain-a": ["1", "2"], "rope-b": ["2"]}
    assert "leave out 1 of the trained runs, such as seed-1/rope-b:" in found.warnings[-1]
    # Both systems are shown under the seed that both have, the second.
    longest = read_examples(found, 1)[-1]
    stops = [min(STOPS[name, 2], longest.length) for name in LABELS]
    assert [t.length for t in longest.translations] == stops


def test_what_is_by_length_is_drawn_by_length(copy):
    with changed(copy / "s2l.json") as scores:
        scores["stopping"] = {"rope-b": 0.25}
        scores["bins"]["all"]["systems"]["rope-b"]["score"] = {"value": 0.812, "spread": None}
    page = page_of(copy).text
    assert ">0.812<" in page and "of the metric given by `--scores`" in page
    assert "<dt>BLEU regained with told lengths</dt><dd>RoPE 25%</dd>" in page
    for title in ("Loss", "BLEU"):
        chart = page.partition(f"<figcaption>{title} by source length ")[2].partition("</svg>")[0]
        ticks = re.findall(r'y="\d+" text-anchor="middle">(.*?)<', chart)[::2]
        assert ticks == ["[1, 8)", "[8, 16)", "[16, inf)"]


def test_what_the_logs_tell(copy):
    log = read_log(copy / "seed-2" / "rope-b")
    assert log.losses == {7: 8.5, 14: 2.2}
    assert (log.words_per_second, log.sentences_per_second, log.free_memory) == (2000, 20, 60.5)
    assert log.commands == ["bash scripts/protocol.sh x", "fairseq-train data --seed 2"]
    (session,) = log.sessions
    assert session.startswith("2026-11-22T13:00")
    assert session.endswith("h (CPU, 2 cores), commit unknown")
    assert log.versions == [{"torch": "9"}]
    # A plain cross-entropy logs its loss, in bits already, and no nll_loss.
    train = copy / "seed-2" / "rope-b" / "train.log"
    plain = re.sub(r"loss \d \| nll_(loss [\d.]+)", r"\1", train.read_text())
    assert "nll_loss" not in plain
    train.write_text(plain)
    assert read_log(train.parent).losses == {7: 8.5, 14: 2.2}


def prepared(work, folder):
    """Lay the long test set out as prepare_text.sh does."""
    for part in ("raw", "spm"):
        (folder / part).mkdir(parents=True)
        for lang in ("en", "de"):
            lines = (work / "split" / f"test.{lang}").read_text()
            lines = lines if part == "spm" else lines.replace("\u2581", "")
            (folder / part / f"test.{lang}").write_text(lines)
    made = {"parameters": {"src": "en", "tgt": "de", "bpe": "sentencepiece", "max_len": 15}}
    made["splits"] = {"train": {"lines": 90, "dropped": {"empty": 0, "too_long": 0, "ratio": 0}}}
    (folder / "summary.json").write_text(json.dumps(made))
    (folder / "tests.json").write_text('{"test": "test"}')


def test_runs_on_whole_test_sets_have_a_page_too(work, tmp_path, capsys):
    """As scripts/demo.sh leaves them: no bins, no losses, one seed."""
    folder = tmp_path / "demo"
    prepared(work, folder / "data")
    for name in LABELS:
        shutil.copytree(work / "seed-1" / name, folder / name)
        (folder / name / "generate.test_short.txt").unlink()
        argv = [folder / name / "generate.test.txt", "--references", folder / "data/raw/test.de"]
        argv += ["--target-lang", "de", "--json", folder / name / "scores.test.json"]
        assert main(["score", *map(str, argv)]) == 0
    page = page_of(folder)
    found = "2 systems, 1 groups of sentences, 0 pictures of positions, 2 sentences"
    assert found in capsys.readouterr().out
    bleu = json.loads((folder / "rope-b" / "scores.test.json").read_text())["bleu"]
    assert float(page.tables[0][1][1][0]["data-value"]) == bleu["score"]
    assert bleu["signature"] in page.text


def test_whole_test_sets_compared_under_seeds_have_a_page_with_p_values(work, tmp_path, capsys):
    """As scripts/compare.sh leaves them where the text is not split by length."""
    folder, argv = tmp_path / "whole", []
    prepared(work, folder / "data")
    for name, seed in STOPS:
        run = folder / f"seed-{seed}" / name
        shutil.copytree(work / run.relative_to(folder), run)
        argv += ["--run", f"{name}={run}"]
    scores = folder / "compare.json"
    assert main(labelled("compare", folder / "data", *argv, "--json", scores)) == 0
    page = page_of(folder)
    assert "2 systems, 3 groups of sentences, 0 pictures of" in capsys.readouterr().out
    found = json.loads(scores.read_text())["bins"]["test"]["systems"]["rope-b"]
    attributes, shown = page.tables[0][1][1]
    assert float(attributes["data-value"]) == found["loss_bits_per_token"]["value"]
    gain = found["loss_against_baseline"]
    assert f"p {gain['p_seeds_holm']:.3f}" in " ".join(shown)
    # The whole test set orders the systems, not its last part.
    with changed(scores) as parts:
        for name, group in parts["bins"].items():
            for system in group["systems"].values() if name != "test" else ():
                system["loss_bits_per_token"]["value"] *= -1
    again = page_of(folder, sentences=1)
    assert [row[0][1] for row in again.tables[0]] == [row[0][1] for row in page.tables[0]]
    # The split's bin of all sentences holds the same ones.
    assert found == json.loads((work / "s2l.json").read_text())["bins"]["all"]["systems"]["rope-b"]
    assert "by test set" in page.text and "by source length" not in page.text


def test_tasks_have_one_page_with_an_overview_and_published_rows(tmp_path, capsys):
    """As scripts/tasks.sh leaves them: one system under two seeds on both tasks, another on one."""
    parameters = {"scan-26": {"task": "scan", "cutoff": 26}, "sort": {"task": "sort"}}
    values = {"test": 0.25, "test, 27": 0.5, "test_short": 1.0}
    for number, (task, made) in enumerate(parameters.items()):
        labels = dict([*LABELS.items()][number:])
        bins = {
            group: {
                "sentences": 9,
                "mean_source_tokens": 3.0,
                "systems": {
                    name: {"exact_match": {"value": value / (1 + i + number), "spread": 0.125}}
                    for i, name in enumerate(labels)
                },
            }
            for group, value in values.items()
        }
        runs = {name: [f"w/{task}/seed-{seed}/{name}" for seed in (1, 2)] for name in labels}
        report = {"labels": labels, "bins": bins, "runs": runs, "baseline": "plain-a"}
        save_task(tmp_path / "w" / task, made, {**report, "warnings": []})
    page = page_of(tmp_path / "w")
    assert "4 systems, 2 tasks, 0 pictures" in capsys.readouterr().out
    assert "4 systems, seeds 1, 2; 2 tasks" in " ".join(page.text.split())

    def shown(table):
        head, *rows = table
        first = [row[0][0]["data-value"] for row in rows]
        return [cell[1][0] for cell in head[1:]], {
            name: [cell[1][0] for cell in row[1:]] for name, row in zip(first, rows)
        }

    plain, told, universal = LABELS["plain-a"], "published: length told", "published: xl, universal"
    overview, scan, sort = map(shown, page.tables)
    assert overview == (
        ["scan-26", "sort"],
        {
            "RoPE": ["0.125 ±0.125", "0.125 ±0.125"],
            plain: ["0.250 ±0.125", "-"],
            told: ["0.820", "-"],
            universal: ["1.000", "-"],
        },
    )
    assert [*overview[1]] == ["RoPE", universal, told, plain]  # most tasks first, then by mean
    assert scan[0] == ["test", "test, 27", "test_short"] and [*scan[1]][:2] == [universal, told]
    assert scan[1][told] == ["0.820", "-", "-"] and scan[1][plain][1] == "0.500 ±0.125"
    assert sort == (scan[0], {"RoPE": ["0.125 ±0.125", "0.250 ±0.125", "0.500 ±0.125"]})
    assert page.tables[0][1][1][0]["style"] == "--share:0.125"
    assert "Newman et al. 2020" in page.text and 'id="cost"' not in page.text
