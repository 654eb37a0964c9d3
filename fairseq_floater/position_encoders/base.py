"""Define what every kind of position encoder has: options, and a part in each block.

Letters: N positions, L blocks that receive positions, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from fairseq_floater.position_encoders.eval_law import EvalLaw
from fairseq_floater.position_encoders.kept_table import KeptTable
from fairseq_floater.position_encoders.options import ADD, MULTIPLY, Option

#: ``EncoderSpec.streams`` of an encoder that acts inside cross-attention.
CROSS_STREAMS = ("cross",)


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """Say where an encoder stands in a model, and its options.

    Attributes:
        dim: C.
        chosen: the numbers that ``--position-blocks`` names; None: all.
        target: ``--position-target``, one of the encoder's ``targets``.
        side: ``source`` or ``target``: whose tokens are counted.
        max_positions: rows of a table of fixed length (``--max-source/target-positions``).
        padding_idx: of the dictionary; fairseq's sinusoid is offset by it.
        base: whether fairseq's ``embed_positions`` stands underneath.
        options: the encoder's, by ``dest``.
        streams: what a signal is added to, see ``signal.py``; :data:`CROSS_STREAMS`: the encoder acts in
            cross-attention, on the distances between target and source tokens.
        combine: ``--position-combine``: how a signal enters a block's input.
        heads: of self-attention.
        blocks: the numbers under which the blocks of the stack were trained.
        vocabulary: V, the words of the dictionary, special ones included.
        length_option: what sets ``max_positions``; empty: the option of the side.
        fills_length: input is as a rule as long as ``max_positions``, as pieces of running text are, and
            not much shorter, as sentences are.
        eval_law: what evaluation changes.
    """

    dim: int
    target: str
    side: str
    max_positions: int
    padding_idx: int
    base: bool
    options: dict[str, Any] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    combine: str = ADD
    heads: int = 1
    blocks: Sequence[int] = range(1)
    chosen: tuple[int, ...] | None = None
    vocabulary: int = 1
    length_option: str = ""
    fills_length: bool = False
    eval_law: EvalLaw | None = None

    @property
    def input_alone(self) -> bool:
        return self.chosen == (0,)

    def receives(self, number: int) -> bool:
        """Return whether block ``number`` gets positions."""
        return self.chosen is None or number in self.chosen

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def causal(self) -> bool:
        """Return whether no key comes after its query, as in a decoder's self-attention."""
        return self.side == "target"

    @property
    def crosses(self) -> bool:
        """Return whether keys are source tokens and queries target tokens."""
        return self.streams == CROSS_STREAMS

    @property
    def usual_length(self) -> int:
        """Return the tokens that input has as a rule; 0 where nothing is known of it."""
        return self.max_positions if self.fills_length else 0

    @property
    def neutral(self) -> float:
        """Return the entry of a row that leaves a block's input as it is."""
        return 1.0 if self.combine == MULTIPLY else 0.0


def check_pairs(name: str, channels: int, whose: str, spec: EncoderSpec) -> None:
    """Raise ValueError unless the ``channels`` of ``whose`` form pairs, as a sine and a cosine do."""
    if channels % 2:
        raise ValueError(
            f"--position-encoder {name} needs an even number of channels, but {whose} has {channels}; "
            f"change the heads or the width of the {spec.side} side."
        )


