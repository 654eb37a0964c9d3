"""The inputs that the convolution and the token recurrence keep between decoding steps."""

import helpers as h
import pytest
import torch


@pytest.mark.parametrize(
    ("encoder", "options", "kept"),
    [("conv", {"conv_kernel": 5}, 4), ("token-rnn", {}, 1)],
    ids=["conv", "token-rnn"],
)
@torch.no_grad()
def test_every_block_keeps_as_many_inputs_as_it_needs(encoder, options, kept):
    model, state = h.visible(encoder, "all", "stage", **options), {}
    source, target_in = h.source_batch(), h.target_batch()
    encoder_out = model.encoder(source, src_lengths=source.ne(h.PAD).sum(1))
    for t in range(9):
        model.decoder(target_in[:, : t + 1], encoder_out, incremental_state=state)
        of_blocks = [block.positions.recall(state) for block in model.decoder.layers]
        assert [list(k.shape) for k in of_blocks] == 2 * [[kept, 3, 64]]
    assert not torch.equal(*of_blocks)
