"""fairseq's own commands train the encoder-only model: masked words, then sentences."""

import pytest
import roberta_models as robertas
import torch
import toy as toys

from fairseq_floater.transformer.roberta import FloaterRobertaModel


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


def changed(before, after):
    """Names of tensors that two checkpoints share and that differ in any bit."""
    first, second = toys.parameters(before), toys.parameters(after)
    return {name for name in set(first) & set(second) if not torch.equal(first[name], second[name])}


def test_the_papers_two_stages(data, tmp_path):
    """h alone on masked words, then all but h on sentences, from fairseq's own RoBERTa."""
    plain = ("--arch", "roberta", *robertas.FLAGS, "--max-positions", "24")
    robertas.train_masked(data, tmp_path / "donor", *plain)
    donor, start = tmp_path / "model.pt", tmp_path / "start.pt"
    plain = toys.parameters(tmp_path / "donor" / "checkpoint_last.pt")
    robertas.save_as_of_2019(donor, plain, 24)  # the format of the published checkpoints
    flow = ("--arch", robertas.TINY, "--floater-delta", "0.01", "--floater-start", "bias")
    told = toys.floater("warm-start", donor, start, *flow, "--data", data / "mlm").stdout
    assert "p(0) starts at the donor's biases" in told and "ignored  0 tensors" in told
    flow += ("--max-positions", "24", "--floater-train")
    finetune = ("--finetune-from-model", start)
    log = robertas.train_masked(data, tmp_path / "flow", *flow, "dynamics", *finetune).stdout
    assert "|floater-train:dynamics|" in log and "one trajectory" not in log
    solved = tmp_path / "flow" / "checkpoint_last.pt"
    names = set(toys.parameters(start))
    dynamics = {n for n in names if ".dynamics." in n and not n.endswith("lr_scale")}
    assert len(dynamics) == 4 and changed(start, solved) == dynamics
    finetune = ("--finetune-from-model", solved)
    robertas.train_sentences(data, tmp_path / "heads", *flow, "rest", *finetune)
    fitted = tmp_path / "heads" / "checkpoint_last.pt"
    moved = changed(solved, fitted)
    assert not moved & dynamics
    # The language model's head has no part in the loss.
    still = {n for n in names if "lm_head" in n or n.endswith(("version", "lr_scale"))} | dynamics
    # Nor have the biases: p(0) is trained in their place.
    replaced = {n for n in names if n.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))}
    tuned = toys.parameters(fitted)
    assert len(replaced) == 6 and not any(tuned[n].any() for n in replaced)
    still |= replaced
    assert names - moved == still - {"encoder.lm_head.weight"}  # tied to the embeddings
    heads = [n for n in toys.parameters(fitted) if n.startswith("classification_heads")]
    assert len(heads) == 4


def test_the_hub_interface(data, tmp_path):
    options = ("--arch", robertas.TINY, "--position-encoder", "rope")
    robertas.train_sentences(data, tmp_path, *options, "--max-update", "2")
    hub = FloaterRobertaModel.from_pretrained(
        str(tmp_path), "checkpoint_last.pt", str(data / "glue"), bpe=None
    ).eval()
    tokens = hub.task.source_dictionary.encode_line("<s> w0 w0 w3", add_if_not_exist=False).long()
    assert hub.extract_features(tokens).shape == (1, 5, 64)
    everything = hub.extract_features(tokens, return_all_hiddens=True)
    assert len(everything) == 3
    scores = hub.predict("sentence_classification_head", tokens)
    assert scores.shape == (1, 2)
    batch = torch.stack([tokens, tokens.flip(0)])
    assert hub.predict("sentence_classification_head", batch)[:1].sub(scores).abs().max() < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        ("--untie-weights-roberta", "--encoder-layerdrop", "0.5"),
        ("--position-encoder", "none", "--attention-kind", "linear", "--attention-dropout", "0"),
    ],
    ids=["untied-layerdrop", "linear"],
)
def test_training_with(data, tmp_path, options):
    log = robertas.train_masked(data, tmp_path, "--arch", robertas.TINY, *options)
    assert len(toys.update_losses(log.stdout)) == 12
    model = toys.parameters(tmp_path / "checkpoint_last.pt")
    words = model["encoder.sentence_encoder.embed_tokens.weight"]
    tied = torch.equal(model["encoder.lm_head.weight"], words)
    assert tied == ("--untie-weights-roberta" not in options)
