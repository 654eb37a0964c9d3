"""Short-to-long data: who trains, who tests, who is left out."""

import json
from collections import namedtuple

import pytest
import sentencepiece
from prepared_text import text_lines as lines
from split_text import line, options, write_sides

from fairseq_floater.data import sentencepiece_subwords
from fairseq_floater.data.number_words import write_numbers
from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.errors import UsageError
from fairseq_floater.evaluation.s2l import split as s2l_split
from fairseq_floater.evaluation.s2l.options import Bins, SplitOptions
from fairseq_floater.evaluation.s2l.repeats import NGRAM, overlap
from fairseq_floater.evaluation.s2l.split import _Splitter, split

# A row of test.tsv, without the id.
Origin = namedtuple("Origin", "bin source_tokens target_tokens file line")


def read_origins(path):
    head, *rows = [row.split("\t") for row in lines(path)]
    assert head == ["id", "bin", "source_tokens", "target_tokens", "file", "line"]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return [Origin(bin, int(s), int(t), file, int(n)) for _, bin, s, t, file, n in rows]


def test_bins_are_half_open_and_named():
    bins = Bins.from_options(None, None)
    assert bins.names == ["[80, 100)", "[100, 120)", "[120, 140)", "[140, inf)"]
    found = [bins.index(n) for n in (1, 79, 80, 99, 100, 139, 140, 9999)]
    assert found == [-1, -1, 0, 0, 1, 2, 3, 3]
    assert Bins.from_options(40, None).edges == (40, 50, 60, 70)
    assert Bins.from_options(24, [30, 36]).edges == (24, 30, 36)
    assert Bins.from_options(24, [24, 36]).edges == (24, 36)
    assert Bins.from_options(None, [24, 36]).edges == (24, 36)


@pytest.mark.parametrize("edges", [[80, 100, 100], [80, 120, 100], [70, 100]])
def test_bins_that_overlap_are_refused(edges):
    with pytest.raises(UsageError, match="`--edges` must"):
        Bins.from_options(80, edges)


def test_short_pairs_train_and_long_ones_test(raw, tmp_path):
    report = split(raw, tmp_path / "out", options())
    out = tmp_path / "out"
    train = lines(raw / "train.en")
    assert lines(out / "train.en") == [train[k] for k in (0, 1, 2, 5)]
    assert lines(out / "train.de") == [lines(raw / "train.de")[k] for k in (0, 1, 2, 5)]
    assert lines(out / "valid.en") == lines(raw / "valid.en")[:1]
    assert lines(out / "test_short.en") == lines(raw / "test.en")[:1]
    origins = read_origins(out / "test.tsv")
    # The threshold itself is long, an edge belongs to the bin that begins there.
    assert origins == [
        ("[8, 12)", 8, 9, "test.en", 2),
        ("[16, inf)", 16, 17, "test.en", 3),
        ("[16, inf)", 25, 26, "test.en", 4),
        ("[8, 12)", 11, 12, "valid.en", 2),
        ("[8, 12)", 9, 10, "train.en", 4),
        ("[12, 16)", 12, 13, "train.en", 5),
    ]
    for origin, source in zip(origins, lines(out / "test.en"), strict=True):
        assert lines(raw / origin.file)[origin.line - 1] == source
    text = report.format_text()
    assert "66.7 % of the training pairs are kept" in text
    assert "longest training target 6 tokens" in text
    assert "without the end symbol; tokens of the encoded text" in text
    written = json.loads((out / "split.json").read_text())
    assert written["bins"]["[16, inf)"] == {"found": 2, "kept": 2, "files": {"test.en": 2}}
    assert written["share_of_train_kept"] == pytest.approx(4 / 6)


def test_both_sides_bounds_training_targets(raw, tmp_path):
    write_sides(raw, "train", [line(3, 7000), line(4, 7100)], [line(8, 7200), line(4, 7300)])
    report = split(raw, tmp_path / "out", options(edges=(8, 16), both_sides=True))
    assert lines(tmp_path / "out" / "train.en") == [line(4, 7100)]
    assert report.left_out["train"] == {"long target": 1}
    assert report.kept["train"]["longest_target"] == 4


def test_duplicates_go_and_the_held_out_copy_stays(raw, tmp_path):
    sources, targets = lines(raw / "train.en"), lines(raw / "train.de")
    held = lines(raw / "test.en")[0], lines(raw / "test.de")[0]
    # A pair of the test set, a pair twice, once with more spaces, and a known source with a new target.
    sources += [held[0], sources[0].replace(" ", "  "), sources[1]]
    targets += [held[1], targets[0], line(3, 9000)]
    # Two pairs that differ in where a space is: two sentences.
    sources += ["\u2581now here", "\u2581no where"]
    targets += [line(3, 7000)] * 2
    write_sides(raw, "train", sources, targets)
    report = split(raw, tmp_path / "out", options())
    assert report.left_out["train"] == {"duplicate": 2}
    assert held[0] in lines(tmp_path / "out" / "test_short.en")
    assert held[0] not in lines(tmp_path / "out" / "train.en")
    assert lines(tmp_path / "out" / "train.en").count(sources[1]) == 2


