"""Scores of documents by the place of the sentence."""

import json

import pytest
import sacrebleu
from scored_text import HYPOTHESES, REFERENCES

from fairseq_floater.cli import main
from fairseq_floater.evaluation.documents import sentences_of

REFERENCE = ["a <s2> b <s2> c", "d", "e <s2> f"]


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [
        (["A <s2> B <s2> C", "D", "E <s2> F"], ["A", "B", "C", "D", "E", "F"]),
        (["A", "D <s2> X", "<s2> E <s2> F <s2>"], ["A", "", "", "D X", "", "E F "]),
        (["A", "B", "C", "D", "E", "F"], ["A", "B", "C", "D", "E", "F"]),
    ],
    ids=["whole", "pieces missing and over", "sentences"],
)
def test_the_kth_piece_stands_for_the_kth_sentence(hypotheses, expected):
    found, references, places = sentences_of(hypotheses, REFERENCE, "<s2>")
    assert found == expected
    assert references == ["a", "b", "c", "d", "e", "f"]
    assert places == [0, 1, 2, 0, 0, 1]


def test_documents_score_as_their_sentences_and_by_place(write, capsys):
    def pairs(lines):
        return "".join(f"{' <s2> '.join(lines[i : i + 2])}\n" for i in range(0, len(lines), 2))

    ours, theirs = write("ours", pairs(HYPOTHESES)), write("theirs", pairs(REFERENCES))
    words = ["--references", str(theirs), "--target-lang", "de", "--bootstrap", "0"]
    words += ["--documents", "<s2>", "--json", str(ours.with_name("scores.json"))]
    assert main(["score", str(ours), *words]) == 0
    scores = json.loads(ours.with_name("scores.json").read_text())
    assert scores["bleu"]["score"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    table = capsys.readouterr().out
    for k, place in enumerate(scores["places"]):
        bleu = sacrebleu.corpus_bleu(HYPOTHESES[k::2], [REFERENCES[k::2]]).score
        assert place["bleu"]["score"] == bleu
        assert f"place {k + 1} of documents: 3 sentences, BLEU {bleu:6.2f}," in table
