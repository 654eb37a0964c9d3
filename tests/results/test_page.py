"""The page of a comparison: every number from its file, no network, and it works in a browser."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from helpers import save_model

from fairseq_floater.cli import main
from fairseq_floater.evaluation.s2l.options import SplitOptions
from fairseq_floater.evaluation.s2l.split import split
from fairseq_floater.results.page.examples import read_examples
from fairseq_floater.results.page.logs import read_log
from fairseq_floater.results.page.work import read_work
from fairseq_floater.results.page.write import write_page

LABELS = {"plain-a": 'sinusoid <script>alert(1)</script> & "it\'s"', "rope-b": "RoPE"}
# System and seed -> after how many words its translations stop.
STOPS = {("plain-a", 1): 5, ("plain-a", 2): 6, ("rope-b", 1): 9, ("rope-b", 2): 30}
LOG = """+ fairseq-train data --seed {seed}
2026-11-22 | INFO | train | epoch 001 | loss 9 | wps 1000 | num_updates 7 | lr 0.1
2026-11-22 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9 | nll_loss 8.5 | num_updates 7
2026-11-22 | INFO | train | epoch 002 | loss 5 | wps 3000 | gb_free 60.5 | num_updates 14 | lr 0.1
2026-11-22 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 5 | nll_loss 2.{seed} | num_updates 14
"""


def generated(path, sources, hypotheses, probability):
    lines = []
    for i, (source, words) in enumerate(zip(sources, hypotheses)):
        text, numbers = " ".join(words), " ".join([str(probability)] * (len(words) + 1))
        lines += [f"S-{i}\t{source}", f"H-{i}\t-0.5\t{text}", f"D-{i}\t-0.5\t{text}"]
        lines.append(f"P-{i}\t{numbers}")
    path.write_text("\n".join(lines) + "\n")


def make_run(folder, name, seed, tests):
    """A run's folder; ``tests`` are raw sources and references by name."""
    folder.mkdir(parents=True)
    stop = STOPS[name, seed]
    for test, (sources, references) in tests.items():
        words = [reference.split() for reference in references]
        cut = [[*w[: stop - 1], "<i>"] if len(w) > stop else w for w in words]
        generated(folder / f"generate.{test}.txt", sources, cut, -1)
        generated(folder / f"losses.{test}.txt", sources, words, -10 / stop)
    (folder / "generate.test.log").write_text(
        "Translated 40 sentences (9 tokens) in 2s (20.00 sentences/s, 4 tokens/s)\n"
    )
    (folder / "train.log").write_text(LOG.format(seed=seed))
    settings = {
        **{"encoder": name, "seed": str(seed), "source": "en", "target": "de"},
        "bpe": "sentencepiece",
    }
    place = {
        "host": "h",
        "processor": "CPU",
        "cores": 2,
        "commit": None,
        "versions": {"torch": "9"},
    }
    session = {"begun": "2026-11-22T13:00:00+00:00", "seconds": 61.0, **place}
    record = {"settings": settings, "command": "bash scripts/protocol.sh x", "sessions": [session]}
    record["state"] = "done"
    (folder / "run.json").write_text(json.dumps(record))
    sizes = {"parameters": 1000, "position_parameters": 8, "training_seconds": 10.0 * seed}
    (folder / "average.json").write_text(json.dumps(sizes))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Two systems under two seeds, split and scored by the real tools."""
    place = tmp_path_factory.mktemp("page")
    raw, work = place / "raw", place / "my work"
    raw.mkdir()
    for name, lengths in {"train": [5] * 9, "valid": [5], "test": [5, 6, *range(8, 28)]}.items():
        for lang in ("en", "de"):
            lines = [
                " ".join(f"\u2581{name}{lang}{n}x{i}" for i in range(length))
                for n, length in enumerate(lengths)
            ]
            (raw / f"{name}.{lang}").write_text("".join(f"{line}\n" for line in lines))
    split(raw, work / "split", SplitOptions("en", "de", edges=(8, 16), encoded=True))
    tests = {
        test: [
            (work / "split" / f"{test}.{lang}").read_text().replace("\u2581", "").splitlines()
            for lang in ("en", "de")
        ]
        for test in ("test", "test_short")
    }
    words = ["--baseline", "plain-a"]
    for name, seed in STOPS:
        folder = work / f"seed-{seed}" / name
        make_run(folder, name, seed, tests)
        for option, kind, test in (
            *(("hypotheses", "generate", "test"), ("losses", "losses", "test")),
            *(("short", "generate", "test_short"), ("short-losses", "losses", "test_short")),
        ):
            words += [f"--{option}", f"{name}={folder}/{kind}.{test}.txt"]
    for name, label in LABELS.items():
        words += ["--label", f"{name}={label}"]
    scores = work / "s2l.json"
    assert main(["s2l", "score", str(work / "split"), *words, "--json", str(scores)]) == 0
    save_model(work / "seed-1" / "rope-b" / "average.pt", "rope", "all", "attention")
    return work


class Page(HTMLParser):
    """The tables of a page, as (attributes, text) of every cell; fails where tags are not well nested."""

    VOID = {"meta", "link", "input", "img", "br"}

    def __init__(self, path):
        super().__init__()
        self.open, self.tables, self.addresses = [], [], []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        self.addresses += [
            found[key] for key in ("src", "href", "srcset", "action") if key in found
        ]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append((found, []))

    def handle_startendtag(self, tag, attrs):
        """SVG's `<path/>`."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1][1].append(data.strip())


