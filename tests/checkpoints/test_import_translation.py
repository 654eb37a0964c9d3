"""A Marian of Hugging Face as a fairseq checkpoint: the same log-probabilities, hypotheses, translations.

The weights are random, because published ones are not at hand; no trainable weight is zero.
"""

import itertools
import json
import re
import shlex

import helpers
import pytest
import sentencepiece
import torch
import toy
from fairseq.sequence_generator import SequenceGenerator
from hugging_face import edited
from marian import CASES, SMALL, TEXT, batches, expected, load, make, numbers, padding_before
from oracles import transformers_module
from safetensors.torch import load_file, save_file

from fairseq_floater.checkpoints.import_translation import import_translation
from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.checkpoints.warm_start import warm_start
from fairseq_floater.cli import main

TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def subwords(tmp_path_factory):
    path = tmp_path_factory.mktemp("subwords") / "spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_prefix=path, vocab_size=34, minloglevel=2
    )
    return path.with_suffix(".model")


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory, subwords):
    """A Marian, the folder of it and its import, and the import's model and dictionaries."""
    folder = tmp_path_factory.mktemp("marian")
    changes, end = CASES[request.param]
    model = make(folder / "hf", subwords, end, **changes)
    import_translation(folder / "hf", folder / "out")
    return model, folder, *load(folder / "out" / "checkpoint.pt")


@pytest.mark.parametrize(
    "of", [helpers.log_probs, helpers.stepwise_log_probs], ids=["all", "steps"]
)
def test_log_probabilities_are_those_of_transformers(pair, of):
    model, folder, ours, dictionaries = pair
    source, target = batches(model)
    theirs = expected(model, source, target)
    assert theirs.max() - theirs.min() > 5  # large enough for the comparison to mean something
    of_source, of_target = numbers(folder, dictionaries)
    target = of_target[target]
    target[:, 0] = helpers.EOS  # fairseq's first token
    for batch in (of_source[source], padding_before(of_source[source])):
        found = of(ours, batch, target)
        assert helpers.difference(found[..., of_target], theirs) <= TOLERANCE
        assert found[..., dictionaries[1].bos()].max() < -90  # Marian has no <s>


def search(model, dictionary, source, beam):
    """The best hypotheses that fairseq finds."""
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(helpers.PAD).sum(1)}}
    generator = SequenceGenerator([model], dictionary, beam_size=beam, max_len_b=28, min_len=0)
    return [best[0]["tokens"] for best in generator.generate([model], sample)]


@pytest.mark.parametrize("beam", [1, 4])
def test_hypotheses_are_those_of_transformers(pair, beam):
    model, folder, ours, dictionaries = pair
    source, _ = batches(model)
    pad = model.config.pad_token_id
    how = {"num_beams": beam, "bad_words_ids": [[pad]], "do_sample": False, "max_length": 30}
    mask = source.ne(pad).long()
    with torch.no_grad():
        theirs = model.generate(source, attention_mask=mask, early_stopping=beam > 1, **how)
    of_source, of_target = numbers(folder, dictionaries)
    found = search(ours, dictionaries[1], padding_before(of_source[source]), beam)
    if beam > 1:  # at the limit transformers gives </s> the log-probability 0
        assert max(map(len, found)) < 28
    for row, hypothesis in zip(theirs, found):
        assert of_target[row[1:]][: len(hypothesis)].tolist() == hypothesis.tolist()
        assert set(row[1 + len(hypothesis) :].tolist()) <= {pad}


@pytest.mark.parametrize("pair", ["small"], indirect=True)
def test_an_import_starts_a_model_with_positions(pair, tmp_path):
    _, folder, ours, dictionaries = pair
    donor, start = folder / "out" / "checkpoint.pt", tmp_path / "start.pt"
    sources, targets = helpers.source_batch(), helpers.target_batch()
    how = {"arch": "floater_marian", "data": str(folder / "out"), "force": True}
    for words, same in (("floater --floater-init-scale 0", True), ("rope", False)):
        options = ["--position-encoder", *words.split()]
        report = warm_start(donor, start, model_options=options, **how)
        models = (ours, load(start)[0])
        difference = helpers.difference(*(helpers.log_probs(m, sources, targets) for m in models))
        first, second = (
            [h.tolist() for h in search(m, dictionaries[1], sources, 4)] for m in models
        )
        for found in (difference, report.difference):
            assert found <= helpers.TOLERANCE if same else found > 0.1
        assert (first == second) == same
        tables = [name for name in report.ignored if name.endswith("embed_positions.weight")]
        assert len(tables) == (0 if same else 2)
    assert load(start)[1] == dictionaries
    with pytest.raises(CheckpointError, match="--output-bias is True"):
        warm_start(donor, start, **{**how, "arch": "floater_transformer"})


def command(text, tool):
    """Return the arguments of a command that the import prints."""
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    words = shlex.split(next(line for line in lines if line.startswith(tool)))[1:]
    if "--user-dir" in words:
        place = words.index("--user-dir")
        assert words[place + 1] == "$(floater user-dir)"
        del words[place : place + 2]
    return words


