"""The convolution before a block, beside torch.nn.Conv1d sentence by sentence."""

import pytest
import torch
from helpers import source_batch, target_batch, visible
from stage_oracles import largest_difference
from torch import nn


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("blocks", ["all", "input"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_block_gets_what_conv1d_gives_each_sentence(kernel, blocks, left):
    model = visible("conv", blocks, "stage", conv_kernel=kernel)

    def oracle(stack, block, words, before):
        causal = stack is model.decoder
        channels = before.size(1)
        padding = kernel - 1 if causal else kernel // 2
        conv = nn.Conv1d(channels, channels, kernel, groups=channels, padding=padding)
        conv.load_state_dict(block.positions.convolution.state_dict())
        convolved = conv(before.T[None])[0].T
        return before + (convolved[: len(before)] if causal else convolved)

    batch = source_batch(left), target_batch(left)
    assert largest_difference(model, *batch, oracle) <= 1e-5


def test_a_step_of_decoding_keeps_as_many_inputs_as_a_kernel_needs():
    model = visible("conv", "all", "stage", conv_kernel=5)
    source, target_in = source_batch(), target_batch()
    state = {}
    with torch.no_grad():
        encoder_out = model.encoder(source, src_lengths=source.ne(1).sum(1))
        for t in range(9):
            model.decoder(target_in[:, : t + 1], encoder_out, incremental_state=state)
            kept = [block.positions.recall(state) for block in model.decoder.layers]
            assert [list(k.shape) for k in kept] == 2 * [[4, 3, 64]]