def test_overlap_counts_lines_and_13grams():
    words = [f"w{i}" for i in range(40)]
    held_out = [" ".join(words[:26]), " ".join(words[20:40]), "short line", " ".join(words[5:18])]
    # 13 words of the first line (all of the fourth), in other letters, and one line as it is.
    training = ["x y " + " ".join(words[5 : 5 + NGRAM]).upper(), "short line"]
    training.append(" ".join(words[24:36]))
    expected = {"same_line": 0.25, "any_13gram": 0.5, "half_of_13grams": 0.25}
    assert overlap(held_out, iter(training)) == expected
    assert overlap(["short line"], []) == dict.fromkeys(expected, 0)
    half = overlap([" ".join(words[:14])], [" ".join(words[:13])])  # one run of two
    assert half["half_of_13grams"] == 1


def test_overlap_with_the_training_text_is_told_by_side(raw, tmp_path):
    write_sides(raw, "train", [line(3, 60_000)], [line(20, 62_000)])
    # A long source of its own with the target of a training pair, one of three pairs of the bins.
    write_sides(
        raw, "test", [line(9, 70_000), line(20, 71_000)], [line(4, 63_000), line(20, 62_000)]
    )
    report = split(raw, tmp_path / "out", options(edges=(8, 16)))
    assert set(report.overlap["source"]["test"].values()) == {0}
    assert set(report.overlap["target"]["test"].values()) == {1 / 3}


def test_the_subword_model_is_learned_on_short_pairs_only(tmp_path, monkeypatch):
    sizes = {"train": 400, "valid": 30, "test": 40, "test_long": 150}
    write_numbers(tmp_path / "raw", **sizes, long_numbers_per_line=(5, 9))
    # Greek letters stand in long training pairs only.
    for lang in ("en", "de"):
        with (tmp_path / "raw" / f"train.{lang}").open("a") as file:
            for k in range(30):
                file.write(" ".join(f"αβγδ{k}{i}" for i in range(30)) + "\n")
    out = tmp_path / "out"
    report = split(tmp_path / "raw", out, SplitOptions("en", "de", edges=(30, 40), vocab=120))
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
    assert not any(set("αβγδ") & set(model.id_to_piece(i)) for i in range(len(model)))
    for name in ("train", "valid", "test_short"):
        assert max(len(model.encode(text)) for text in lines(out / f"{name}.en")) < 30
    origins = read_origins(out / "test.tsv")
    found = [len(model.encode(text)) for text in lines(out / "test.en")]
    assert found == [o.source_tokens for o in origins]
    assert min(found) >= 30
    assert "learned on the short part" in report.tokens_of
    # Long pairs do not shrink the sample that is learned from.
    for module in (s2l_split, sentencepiece_subwords):
        monkeypatch.setattr(module, "SUBWORD_PAIRS", 400)
    split(tmp_path / "raw", tmp_path / "cap", SplitOptions("en", "de", edges=(30, 40), vocab=120))
    assert (tmp_path / "cap" / "spm.model").read_bytes() == (out / "spm.model").read_bytes()
    # The same model given, the same lengths, and nothing left out for having been seen.
    given = SplitOptions("en", "de", edges=(30, 40), spm_model=out / "spm.model")
    again = split(tmp_path / "raw", tmp_path / "again", given)
    assert again.held_out["[40, inf)"] == report.held_out["[40, inf)"]


def test_long_pairs_that_the_model_was_learned_on_are_left_out(tmp_path, monkeypatch):
    """A word is one token of the provisional model and two of the final one."""
    seen = {}

    class Model:
        def __init__(self, times):
            self.times, self.model = times, ()

        def pieces(self, batch):
            return [[side.split() * self.times for side in pair] for pair in batch]

    def learn(splitter, name, short, lines):
        seen[name] = [len(source.split()) for source, _ in short()]
        (splitter.work / name).touch()
        return Model(1 + (name == "spm.model"))

    monkeypatch.setattr(_Splitter, "_learn", learn)
    for name, lengths in (("train", (3, 4, 5, 7, 8, 9)), ("valid", (2,)), ("test", (3, 5))):
        texts = [" ".join([f"{name}word"] * length) for length in lengths]
        write_sides(tmp_path / "raw", name, texts, texts)
    raw_text = options(encoded=False, vocab=60, edges=(8,))
    report = split(tmp_path / "raw", tmp_path / "out", raw_text)
    assert seen == dict.fromkeys(("provisional.model", "spm.model"), [3, 4, 5, 7])
    assert report.left_out["train"] == {"seen by the subword model": 3}
    assert report.held_out["[8, inf)"]["files"] == {"test.en": 1, "train.en": 2}


