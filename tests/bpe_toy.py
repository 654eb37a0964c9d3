"""A small byte-level BPE in GPT-2's file format, for tests that do not have GPT-2's own files."""

import json

import tokenizers

TEXT = """The third of four is three, isn't it? They've said: "we'll see", and I'm sure he'd agree.
Seven and eight and nine are fifteen and nine; the smaller number comes before the larger one."""


def write_gpt2(folder, merges=80):
    """Write encoder.json and vocab.bpe into a new folder; return the folder."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = byte_level(add_prefix_space=False)
    alphabet = sorted(byte_level.alphabet())
    size = len(alphabet) + merges
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False
    )
    learned.train_from_iterator([TEXT], trainer)
    model = json.loads(learned.to_str())["model"]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    folder.mkdir(parents=True)
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs), ""]
    (folder / "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
    return folder
