"""Reading text strictly, and counting what sacreBLEU counts of it."""

import os
import random
import threading

import pytest
from sacrebleu.metrics import BLEU, CHRF

from fairseq_floater.evaluation.bleu import score
from fairseq_floater.evaluation.hypotheses import read_hypotheses
from fairseq_floater.evaluation.metrics import score_of_sums, sentence_counts

WORDS = ["der", "die", "das", "Haus", "Hund", "sitzt", "läuft", "auf", "unter", "vor", "dem", "."]


def sentences(count, seed=1):
    words = random.Random(seed)
    return [" ".join(words.choices(WORDS, k=words.randint(1, 12))) for _ in range(count)]


def test_pipes_can_be_scored(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("eins\nzwei\n",))
    writer.start()
    assert read_hypotheses(pipe) == ["eins", "zwei"]
    writer.join()


@pytest.mark.parametrize("metric", [BLEU, CHRF])
def test_counts_of_several_runs_have_sacrebleus_own_scores(metric):
    ours, theirs = sentences(150), sentences(150, seed=2)
    ours[:75] = theirs[:75]
    scored = metric()
    runs = [ours, sentences(150, seed=3), ours]
    for run, counts in zip(runs, sentence_counts(scored, runs, theirs), strict=True):
        assert len(counts) == 150
        assert score_of_sums(scored, counts.sum(0)) == metric().corpus_score(run, [theirs]).score


def test_text_that_looks_tokenised_is_noticed_once(capsys):
    theirs = sentences(150)
    ours = [f"{line.removesuffix('.').strip()} ." for line in theirs]
    score(ours, theirs, target_language="de", bootstrap=0)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:35] for line in lines] == ["warning: 150 hypotheses end in ` .`"]
