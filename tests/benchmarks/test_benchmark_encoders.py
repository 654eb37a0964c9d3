"""Many encoders against one baseline: a few models at a time, resumed from records, in one table."""

import json
import weakref
from types import SimpleNamespace

import helpers
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import batches, contestants, parts
from benchmarks.bench import WARM_UP, Bench
from benchmarks.figure import plot_benchmark
from benchmarks.floor import Floor, Work, measure_floor
from benchmarks.records import Records
from benchmarks.settings import QUICK, Settings
from benchmarks.summary import summary_columns, summary_table
from benchmarks.tables import BenchmarkResult
from fairseq_floater.checkpoints.dictionaries import placeholder_dictionary
from fairseq_floater.errors import UsageError, UserError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def settings(**changes):
    return Settings(**{**QUICK, **changes})


def named(*names):
    return [contestant(name) for name in ("fairseq", *names)]


def contestant(name):
    return SimpleNamespace(name=name, interval=1, translates_only=False, trains_only=False)


def bench(found, records=None, said=None, **changes):
    made = Bench(settings(**changes), found, ([] if said is None else said).append, records)
    made.floor = Floor(bandwidth=8.0, peak=4.0)
    return made


class Model:
    """A stand-in whose living instances can be counted."""


def test_only_a_few_models_are_alive_at_once():
    found = named("a", "b", "c", "d", "e")
    alive, most = weakref.WeakSet(), []

    def make(contestant):
        model = Model()
        model.itself = model  # a reference cycle, as in models
        alive.add(model)
        most.append(len(alive))
        return model

    groups = []
    for group in bench(found, together=2).groups("part", [{}], found, make):
        groups.append(list(group))
    assert groups == [["fairseq", "a", "b"], ["fairseq", "c", "d"], ["fairseq", "e"]]
    assert max(most) == 3
    assert len(most) == 6  # fairseq's own model is made once


def turns(*names, fails=()):
    def turn(name):
        def work(number):
            if name in fails:
                raise fails[name]

        return work

    return {name: turn(name) for name in ("fairseq", *names)}


def test_what_fails_is_said_and_the_others_are_measured():
    said = []
    raced = bench(named("a", "b", "c"), said=said)
    fails = {"a": RuntimeError("CUDA out of memory"), "c": UserError("not finite")}
    raced.race("step", {"position": 9}, turns("a", "b", "c", fails=fails), 2, floors=lambda n: 1.0)
    rows = raced.rows("step", {"position": 9}, raced.contestants)
    assert [row["contestant"] for row in rows] == ["fairseq", "b"]
    assert [(f["contestant"], f["reason"]) for f in raced.failures] == [
        ("a", "CUDA out of memory"),
        ("c", "not finite"),
    ]
    assert [line for line in said if "FAILED" in line] == [
        "step, position 9, a: FAILED: CUDA out of memory",
        "step, position 9, c: FAILED: not finite",
    ]
    result = BenchmarkResult({}, raced.settings, failures=raced.failures)
    assert result.failed
    with pytest.raises(RuntimeError, match="out of memory"):  # no comparison without the baseline
        raced.race("x", {}, turns("a", fails={"fairseq": fails["a"]}), 2, floors=lambda n: 1.0)