def test_words_are_counted_where_there_are_no_subwords(tmp_path):
    for name, lengths in (("train", (2, 3, 5)), ("valid", (2,)), ("test", (3, 4, 6))):
        texts = [" ".join([f"{name}word"] * length) for length in lengths]
        write_sides(tmp_path / "raw", name, texts, texts)
    words = options(encoded=False, subwords="none", edges=(4, 6))
    report = split(tmp_path / "raw", tmp_path / "out", words)
    assert report.kept["train"]["pairs"] == 2 and report.kept["train"]["longest_source"] == 3
    assert {name: of["kept"] for name, of in report.held_out.items()} == {
        **{"[1, 4)": 1, "[4, 6)": 2, "[6, inf)": 1}
    }
    assert "tokens of the text, its words" in report.format_text()


def test_a_sample_is_even_and_the_same_for_a_seed(raw, tmp_path):
    sources = [line(n, 20_000 + 100 * k) for k, n in enumerate([9] * 400 + [13] * 5 + [20] * 50)]
    write_sides(raw, "test", sources, sources)
    first, second, other = (
        split(raw, tmp_path / name, options(max_per_bin=40, seed=seed)) and tmp_path / name
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert lines(first / "test.tsv") == lines(second / "test.tsv") != lines(other / "test.tsv")
    origins = read_origins(first / "test.tsv")
    counts = {name: sum(o.bin == name for o in origins) for name in Bins((8, 12, 16)).names}
    assert counts == {"[8, 12)": 40, "[12, 16)": 6, "[16, inf)": 40}
    drawn = [o.line for o in origins if o.bin == "[8, 12)" and o.file == "test.en"]
    assert min(drawn) < 100 and max(drawn) > 300 and drawn == sorted(drawn)


def test_bins_are_filled_from_test_files_first_then_valid_then_train(raw, tmp_path):
    sides = [lines(raw / f"train.{lang}") for lang in ("en", "de")]
    extra = [line(9, 40_000 + 100 * k) for k in range(60)]
    write_sides(raw, "train", *(side + extra for side in sides))
    report = split(raw, tmp_path / "out", options(max_per_bin=4))
    files = {"test.en": 1, "valid.en": 1, "train.en": 2}
    assert report.held_out["[8, 12)"] == {"found": 63, "kept": 4, "files": files}
    assert "4, 25 % test.en, 25 % valid.en, 50 % train.en" in report.format_text()


def test_a_second_run_skips_and_other_options_need_force(raw, tmp_path, capsys):
    out = tmp_path / "out"
    split(raw, out, options())
    before = (out / "split.json").stat().st_mtime_ns
    split(raw, out, options())
    assert (out / "split.json").stat().st_mtime_ns == before
    assert "exists already" in capsys.readouterr().err
    (out / "train.de").unlink()
    split(raw, out, options())
    assert (out / "train.de").is_file()
    message = r"`edges` \[8, 12, 16\], not \[8, 12\]; choose another OUT_DIR"
    with pytest.raises(TextDataError, match=message):
        split(raw, out, options(edges=(8, 12)))
    split(raw, out, options(edges=(8, 12)), force=True)
    assert json.loads((out / "split.json").read_text())["edges"] == [8, 12]
    (out / "notes").write_text("mine")
    with pytest.raises(TextDataError, match="out/notes was not made by floater and would be"):
        split(raw, out, options(), force=True)


def test_empty_overlong_and_odd_lines(raw, tmp_path):
    sources = [line(3, 30_000), "", line(4, 31_000), line(10_000, 40_000), "\u2581a\x0bb\u2581c"]
    targets = [line(3, 32_000), line(3, 33_000), "  ", line(10, 34_000), "\u2581d"]
    write_sides(raw, "train", sources, targets)
    report = split(raw, tmp_path / "out", options(edges=(8, 16)))
    assert report.left_out["train"] == {"empty": 2, "longer than max-len": 1}
    assert report.longest == (25, "test.en", 4)  # of those that can be used
    # A vertical tab would break a line in two for some tools; it becomes a space.
    assert lines(tmp_path / "out" / "train.en")[-1] == "\u2581a b\u2581c"
    wide = split(raw, tmp_path / "wide", options(edges=(8, 16), max_len=20_000))
    assert wide.longest == (10_000, "train.en", 4)