class BlockPositions(nn.Module):
    """Hold one block's part of an encoder: here nothing but the number of the block."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__()
        self.block_index = block_index


class PositionEncoder(KeptTable):
    """Base of all encoders: direct subclasses say where a table enters the model, theirs what it holds."""

    name: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    #: Values of ``--position-target`` that the encoder allows; the first is the default.
    targets: ClassVar[tuple[str, ...]]
    #: What becomes of fairseq's ``embed_positions`` underneath, unless an option says so: it is kept,
    #: or replaced, or the encoder is that base itself.
    base: ClassVar[str] = "kept"
    #: Rows may enter a block's input by ``--position-combine``.
    combines: ClassVar[bool] = False
    #: Table 1 of the paper.
    inductive: ClassVar[bool] = True
    data_driven: ClassVar[bool] = True
    parameter_efficient: ClassVar[bool] = True
    #: Where it acts by default, in words; None: nowhere.
    acts_on: ClassVar[str | None] = "input of blocks"
    #: A table of rows is computed, and kept in evaluation.
    tabulated: ClassVar[bool] = True
    #: There are positions between two tokens, which training needs to move them (`warp_law.py`).
    continuous: ClassVar[bool] = False
    #: Its table is a sinusoid or a rotation, whose frequencies ``--position-eval`` may change.
    has_frequencies: ClassVar[bool] = False
    #: Its table has rows before position 0.
    before_start: ClassVar[bool] = False
    #: Parameters, of the encoder or of its parts, that take it out of the model where they are zero.
    silent_at_zero: tuple[str, ...] = ()
    #: It can act inside cross-attention, by the distances between target and source tokens.
    can_cross: ClassVar[bool] = False
    #: It adds to attention's logits, scales them or reads its weights; linear attention has neither.
    needs_logits: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()
    #: The option beyond whose value distances look alike, which with 0 never do.
    limit_option: ClassVar[str | None] = None
    #: What a block owns of the encoder and keeps when layers are pruned.
    part: ClassVar[type[nn.Module]] = BlockPositions
    #: fairseq's scalar quantisation noise finds its weights, which it looks for by their names.
    takes_scalar_noise: ClassVar[bool] = True
    #: Variants that a comparison of all encoders runs: the words after protocol.sh's `--encoder NAME`.
    forms: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, spec: EncoderSpec):
        super().__init__()
        self.spec = spec

    def __prepare_scriptable__(self) -> None:
        """Refuse ``torch.jit.script``, which asks this of each module of a model."""
        raise NotImplementedError(
            "torch.jit.script does not take a model with positions; use torch.compile instead."
        )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterable[str]:
        """Say which ``options``, by ``dest``, do not go together; `rules.py` refuses them."""
        return ()

    @classmethod
    def describe(cls, options: dict[str, Any], target: str) -> str:
        """Name the options and their values in one phrase, for the log at start."""
        values = [(o.name.lstrip("-"), options[o.dest]) for o in cls.options]
        return ", ".join(
            name if value is True else f"{name} {value}"
            for name, value in values
            if value is not None and value is not False
        )

    @classmethod
    def warning(cls, options: dict[str, Any], target: str) -> str | None:
        """Return a warning for the log at start, None where nothing is to be said."""
        return None

    @classmethod
    def takes_stretch(cls, options: dict[str, Any]) -> bool:
        """Return whether training may move positions with ``options``; needs ``continuous``."""
        return cls.continuous

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        """Return whether the distance of two tokens alone counts with ``options``, not where they stand."""
        return False

    @classmethod
    def goes_before_start(cls, options: dict[str, Any]) -> bool:
        """Return whether training may put tokens before position 0."""
        return cls.before_start or not cls.tabulated or cls.is_relative(options)

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        """Return whether a distance between two whole ones is taken for the nearer of them."""
        return False

    def receives(self, block_index: int) -> bool:
        """Return whether this block gets positions from the encoder."""
        return self.spec.receives(block_index)

    def build_block(self, block_index: int) -> nn.Module:
        return self.part(block_index, self.spec)

    def adopt_donor(
        self,
        blocks: Sequence[Any],
        attentions: Sequence[Any],
        rows: Callable[[int], Tensor],
        stays: bool,
    ) -> str:
        """Start a warm start as near to the donor's function as the encoder can.

        Here what :attr:`silent_at_zero` names becomes zero where the donor's positions stay;
        kinds of encoders do more.

        Args:
            blocks: the parts of the blocks that receive positions.
            attentions: the self-attention of those blocks, the donor's parameters in place.
            rows: gives the donor's positions up to the trained length, or as many as it is asked for
                where that is fewer: float32 [n, C].
            stays: the donor's positions stand underneath (``--position-base keep``), or it has none:
                the donor's function is that without the encoder.

        Returns:
            What was done, for the report; empty where nothing was.
        """
        if not stays:
            return ""
        silenced: dict[str, None] = {}
        for module in (self, *blocks):
            for name, parameter in module.named_parameters():
                if name in self.silent_at_zero:
                    parameter.detach().zero_()
                    silenced[name] = None
        return f"zero at the start: {', '.join(silenced)}" if silenced else ""

    def costs(self) -> tuple[str, ...]:
        """Return what it costs beside attention without positions, by the names of `floater info`."""
        return ("elementwise",)

    def statistics(self) -> dict[str, Any]:
        """Return numbers for the training log, by name, counted since the last call."""
        return {}

    def share_words(self, other: PositionEncoder) -> None:
        """Take over from ``other``, of the same class, what belongs to the words of one dictionary."""

    @property
    def length_option(self) -> str:
        """Return the option that sets :attr:`max_positions` where the encoder has a limit."""
        return self.spec.length_option or f"--max-{self.spec.side}-positions"

    def check_length(self, num_positions: int) -> None:
        if num_positions > self.max_positions:
            raise ValueError(
                f"A {self.spec.side} sequence of {num_positions} tokens (end symbol included) is "
                f"longer than the {self.max_positions} positions of --position-encoder {self.name}; "
                f"its table is set by {self.length_option} before training."
            )
