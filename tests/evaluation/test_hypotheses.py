"""Hypotheses are read from every form they come in, in the corpus's order, or refused."""

import gzip

import pytest
from scored_text import HYPOTHESES, generated, refused

from fairseq_floater.data.pieces import BPE_MARKS
from fairseq_floater.evaluation.bleu import score_files
from fairseq_floater.evaluation.hypotheses import read_hypotheses, read_references
from fairseq_floater.evaluation.lines import ScoringError


def test_generated_hypotheses_come_back_in_corpus_order(write):
    path = write("out.txt", generated(HYPOTHESES, order=[4, 0, 5, 2, 1, 3]))
    assert read_hypotheses(path) == HYPOTHESES


@pytest.mark.parametrize("key", [None, lambda line: line[:1], lambda line: line.split("\t")[0]])
def test_d_lines_alone_and_sorted_files_read_the_same(write, key):
    lines = generated(HYPOTHESES, others=["schlechter"]).split("\n")
    lines = sorted(lines, key=key) if key else [line for line in lines if line.startswith("D-")]
    assert read_hypotheses(write("out.txt", "\n".join(lines) + "\n")) == HYPOTHESES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "D-0\t-0.5\teins\nD-0\t-0.4\tzwei\n",
            r"`.*out\.txt` must hold the best hypothesis of a sentence first, but line 2 has a "
            r"higher score for sentence 0 instead; are these two runs in one file\?",
        ),
        (
            "D-0\t-1\ta\nD-1\t-1\tb\nD-0\t-2\tc\nD-1\t-2\td\n",
            r"`.*out\.txt` must hold each sentence once, but line 3 repeats sentence 0 of line 1 "
            r"instead; are these two runs in one file\?",
        ),
        # The D lines alone would look like two hypotheses of one sentence.
        (
            2 * "S-0\tsource\nH-0\t-1\ta\nD-0\t-1\ta\n",
            r".*line 4 repeats sentence 0 of line 1.*",
        ),
        (
            "".join(f"D-{i}\t-1\tx\n" for i in (0, 2, 4, 9, 10)),
            r"`.*out\.txt` must hold a hypothesis of each sentence from 0 to 10, but lacks 6 "
            r"\(1, 3, 5, 6, 7, \.\.\.\) instead; fairseq silently drops the sentences of batches "
            r"whose size is not a multiple of 8 unless `--required-batch-size-multiple 1` is given\.",
        ),
        ("D-0\t-1\ta\nD-1\tnur Text\n", r"`.*` must have a score, .* line 2 has 'nur Text' .*"),
        ("P-0\t-0.1 -0.2\nP-1\t-0.3\n", r".* must hold hypotheses \(D or H lines\).*"),
    ],
    ids=["order", "twice", "single twice", "gaps", "no score", "losses"],
)
def test_output_that_is_not_one_whole_run_is_refused(write, content, message):
    refused(message, read_hypotheses, write("out.txt", content))


BROKEN_OFF = (
    r"`.*out\.txt` must be complete, but ends at line {} \({}\) instead; "
    r"was fairseq-generate stopped, or the disk full\? Generate it again\."
)


@pytest.mark.parametrize("last", ["S-1\tsource", "H-1\t-1\t▁a"])
def test_a_file_that_broke_off_before_the_last_hypothesis_is_refused(write, last):
    path = write("out.txt", f"S-0\ts\nH-0\t-1\t▁a\nD-0\t-1\ta\n{last}\n")
    refused(r".* each sentence from 0 to 1, but lacks 1 \(1\).*", read_hypotheses, path)


