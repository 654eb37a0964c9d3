"""Runs of two systems under two seeds, and the page of their comparison. Not a test file."""

import json
from contextlib import contextmanager
from html.parser import HTMLParser

from scored_split import generated, text

from fairseq_floater.cli import main

LABELS = {"plain-a": 'sinusoid <script>alert(1)</script> & "it\'s"', "rope-b": "RoPE"}
# (system, seed): the number of words after which its translations stop.
STOPS = {("plain-a", 1): 5, ("plain-a", 2): 6, ("rope-b", 1): 9, ("rope-b", 2): 30}
LOG = """+ fairseq-train data --seed {seed}
2026-11-22 | INFO | train | epoch 001 | loss 9 | wps 1000 | num_updates 7 | lr 0.1
2026-11-22 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9 | nll_loss 8.5 | num_updates 7
2026-11-22 | INFO | train | epoch 002 | loss 5 | wps 3000 | gb_free 60.5 | num_updates 14 | lr 0.1
2026-11-22 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 5 | nll_loss 2.{seed} | num_updates 14
"""


def make_run(folder, name, seed, split):
    """Write a run's folder with translations of the test sets of ``split``."""
    folder.mkdir(parents=True)
    stop = STOPS[name, seed]
    for test in ("test", "test_short"):
        sources, references = (text(split, test, lang) for lang in ("en", "de"))
        words = [reference.split() for reference in references]
        cut = [" ".join([*w[: stop - 1], "<i>"] if len(w) > stop else w) for w in words]
        generated(folder / f"generate.{test}.txt", sources, cut)
        generated(folder / f"losses.{test}.txt", sources, references, -10 / stop)
    (folder / "generate.test.log").write_text(
        "Translated 40 sentences (9 tokens) in 2s (20.00 sentences/s, 4 tokens/s)\n"
    )
    (folder / "train.log").write_text(LOG.format(seed=seed))
    settings = {"encoder": name, "seed": str(seed), "source": "en", "target": "de"}
    settings["bpe"] = "sentencepiece"
    session = {"begun": "2026-11-22T13:00:00+00:00", "seconds": 61.0, "host": "h", "commit": None}
    session |= {"processor": "CPU", "cores": 2, "versions": {"torch": "9"}}
    record = {"settings": settings, "command": "bash scripts/protocol.sh x", "sessions": [session]}
    (folder / "run.json").write_text(json.dumps({**record, "state": "done"}))
    sizes = {"parameters": 1000, "position_parameters": 8, "training_seconds": 10.0 * seed}
    (folder / "average.json").write_text(json.dumps(sizes))


def labelled(*argv):
    """Return the command line with the baseline and the systems' labels."""
    labels = [word for entry in LABELS.items() for word in ("--label", "=".join(entry))]
    return [*map(str, argv), "--baseline", "plain-a", *labels]


def save_task(folder, parameters, report):
    """Write the text's parameters and the comparison of a task, as scripts/tasks.sh leaves them."""
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "summary.json").write_text(json.dumps({"parameters": parameters}))
    (folder / "compare.json").write_text(json.dumps(report))


@contextmanager
def changed(path):
    """Yield the content of a JSON file; write it back at the end."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


class Page(HTMLParser):
    """Read a page's tables as (attributes, text) of every cell; fail if its tags are not well nested."""

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
        self.addresses += [found[k] for k in ("src", "href", "srcset", "action") if k in found]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append((found, []))

    def handle_startendtag(self, tag, attrs):
        """Ignore self-closing tags, such as SVG's `<path/>`."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1][1].append(data.strip())


def page_of(folder, sentences=2):
    """Return the page that `floater page` writes for a folder, without pictures."""
    path = folder.with_suffix(".html")
    argv = ["page", str(folder), str(path), "--no-pictures", "--sentences", str(sentences)]
    assert main(argv) == 0
    return Page(path)
