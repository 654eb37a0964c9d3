"""Text that is read where it lies, and metrics that are summed: any length in the same memory."""

import os
import random
import threading
import tracemalloc

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from fairseq_floater.evaluation.hypotheses import read_hypotheses, read_references
from fairseq_floater.evaluation.lines import Numbers, TextFile, TextLines
from fairseq_floater.evaluation.metric_sums import AT_ONCE, MetricSums, Resampling, sentence_counts
from fairseq_floater.evaluation.score import ScoringError, score

WORDS = [
    "der",
    "die",
    "das",
    "Haus",
    "Hund",
    "Katze",
    "sitzt",
    "läuft",
    "auf",
    "unter",
    "vor",
    "dem",
    "der",
    "Matte",
    ".",
]


def sentences(count, seed=1):
    words = random.Random(seed)
    return [" ".join(words.choices(WORDS, k=words.randint(1, 12))) for _ in range(count)]


# Lines


def test_numbers_are_what_was_put_and_zero_elsewhere():
    numbers = Numbers()
    values = {0: 5, 3: 2**62, 20_000: 1, 9_000: 7}
    for index, value in values.items():
        numbers[index] = value
    assert numbers[3] == 2**62
    assert numbers[4] == numbers[10**9] == 0
    assert list(numbers.first(30_000)) == [values.get(i, 0) for i in range(30_000)]


def test_lines_come_in_any_order_and_again(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes("\ufefferste\r\nzweite\n\nvierte äöü".encode())
    lines = read_references(path)
    expected = ["erste", "zweite", "", "vierte äöü"]
    assert list(lines) == expected == list(lines)
    assert (lines[3], lines[0], lines[1:3]) == (expected[3], expected[0], expected[1:3])
    assert list(zip(lines, lines)) == [(line, line) for line in expected]
    assert list(lines.changed(str.upper)) == [line.upper() for line in expected]
    with pytest.raises(IndexError):
        lines[4]


def test_a_pipe_is_read_as_often_as_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "".join(f"D-{i}\t-0.5\tSatz {i}\n" for i in reversed(range(1000)))
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    file = TextFile(pipe)
    writer.join()
    assert sum(1 for _ in file) == sum(1 for _ in file) == 1000


@pytest.mark.parametrize("reader", [read_references, read_hypotheses])
def test_pipes_can_be_scored(tmp_path, reader):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("eins\nzwei\n",))
    writer.start()
    assert list(reader(pipe)) == ["eins", "zwei"]
    writer.join()


def test_a_file_that_is_written_to_meanwhile_is_refused(tmp_path):
    path = tmp_path / "lines"
    path.write_text("eins\nzwei\n")
    lines = read_references(path)
    with path.open("a") as file:
        file.write("drei\n")
    with pytest.raises(ScoringError, match=r"lines` must stay as it is .*, but was written to"):
        list(lines)


def test_references_that_are_written_to_while_they_are_scored_are_refused(tmp_path):
    path = tmp_path / "lines"
    path.write_text("eins zwei drei vier\n" * 6)
    lines = read_references(path)
    os.truncate(path, 40)
    with pytest.raises(ScoringError, match="but was written to"):
        score(["eins zwei drei vier"] * 6, lines, target_language="de", bootstrap=0)


def test_a_place_within_a_character_is_a_file_that_changed(tmp_path):
    path = tmp_path / "lines"
    path.write_text("aä\nbb\n")
    lines = read_references(path)
    path.write_text("abcä\nx\n")
    with pytest.raises(ScoringError, match="but was written to"):
        list(lines)


def test_losses_alone_are_no_text(tmp_path):
    path = tmp_path / "out"
    path.write_text("P-0\t-0.1 -0.2\nP-1\t-0.3\n")
    with pytest.raises(ScoringError, match="must hold hypotheses"):
        read_hypotheses(path)