@pytest.mark.parametrize("cut", ["T-5", "\nP-5", "0.2\nS-1", "S-1"])
@pytest.mark.parametrize(
    ("start", "found"),
    [(0, "fairseq's closing lines are missing"), (1, "that line has no newline")],
    ids=["whole output", "without the log"],
)
def test_a_file_cut_off_anywhere_is_refused(write, cut, start, found):
    text = "\n".join(generated(HYPOTHESES, order=[0, 5, 4, 1, 3, 2]).split("\n")[start:])
    left = text[: text.index(cut)]
    path = write("out.txt", left)
    if start and left.endswith("\n"):  # cut between two lines: missing hypotheses are noticed
        refused(r".* must hold a hypothesis of each sentence .*", read_hypotheses, path)
    else:
        refused(BROKEN_OFF.format(len(left.splitlines()), found), read_hypotheses, path)


def test_the_sentences_of_whole_output_alone_are_whole(write):
    lines = generated(HYPOTHESES).splitlines(keepends=True)
    path = write("out.txt", "".join(line for line in lines if line[1] == "-"))
    assert read_hypotheses(path) == HYPOTHESES


def test_empty_text_and_tabs_in_text_survive(write):
    path = write("out.txt", "D-0\t-1\t\nD-1\t-inf\ta\tb\n")
    assert read_hypotheses(path) == ["", "a\tb"]


@pytest.mark.parametrize("content", ["", "S-0\tsource\nT-0\ttarget\n", "Kein Ergebnis.\n"])
def test_output_without_hypotheses_is_refused(write, content):
    path = write("out.txt", content)
    refused(r".* must hold hypotheses \(D or H lines\).*", read_hypotheses, path, format="generate")


def test_plain_lines_are_detected_and_can_be_forced(write):
    assert read_hypotheses(write("plain.txt", "D-Mark\nS-Bahn\n\n")) == ["D-Mark", "S-Bahn", ""]
    path = write("looks_generated.txt", "D-0\t-1\ta\n")
    assert read_hypotheses(path) == ["a"]
    assert read_hypotheses(path, format="plain") == ["D-0\t-1\ta"]


def test_only_line_feeds_end_a_line(write):
    odd = ["a\u2028b", "c\x0bd\x0ce", "f\x85g\x1ch", "i\rj", "\u2029"]
    assert read_hypotheses(write("plain.txt", "\n".join(odd) + "\n")) == odd
    assert read_hypotheses(write("out.txt", generated(odd))) == odd
    assert read_references(write("ref.txt", "\n".join(odd))) == odd


def test_carriage_returns_and_a_byte_order_mark_are_taken_off(write):
    text = "\ufeff" + "".join(line + "\r\n" for line in HYPOTHESES)
    assert read_hypotheses(write("plain.txt", text)) == HYPOTHESES
    path = write("out.txt", generated(HYPOTHESES).replace("\n", "\r\n"))
    assert read_hypotheses(path) == HYPOTHESES


@pytest.mark.parametrize("reader", [read_hypotheses, read_references])
def test_bad_utf8_is_refused_by_file_and_line(write, reader):
    message = r"`.*latin1\.txt` must be UTF-8, but line 2 holds the byte 0xfc instead\."
    refused(message, reader, write("latin1.txt", b"gut\ngr\xfcn\n"))


def test_references_that_are_not_there_are_refused(tmp_path, write):
    message = r"There is no file .*none\."
    refused(message, read_references, tmp_path / "none")
    message = r"`.*ref` must hold one reference a line, but is empty instead\."
    refused(message, read_references, write("ref", ""))
    message = r"`.*out\.txt` must hold raw text, but is fairseq-generate's output instead \(were .*"
    refused(message, read_references, write("out.txt", generated(HYPOTHESES)))


def test_gzipped_text_is_read_and_a_broken_file_refused(write):
    packed = gzip.compress(b"gut\n")
    assert read_references(write("ref.gz", packed)) == ["gut"]
    for broken in (packed[:-9], b"gut\n"):
        refused(
            r".*ref\.gz is not a valid gzip file: .*\.",
            read_references,
            write("ref.gz", broken),
        )


