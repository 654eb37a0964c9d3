"""The recurrence over tokens, beside torch.nn.GRU sentence by sentence."""

import pytest
import torch
from helpers import source_batch, target_batch, visible
from stage_oracles import largest_difference
from torch import nn


@pytest.mark.parametrize("residual", [False, True], ids=["replaced", "added"])
@pytest.mark.parametrize("blocks", ["all", "input"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_block_gets_what_a_gru_gives_each_sentence(residual, blocks, left):
    model = visible("token-rnn", blocks, "stage", token_rnn_residual=residual)

    def oracle(stack, block, words, before):
        gru = nn.GRU(before.size(1), before.size(1))
        gru.load_state_dict(stack.positions.recurrence.state_dict())
        return gru(before)[0] + (before if residual else 0)

    batch = source_batch(left), target_batch(left)
    assert largest_difference(model, *batch, oracle) <= 1e-5


def test_a_step_of_decoding_keeps_one_state_a_block():
    model = visible("token-rnn", "all", "stage")
    source, target_in = source_batch(), target_batch()
    state = {}
    with torch.no_grad():
        encoder_out = model.encoder(source, src_lengths=source.ne(1).sum(1))
        for t in range(5):
            model.decoder(target_in[:, : t + 1], encoder_out, incremental_state=state)
        kept = [block.positions.recall(state) for block in model.decoder.layers]
    assert [list(k.shape) for k in kept] == 2 * [[1, 3, 64]]
    assert not torch.equal(*kept)
