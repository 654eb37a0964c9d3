"""Marians with random weights, made with transformers, and their outputs. Not a test file."""

import itertools
import json

import helpers
import sentencepiece
import torch
from fairseq import checkpoint_utils
from oracles import transformers_module

# The shape of opus-mt-en-de, without its 58,101 words; CASES lists changes of it.
OPUS = {
    **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
       {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}.items()},
    **{"d_model": 512, "activation_function": "swish", "scale_embedding": True},
    **{"max_position_embeddings": 512, "eos_token_id": 0, "forced_eos_token_id": 0},
}  # fmt: skip
SMALL = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 2048},
}
APART = {**SMALL, "share_encoder_decoder_embeddings": False}
# name: (changes of OPUS, bias of </s>). With this bias hypotheses end, but not all at once.
CASES = {
    "opus-mt": ({}, 4),
    "small": (SMALL, 2),
    "two vocabularies": ({**APART, "dropout": 0.3}, 3.5),
    "relu, not scaled": ({**SMALL, "activation_function": "relu", "scale_embedding": False}, 3),
    "not tied": ({**APART, "tie_word_embeddings": False}, 2.5),
}
TEXT = ["zwei kleine Frösche sitzen am Teich", "ein Frosch", "am Abend singen sie zwei Lieder"]


def make(folder, subwords, end=2, **changes):
    """Return a Marian with random weights; write its files into ``folder`` as a published model has them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(subwords))
    # As in published vocabularies, some pieces are missing and languages are among the words.
    words = [pieces.id_to_piece(i) for i in range(3, 32)] + [
        ">>deu<<",
        *(f"w{i}" for i in range(80)),
    ]
    vocabulary = {"</s>": 0, "<unk>": 1, **{w: i for i, w in enumerate([*words, "<pad>"], 2)}}
    pad = len(vocabulary) - 1
    config = transformers_module("marian.configuration_marian").MarianConfig(
        **{**OPUS, "vocab_size": pad + 1, "pad_token_id": pad, "decoder_start_token_id": pad, **changes}
    )  # fmt: skip
    torch.manual_seed(2)
    model = transformers_module("marian.modeling_marian").MarianMTModel(config).eval()
    size = 0.8 * config.d_model**-0.5
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_positions" not in name:
                tensor.add_(size * torch.randn(tensor.shape))
        bias = torch.randn(pad + 1)
        bias[0] = end
        model.final_logits_bias.copy_(bias)
    model.save_pretrained(folder)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(subwords.read_bytes())
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    if not config.share_encoder_decoder_embeddings:  # another order of the words
        words = dict(zip([*words[5:], *words[:5]], itertools.count(2)))
        (folder / "target_vocab.json").write_text(json.dumps({**vocabulary, **words}))
    (folder / "tokenizer_config.json").write_text('{"source_lang": "de", "target_lang": "en"}')
    return model


def load(path):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    return models[0].eval(), (task.source_dictionary, task.target_dictionary)


def numbers(folder, dictionaries):
    """Yield, for source and target, fairseq's id of each of Hugging Face's tokens."""
    names = [folder / "hf" / name for name in ("vocab.json", "target_vocab.json")]
    names = [name if name.exists() else names[0] for name in names]
    for path, dictionary in zip(names, dictionaries):
        tokens = json.loads(path.read_text())
        yield torch.tensor([dictionary.index(t) for t in sorted(tokens, key=tokens.get)])


def batches(model, lengths=(9, 3, 6)):
    """Return sources, padded on the right, and the decoder's inputs, in Hugging Face's ids."""
    generator = torch.Generator().manual_seed(7)
    pad = model.config.pad_token_id
    source, target = torch.full((2, len(lengths), max(lengths)), pad)
    for n, length in enumerate(lengths):
        source[n, :length] = torch.randint(1, pad, (length,), generator=generator)
        source[n, length - 1] = 0
        target[n, 1:] = torch.randint(1, pad, (max(lengths) - 1,), generator=generator)
    return source, target


def padding_before(source):
    """Pad sentences on the left, as fairseq does."""
    return torch.stack([row.roll(int(row.eq(helpers.PAD).sum())) for row in source])


@torch.no_grad()
def expected(model, source, target):
    mask = source.ne(model.config.pad_token_id).long()
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    return torch.log_softmax(logits, -1)
