"""Turn queries and keys by an angle for each position (RoPE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec
from fairseq_floater.position_encoders.hooks import Tables, first_copies, for_each_query
from fairseq_floater.position_encoders.in_attention import AttentionPart, AttentionPositions
from fairseq_floater.position_encoders.options import Option
from fairseq_floater.position_encoders.segments import SEGMENTS
from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid, pair_frequencies
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows

VALUES = Option("--rope-values", False, "turn values too: the output sees absolute positions", bool)


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of channels (2c, 2c + 1) of ``x`` [..., R]; cos and sin [..., R / 2]."""
    # If pairs can be read as complex numbers, one product turns them, and another gives the gradient.
    if not torch.compiler.is_compiling() and _are_complex(x, cos):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def _are_complex(x: Tensor, cos: Tensor) -> bool:
    """Return whether the pairs of ``x`` can be read as complex numbers without a copy."""
    even = all(stride % 2 == 0 for stride in (x.storage_offset(), *x.stride()[:-1]))
    return even and x.stride(-1) == 1 and x.dtype == cos.dtype in (torch.float32, torch.float64)


def turns_values(options: dict[str, Any]) -> bool:
    """Return whether values are turned too; not all encoders have ``--rope-values``."""
    return bool(options.get(VALUES.dest))