@pytest.fixture(scope="module")
def written(work):
    report = write_page(work, work.parent / "page.html")
    assert report.pictures == 1 and report.systems == 2
    return work.parent / "page.html"


def test_the_tables_hold_the_scores_in_order(work, written):
    page, bins = Page(written), json.loads((work / "s2l.json").read_text())["bins"]
    for key, table, digits in (
        ("loss_bits_per_token", page.tables[0], 2),
        ("bleu", page.tables[1], 1),
    ):
        head, *rows = table
        assert [cell[1][0] for cell in head[1:]] == list(bins)
        order = [row[0][0]["data-value"] for row in rows]
        assert order == ["RoPE", LABELS["plain-a"]]  # the best past the trained length first
        ranks = [re.findall(r"#\d+", " ".join(row[-1][1])) for row in rows]
        assert ranks == [["#1"], ["#2"]]
        for row, name in zip(rows, ("rope-b", "plain-a")):
            for (attributes, text), found in zip(row[1:], bins.values()):
                measure = found["systems"][name][key]
                assert float(attributes["data-value"]) == measure["value"]
                assert text[0] == f"{measure['value']:.{digits}f} ±{measure['spread']:.{digits}f}"
                interval = f"{measure['low']:.{digits}f} to {measure['high']:.{digits}f}"
                assert interval in " ".join(text)
    gain = bins["all"]["systems"]["rope-b"]["loss_against_baseline"]
    # Of sentences the difference is none by chance; of two training seeds nothing is known so surely.
    assert gain["p_value"] < 0.05 < gain["p_seeds_holm"]
    shown = page.tables[0][1][-1][1]
    assert "≈" in shown and f"p {gain['p_seeds_holm']:.3f}" in " ".join(shown)
    assert not any(mark in page.tables[0][2][-1][1] for mark in "▲▼≈")  # the baseline itself


def test_nothing_comes_from_the_network_and_no_data_are_taken_for_html(written):
    page = Page(written)
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "url(" not in page.text and "@import" not in page.text
    assert "default-src 'none'" in page.text
    assert "<script>alert" not in page.text and "&lt;script&gt;alert" in page.text
    assert "<i>" not in page.text and "&lt;i&gt;" in page.text


def test_the_same_folder_gives_the_same_page(work, tmp_path):
    for name in ("page.html", "again.html"):
        write_page(work, tmp_path / name, pictures=False)
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "again.html").read_bytes()


