"""A small RoBERTa with its dictionary and binarised data, made without running fairseq's commands."""

from argparse import Namespace

import torch
from fairseq.data import Dictionary, indexed_dataset
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from helpers import save_state

WORDS = 30
LONGEST = 32  # tokens
SHAPE = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "max_positions": LONGEST,
}


def dictionary(words=WORDS):
    found = Dictionary()
    for i in range(words):
        found.add_symbol(f"w{i}")
    return found


def save_dictionary(folder, words=WORDS):
    folder.mkdir(parents=True, exist_ok=True)
    dictionary(words).save(str(folder / "dict.txt"))


def write_split(folder, split, sentences):
    """Binarise sentences of word ids (0 to WORDS - 1); each gets an end symbol."""
    folder.mkdir(parents=True, exist_ok=True)
    builder = indexed_dataset.make_builder(str(folder / f"{split}.bin"), "mmap", WORDS + 4)
    for words in sentences:
        builder.add_item(torch.tensor([4 + w for w in words] + [2]))
    builder.finalize(str(folder / f"{split}.idx"))


def write_pairs(folder, lengths):
    """Binarise training sentences en-de of these lengths in tokens, by language."""
    for language, sizes in lengths.items():
        write_split(folder, f"train.en-de.{language}", [sentence(size - 1, 0) for size in sizes])


def write_labels(folder, split, labels, numbers):
    """Binarise one label a line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dict.txt").write_text("".join(f"{label} 1\n" for label in labels))
    write_split(folder, split, [[number] for number in numbers])


def sentence(length, number):
    return [(5 * i * i + 3 * i + 7 * number) % WORDS for i in range(length)]


def write_text(folder, lengths=(9, 14, 3, 19, 20, 25, 7, 30, 11, 2, 18) * 4):
    """Write a dictionary and text for the masked-LM task."""
    save_dictionary(folder)
    write_split(folder, "valid", [sentence(length, i) for i, length in enumerate(lengths)])


def save_model(
    path, *, arch="roberta", seed=0, heads=(), task=None, criterion="masked_lm", **options
):
    """Save a random model, far from uniform, as fairseq's trainer does.

    ``heads``: (name, classes) of its classification heads; ``task``: the task's options.
    """
    torch.manual_seed(seed)
    args = Namespace(arch=arch, **{**SHAPE, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    words = dictionary()
    words.add_symbol("<mask>")
    given = Namespace(source_dictionary=words, target_dictionary=words)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, given)
    for name, classes in heads:
        model.register_classification_head(name, num_classes=classes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    task = task or {"_name": "masked_lm", "data": "elsewhere"}
    path.parent.mkdir(parents=True, exist_ok=True)
    common, criterion = {"tpu": False, "seed": 1}, {"_name": criterion}
    return save_state(path, model, args, task, common=common, criterion=criterion)