def test_targets_of_another_test_set_are_told(write, capsys):
    ours = ["the harbour opens at dawn", "no ship may leave before noon"]
    hypotheses = write(
        "out.txt", "".join(f"T-{i}\t{t}\nH-{i}\t-1\tx\n" for i, t in enumerate(ours))
    )
    for references, warned in ((ours, False), (ours[::-1], True)):
        path = write("ref", "\n".join(references))
        score_files(hypotheses, path, target_language="en", remove_bpe="sentencepiece", bootstrap=0)
        assert ("T lines" in capsys.readouterr().err) == warned


def test_references_in_subwords_are_refused(write):
    hypotheses, references = (
        write("out.txt", "Das ist schön.\n"),
        write("ref", "▁Das ▁ist ▁sch ön .\n"),
    )
    with pytest.raises(ScoringError, match="holds pieces of sentencepiece instead; give raw text"):
        score_files(hypotheses, references, target_language="de", bootstrap=0)


def test_h_lines_alone_need_remove_bpe(write):
    path = write("h.txt", "H-0\t-1\t▁Das ▁ist ▁sch ön .\n")
    refused(
        r"`.*h\.txt` must hold D lines, but holds only H lines instead; name the kind of their "
        r"subwords with `--remove-bpe` \(sentencepiece or subword_nmt\)\.",
        read_hypotheses,
        path,
    )
    assert read_hypotheses(path, remove_bpe="sentencepiece") == ["Das ist schön."]


def test_subword_nmt_pieces_are_joined(write):
    path = write("h.txt", "H-1\t-1\tam En@@ de@@\nH-0\t-1\tDas ist sch@@ ö@@ n .\n")
    assert read_hypotheses(path, remove_bpe="subword_nmt") == ["Das ist schön .", "am Ende"]


def test_d_lines_that_fairseq_joined_are_left_alone(write):
    path = write("out.txt", generated(HYPOTHESES))
    for kind in BPE_MARKS:
        assert read_hypotheses(path, remove_bpe=kind) == HYPOTHESES


@pytest.mark.parametrize(
    ("kind", "text"), [("sentencepiece", "▁Das ▁is t"), ("subword_nmt", "Das is@@ t")]
)
def test_pieces_left_in_the_text_are_refused_or_joined(write, kind, text):
    for path in (write("d.txt", f"D-0\t-1\t{text}\n"), write("plain.txt", f"{text}\n")):
        refused(
            rf"`.*` must hold whole words, but holds pieces of {kind} instead; generate with "
            rf"`--remove-bpe` or score with `--remove-bpe {kind}`\.",
            read_hypotheses,
            path,
        )
        assert read_hypotheses(path, remove_bpe=kind) == ["Das ist"]


def test_bytes_of_sentencepiece_become_characters(write, capsys):
    texts = ["99 € <0x>", "日本, \ufffd", "a  b"]
    bytes_of = ["99 <0xE2><0x82><0xAC> <0x>", "<0xE6><0x97><0xA5><0xE6><0x9C><0xAC>, <0xE2>"]
    bytes_of.append("a <0x0A>b")  # a file of lines stays one
    joined = "".join(f"T-{i}\t{t}\nD-{i}\t-1\t{t}\n" for i, t in enumerate(bytes_of))
    hypotheses, references = write("out.txt", joined), write("ref", "\n".join(texts))
    assert read_hypotheses(hypotheses) == texts
    in_pieces = write("h.txt", "H-0\t-1\t▁9 9 ▁ <0xE2> <0x82> <0xAC> ▁<0x>\n")
    assert read_hypotheses(in_pieces, remove_bpe="sentencepiece") == texts[:1]
    scores = score_files(hypotheses, references, target_language="de", bootstrap=0)
    assert scores.bleu.score == pytest.approx(100)
    assert "T lines" not in capsys.readouterr().err


def test_a_rare_mark_is_text(write):
    lines = ["ein Diff: @@ -1 +1 @@", "Block ▁", *["Satz"] * 60]
    assert read_hypotheses(write("plain.txt", "\n".join(lines))) == lines