class RopePart(AttentionPart):
    """Turn q and k of one block, and v with ``--rope-values``.

    Tables: cos and sin for q, then for k and v if they differ: [B or 1, 1, T or S, R / 2].
    """

    def turn(self, x: Tensor, stream: str, tables: Tables) -> Tensor:
        if stream == "v" and not turns_values(self.spec.options):
            return x
        cos, sin = tables[:2] if stream == "q" else tables[-2:]
        if len(cos) > len(x):  # all beams of a sentence share the source's keys
            cos, sin = (first_copies(part, 0, len(cos) // len(x)) for part in (cos, sin))
        turned, rest = x.tensor_split([2 * cos.size(-1)], dim=-1)
        turned = turn_pairs(turned, cos, sin)
        return torch.cat([turned, rest], dim=-1) if rest.size(-1) else turned


class FarRopePart(RopePart):
    """Turn as usual, and correct the scores of pairs whose distance ``--position-eval`` shortens.

    Tables: between those of q and those of k, the shortened distances, [B or 1, T, S], the positions of
    queries, [B or 1, T], and of keys, [B or 1, S], and the complex frequencies, [R / 2].
    """

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor | None:
        if self.training:
            return None
        counted, queries, keys, frequencies = tables[2:-2]
        width = 2 * frequencies.size(0)
        of_q, of_k = (
            torch.view_as_complex(x[..., :width].float().unflatten(-1, (-1, 2)).contiguous())
            for x in (q, for_each_query(k, q))
        )
        # A key was turned by j, so a query that is turned by j + d has distance d from it.
        terms = []
        for t in range(q.size(2)):  # one query at a time: it has a turn for each key
            places = keys + counted[:, t]  # [B or 1, S]
            turns = torch.exp(places[..., None] * frequencies)
            turns = turns - torch.exp(queries[:, t, None, None] * frequencies)
            products = of_q[:, :, t, None] * of_k.conj() * turns[:, None]
            terms.append(products.sum(-1).real)
        return torch.stack(terms, dim=2).to(q.dtype) * self.scaling(q.size(-1))


class RopePositions(AttentionPositions):
    """Turn the pair c of q_i by i w_c and of k_j by j w_c, so that their product depends on i - j alone.

    w_c = base^(-2c/R), over the first R = D * ``--rope-partial`` channels of a head. Past the trained
    length, angles are new to the model. Neighbouring channels form a pair, as in RoFormer (Llama pairs
    halves, which is another function of the same weights). Angles are computed in float64.

    ``--position-segments`` is BiPE-RoPE (He et al. 2024). The angles are n w_c for segment n. The token's
    place m inside the segment enters the first block's input as sin and cos of m 10000^(-2c/C) in channels
    2c and 2c + 1.

    Two other methods equal ``--rope-learned`` if all heads have the same frequencies, as here, because W_q
    and W_k can absorb a rotation: algebraic positional encodings (Kogkalidis et al. 2024), q_i W^(i - j) k_j
    with W = exp(A - A^T) in each head, and GRAPE's multiplicative form without context (Zhang et al. 2025).

    Shapes: table [N, 2, R / 2], cos and sin. Parameters: none; ``--rope-learned``: w, R / 2 a stack.
    """

    name = "rope"
    title = "RoPE"
    formula = "q_i, k_j rotated by i w, j w"
    source = "Su et al. 2021"
    part = RopePart
    acts_on = "queries, keys"
    data_driven = False
    has_frequencies = True
    continuous = True
    before_start = True
    needs_logits = False
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "--rope-base", 10000.0, "base of the frequencies: w_c = base^(-2c/R)", float, above=1
        ),
        Option(
            "--rope-partial",
            1.0,
            "share of each head's channels that is turned",
            float,
            above=0,
            at_most=1,
        ),
        VALUES,
        Option("--rope-learned", False, "learn the frequencies w", bool),
        SEGMENTS,
    )

    @classmethod
    def is_relative(cls, options: dict[str, Any]) -> bool:
        return not turns_values(options)

    @classmethod
    def reads_distances(cls, options: dict[str, Any]) -> bool:
        return cls.is_relative(options) and cls.part is RopePart  # FarRopePart takes its place

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        pairs = int(spec.head_dim * spec.options["rope_partial"]) // 2
        if spec.head_dim % 2 or not pairs:
            raise ValueError(
                f"--position-encoder {self.name} needs an even number of channels a head, of which "
                f"--rope-partial leaves a pair, but a head has {spec.head_dim} and --rope-partial is "
                f"{spec.options['rope_partial']}."
            )
        self.pairs = pairs
        self.frequencies: nn.Parameter | None = None
        if spec.options["rope_learned"]:
            self.frequencies = nn.Parameter(self._initial_frequencies().float())

    def _initial_frequencies(self) -> Tensor:
        return pair_frequencies(self.pairs, self.spec.options["rope_base"], self.anchor.device)

    def _frequencies(self) -> Tensor:
        """Return w: float64 [R / 2]."""
        # Fixed frequencies are not a buffer, which `.half()` would round.
        return (
            self._initial_frequencies() if self.frequencies is None else self.frequencies.double()
        )

    def fading(self) -> Tensor:
        """Return the logarithm of the factor by which a pair grows from token to token: float64 [R / 2]."""
        return torch.zeros(self.pairs, dtype=torch.float64, device=self.anchor.device)

    def turns(self, places: Tensor, frequencies: Tensor) -> Tensor:
        """Return cos and sin at real ``places`` [..., 1] times ``frequencies``: float32 [..., 2, R / 2]."""
        angles = places * frequencies
        return torch.stack([angles.cos(), angles.sin()], dim=-2).float()

    def rows(self, places: Places, blocks: Sequence[Any]) -> Tensor:
        frequencies = self._frequencies()
        return self.turns(places.in_tokens(frequencies.device)[:, None], frequencies)

    def build_block(self, block_index: int) -> nn.Module:
        law = self.spec.eval_law
        if law is not None and law.changes_distances:
            return FarRopePart(block_index, self.spec)
        return super().build_block(block_index)

    def prepare(self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype) -> list[Tables]:
        tables = self._tables(at, at.queries, blocks, dtype)
        of_keys = self._tables(at, at.keys, blocks, dtype) if self.spec.crosses else []
        if at.law is not None and at.law.changes_distances:
            parts = at.rows_per_token
            frequencies = torch.complex(self.fading(), self._frequencies()).to(torch.complex64)
            places = (at.queries / parts, at.keys / parts)
            of_keys = [at.distances / parts, *places, frequencies, *(of_keys or tables[-2:])]
            tables = tables[:2]
        return [[*tables, *of_keys]] * len(blocks)

    def _tables(
        self, at: Positions, positions: Tensor, blocks: Sequence[Any], dtype: torch.dtype
    ) -> list[Tensor]:
        """Return the :meth:`turns` at ``positions`` [B or 1, T]: [B or 1, 1, T, R / 2] each."""
        frequencies = at.frequencies(self._frequencies)
        if frequencies is None:
            table = self(at.num_rows, blocks, dtype, at.rows_per_token, at.rows_before)
            rows = gather_rows(table.flatten(1), positions).unflatten(-1, table.shape[1:])
        else:
            assert at.law is not None and at.lengths is not None
            rows = self.turns(positions.double()[..., None] / at.rows_per_token, frequencies)
            # The root, because both q and k are multiplied.
            rows = (rows * at.law.temperature(at.lengths)[..., None, None].sqrt()).to(dtype)
        return list(rows[:, None].unbind(-2))

    def input_rows(
        self, at: Positions, blocks: Sequence[Any], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        if at.inside is None:
            return {}
        return {0: interleaved_sinusoid(at.inside.T.double(), self.spec.dim).to(dtype)}
