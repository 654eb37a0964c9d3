"""An import that cannot be right is refused in one sentence, and leaves nothing behind."""

import json
import shutil
import sys

import hugging_face
import pytest
import torch
from hugging_face import edited
from safetensors.torch import load_file

from fairseq_floater.checkpoints.import_roberta import import_roberta
from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.cli import main


def removed(name):
    return lambda folder: (folder / name).unlink()


def cut(name):
    def edit(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return edit


def with_tensors(change):
    """Weights as a .bin, edited."""

    def edit(folder):
        state = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        change(state)
        torch.save(state, folder / "pytorch_model.bin")

    return edit


def other_bpe(folder):
    (folder / "encoder.json").write_text(json.dumps({f"x{i}": i for i in range(50)}))


def in_parts(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")


ADAPTER = "roberta.encoder.layer.0.adapter.weight"
BIAS = "roberta.encoder.layer.1.output.dense.bias"
BAD = {
    "no config": (removed("config.json"), "config.json; a folder of a Hugging Face model"),
    "cut config": (cut("config.json"), "config.json cannot be read as JSON"),
    "other kind": (
        edited("config.json", model_type="electra"),
        "`model_type` must be roberta or bert, but is 'electra' instead.",
    ),
    "other activation": (
        edited("config.json", hidden_act="gelu_new"),
        "`hidden_act` must be 'gelu', as in fairseq's RoBERTa, but is 'gelu_new' instead.",
    ),
    "relative positions": (
        edited("config.json", position_embedding_type="relative_key"),
        "`position_embedding_type` must be 'absolute', as in fairseq's RoBERTa",
    ),
    "decoder": (edited("config.json", is_decoder=True), "`is_decoder` must be False"),
    "other width": (edited("config.json", intermediate_size=32), "contradicts itself: by its"),
    "no weights": (removed("model.safetensors"), "neither model.safetensors nor pytorch_model.bin"),
    "weights in parts": (in_parts, "are in several files; save the model in one"),
    "cut weights": (cut("model.safetensors"), "not a complete safetensors file"),
    "no such tensor": (
        with_tensors(lambda state: state.pop(BIAS)),
        "lacks encoder.sentence_encoder.layers.1.fc2.bias, a tensor of fairseq's RoBERTa.",
    ),
    "half a head": (
        with_tensors(lambda state: state.pop("lm_head.dense.bias")),
        "lacks encoder.lm_head.dense.bias",
    ),
    "a tensor too many": (
        with_tensors(lambda state: state.update({ADAPTER: torch.zeros(2)})),
        "adapter.weight', which fairseq's RoBERTa does not have",
    ),
    "no vocabulary": (removed("vocab.json"), "vocab.json (nor tokenizer.json), the model's"),
    "cut vocabulary": (cut("vocab.json"), "vocab.json cannot be read as JSON"),
    "other size": (
        edited("vocab.json", more=45),
        "has 46 tokens, but the model's embeddings have 45",
    ),
    "a gap": (
        edited("vocab.json", **{"Ġw3": 45}),
        "must number its 45 tokens from 0 without a gap",
    ),
    "no special token": (
        lambda folder: (folder / "vocab.json").write_text(
            (folder / "vocab.json").read_text().replace("<mask>", "w")
        ),
        "vocab.json has no <mask>; a roberta vocabulary holds <s> <pad> </s> <unk> <mask>.",
    ),
    "no GPT-2 numbers": (removed("encoder.json"), "pass it as --encoder-json"),
    "other BPE": (other_bpe, "is of another BPE than"),
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
    assert capsys.readouterr().err.strip().endswith("'fairseq_floater[roberta]' installs it.")


def test_the_folder_of_the_model_may_get_the_checkpoint_but_keeps_its_weights(
    stored, tmp_path, capsys
):
    source = shutil.copytree(stored, tmp_path / "source")
    words = ["import-roberta", str(source), str(source / "model.pt"), "--force"]
    assert main(words) == main(words) == 0
    words[2] = str(source / "model.safetensors")
    assert main(words) == 1
    assert "model.safetensors is one of the inputs" in capsys.readouterr().err


def test_nothing_is_overwritten_unless_forced(stored, tmp_path, capsys):
    words = ["import-roberta", str(stored), str(tmp_path / "out.pt")]
    assert main(words) == 0
    assert main(words) == 1
    assert "out.pt exists; choose another name or pass --force." in capsys.readouterr().err
    (tmp_path / "out.pt").unlink()
    assert main(words) == 0  # the same dictionary is accepted
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
        (lambda folder, args: (folder / "dict.txt").unlink(), "There is no dictionary"),
        (lambda folder, args: (folder / "dict.txt").write_text("a 1\n"), "dict.txt has 6 entries"),
        (lambda folder, args: (folder / "dict.txt").write_text("a b c\n"), "is not a fairseq dict"),
        (lambda folder, args: setattr(args, "arch", "lstm"), "is not a RoBERTa"),
    ],
)
def test_bad_input_of_fairseqs_form(stored, tmp_path, capsys, change, sentence):
    path = tmp_path / "old" / "model.pt"
    import_roberta(stored, path)
    state = load_checkpoint(path)
    change(path.parent, state["cfg"]["model"])
    torch.save(state, path)
    assert main(["import-roberta", str(path), str(tmp_path / "out.pt")]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()