def test_a_benchmark_goes_on_from_its_records(tmp_path):
    path = tmp_path / "folder" / "records.jsonl"
    about = {"tokens": 128, "length": (4, 16)}
    first = Records(about, path)
    raced = bench(named("a", "b"), first)
    raced.race("update", {}, turns("a"), 2, floors=lambda n: 1.0)
    with path.open("a") as file:
        file.write('{"part": "update", "wh')  # killed while it wrote
    again = Records(about, path)
    assert again.rows == json.loads(json.dumps(first.rows))
    resumed = bench(named("a", "b"), again)
    left = [
        list(group)
        for group in resumed.groups("update", [{}], resumed.contestants, lambda c: c.name)
    ]
    assert left == [["fairseq", "b"]]
    resumed.race("update", {}, turns("a", "b"), 2, floors=lambda n: 1.0)
    rows = resumed.rows("update", {}, resumed.contestants)
    assert [(row["contestant"], row["rounds"]) for row in rows] == [
        ("fairseq", 4),  # of both runs
        ("a", 2),
        ("b", 2),
    ]
    assert len(Records(about, path).rows) == len(again.rows)
    with pytest.raises(UsageError, match=r"records.jsonl holds measurements with another tokens"):
        Records({**about, "tokens": 256}, path)
    for foreign in ("[]\n", "notes"):
        path.write_text(foreign)
        with pytest.raises(UsageError, match="with another form of file"):
            Records(about, path)
        assert path.read_text() == foreign


def test_times_are_compared_with_the_floor_of_their_round():
    raced = bench(named("a"), Records({}))
    kept = {"baseline": [8.0, 16.0], "floors": [2.0, 4.0], "block": 1, "about": {}}
    raced.records.add("update", {}, "fairseq", times=[8.0, 16.0], **kept)
    raced.records.add("update", {}, "a", times=[6.0, 12.0], **kept)
    rows = raced.rows("update", {}, raced.contestants)
    assert [(row["ratio"], row["floor_ratio"]) for row in rows] == [(1.0, 4.0), (0.75, 3.0)]
    [column] = summary_columns({"update": rows})
    assert column.floor == 0.25


def counted(work):
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return counter.get_total_flops()


def test_the_work_of_an_update_is_torchs_count_of_its_products():
    [baseline, *_] = contestants.contestants(settings(), "nowhere")
    words = placeholder_dictionary(100)
    trained = contestants.trainer(baseline, words)
    [batch, *_] = batches.make_batches(settings(), words, tokens=128)
    # torch does not count fused attention in full.
    with sdpa_kernel(SDPBackend.MATH):
        products = counted(lambda: contestants.update(trained, batch, "fairseq"))
    assert products == Work(trained.model).update(batch)


def test_the_work_of_a_translation_is_below_torchs_count_and_near_it():
    [baseline, *_] = contestants.contestants(settings(), "nowhere")
    words, floor = (
        placeholder_dictionary(100),
        Floor(bandwidth=1e30, peak=1.0),
    )  # seconds count operations
    translator = contestants.Translator(baseline, words, settings())
    [batch, *_] = batches.make_batches(settings(), words, sentences=4)
    products = counted(lambda: translator.translate(batch))
    work = Work(translator.model)
    assert 0.5 < work.translation(floor, batch, 4, 4) / products <= 1
    slow = Floor(bandwidth=1.0, peak=1e30)  # seconds count bytes
    weights = [p for p in translator.model.decoder.layers.parameters() if p.dim() == 2]
    entries = sum(w.numel() for w in weights) + 100 * 64
    layers, channels = len(translator.model.decoder.layers), 64
    assert work.step(slow, rows=4) == 4 * (entries - layers * 2 * channels**2)


def test_rates_are_of_the_best_of_many():
    floor = measure_floor(settings(), torch.float32, repeats=3)
    assert floor.bandwidth > 1e6
    assert floor.peak > 1e6
    assert Floor(bandwidth=2.0, peak=4.0).seconds(operations=8.0, read=10.0) == 5.0
    assert Floor(bandwidth=2.0, peak=4.0).seconds(operations=80.0, read=10.0) == 20.0


