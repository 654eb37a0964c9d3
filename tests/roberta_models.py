"""Small RoBERTas for tests, ours and fairseq's, with data that fairseq's own tasks read. Not a test file."""

from argparse import Namespace

import on_device
import torch
import toy as toys
from fairseq import models
from helpers import options_of, randomise_positions, task

from fairseq_floater.transformer.shapes import ROBERTA_SIZES

TINY = "floater_roberta_tiny"
#: the tiny shape by fairseq's option names; fairseq has no such architecture
_SIZES = ("embed_dim", "layers", "attention_heads", "ffn_embed_dim")
SHAPE = {f"encoder_{n}": size for n, size in zip(_SIZES, ROBERTA_SIZES[TINY], strict=True)}
FLAGS = [
    word for name, size in SHAPE.items() for word in ("--" + name.replace("_", "-"), str(size))
]
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.01", "--clip-norm", "1.0", "--cpu", "--num-workers", "0"),
    *("--required-batch-size-multiple", "1", "--seed", "1", "--log-format", "simple"),
    *("--log-interval", "1", "--no-epoch-checkpoints", "--max-update", "12"),
)


def roberta(encoder=None, blocks="all", target=None, arch=TINY, seed=0, **args):
    """Build a model through fairseq's registries; without ``encoder``, ``arch`` decides its positions."""
    if encoder is not None:
        args = options_of(target) | args | {"position_encoder": encoder, "position_blocks": blocks}
    args.setdefault("max_positions", 24)
    torch.manual_seed(seed)
    return models.build_model(Namespace(arch=arch, **args), task()).to(on_device.DEVICE)


def plain(seed=0, **args):
    """fairseq's own RoBERTa of the same shape."""
    return roberta(arch="roberta", seed=seed, **{**SHAPE, **args})


def visible(encoder, blocks="all", target=None, **args):
    """Return a model in eval mode whose positions and attention logits show in its output."""
    model = randomise_positions(roberta(encoder, blocks, target, **args)).eval()
    with torch.no_grad():
        for block in model.encoder.sentence_encoder.layers.children():
            for name in "qkv":  # an untrained RoBERTa attends to all tokens alike
                getattr(block.self_attn, f"{name}_proj").weight.mul_(6)
    return model


@torch.no_grad()
def logits(model, tokens, **how):
    """Return the masked language model's logits: [B, T, V]."""
    return model(tokens, **how)[0]


def make_data(folder):
    """Binarise text for masked_lm (``folder``/mlm) and sentence_prediction (``folder``/glue)."""
    words = [[f"w{i % 7 if k % 4 == 3 else 0}" for k in range(2 + i % 9)] for i in range(32)]
    sentences = [f"<s> {' '.join(of_one)}" for of_one in words]
    texts = {"input0": sentences, "label": [f"l{i % 2}" for i in range(32)]}
    for name, lines in texts.items():
        raw = folder / f"{name}.txt"
        raw.write_text("".join(f"{line}\n" for line in lines))
        words = ["--only-source", "--trainpref", raw, "--validpref", raw, "--workers", "1"]
        if name == "label":
            words += ["--destdir", folder / "glue" / "label"]
        else:
            words += ["--destdir", folder / "glue" / "input0"]
        toys.fairseq("preprocess", *words)
    (folder / "mlm").symlink_to(folder / "glue" / "input0")
    return folder


def train_masked(data, save_dir, *options, **how):
    """Run fairseq-train on masked_lm; later options win."""
    words = [data / "mlm", "--task", "masked_lm", "--criterion", "masked_lm", *TRAINING]
    words += ["--sample-break-mode", "complete", "--tokens-per-sample", "24", "--batch-size", "2"]
    return toys.fairseq("train", *words, "--save-dir", save_dir, *options, **how)


def train_sentences(data, save_dir, *options, **how):
    """Run fairseq-train on sentence_prediction with two classes; later options win."""
    words = [data / "glue", "--task", "sentence_prediction", "--criterion", "sentence_prediction"]
    words += ["--num-classes", "2", "--max-positions", "24", "--batch-size", "8", *TRAINING]
    words += ["--init-token", "0", "--separator-token", "2"]
    return toys.fairseq("train", *words, "--save-dir", save_dir, *options, **how)


def save_as_of_2019(path, own, positions):
    """Save a RoBERTa as in 2019: old names, q, k, v in one tensor, half precision, old file format.

    ``own`` is the state dict of a RoBERTa of the tiny shape with ``positions`` positions.
    """
    state, names = {}, ("q_proj", "k_proj", "v_proj")
    for name, tensor in own.items():
        old = name.replace("encoder.", "decoder.", 1)
        old = old.replace(".layernorm_embedding.", ".emb_layer_norm.")
        if ".q_proj." in name:
            joint = torch.cat([own[name.replace("q_proj", n)] for n in names])
            state[old.replace("q_proj.", "in_proj_")] = joint.half()
        elif not name.endswith("version") and not any(f".{n}." in name for n in names):
            state[old] = tensor.half()
    args = Namespace(
        arch="roberta", task="masked_lm", **SHAPE, max_positions=positions, dropout=0.1
    )
    args.activation_fn, args.tokens_per_sample = "gelu", positions
    torch.save({"args": args, "model": state}, path, _use_new_zipfile_serialization=False)
    return path
