"""Add the verbs of checkpoints: import-*, warm-start, average, position-loss, predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_floater.checkpoints.averaging import average
from fairseq_floater.checkpoints.donor import LAST, TILE
from fairseq_floater.checkpoints.import_roberta import import_roberta
from fairseq_floater.checkpoints.import_translation import import_translation
from fairseq_floater.checkpoints.position_loss import position_loss
from fairseq_floater.checkpoints.predicted_text import BREAK_MODES, MASKINGS
from fairseq_floater.checkpoints.predictions import BENCHMARKS, predict
from fairseq_floater.checkpoints.warm_start import WarmStartReport, warm_start
from fairseq_floater.errors import UsageError
from fairseq_floater.verbs import add_verb, positive, positives


def add_warm_start(verbs: Any) -> None:
    def run(donor: str, model_options: Sequence[str], **options: Any) -> WarmStartReport:
        if model_options and not Path(donor).exists():
            hint = "options of the model must come after DONOR and OUT"
            raise UsageError(f"There is no checkpoint {donor}; {hint}.")
        return warm_start(donor, model_options=model_options, **options)

    parser = add_verb(
        verbs,
        "warm-start",
        "floater warm-start donor/checkpoint_best.pt start.pt --arch floater_transformer \\\n"
        "    --data data/bin --position-blocks all\n"
        "  fairseq-train ... --finetune-from-model start.pt\n"
        "any option of the model (--position-encoder, --floater-delta, ...) may follow",
        run,
        unknown="model_options",
    )
    add = parser.add_argument
    text = "checkpoint of a Transformer or RoBERTa: fairseq's own, or one of this package"
    add("donor", metavar="DONOR", help=text)
    add("output", metavar="OUT", help="checkpoint to write")
    text = "architecture of the new model: the donor's with floater_ before it"
    add("--arch", required=True, help=text)
    add("--data", metavar="DIR", help="binarised data with the donor dictionaries")
    text = (
        "learned: rows that start as the donor's positions (default: longest training "
        "sentence of --data, else all rows)"
    )
    add("--trained-length", type=positive, metavar="N", help=text)
    text = (
        "RoBERTa: how to fill the donor's table up to --max-positions: repeat all its rows "
        "(tile) or the last one"
    )
    add("--extend", choices=(TILE, LAST), help=text)
    add("--seed", type=int, default=1, help="seed of new parameters (1)")
    add("--force", action="store_true", help="overwrite OUT")


def add_import_roberta(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "import-roberta",
        "floater import-roberta roberta-base donor/roberta.pt --encoder-json gpt2_bpe/encoder.json\n"
        "  fairseq-train ... --arch roberta_base --finetune-from-model donor/roberta.pt",
        import_roberta,
    )
    add = parser.add_argument
    text = (
        "folder with config.json, model.safetensors or pytorch_model.bin, and vocab.json "
        "(RoBERTa) or vocab.txt (BERT); or fairseq's model.pt, with dict.txt beside it"
    )
    add("source", type=Path, metavar="HF_DIR", help=text)
    add("output", type=Path, metavar="OUT", help="checkpoint to write; dict.txt comes beside it")
    text = "GPT-2's encoder.json; its numbers make up RoBERTa's dictionary (HF_DIR's)"
    add("--encoder-json", type=Path, metavar="FILE", help=text)
    text = "seed of a masked-LM head that the source does not have (default: 1)"
    add("--seed", type=int, default=1, help=text)
    add("--force", action="store_true", help="overwrite OUT and its dict.txt")


def add_import_translation(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "import-translation",
        "floater import-translation opus-mt-en-de marian",
        import_translation,
        details="The result says how to translate with it, and how to convert it to RoPE or FLOATER.",
    )
    add = parser.add_argument
    text = (
        "folder with config.json, model.safetensors or pytorch_model.bin, vocab.json, "
        "target_vocab.json if the model has two vocabularies, source.spm and target.spm"
    )
    add("source", type=Path, metavar="HF_DIR", help=text)
    text = "folder to write: checkpoint.pt, dict.SRC.txt, dict.TGT.txt, source.spm, target.spm"
    add("output", type=Path, metavar="OUT", help=text)
    add("--src", metavar="SRC", help="source language (default: HF_DIR's, if it says)")
    add("--tgt", metavar="TGT", help="target language")
    add("--force", action="store_true", help="overwrite these files in OUT")


def add_average(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "average",
        "floater average --inputs checkpoints --last 5 --output average.pt",
        average,
    )
    add = parser.add_argument
    text = "a folder of checkpoints, or the checkpoints"
    add("--inputs", nargs="+", required=True, metavar="DIR_OR_FILE", help=text)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--last", type=positive, metavar="N", help="the N latest")
    choice.add_argument("--best", type=positive, metavar="N", help="the N best on validation")
    add("--updates", action="store_true", help="take checkpoint_<epoch>_<updates>.pt, not epochs")
    add("--output", required=True, metavar="FILE", help="checkpoint to write")
    add("--force", action="store_true", help="overwrite the output")


def add_position_loss(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "position-loss",
        "floater position-loss run/average.pt data/bin --split test --bins 24,36,48\n"
        "  floater position-loss lm/checkpoint_best.pt data/lm --bins 128,256,512\n"
        "  floater position-loss flow/checkpoint_best.pt data/mlm --bins 32,64,92,120\n"
        "models with the same dictionary get the same sentences, or blocks with the same tokens masked",
        position_loss,
    )
    add = parser.add_argument
    text = "a translation model, a language model or a RoBERTa"
    add("checkpoint", type=Path, metavar="CHECKPOINT", help=text)
    add("data", type=Path, metavar="DATA", help="binarised text with its dictionaries")
    text = "ends of the bins of token positions: 32,64 is tokens 0-31 and 32-63; the last row is all tokens"
    add("--bins", type=positives, required=True, metavar="N,N", help=text)
    add("--split", default="valid", metavar="NAME", help="of DATA (valid)")
    text = "sentences or blocks in a batch (32)"
    add("--batch-size", type=positive, default=32, metavar="N", help=text)
    text = "change positions, as the model's option of this name does"
    add("--position-eval", metavar="SPEC", help=text)
    add = parser.add_argument_group("for a language model or a RoBERTa").add_argument
    text = "longest block in tokens (the last of --bins)"
    add("--tokens-per-sample", type=positive, metavar="N", help=text)
    text = "how lines are put into blocks, as in fairseq-train (RoBERTa: complete; language model: none)"
    add("--sample-break-mode", choices=BREAK_MODES, help=text)
    add = parser.add_argument_group("for a RoBERTa").add_argument
    add("--seed", type=int, default=1, help="seed of the masks (1)")
    text = "bert: 80 %% of the chosen tokens become <mask>, 10 %% a random word, 10 %% stay; mask: all <mask>"
    add("--masking", choices=tuple(MASKINGS), default="bert", help=text)


def add_predict(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "predict",
        "floater predict checkpoints/checkpoint_best.pt data/rte rte.tsv --task glue\n"
        "  floater glue score RTE rte.tsv --references data/rte/references.valid.tsv",
        predict,
    )
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="checkpoint of a fine-tuned model")
    add("data", type=Path, metavar="DATA", help="folder of glue, race or squad prepare")
    text = "GLUE: lines `index<TAB>prediction`; RACE, SQuAD: JSON {question: answer}; SQuAD 2.0 "
    text += "also writes OUT with .na.json beside it: probabilities of no answer"
    add("output", type=Path, metavar="OUT", help=text)
    add("--task", choices=tuple(BENCHMARKS), required=True)
    add("--split", default="valid", metavar="NAME", help="of DATA (valid)")
    text = "examples in a batch, for GLUE and RACE (32)"
    add("--batch-size", type=positive, default=32, metavar="N", help=text)
