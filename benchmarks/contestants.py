"""Build the models that are compared, as fairseq-train and fairseq-generate would."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from benchmarks.batches import Batch
from benchmarks.settings import Settings
from fairseq_floater.errors import UsageError, UserError, parsed
from fairseq_floater.position_encoders.shared_options import FLOAT32
from fairseq_floater.transformer import translation as _architectures  # noqa: F401  registers ours
from fairseq_floater.transformer.shapes import ARCHITECTURES

BASELINE = "fairseq"
# Options of the contestants if the user gives no option of an encoder.
DEFAULT_CONTESTANTS = {"floater": (), "floater K=8": ("--floater-update-interval", "8")}
# The paper's protocol (configs/wmt14_en_de_base.yaml) except for the learning rate: training must not
# change the work, and no parameter may grow.
TRAINING = (
    *("--task", "translation", "--share-all-embeddings"),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "1e-8"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *("--clip-norm", "0.0", "--weight-decay", "0.0", "--distributed-world-size", "1"),
)
# The baseline does not get this option, because it has no other positions.
NO_BASE = "--no-token-positional-embeddings"
# From here to update 999 the engine `auto` measures its error only once. Before, it measures at ten
# updates, which hardly count in a whole training.
FIRST_UPDATE = 512


@dataclass(frozen=True)
class Contestant:
    """A model to measure: its name, and fairseq-train's configuration of it (a FairseqConfig).

    ``translates_only`` and ``trains_only``: in other parts it equals another contestant.
    """

    name: str
    cfg: Any
    translates_only: bool = False
    trains_only: bool = False

    @property
    def interval(self) -> int:
        """Updates from one solve of the flow to the next; 1 if there is no flow."""
        model = self.cfg.model
        if getattr(model, "position_encoder", None) != "floater":
            return 1
        return int(model.floater_update_interval)


def contestants(settings: Settings, save_dir: str) -> list[Contestant]:
    """Return the baseline, followed by the models that are compared with it.

    Each of ``encoders`` makes a contestant, with all options, instead of the default ones. Without
    ``encoders``, options of a position encoder make one contestant. Other options of the model are given
    to all, the baseline included.

    Args:
        settings: ``encoders`` and ``model_options`` among them.
        save_dir: where fairseq's trainer may write, which it does when an update fails.

    Raises:
        UsageError: an option that fairseq-train refuses.
    """
    shared_options = [word for word in settings.model_options if word != NO_BASE]
    baseline, model_options = _configuration(
        ARCHITECTURES[settings.arch], shared_options, settings, save_dir
    )
    if NO_BASE in settings.model_options:
        model_options.append(NO_BASE)
    variants: Mapping[str, Sequence[str]] = DEFAULT_CONTESTANTS
    if settings.encoders:
        variants = {name: ("--position-encoder", name) for name in settings.encoders}
    elif model_options:
        variants = {" ".join(word.removeprefix("--") for word in model_options): ()}
    compared = [Contestant(BASELINE, baseline)]
    for name, options in variants.items():
        given = [*settings.model_options, *options]
        cfg, unknown = _configuration(settings.arch, given, settings, save_dir)
        if unknown:
            raise UsageError(f"`{unknown[0]}` is not an option of the model.")
        trains_only = variants is DEFAULT_CONTESTANTS and bool(options)
        compared.append(Contestant(name, cfg, trains_only=trains_only))
        for weights in settings.decoding_weights:
            if weights != FLOAT32 and not trains_only:
                others = [*given, "--decoding-weights", weights]
                cfg, _ = _configuration(settings.arch, others, settings, save_dir)
                compared.append(Contestant(f"{name} {weights}", cfg, translates_only=True))
    return compared


def trainer(contestant: Contestant, dictionary: Dictionary) -> Trainer:
    """Build fairseq's trainer with a fresh model, at the first solve from :data:`FIRST_UPDATE` on."""
    cfg = contestant.cfg
    task = TranslationTask(cfg.task, dictionary, dictionary)
    model, criterion = fresh_model(contestant, task), task.build_criterion(cfg.criterion)
    built = Trainer(cfg, task, model, criterion)
    built.set_num_updates(math.ceil(FIRST_UPDATE / contestant.interval) * contestant.interval)
    return built


def update(trained: Trainer, batch: Batch, name: str) -> None:
    """Do one update; raises UserError if fairseq skipped it."""
    before = trained.get_num_updates()
    trained.train_step([batch])
    if trained.get_num_updates() == before:
        raise UserError(
            f"fairseq skipped an update of {name} (out of memory, or an overflow in float16): take "
            "fewer `--tokens` or another `--dtype`."
        )


