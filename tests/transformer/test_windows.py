"""Translating long sources in windows."""

from argparse import Namespace

import helpers as h
import pytest
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationTask

from fairseq_floater.errors import UsageError
from fairseq_floater.transformer.windows import WindowsConfig, WindowsTask, seam


def tasks(**options):
    cfg = WindowsConfig(**options)
    return [kind(cfg, h.dictionary(), h.dictionary()) for kind in (TranslationTask, WindowsTask)]


def hypotheses(task, source, model=None, generator=None):
    options = Namespace(beam=4, max_len_a=1.5, max_len_b=3)
    generator = generator or task.build_generator([model], options)
    net_input = {"src_tokens": source, "src_lengths": source.ne(h.PAD).sum(1)}
    sample = {"id": torch.arange(len(source)), "net_input": net_input}
    return task.inference_step(generator, [model], sample)


@pytest.mark.parametrize(("lengths", "long"), [((7, 3, 5), [0, 0, 0]), ((7, 12, 5), [0, 1, 0])])
def test_short_sentences_are_translated_as_ever_in_whatever_batch(lengths, long):
    model, source = h.visible("rope", target="attention"), h.source_batch(lengths=lengths)
    usual, windows = tasks(window=6)
    short = [i for i, is_long in enumerate(long) if not is_long]
    cut = hypotheses(windows, source, model)
    parts = [windows._windows(row[row.ne(h.PAD)][:-1]) for row in source]
    batch = collate_tokens([part for of_row in parts for part in of_row], h.PAD, left_pad=True)
    beside = hypotheses(usual, batch, model)  # the same batch, so rounding is the same too
    for i, alone in zip(short, hypotheses(usual, source[short, -7:], model)):
        same = beside[sum(map(len, parts[:i]))]
        for expected in (alone, same):
            assert [x["tokens"].tolist() for x in cut[i]] == [
                x["tokens"].tolist() for x in expected
            ]
        assert torch.equal(cut[i][0]["score"], same[0]["score"])
    whole = hypotheses(usual, source, model)
    for i in set(range(len(long))) - set(short):
        assert cut[i][0]["tokens"].tolist() != whole[i][0]["tokens"].tolist()


def test_without_overlap_the_translations_of_windows_follow_each_other():
    model, source = h.visible("rope", target="attention"), h.source_batch(lengths=(13, 19, 25))
    usual, windows = tasks(window=6, window_overlap=0)
    for row, (joined,) in zip(source, hypotheses(windows, source, model)):
        cuts = row[row.ne(h.PAD)][:-1].split(6)
        alone = [hypotheses(usual, torch.cat([w, row[-1:]])[None], model)[0][0] for w in cuts]
        expected = [*(a["tokens"][:-1] for a in alone), row[-1:]]
        assert joined["tokens"].equal(torch.cat(expected))
        ends = [*(a["positional_scores"][:-1] for a in alone), alone[-1]["positional_scores"][-1:]]
        scores = torch.cat(ends)
        torch.testing.assert_close(joined["positional_scores"], scores, atol=1e-4, rtol=0)
        torch.testing.assert_close(joined["score"], scores.mean(), atol=1e-4, rtol=0)


def test_windows_and_what_counts_as_shared():
    _, task = tasks(window=16)  # they share four tokens
    sizes = {n: [len(w) - 1 for w in task._windows(torch.arange(5, 5 + n))] for n in (17, 28, 29)}
    assert sizes == {17: [16, 5], 28: [16, 16], 29: [16, 16, 5]}
    assert task._overlap_in(16, {"tokens": torch.arange(11)}) == 3  # of ten tokens 2.5


class Copy(SequenceGenerator):
    """Copy the source; if ``garbled``, replace the words at both ends."""

    def __init__(self, garbled):
        torch.nn.Module.__init__(self)
        self.garbled, self.widths = garbled, []

    def generate(self, models, sample, **_):
        translations = []
        self.widths.append(sample["net_input"]["src_tokens"].size(1))
        for row in sample["net_input"]["src_tokens"]:
            tokens = row[row.ne(h.PAD)].clone()
            if self.garbled:
                tokens[0] = tokens[-2] = 4
            translations.append([{"tokens": tokens, "positional_scores": -tokens.double()}])
        return translations


@pytest.mark.parametrize("garbled", [False, True])
@pytest.mark.parametrize("overlap", [None, 4, 5])
@pytest.mark.parametrize("length", [18, 21, 30])
def test_translations_are_joined_where_they_agree(length, overlap, garbled):
    words = torch.arange(5, 5 + length - 1)
    source = torch.cat([words, torch.tensor([h.EOS])])
    _, task = tasks(window=16, window_overlap=overlap)
    short = torch.cat([torch.full((length - 3,), h.PAD), source[-3:]])
    copy = Copy(garbled)
    (joined,), (beside,) = hypotheses(task, torch.stack([source, short]), generator=copy)
    assert copy.widths == [17] and len(beside["tokens"]) == 3  # no source is read whole
    if garbled and length > 17:
        source[0] = source[-2] = 4
    assert joined["tokens"].tolist() == source.tolist()
    assert joined["positional_scores"].tolist() == (-source.double()).tolist()


@pytest.mark.parametrize(
    ("tail", "head", "joined"),
    [
        ("xabcq", "yabcd", "xabcd"),  # words between a common run and the cut are dropped
        ("abxcde", "abycdez", "abxcdez"),  # the longest common run
        ("aaaa", "aaaab", "aaaab"),
        ("abab", "ab", "abab"[:2]),  # of two runs the one at the same place
        ("ab", "cd", "abcd"),
        ("", "cd", "cd"),
    ],
)
def test_a_seam(tail, head, joined):
    end, begin = seam(tail, head)
    assert tail[:end] + head[begin:] == joined


@pytest.mark.parametrize("given", ["prefix_tokens", "constraints"])
def test_what_begins_or_constrains_a_whole_translation_is_refused(given):
    _, task = tasks(window=6)
    sample = {"net_input": {"src_tokens": h.sentence(9)}}
    with pytest.raises(UsageError, match="`--prefix-size` and `--constraints` must be off"):
        task.inference_step(Copy(False), [], sample, **{given: h.sentence(2)})
    refused = {"nbest": 2, "print_alignment": "hard", "prefix_size": 1, "constraints": "ordered"}
    for option in ({name: value} for name, value in refused.items()):
        with pytest.raises(UsageError, match="`--nbest` must be 1"):
            task.build_generator([], Namespace(**option))


@pytest.mark.parametrize("options", [{}, {"window": 4, "window_overlap": 4}])
def test_windows_that_make_no_step_are_refused(options):
    with pytest.raises(UsageError, match="`--window` needs at least one token"):
        tasks(**options)
