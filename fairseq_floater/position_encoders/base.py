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
    """Hold an encoder's place in a model, and its options.

    Attributes:
        dim: C.
        chosen: the blocks that ``--position-blocks`` names; None: all.
        target: ``--position-target``, one of the encoder's ``targets``.
        side: ``source`` or ``target``: whose tokens are counted.
        max_positions: rows of a table of fixed length (``--max-source/target-positions``).
        padding_idx: padding index of the dictionary; fairseq's sinusoid is offset by it.
        base: whether fairseq's ``embed_positions`` stays underneath.
        options: the encoder's options, by ``dest``.
        streams: what a signal is added to, see ``signal.py``; :data:`CROSS_STREAMS`: the encoder acts in
            cross-attention, on the distances between target and source tokens.
        combine: ``--position-combine``: how a signal enters a block's input.
        heads: number of heads of self-attention.
        blocks: the numbers that the stack's blocks had in training.
        vocabulary: V, the words of the dictionary, special ones included.
        length_option: the option that sets ``max_positions``; empty: the side's option.
        usual_length: the usual number of input tokens, if it is known (pieces of running text), else 0.
        eval_law: what ``--position-eval`` changes.
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
    usual_length: int = 0
    eval_law: EvalLaw | None = None

    @property
    def input_alone(self) -> bool:
        return self.chosen == (0,)

    def receives(self, number: int) -> bool:
        return self.chosen is None or number in self.chosen

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def causal(self) -> bool:
        """Return whether no key comes after its query, as in a decoder's self-attention."""
        return self.side == "target"

    @property
    def sides(self) -> int:
        """Return on how many sides of a query keys may be: before it, and after it unless causal."""
        return 1 if self.causal else 2

    @property
    def crosses(self) -> bool:
        """Return whether keys are source tokens and queries target tokens."""
        return self.streams == CROSS_STREAMS

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
    """Hold one block's part of an encoder; this base class holds only the block's number."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__()
        self.block_index = block_index


class PositionEncoder(KeptTable):
    """Base of all encoders: subclasses define where a table enters the model, and what it holds."""

    name: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    #: Values of ``--position-target`` that the encoder allows; the first is the default.
    targets: ClassVar[tuple[str, ...]]
    #: What happens to fairseq's ``embed_positions`` by default: ``kept`` underneath, ``replaced``, or
    #: ``itself``: the encoder is this base.
    base: ClassVar[str] = "kept"
    #: Whether ``--position-combine`` says how rows enter a block's input.
    combines: ClassVar[bool] = False
    #: The properties of Table 1 in the paper.
    inductive: ClassVar[bool] = True
    data_driven: ClassVar[bool] = True
    parameter_efficient: ClassVar[bool] = True
    #: Where the encoder acts by default, in words; None: nowhere.
    acts_on: ClassVar[str | None] = "input of blocks"
    #: Whether the encoder computes a table of rows, which evaluation keeps.
    tabulated: ClassVar[bool] = True
    #: Whether positions exist between two tokens, as training that moves positions needs (`warp_law.py`).
    continuous: ClassVar[bool] = False
    #: Whether the table is a sinusoid or a rotation with frequencies that ``--position-eval`` may change.
    has_frequencies: ClassVar[bool] = False
    #: Whether the table has rows before position 0.
    before_start: ClassVar[bool] = False
    #: Parameters of the encoder or its parts; if they are zero, the encoder has no effect.
    silent_at_zero: tuple[str, ...] = ()
    #: Whether the encoder can act in cross-attention, on the distances between target and source tokens.
    can_cross: ClassVar[bool] = False
    #: Whether the encoder adds to or scales logits, or reads attention weights (not in linear attention).
    needs_logits: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()
    #: The option whose value is the limit beyond which distances look alike (0: no limit).
    limit_option: ClassVar[str | None] = None
    #: The part of the encoder that a block owns and keeps when layers are pruned.
    part: ClassVar[type[nn.Module]] = BlockPositions
    #: Whether fairseq's scalar quantisation noise, which looks for weights by name, finds the weights.
    takes_scalar_noise: ClassVar[bool] = True
    #: Variants that a comparison of all encoders runs: the words after protocol.sh's `--encoder NAME`.
    forms: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, spec: EncoderSpec):
        super().__init__()
        self.spec = spec

    def __prepare_scriptable__(self) -> None:
        """Refuse ``torch.jit.script``, which calls this method of each module of a model."""
        raise NotImplementedError(
            "torch.jit.script does not take a model with positions; use torch.compile instead."
        )

    @classmethod
    def faults(cls, options: dict[str, Any], target: str) -> Iterable[str]:
        """Return messages on ``options``, by ``dest``, that exclude each other; `rules.py` raises them."""
        return ()

    @classmethod
    def warning(cls, options: dict[str, Any], target: str) -> str | None:
        """Return a warning for the log at start, or None."""
        return None

    @classmethod
    def takes_stretch(cls, options: dict[str, Any]) -> bool:
        """Return whether training may move positions with ``options``; needs ``continuous``."""
        return cls.continuous

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        """Return whether, with ``options``, only the distance of two tokens counts, not their positions."""
        return False

    @classmethod
    def reads_distances(cls, options: dict[str, Any]) -> bool:
        """Return whether logits come from a table of distances, which ``--position-eval`` can change."""
        return cls.tabulated and cls.is_relative(options)

    @classmethod
    def goes_before_start(cls, options: dict[str, Any]) -> bool:
        """Return whether training may put tokens before position 0."""
        return cls.before_start or not cls.tabulated or cls.is_relative(options)

    @classmethod
    def rounds_distances(cls, options: dict[str, Any]) -> bool:
        """Return whether distances are rounded to whole tokens."""
        return False

    def receives(self, block_index: int) -> bool:
        return self.spec.receives(block_index)

    def build_block(self, block_index: int) -> nn.Module:
        return self.part(block_index, self.spec)

    def adopt_donor(self, blocks: Sequence[Any], rows: Callable[[int], Tensor], stays: bool) -> str:
        """Initialise a warm start as close to the donor's function as the encoder can get.

        Here the parameters in :attr:`silent_at_zero` become zero if the donor's positions stay.
        Some encoders do more.

        Args:
            blocks: the parts of the blocks that receive positions.
            rows: returns the donor's first n positions, at most up to the trained length: float32 [n, C].
            stays: the donor's positions stay underneath (``--position-base keep``) or it has none, so the
                model without the encoder computes the donor's function.

        Returns:
            What was done, for the report; empty if nothing was.
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
        """Return the costs on top of attention without positions, by their names in `floater info`."""
        return ("elementwise",)

    def statistics(self) -> dict[str, Any]:
        """Return numbers for the training log since the last call, by name."""
        return {}

    def share_words(self, other: PositionEncoder) -> None:
        """Share the parameters that belong to words with ``other``, of the same class and dictionary."""

    @property
    def length_option(self) -> str:
        """Return the option that sets :attr:`max_positions` if the encoder has a limit."""
        return self.spec.length_option or f"--max-{self.spec.side}-positions"

    def check_length(self, num_positions: int) -> None:
        if num_positions > self.max_positions:
            raise ValueError(
                f"A {self.spec.side} sequence of {num_positions} tokens (end symbol included) is "
                f"longer than the {self.max_positions} positions of --position-encoder {self.name}; "
                f"its table is set by {self.length_option} before training."
            )