def test_the_strictest_p_values_and_ranks_are_shown_where_they_are(work, tmp_path):
    copy = tmp_path / "work"
    shutil.copytree(work, copy)
    scores = json.loads((copy / "s2l.json").read_text())
    for found in scores["bins"].values():
        gain = found["systems"]["rope-b"]["loss_against_baseline"]
        gain |= {"p_value": 0.001, "p_value_holm": 0.002, "p_seeds_holm": 0.2}
        found["systems"]["rope-b"]["bleu_against_baseline"] |= {"p_seeds_holm": 0.04}
        for place, name in enumerate(("rope-b", "plain-a"), start=1):
            found["systems"][name]["rank_by_loss"] = {"place": place, "best": 1, "worst": 2}
    (copy / "s2l.json").write_text(json.dumps(scores))
    write_page(copy, tmp_path / "page.html", pictures=False)
    page = Page(tmp_path / "page.html")
    assert "p 0.200" in " ".join(page.tables[0][1][-1][1]) and "≈" in page.tables[0][1][-1][1]
    assert "▲" in page.tables[1][1][-1][1]
    rule = "bootstrap over sentences and seeds, corrected (Holm) for the comparisons of a column."
    assert rule in page.text
    assert [row[-1][1][0] for row in page.tables[2][1:]] == ["1", "2"]
    assert "1 to 2" in page.tables[2][1][-1][1]


def test_runs_that_are_not_whole_and_lengths_that_were_not_scored_are_left_out(work, tmp_path):
    copy = tmp_path / "work"
    shutil.copytree(work, copy)
    broken = copy / "seed-2" / "rope-b" / "run.json"
    broken.write_text(json.dumps({**json.loads(broken.read_text()), "state": "failed"}))
    scores = json.loads((copy / "s2l.json").read_text())
    assert scores["bins"].pop("[1, 8)")
    (copy / "s2l.json").write_text(json.dumps(scores))
    found = read_work(copy)
    assert {s.name: list(s.runs) for s in found.systems} == {"plain-a": ["1", "2"], "rope-b": ["1"]}
    assert {e.group for e in read_examples(found, 2)} == set(scores["bins"]) - {"all"}


def test_runs_that_the_scores_are_not_of_are_left_out(work, tmp_path):
    """They may have been finished since, or belong to seeds that were not asked for."""
    copy = tmp_path / "work"
    shutil.copytree(work, copy)
    scores = json.loads((copy / "s2l.json").read_text())
    assert set(scores["runs"]) == set(LABELS) and len(scores["runs"]["rope-b"]) == 2
    scores["runs"]["rope-b"] = scores["runs"]["rope-b"][1:]
    (copy / "s2l.json").write_text(json.dumps(scores))
    found = read_work(copy)
    assert {s.name: list(s.runs) for s in found.systems} == {"plain-a": ["1", "2"], "rope-b": ["2"]}
    # Both under the seed that both have: the second one.
    longest = read_examples(found, 1)[-1]
    stops = [min(STOPS[name, 2], longest.length) for name in LABELS]
    assert [t.length for t in longest.translations] == stops


def test_what_the_logs_tell(work):
    log = read_log(work / "seed-2" / "rope-b")
    assert log.losses == {7: 8.5, 14: 2.2}
    assert (log.words_per_second, log.sentences_per_second, log.free_memory) == (2000, 20, 60.5)
    assert log.commands == ["bash scripts/protocol.sh x", "fairseq-train data --seed 2"]
    (session,) = log.sessions
    assert session.startswith("2026-11-22T13:00") and session.endswith(
        "h (CPU, 2 cores), commit unknown"
    )
    assert log.versions == [{"torch": "9"}]


def test_a_plain_cross_entropy_has_a_curve(work):
    """fairseq logs its loss, in bits already, and no nll_loss."""
    folder = work / "seed-2" / "rope-b"
    lines = (folder / "train.log").read_text()
    (folder / "train.log").write_text(re.sub(r"loss \d \| nll_(loss [\d.]+)", r"\1", lines))
    assert "nll_loss" not in (folder / "train.log").read_text()
    assert read_log(folder).losses == {7: 8.5, 14: 2.2}


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
    raw = folder / "data" / "raw"
    prepared(work, folder / "data")
    for name in LABELS:
        shutil.copytree(work / "seed-1" / name, folder / name)
        (folder / name / "generate.test_short.txt").unlink()
        words = [folder / name / "generate.test.txt", "--references", raw / "test.de"]
        output = folder / name / "scores.test.json"
        words += ["--target-lang", "de", "--json", output]
        assert main(["score", *map(str, words)]) == 0
    output = tmp_path / "page.html"
    assert main(["page", str(folder), str(output), "--no-pictures", "--sentences", "2"]) == 0
    assert (
        "2 systems, 1 groups of sentences, 0 pictures of positions, 2 sentences"
        in capsys.readouterr().out
    )
    page = Page(output)
    bleu = json.loads((folder / "rope-b" / "scores.test.json").read_text())["bleu"]
    assert float(page.tables[0][1][1][0]["data-value"]) == bleu["score"]
    assert bleu["signature"] in page.text