class Translator:
    """A model as fairseq-generate has it, ready to translate batches."""

    def __init__(self, contestant: Contestant, dictionary: Dictionary, settings: Settings):
        cfg = contestant.cfg
        self.name, self.settings, self.dictionary = contestant.name, settings, dictionary
        self.task = TranslationTask(cfg.task, dictionary, dictionary)
        self.model = fresh_model(contestant, self.task)
        self.model.to(device=settings.device, dtype=getattr(torch, settings.dtype))
        self.model.prepare_for_inference_(cfg)
        self.generator = self.task.build_generator([self.model], cfg.generation)

    def translate(self, batch: Batch) -> None:
        """Translate, and check that every hypothesis took exactly ``settings.steps`` steps."""
        by_sentence = self.task.inference_step(self.generator, [self.model], batch)
        steps = {len(one["tokens"]) for hypotheses in by_sentence for one in hypotheses}
        if steps != {self.settings.steps}:
            raise UserError(
                f"{self.name} made hypotheses of {sorted(steps)} tokens, but all must have "
                f"{self.settings.steps}: its scores are not finite in {self.settings.dtype}."
            )


class Stepper(Translator):
    """Decode one sentence with its beam step by step; the next tokens are given, not searched."""

    def __init__(self, contestant: Contestant, dictionary: Dictionary, settings: Settings):
        super().__init__(contestant, dictionary, settings)
        generator = torch.Generator().manual_seed(settings.seed)
        shape = (settings.beam, settings.most_positions)
        tokens = torch.randint(dictionary.nspecial, len(dictionary), shape, generator=generator)
        tokens[:, 0] = dictionary.eos()
        self.tokens, self.taken = tokens.to(settings.device), 0
        self.state: list[dict[str, Any]] = [{}]
        self._encoded: list[dict[str, Any]] = []

    @torch.no_grad()
    def walk(self, position: int) -> None:
        """Take steps until ``position`` is the next; start again from the first if it is past."""
        if self.taken > position:
            self.state, self.taken = [{}], 0
        while self.taken < position:
            self.step()

    @torch.no_grad()
    def step(self, number: int = 0) -> None:
        """Decode one token of each hypothesis to log-probabilities; ``number`` is ignored."""
        ensemble = self.generator.model
        if not self.taken:
            ensemble.set_decoder_beam_size(self.settings.beam)
            source = self.tokens[:1, 1 : self.settings.length[1] + 1]
            lengths = torch.full((1,), source.size(1), device=source.device)
            encoded = ensemble.forward_encoder({"src_tokens": source, "src_lengths": lengths})
            copies = source.new_zeros(self.settings.beam)
            self._encoded = ensemble.reorder_encoder_out(encoded, copies)
        self.taken += 1
        ensemble.forward_decoder(self.tokens[:, : self.taken], self._encoded, self.state)


def fresh_model(contestant: Contestant, task: TranslationTask) -> Any:
    """Build the contestant's model, its parameters drawn from the seed as in fairseq-train."""
    torch.manual_seed(contestant.cfg.common.seed)
    return task.build_model(contestant.cfg.model)


def _configuration(
    arch: str, options: Sequence[str], settings: Settings, save_dir: str
) -> tuple[Any, list[str]]:
    """Return fairseq's configuration, and the options that its parser does not know."""
    positions = str(settings.most_positions)
    argv = ["no data", "--arch", arch, *TRAINING, "--seed", str(settings.seed)]
    argv += ["--save-dir", save_dir, "--max-tokens", str(settings.tokens)]
    argv += ["--max-source-positions", positions, "--max-target-positions", positions]
    argv += ["--cpu"] if settings.device == "cpu" else []
    argv += ["--fp16"] if settings.dtype == "float16" else []
    args, unknown = parsed(
        fairseq_options.get_training_parser(),
        lambda parser: fairseq_options.parse_args_and_arch(
            parser, [*argv, *options], parse_known=True
        ),
        "fairseq-train refuses the model's options",
    )
    logging.getLogger("hydra").setLevel(logging.WARNING)  # hydra logs how it composes
    cfg = convert_namespace_to_omegaconf(args)
    # On the command line `--bf16` means a TPU. Set here, as Hydra sets it, it trains a GPU in bfloat16.
    cfg.common.bf16 = settings.dtype == "bfloat16"
    generation = cfg.generation
    generation.beam = settings.beam
    # Every hypothesis ends with the last step, and none before.
    generation.max_len_a, generation.max_len_b = 0.0, settings.steps - 1
    generation.min_len = settings.steps - 1
    return cfg, unknown
