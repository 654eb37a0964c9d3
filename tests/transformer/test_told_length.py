"""Translating to the length of the reference."""

from argparse import Namespace

import helpers as h
import pytest
import torch
from fairseq.tasks.translation import TranslationConfig

from fairseq_floater.errors import UsageError
from fairseq_floater.transformer.told_length import ToldLengthTask


def hypotheses(model, source, target, prefix=None, **limits):
    task = ToldLengthTask(TranslationConfig(), h.dictionary(), h.dictionary())
    generator = task.build_generator([model], Namespace(beam=4, **limits))
    lengths = source.ne(h.PAD).sum(1)
    sample = {"id": torch.tensor([7, 3, 5]), "target": target}
    sample["net_input"] = {
        "src_tokens": source,
        "src_lengths": lengths,
        "prev_output_tokens": target,
    }
    return task.inference_step(generator, [model], sample, prefix_tokens=prefix)


@pytest.mark.parametrize("lengths", [(3, 14, 8), (1, 14, 8)], ids=["usual", "empty"])
def test_each_hypothesis_is_as_long_as_its_reference_whatever_the_limits_say(lengths):
    """The hypothesis of an empty reference has one word."""
    model, source = h.visible("rope", target="attention"), h.source_batch()
    target = h.padded([h.sentence(n) for n in lengths], left=False)
    found = hypotheses(model, source, target, max_len_b=6, min_len=5)
    for beams, n in zip(found, (max(n, 2) for n in lengths)):
        assert len(beams) == 4
        for beam in beams:
            assert len(beam["tokens"]) == n
            assert beam["tokens"].eq(h.EOS).nonzero().tolist() == [[n - 1]]


def test_another_search_is_refused():
    task = ToldLengthTask(TranslationConfig(), h.dictionary(), h.dictionary())
    for option in ({"sampling": True}, {"diverse_beam_groups": 2}, {"constraints": "ordered"}):
        with pytest.raises(UsageError, match="takes plain beam search only"):
            task.build_generator([h.build("rope", target="attention")], Namespace(beam=4, **option))
    model, batch = h.build("rope", target="attention"), h.source_batch()
    with pytest.raises(UsageError, match="`--prefix-size` must be off"):
        hypotheses(model, batch, batch, prefix=batch[:, :1])


def test_a_hypothesis_that_has_the_length_anyway_is_the_same():
    model, source = h.visible("rope", target="attention"), h.source_batch()
    with torch.no_grad():
        free = [h.generated([model], s[s.ne(h.PAD)][None], 12)[:1] for s in source]
    target = h.padded([best["tokens"][None] for (best,) in free], left=False)
    told = hypotheses(model, source, target)
    same = sum(t[0]["tokens"].equal(f["tokens"]) for t, (f,) in zip(told, free))
    # With all beams of that length, the search may find a more probable hypothesis.
    assert same and all(
        t[0]["positional_scores"].sum() >= f["positional_scores"].sum() - 1e-4
        for t, (f,) in zip(told, free)
    )
