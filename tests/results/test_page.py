"""The page of a comparison: every number from its file, no network, and it works in a browser."""

import base64
import json
import re
import shutil
import subprocess

import pytest
from compared_runs import LABELS, Page, changed, page_of

from fairseq_floater.results.page.write import write_page


@pytest.fixture(scope="module")
def written(work):
    report = write_page(work, work.parent / "page.html")
    assert report.pictures == 1 and report.systems == 2
    return work.parent / "page.html"


def test_the_tables_hold_the_scores_in_order(work, written):
    page, bins = Page(written), json.loads((work / "s2l.json").read_text())["bins"]
    for (key, digits), table in zip({"loss_bits_per_token": 2, "bleu": 1}.items(), page.tables):
        head, *rows = table
        assert [cell[1][0] for cell in head[1:]] == list(bins)
        order = [row[0][0]["data-value"] for row in rows]
        assert order == ["RoPE", LABELS["plain-a"]]  # the best past the trained length first
        ranks = [re.findall(r"#\d+", " ".join(row[-1][1])) for row in rows]
        assert ranks == [["#1"], ["#2"]]
        for row, name in zip(rows, ("rope-b", "plain-a")):
            for (attributes, shown), found in zip(row[1:], bins.values()):
                measure = found["systems"][name][key]
                assert float(attributes["data-value"]) == measure["value"]
                assert shown[0] == f"{measure['value']:.{digits}f} ±{measure['spread']:.{digits}f}"
                interval = f"{measure['low']:.{digits}f} to {measure['high']:.{digits}f}"
                assert interval in " ".join(shown)
    gain = bins["all"]["systems"]["rope-b"]["loss_against_baseline"]
    # The difference is significant over sentences, but not over two training seeds.
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


def test_the_same_folder_gives_the_same_page(copy):
    assert page_of(copy).text == page_of(copy).text


def test_the_strictest_p_values_and_ranks_are_shown_where_they_are(copy, tmp_path):
    with changed(copy / "s2l.json") as scores:
        for found in scores["bins"].values():
            gain = found["systems"]["rope-b"]["loss_against_baseline"]
            gain |= {"p_value": 0.001, "p_value_holm": 0.002, "p_seeds_holm": 0.2}
            found["systems"]["rope-b"]["bleu_against_baseline"] |= {"p_seeds_holm": 0.04}
            for place, name in enumerate(("rope-b", "plain-a"), start=1):
                rank = {"place": place, "best": 1, "worst": 2}
                found["systems"][name]["rank_by_loss"] = rank
    write_page(copy, tmp_path / "page.html", pictures=False)
    page = Page(tmp_path / "page.html")
    assert "p 0.200" in " ".join(page.tables[0][1][-1][1]) and "≈" in page.tables[0][1][-1][1]
    assert "▲" in page.tables[1][1][-1][1]
    rule = "by a t test over seeds and sentences, corrected (Holm) for the comparisons of a column."
    assert rule in page.text
    assert [row[-1][1][0] for row in page.tables[2][1:]] == ["1", "2"]
    assert "1 to 2" in page.tables[2][1][-1][1]


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