@pytest.mark.parametrize("name", ["fairseq", "rope", "conv", "floater"])
def test_a_step_is_the_searchs(name, monkeypatch):
    """A step at a position reads as many tokens, and gives the log-probabilities of one pass."""
    chosen = settings(encoders=(name,) if name != "fairseq" else ("none",), length=(4, 8))
    found = {c.name: c for c in contestants.contestants(chosen, "nowhere")}
    stepper = contestants.Stepper(found[name], placeholder_dictionary(100), chosen)
    model = stepper.model
    stepper.walk(7)
    seen = []
    decode = model.decoder.forward
    monkeypatch.setattr(
        model.decoder, "forward", lambda *args, **kw: seen.append(decode(*args, **kw)) or seen[-1]
    )
    stepper.step()
    source = stepper.tokens[:1, 1:9].expand(4, -1)
    full = helpers.log_probs(model, source, stepper.tokens[:, :8])[:, -1]
    assert helpers.difference(helpers.normalised(model, seen[0])[:, -1], full) <= helpers.TOLERANCE
    stepper.walk(5)
    assert stepper.taken == 5  # from the start again


def test_steps_are_timed_around_their_positions(monkeypatch):
    walked = []

    class Walker:
        def __init__(self, contestant, words, chosen):
            self.name, self.model, self.taken = contestant.name, helpers.plain(), 0

        def walk(self, position):
            walked.append((self.name, position))

        def step(self, number=0):
            pass

    monkeypatch.setattr(parts, "Stepper", Walker)
    rows = parts.step_rows(bench(named("a"), rounds=2, step_positions=(3, 100)))
    before = 1 + WARM_UP["cpu"] + 8
    assert walked == [(n, p) for p in (0, 100 - before) for n in ("fairseq", "a")]
    assert [(row["position"], row["contestant"], row["rounds"]) for row in rows] == [
        (p, n, 16) for p in (3, 100) for n in ("fairseq", "a")
    ]


def rows_of(part, ratios, **where):
    return [
        {**where, "contestant": name, "ratio": ratio, "seconds": 2.0, "floor_ratio": 4 * ratio}
        for name, ratio in ratios.items()
    ]


def test_one_table_and_one_figure_of_everything(tmp_path):
    ratios = {"fairseq": 1.0, "rope": 0.9, "t5": 1.25}
    found = {
        "update": rows_of("update", ratios),
        "memory": [
            {"contestant": name, "ratio": r, "bytes": r * 2**20} for name, r in ratios.items()
        ],
        "launches": [
            {"contestant": name, "ratio": r, "kernels": int(1200 * r)} for name, r in ratios.items()
        ],
        "generation": [
            row
            for vocabulary in (8192, 32768)
            for n in (1, 16)
            for row in rows_of("generation", ratios, vocabulary=vocabulary, sentences=n)
        ],
        "step": rows_of("step", {"fairseq": 1.0, "t5": 0.8}, position=1000),
    }
    lines = summary_table(summary_columns(found)).splitlines()
    assert lines[0] == (
        "|  | update | memory | launches | translation, 1 at once, 8,192 words | "
        "translation, 1 at once, 32,768 words | translation, 16 at once, 8,192 words | "
        "translation, 16 at once, 32,768 words | step, position 1,000 |"
    )
    assert lines[2:] == [
        "| `fairseq` | 2 s | 1 MiB | 1,200 | 2 s | 2 s | 2 s | 2 s | 2 s |",
        "| `rope` | 0.900 | 0.900 | 0.900 | 0.900 | 0.900 | 0.900 | 0.900 | - |",
        "| `t5` | 1.250 | 1.250 | 1.250 | 1.250 | 1.250 | 1.250 | 1.250 | 0.800 |",
        "| the floor | 0.250 | - | - | 0.250 | 0.250 | 0.250 | 0.250 | 0.250 |",
    ]
    assert summary_table(summary_columns({})) == ""
    plot_benchmark(BenchmarkResult({}, settings()), tmp_path / "figure.svg")
    assert not (tmp_path / "figure.svg").exists()
    plot_benchmark(BenchmarkResult({}, settings(), **found), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.count("<!-- rope -->") == 1
    for title in ("update", "memory", "launches", "translation,", "8,192 words", "step"):
        assert f"<!-- {title} -->" in drawn
