"""The recurrence of Table 6, and a flow, without time."""

import helpers as h
import pytest
import torch


@pytest.mark.parametrize(
    ("encoder", "options"),
    [("floater", {"floater_autonomous": True}), ("rnn", {"rnn_input": "none"})],
)
@torch.no_grad()
def test_without_time_a_row_begins_the_same_rows_wherever_it_stands(encoder, options):
    for autonomous in (True, False):
        model = h.visible(encoder, target="hidden", **(options if autonomous else {}))
        table = h.tables(model, 20)[0]
        for part, row in zip(h.parts(model.encoder, "positions"), table[7].unbind(1)):
            part.values.copy_(row)
        change = h.difference(h.tables(model.train().eval(), 13)[0], table[7:])
        assert change <= 1e-3 if autonomous else change > 0.02