def test_the_printed_commands_translate_and_convert(tmp_path, subwords, capsys, monkeypatch):
    """Translate raw text as transformers does, then train the converted model."""
    model = make(tmp_path / "hf", subwords, **SMALL)
    monkeypatch.chdir(tmp_path)
    assert main(["import-translation", "hf", "out", "--tgt", "fr"]) == 0
    text = capsys.readouterr().out
    files = {"checkpoint.pt", "dict.de.txt", "dict.fr.txt", "source.spm", "target.spm"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files

    tokenizer = transformers_module("marian.tokenization_marian").MarianTokenizer(
        *(str(tmp_path / "hf" / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    inputs = tokenizer(TEXT, return_tensors="pt", padding=True)
    unwanted = [[model.config.pad_token_id]]
    rows = model.generate(**inputs, num_beams=4, early_stopping=True, bad_words_ids=unwanted)
    words = [*command(text, "fairseq-interactive"), "--min-len", 0, "--cpu"]
    log = toy.fairseq("interactive", *words, stdin="\n".join(TEXT) + "\n").stdout
    found = re.findall(r"^D-\d+\t\S+\t(.*)$", log, re.MULTILINE)
    assert found == tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert len(set(found)) > 1 and all(found)

    assert main(command(text, "floater warm-start")) == 0
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(subwords))
    for split, lang in itertools.product(("train", "valid"), ("de", "fr")):
        lines = (" ".join(pieces.encode(line, out_type=str)) for line in TEXT * 3)
        (tmp_path / f"{split}.{lang}").write_text("\n".join(lines) + "\n")
    words = ["-s", "de", "-t", "fr", "--srcdict", "out/dict.de.txt", "--tgtdict", "out/dict.fr.txt"]
    toy.fairseq(
        "preprocess", *words, "--trainpref", "train", "--validpref", "valid", "--destdir", "DATA"
    )
    words = command(text, "fairseq-train")[:-1]  # without the dots
    words += ["--optimizer", "adam", "--lr", "1e-4", "--max-tokens", 99, "--max-epoch", 2, "--cpu"]
    log = toy.fairseq("train", *words, "--save-dir", "run").stdout
    assert "loading pretrained model" in log
    assert load("run/checkpoint_last.pt")[0].decoder.positions.name == "rope"


def test_other_forms_of_a_folder(tmp_path, subwords):
    """Weights of 2020 as a .bin with tables and lm_head; <s> among the words."""
    model = make(tmp_path / "hf", subwords, **SMALL)
    (tmp_path / "hf" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "hf" / "pytorch_model.bin")
    path = tmp_path / "hf" / "vocab.json"
    path.write_text(path.read_text().replace('"w7"', '"<s>"'))
    report = import_translation(tmp_path / "hf", tmp_path / "out")
    assert len(report.ignored) == 2 and report.entries == (model.config.vocab_size,) * 2
    ours, dictionaries = load(tmp_path / "out" / "checkpoint.pt")
    source, target = batches(model)
    order, _ = numbers(tmp_path, dictionaries)
    given = torch.cat([torch.full((3, 1), helpers.EOS), order[target[:, 1:]]], dim=1)
    found = helpers.log_probs(ours, order[source], given)[..., order]
    assert helpers.difference(found, expected(model, source, target)) <= TOLERANCE


def other_tables(folder):
    path = folder / "model.safetensors"
    rows = {"model.encoder.embed_positions.weight": torch.ones(512, 32)}
    save_file(load_file(path) | rows, path)


def other_target_words(folder):
    edited("tokenizer_config.json", target_lang="de")(folder)
    words = json.loads((folder / "vocab.json").read_text())
    words["w1"], words["w2"] = words["w2"], words["w1"]
    (folder / "target_vocab.json").write_text(json.dumps(words))


BAD = {
    "size": (edited("config.json", d_model=None), "config.json: the content, `d_model` must be"),
    "target vocabulary": (
        edited("config.json", share_encoder_decoder_embeddings=False),
        "There is no hf/target_vocab.json",
    ),
    "one language": (other_target_words, "`--src` and `--tgt` must differ"),
    "positions": (other_tables, "embed_positions.weight must be Marian's sinusoid"),
    "another model": (edited("config.json", model_type="bart"), "`model_type` must be marian"),
    "activation": (edited("config.json", activation_function="tanh"), "`activation_function` must"),
    "start": (edited("config.json", decoder_start_token_id=0), "decoder_start_token_id, pad_"),
    "blocks": (edited("config.json", encoder_layers=3), "encoder.layers.2.self_attn.k_proj.weight"),
    "no subwords": (lambda folder: (folder / "target.spm").unlink(), "There is no hf/target.spm"),
    "languages": (lambda folder: (folder / "tokenizer_config.json").unlink(), "must be given"),
    "numbers": (edited("vocab.json", **{"<unk>": 0, "</s>": 1}), "contradicts itself"),
    "vocabulary": (edited("vocab.json", more=114), "has 114 tokens, but the model"),
    "there already": (lambda folder: (folder.parent / "out").mkdir(), "out/dict.en.txt exists"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_imported_is_refused(case, tmp_path, subwords, capsys, monkeypatch):
    make(tmp_path / "hf", subwords, **SMALL)
    change, message = BAD[case]
    change(tmp_path / "hf")
    if case == "there already":
        (tmp_path / "out" / "dict.en.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["import-translation", "hf", "out"]) in (1, 2)
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error and error.endswith(".")
    assert sorted(tmp_path.rglob("*")) == before
