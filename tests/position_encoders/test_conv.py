"""The convolution before a block, beside torch.nn.Conv1d sentence by sentence."""

import pytest
import torch
from helpers import build, source_batch, target_batch, visible
from stage_oracles import largest_difference
from torch import nn

from fairseq_floater.experiments.info import added_parameters


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


def test_parameter_counts():
    counts = {
        blocks: sum(added_parameters("floater_transformer", "conv", blocks).values())
        for blocks in ("input", "all")
    }
    assert counts == {"input": 4_096, "all": 6 * 4_096}
    wide = added_parameters("floater_transformer", "conv", "input", conv_kernel=5)
    assert sum(wide.values()) == 2 * 512 * (5 + 1)


@pytest.mark.parametrize("kernel", [1, 2, 4, 0, -3])
def test_a_kernel_without_a_middle_or_neighbours_is_refused(kernel):
    words = f"`--conv-kernel` must be an odd number of at least 3, but is {kernel} instead"
    with pytest.raises(ValueError, match=words):
        build("conv", target="stage", conv_kernel=kernel)


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
