"""fairseq's own commands train the encoder-only model: masked words, then sentences."""

import pytest
import roberta_models as robertas
import toy as toys


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return robertas.make_data(tmp_path_factory.mktemp("roberta"))


@pytest.mark.parametrize("encoder", ["floater", "t5"])
def test_masked_words_then_sentences(data, tmp_path, encoder):
    options = ("--arch", robertas.TINY, "--position-encoder", encoder, "--dropout", "0")
    first = robertas.train_masked(data, tmp_path / "mlm", *options, "--max-positions", "24")
    losses = [float(loss) for loss in toys.update_losses(first.stdout).values()]
    assert len(losses) == 12 and sum(losses[-4:]) < sum(losses[:4]) - 1
    start = ("--finetune-from-model", tmp_path / "mlm" / "checkpoint_last.pt")
    second = robertas.train_sentences(data, tmp_path / "glue", *options, *start)
    assert len(toys.update_losses(second.stdout)) == 12
    before = toys.parameters(tmp_path / "mlm" / "checkpoint_last.pt")
    after = toys.parameters(tmp_path / "glue" / "checkpoint_last.pt")
    heads = {name for name in after if name.startswith("classification_heads.sentence")}
    assert set(after) - set(before) == heads and len(heads) == 4