def test_ids_that_cannot_be_are_named_with_those_that_lack(tmp_path):
    path = tmp_path / "out"
    path.write_text("D-0\t-1\ta\nD-7\t-1\tb\nS-999999999999\tc\n")
    with pytest.raises(
        ScoringError, match=r"0 to 999999999999, .* lacks 999999999998 \(1, 2, 3, 4, 5, \.\.\.\)"
    ):
        read_hypotheses(path)


@pytest.mark.parametrize("tagged", [False, True])
def test_lines_take_the_same_memory_however_many_they_are(tmp_path, tagged):
    peaks = []
    for count in (3_000, 60_000):
        path = tmp_path / str(count)
        order = range(count) if not tagged else random.Random(1).sample(range(count), count)
        path.write_text(
            "".join(f"D-{i}\t-1\t" * tagged + f"Satz {i} ist lang genug\n" for i in order)
        )
        tracemalloc.start()
        lines = read_hypotheses(path)
        assert sum(map(len, lines)) > 20 * count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert isinstance(lines, TextLines)
        assert lines[count - 1] == f"Satz {count - 1} ist lang genug"
    assert peaks[1] < peaks[0] + 250_000  # places of one block; as strings they are 5 MB


# Sums


@pytest.mark.parametrize("metric", [BLEU, CHRF])
def test_a_text_in_parts_has_sacrebleus_own_score_and_interval(metric, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    count = 2 * AT_ONCE + 77
    ours, theirs = sentences(count), sentences(count, seed=2)
    ours[: count // 2] = theirs[: count // 2]
    sums = MetricSums("x", metric(), {})
    sums.resample(count, 60, 12345)
    for start in range(0, count, AT_ONCE):
        sums.add(ours[start : start + AT_ONCE], theirs[start : start + AT_ONCE])
    found = sums.result()
    whole = metric()
    expected = whole.corpus_score(ours, [theirs], n_bootstrap=60)
    assert found.score == expected.score
    assert found.signature == str(whole.get_signature().format())
    assert found.mean == pytest.approx(expected._mean, abs=1e-6)
    assert found.half_width == pytest.approx(expected._ci, abs=1e-6)
    assert found.half_width > 0.1


def test_draws_over_several_blocks_are_draws_from_all_sentences():
    """Means, spreads, and what two sentences of different blocks have to do with one another."""
    count, resamples = 40, 20_000
    resampling = Resampling(count, resamples, seed=3, block=16)
    for start in range(0, count, 16):
        # As counts, which sentence it is: sums are then how often each was drawn.
        resampling.add(np.eye(count, dtype=np.int64)[start : start + 16])
    drawn = resampling._sums
    assert (drawn.sum(1) == count).all()
    covariance = np.cov(drawn.T)
    expected = np.eye(count) - 1 / count
    assert np.abs(drawn.mean(0) - 1).max() < 5 * np.sqrt(1 / resamples)
    assert np.abs(covariance - expected).max() < 6 * np.sqrt(2 / resamples)


def test_counts_refuse_texts_of_different_lengths():
    with pytest.raises(ValueError, match="shorter"):
        sentence_counts(BLEU(), ["a", "b"], ["a"])


def test_scores_are_the_same_of_lists_and_of_files(tmp_path):
    theirs = sentences(AT_ONCE + 5, seed=2)
    ours = [line.replace("Hund", "Katze") for line in theirs]
    files = []
    for name, lines in (("ours", ours), ("theirs", theirs)):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        files.append(read_references(path))
    options = {"target_language": "de", "bootstrap": 50}
    assert score(*files, **options) == score(ours, theirs, **options)


def test_text_that_looks_tokenised_is_noticed_once(caplog):
    theirs = sentences(3 * AT_ONCE)
    ours = [f"{line.removesuffix('.').strip()} ." for line in theirs]
    score(ours, theirs, target_language="de", bootstrap=0)
    assert [r.message.split(":")[0] for r in caplog.records] == [
        f"{3 * AT_ONCE} hypotheses end in ` .`, as tokenised text does"
    ]
