"""Hold what a stage gives to each block against an oracle that reads one sentence at a time."""

import torch
from helpers import PAD, difference


@torch.no_grad()
def passages(model, source, target_in):
    """What each block with a stage was to get, and got: [(stack, block, words [B, T], before, after)].

    ``before`` and ``after`` [T, B, C]: the embedded words or the block before's output, and the
    block's own input.
    """
    caught, handles = {}, []
    for stack in (model.encoder, model.decoder):
        for block in stack.layers:
            handles += [
                block.register_forward_pre_hook(lambda m, i: caught.update({(m, "in"): i[0]})),
                block.register_forward_hook(lambda m, i, o: caught.update({(m, "out"): o})),
            ]
    model(source, source.ne(PAD).sum(1), target_in)
    for handle in handles:
        handle.remove()
    found = []
    for stack, words in ((model.encoder, source), (model.decoder, target_in)):
        before = (stack.embed_scale * stack.embed_tokens(words)).transpose(0, 1)
        for block in stack.layers:
            if block.positions is not None:
                found.append((stack, block, words, before, caught[block, "in"]))
            output = caught[block, "out"]
            before = output[0] if isinstance(output, tuple) else output
    return found


def largest_difference(model, source, target_in, oracle):
    """Of the blocks' inputs from ``oracle(stack, block, words [T], before [T, C])`` on real tokens."""
    found, largest = passages(model, source, target_in), 0.0
    assert {stack for stack, *_ in found} == {model.encoder, model.decoder}
    for stack, block, words, before, after in found:
        for b, sentence in enumerate(words):
            real = sentence.ne(PAD)
            with torch.no_grad():
                expected = oracle(stack, block, sentence[real], before[real, b])
            assert difference(expected, before[real, b]) > 0.1
            largest = max(largest, difference(after[real, b], expected))
    return largest