def test_whole_test_sets_compared_under_seeds_have_a_page_with_p_values(work, tmp_path, capsys):
    """As scripts/compare.sh leaves them where the text is not split by length."""
    folder, words = tmp_path / "whole", ["--baseline", "plain-a"]
    prepared(work, folder / "data")
    for name, seed in STOPS:
        run = folder / f"seed-{seed}" / name
        shutil.copytree(work / run.relative_to(folder), run)
        words += ["--run", f"{name}={run}"]
    for name, label in LABELS.items():
        words += ["--label", f"{name}={label}"]
    scores, output = folder / "compare.json", tmp_path / "page.html"
    assert main(["compare", str(folder / "data"), *words, "--json", str(scores)]) == 0
    assert main(["page", str(folder), str(output), "--no-pictures", "--sentences", "2"]) == 0
    assert (
        "2 systems, 3 groups of sentences, 0 pictures of positions, 2 s" in capsys.readouterr().out
    )
    page, found = Page(output), json.loads(scores.read_text())["bins"]["test"]["systems"]["rope-b"]
    attributes, shown = page.tables[0][1][1]
    assert float(attributes["data-value"]) == found["loss_bits_per_token"]["value"]
    gain = found["loss_against_baseline"]
    assert f"p {gain['p_seeds_holm']:.3f}" in " ".join(shown)
    # The whole test set orders the systems, not its last part.
    parts = json.loads(scores.read_text())
    for name, group in parts["bins"].items():
        if name != "test":
            for system in group["systems"].values():
                system["loss_bits_per_token"]["value"] *= -1
    scores.write_text(json.dumps(parts))
    again = tmp_path / "again.html"
    assert main(["page", str(folder), str(again), "--no-pictures", "--sentences", "1"]) == 0
    assert [row[0][1] for row in Page(again).tables[0]] == [row[0][1] for row in page.tables[0]]
    # The split's bin of all sentences holds the same ones.
    split = json.loads((work / "s2l.json").read_text())["bins"]["all"]["systems"]["rope-b"]
    assert found == split
    assert "by test set" in page.text and "by source length" not in page.text


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PROBE = """<script>addEventListener("load", () => {
  const table = document.querySelector("table");
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].dataset.value);
  const found = {scripts: document.scripts.length, before: names()};
  const head = table.tHead.rows[0].cells[1];
  head.firstElementChild.focus();
  found.focused = document.activeElement === head.firstElementChild;
  found.clicked = [1, 2].map(() => (head.firstElementChild.click(), [head.ariaSort, ...names()]));
  const box = document.querySelector("fieldset input");
  const line = document.querySelector('.line[data-system="0"]');
  found.colours = [1, 2].map(() => (box.click(), line.dataset.colour ?? null));
  found.overflow = document.documentElement.scrollWidth - innerWidth;
  for (const details of document.querySelectorAll("details")) details.open = true;
  found.pictures = [...document.images].map((image) => image.complete && image.naturalWidth);
  const report = document.createElement("pre");
  report.id = "found"; report.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
  document.body.append(report);
});</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_works_in_a_browser(written, tmp_path):
    """It sorts, colours and shows its pictures on a narrow screen, with no error in the console."""
    probed = tmp_path / "probed.html"
    probed.write_text(written.read_text().replace("</body>", PROBE))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,800"]
    command = [BROWSER, *words, "--virtual-time-budget=5000", "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    report = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert report is not None, done.stderr
    found = json.loads(base64.b64decode(report[1]))
    ours, other = "RoPE", LABELS["plain-a"]
    assert found["before"] == [ours, other] and found["focused"]
    assert [clicked[0] for clicked in found["clicked"]] == ["ascending", "descending"]
    assert found["clicked"][0][1:] == found["clicked"][1][:0:-1]
    assert found["colours"] == [None, "0"]
    assert found["overflow"] <= 0
    assert len(found["pictures"]) == 1 and all(found["pictures"])
    assert found["scripts"] == 2  # the page's and the probe
