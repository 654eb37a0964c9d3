"""Small RoBERTas and BERTs made with Hugging Face's transformers, and how tests compare them.

`python tests/hugging_face.py` makes tests/stored/hugging_face.tar.xz: a RoBERTa as transformers saves it,
and its logits, for tests where transformers is not installed.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from oracles import transformers_module

STORED = Path(__file__).resolve().parent / "stored" / "hugging_face.tar.xz"
WORDS = 40
LONGEST = 24  # tokens
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", *(f"Ġw{i}" for i in range(WORDS)), "<mask>"]
# BERT's special tokens lie among the words.
BERT = ["[PAD]", "w0", "w1", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT += [f"w{i}" for i in range(2, WORDS)]
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
OF_BERT = dict(zip(("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), FAIRSEQ))


def gpt2_numbers():
    """Return a stand-in for GPT-2's encoder.json, whose order is not RoBERTa's."""
    return {f"Ġw{i}": (7 * i + 3) % WORDS for i in range(WORDS)}


def make(kind, head=True, seed=0, **config):
    """Return a transformers model in which every parameter matters; ``kind`` is roberta or bert."""
    module = transformers_module(f"{kind}.modeling_{kind}")
    name = {"roberta": "Roberta", "bert": "Bert"}[kind]
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
    special |= {"max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}
    if kind == "bert":
        special = {"pad_token_id": 0, "max_position_embeddings": LONGEST, "type_vocab_size": 2}
    config = {**SHAPE, **special, "vocab_size": WORDS + 5, **config}
    parts = transformers_module(f"{kind}.configuration_{kind}")
    model = getattr(module, f"{name}ForMaskedLM" if head else f"{name}Model")(
        getattr(parts, f"{name}Config")(**config)
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def save(model, folder, kind):
    """Write the files of a downloaded model; a RoBERTa gets GPT-2's encoder.json too."""
    model.save_pretrained(folder)
    return add_vocabulary(folder, kind)


def add_vocabulary(folder, kind):
    if kind == "roberta":
        numbers = {token: i for i, token in enumerate(ROBERTA)}
        (folder / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
        (folder / "encoder.json").write_text(json.dumps(gpt2_numbers()), encoding="utf-8")
    else:
        (folder / "vocab.txt").write_text("\n".join(BERT) + "\n", encoding="utf-8")
    return folder


def edited(name, **changes):
    """Return a function that changes keys of a folder's JSON file."""
    return lambda folder: (folder / name).write_text(
        json.dumps({**json.loads((folder / name).read_text()), **changes})
    )


def tokens(kind, lengths=(LONGEST, 5, 11)):
    """Return token ids of Hugging Face's model, padded: [B, T], and the id of padding."""
    vocabulary = ROBERTA if kind == "roberta" else BERT
    names = FAIRSEQ if kind == "roberta" else tuple(OF_BERT)
    begin, pad, end, unknown, mask = map(vocabulary.index, names)
    words = [i for i, token in enumerate(vocabulary) if token not in names]
    rows = []
    for number, length in enumerate(lengths):
        row = [words[(5 * i * i + 3 * i + 7 * number) % len(words)] for i in range(length - 2)]
        row[1], row[2] = unknown, mask
        rows.append([begin, *row, end] + [pad] * (max(lengths) - length))
    return torch.tensor(rows), pad


@torch.no_grad()
def outputs(model, batch, pad):
    """Return transformers' logits, or features without a head, of every token but padding."""
    found = model(batch, attention_mask=batch.ne(pad).long())
    return (found.logits if "logits" in found else found.last_hidden_state)[batch.ne(pad)]


def load(path):
    """Load an imported model and its dictionary with fairseq."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return models[0].eval(), task.source_dictionary


def name_in_fairseq(kind, token):
    if kind == "bert":
        return OF_BERT.get(token, token)
    return token if token in FAIRSEQ else str(gpt2_numbers()[token])


@torch.no_grad()
def fairseq_outputs(path, kind, batch, pad, head=True):
    """Return the same for the imported model, with columns of logits in Hugging Face's order."""
    model, dictionary = load(path)
    vocabulary = ROBERTA if kind == "roberta" else BERT
    numbers = torch.tensor([dictionary.index(name_in_fairseq(kind, t)) for t in vocabulary])
    assert sorted(numbers.tolist()) == list(range(len(dictionary)))
    found = model(numbers[batch], features_only=not head)[0][batch.ne(pad)]
    return found[:, numbers] if head else found


def main():
    """Store a RoBERTa with a seed that no test uses, and its logits."""
    batch, pad = tokens("roberta")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "hugging_face"
        model = make("roberta", seed=5)
        save(model, folder, "roberta")
        logits = [[round(x, 6) for x in row] for row in outputs(model, batch, pad).tolist()]
        (folder / "logits.json").write_text(json.dumps(logits))
        with tarfile.open(STORED, "w:xz") as tar:
            tar.add(folder, folder.name)


if __name__ == "__main__":
    sys.exit(main())
