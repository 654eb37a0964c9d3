"""The recurrence of Table 6: parameter counts, steps, and initialisation."""

import helpers as h
import pytest
import torch

from fairseq_floater.experiments.info import added_parameters
from fairseq_floater.position_encoders.transforms import Places

# layers, input, parameters of one recurrence at C = 512 (Table 6: 263.2K, 526.3K, 1,050.0K)
TABLE_6 = [(1, "scalar", 263_168), (2, "scalar", 526_336), (1, "vector", 1_049_600)]


@pytest.mark.parametrize(("layers", "kind", "count"), TABLE_6)
def test_parameter_counts_are_table_6s(layers, kind, count):
    options = {"rnn_layers": layers, "rnn_input": kind}
    added = added_parameters("floater_transformer", "rnn", "all", **options)
    one = sum(n for name, n in added.items() if name.startswith("encoder.positions."))
    assert one == count
    assert sum(added.values()) == 3 * count + 54 * 512  # three recurrences, 54 initial states


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


def one_signal(target="hidden", **options):
    model = h.build("rnn", target=target, **options).eval()
    stack, name, signal = h.signals(model)[0]
    return signal, h.parts(stack, name)


@pytest.mark.parametrize("kind", ["scalar", "vector", "none"])
def test_rows_stay_bounded(kind):
    signal, blocks = one_signal(rnn_input=kind)
    with torch.no_grad():
        assert signal.rows(Places(3000), blocks)[1:].abs().max() <= 1


@pytest.mark.parametrize("kind", ["scalar", "vector"])
def test_the_qkv_form_starts_as_the_transformer_and_leaves_it(kind):
    model = h.build("rnn", target="qkv", rnn_layers=2, rnn_input=kind)
    donor = h.plain(seed=7).eval()
    model.load_state_dict(donor.state_dict(), strict=False)
    batch = h.source_batch(), h.target_batch()
    ours, theirs = (h.log_probs(m.eval(), *batch)[batch[1].ne(h.PAD)] for m in (model, donor))
    assert h.difference(ours, theirs) == 0
    model.train()
    model(batch[0], None, batch[1])[0].square().sum().backward()
    last = model.encoder.positions.maps[-1]
    assert last.weight.grad[:, : model.encoder.positions.input_size].abs().max() > 0
