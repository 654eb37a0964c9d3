"""Register the task: questions about passages, answered by a span or, in SQuAD 2.0, by nothing."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models.roberta import RobertaModel
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING, OmegaConf, open_dict

from fairseq_floater.transformer.question_answering.head import add_head
from fairseq_floater.transformer.question_answering.windows import (
    SYMBOLS,
    QuestionWindows,
    WindowSizes,
    read_questions,
)

TASK = "floater_question_answering"


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


# fairseq reads the types of the fields, so this file must not turn annotations into strings.
@dataclass
class QuestionAnsweringConfig(FairseqDataclass):
    """Declare the options; the defaults are RoBERTa's for SQuAD."""

    data: str = _option(MISSING, "folder of `floater squad prepare`")
    max_positions: int = _option(512, "positions of the model")
    window_tokens: int = _option(
        0, "tokens of `<s> question </s> </s> window </s>`; 0: as many as --max-positions"
    )
    question_tokens: int = _option(128, "longer questions are cut to these many tokens")
    window_stride: int = _option(128, "tokens from a window to the next one")
    answer_tokens: int = _option(30, "tokens of the longest answer that is considered")
    seed: int = II("common.seed")


@register_task(TASK, dataclass=QuestionAnsweringConfig)
class QuestionAnsweringTask(FairseqTask):
    """Read prepared SQuAD; ``is_v2``: it is version 2.0, whose questions may have no answer."""

    def __init__(self, cfg: Any, dictionary: Dictionary, is_v2: bool) -> None:
        super().__init__(cfg)
        self.dictionary, self.is_v2 = dictionary, is_v2
        self.sizes = _sizes(cfg)

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "QuestionAnsweringTask":
        """Read the dictionary and SQuAD's version.

        Raises:
            ValueError: the folder was not made by ``floater squad prepare``, or the options leave no
                room for a passage.
        """
        folder = Path(cfg.data)
        try:
            version = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, TypeError, KeyError):
            raise ValueError(
                f"`data` must be a folder of `floater squad prepare`, but {folder} has no summary.json "
                "with SQuAD's version."
            ) from None
        dictionary = Dictionary.load(str(folder / "dict.txt"))
        dictionary.add_symbol("<mask>")  # as in the masked-LM task, after the words
        return cls(cfg, dictionary, version == "2.0")

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> QuestionWindows:
        """Load a split; the windows of train come in random order."""
        path = Path(self.cfg.data) / f"{split}.jsonl"
        if not path.is_file():
            raise FileNotFoundError(f"Dataset not found: {split} ({path})")
        questions = read_questions(path, self.dictionary)
        seed = self.cfg.seed if split == "train" else None
        self.datasets[split] = QuestionWindows(questions, self.dictionary, self.sizes, seed)
        return self.datasets[split]

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> RobertaModel:
        """Build a RoBERTa model with the head for questions.

        Raises:
            ValueError: the model is not a RoBERTa, or takes fewer tokens than a window has.
        """
        with open_dict(cfg) if OmegaConf.is_config(cfg) else contextlib.nullcontext():
            cfg.max_positions = self.cfg.max_positions  # as fairseq's sentence_prediction does
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, RobertaModel):
            kind = type(model).__name__
            raise ValueError(
                f"`--arch` must be a RoBERTa for --task {TASK}, but is {kind} instead."
            )
        if model.max_positions() < self.sizes.input:
            raise ValueError(
                f"`--window-tokens` must be at most the model's {model.max_positions()} positions, but "
                f"is {self.sizes.input} instead."
            )
        add_head(model)
        return model

    def max_positions(self) -> int:
        return self.sizes.input

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary


def _sizes(cfg: Any) -> WindowSizes:
    """Return the sizes of windows; raise ValueError if they cannot work."""
    tokens = cfg.window_tokens or cfg.max_positions
    sizes = WindowSizes(tokens, cfg.question_tokens, cfg.window_stride)
    for name, value in (
        ("question-tokens", sizes.question),
        ("window-stride", sizes.stride),
        ("answer-tokens", cfg.answer_tokens),
    ):
        if value < 1:
            raise ValueError(f"`--{name}` must be at least 1, but is {value} instead.")
    if sizes.input <= sizes.question + SYMBOLS:
        raise ValueError(
            f"`--window-tokens` (or `--max-positions`) must be above {sizes.question + SYMBOLS}, a "
            f"question of --question-tokens and {SYMBOLS} symbols, but is {sizes.input} instead."
        )
    return sizes
