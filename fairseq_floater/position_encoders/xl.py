"""Score each distance by the query, and by itself (Transformer-XL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_floater.position_encoders.base import EncoderSpec, check_pairs
from fairseq_floater.position_encoders.hooks import Tables
from fairseq_floater.position_encoders.in_attention import (
    AttentionPart,
    AttentionPositions,
    Gate,
)
from fairseq_floater.position_encoders.options import ON_OFF, Option
from fairseq_floater.position_encoders.sinusoidal import interleaved_sinusoid, pair_frequencies
from fairseq_floater.position_encoders.transforms import Places, Positions, gather_rows

# Options of these scores, for any rows of distances.
XL_OPTIONS = (
    Option(
        "--xl-projection",
        None,
        "a map W_R of the rows of distances in each block (on, default), or none: head h takes its own "
        "channels of a row (off)",
        choices=ON_OFF,
    ),
    Option(
        "--xl-v", None, "add a term of the distance alone, v W_R r (on, default)", choices=ON_OFF
    ),
)


class QueryBiases(AttentionPart):
    """Hold u and v of one block, [H, D]: q + u scores keys, and q + v scores distances."""

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        self.u = self._vectors()
        self.v: nn.Parameter | None = self._vectors()

    def _vectors(self) -> nn.Parameter:
        vectors = torch.empty(self.spec.heads, self.spec.head_dim)
        return nn.Parameter(nn.init.xavier_uniform_(vectors))

    def turn(self, x: Tensor, stream: str, tables: Tables) -> Tensor:
        return x + self.u[:, None].to(x) if stream == "q" else x

    def scaled_for_distances(self, q: Tensor) -> Tensor:
        """Return q + v times the scale of the logits: [B, H, T, D] -> [B, H, T, D]."""
        moved = q if self.v is None else q + self.v[:, None].to(q)
        return moved * self.scaling(q.size(-1))


class XlPart(QueryBiases):
    """Hold u, v and W_R of one block; `XL_OPTIONS` can leave out v and W_R.

    Tables: W_R R_d of the M distances that occur, [B or 1, M, H, D], and the number of each pair's distance
    among them, [B or 1, 1, T, S].
    """

    def __init__(self, block_index: int, spec: EncoderSpec):
        super().__init__(block_index, spec)
        if spec.options["xl_v"] == "off":
            self.v = None
        self.projection: nn.Linear | None = None
        if spec.options["xl_projection"] != "off":
            self.projection = nn.Linear(spec.dim, spec.dim, bias=False)
            nn.init.xavier_uniform_(self.projection.weight)

    def projected(self, rows: Tensor) -> Tensor:
        """Return W_R r of float32 ``rows`` [..., C], of the same shape."""
        return rows if self.projection is None else rows @ self.projection.weight.to(rows.dtype).T

    def bias(self, q: Tensor, k: Tensor, tables: Tables) -> Tensor:
        return scored(self.scaled_for_distances(q), *tables)


def scored(q: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply each query [B, H, T, D] by M ``rows`` [B or 1, M, H or 1, D]; each key picks a product.

    Returns:
        [B, H, T, S]: the products that ``columns`` [B or 1, 1, T, S] names.
    """
    products = torch.einsum("bhtd,bmhd->bhtm", q, rows.expand(-1, -1, q.size(1), -1))
    return products.gather(-1, columns.expand(*q.shape[:2], -1, -1))


class DistanceScores(AttentionPositions):
    """Score ((q_i + u) k_j + (q_i + v) W_R r_d) / sqrt(D); subclasses define the rows r.

    Shapes: table [N, sides, L, C], W_R r of distances 0 .. N - 1 (in parts of a token if training needs
    them), for keys before the query and, in an encoder, after it. Parts are :class:`XlPart`.
    """

    def projected(self, rows: Tensor, blocks: Sequence[XlPart]) -> Tensor:
        """Return the table from the rows [N, sides, C] that the blocks share."""
        return torch.stack([block.projected(rows) for block in blocks], dim=2)

    def prepare(self, at: Positions, blocks: Sequence[XlPart], dtype: torch.dtype) -> list[Tables]:
        spec = self.spec
        table = self(at.num_rows, blocks, dtype, at.rows_per_token).flatten(0, 1)
        columns = self.signed_rows(at.distances)
        if at.rows_per_token == 1 and at.num_rows <= max(at.keys.size(1), at.queries.size(1)):
            rows = table[None]
        else:
            used, columns = distinct(columns, len(table))
            rows = gather_rows(table.flatten(1), used).unflatten(-1, (len(blocks), spec.dim))
        return self.tables(rows, columns)

    def tables(self, rows: Tensor, columns: Tensor) -> list[Tables]:
        """Return each block's tables from ``rows`` [B or 1, M, L, C] and ``columns`` [B or 1, T, S]."""
        per_head = rows.unflatten(-1, (self.spec.heads, self.spec.head_dim))
        return [(of_block, columns[:, None]) for of_block in per_head.unbind(2)]


class XlPositions(DistanceScores):
    """Score ((q_i + u) k_j + (q_i + v) W_R R_d) / sqrt(D), d = i - j, as XLNet does on both sides.

    R_d holds sin(d w_c) and cos(d w_c) in channels 2c and 2c + 1, w_c = 10000^(-2c/C): a sinusoid of
    the signed distance, as wide as the model. Each block has a W_R, and a u and v for each of its heads.
    Any length; past the trained length, R_d is new to the model. R is a flow that keeps its norm,
    dR/dd = S R with a fixed skew-symmetric S. ``--xl-learned`` learns S by its frequencies w.
    ``--xl-distance log`` replaces d by ln(1 + |d|) with the sign of d. Segments and the memory of earlier
    segments are left out, because a sentence is translated as a whole.

    Parameters: C^2 + 2 C a block, without C^2 for ``--xl-projection off``, without C for ``--xl-v off``;
    ``--xl-learned``: w, C / 2 a stack. Without W_R, ``--position-base keep`` has a gate a stack.
    """

    name = "xl"
    title = "Transformer-XL"
    formula = "(q_i + u) k_j + (q_i + v) W_R R_(i - j)"
    source = "Dai et al. 2019; both directions: Yang et al. 2019 (XLNet)"
    part = XlPart
    parameter_efficient = False
    has_frequencies = True
    continuous = True
    silent_at_zero = ("u", "projection.weight")
    options = (
        Option("--xl-learned", False, "learn the frequencies w of R", bool),
        Option(
            "--xl-distance",
            "linear",
            "R is a sinusoid of the distance d, or of ln(1 + |d|) with its sign (log)",
            choices=("linear", "log"),
        ),
        *XL_OPTIONS,
    )

    def __init__(self, spec: EncoderSpec):
        super().__init__(spec)
        check_pairs(self.name, spec.dim, f"the {spec.side} side", spec)
        self.frequencies: nn.Parameter | None = None
        if spec.options["xl_learned"]:
            self.frequencies = nn.Parameter(pair_frequencies(spec.dim // 2).float())
        self.gate: nn.Module = nn.Identity()
        if spec.options["xl_projection"] == "off":  # no W_R that could be zero
            self.gate, self.silent_at_zero = Gate(spec), ("u", "gate.weight")

    def _frequencies(self) -> Tensor:
        if self.frequencies is not None:
            return self.frequencies
        return pair_frequencies(self.spec.dim // 2, device=self.anchor.device)

    def rows(self, places: Places, blocks: Sequence[XlPart]) -> Tensor:
        return self._rows(places, blocks, self.frequencies)

    def _rows(self, places: Places, blocks: Sequence[XlPart], frequencies: Tensor | None) -> Tensor:
        """Return the table [N, sides, L, C], or [B, N * sides, L, C] for ``frequencies`` [B, 1, P]."""
        distances = self.signed_distances(places)
        if self.spec.options["xl_distance"] == "log":
            distances = distances.sign() * distances.abs().log1p()
        if frequencies is not None and frequencies.dim() > 1:
            distances = distances.flatten()
        sinusoid = interleaved_sinusoid(distances, self.spec.dim, frequencies)
        return self.projected(self.gate(sinusoid), blocks)

    def prepare(self, at: Positions, blocks: Sequence[XlPart], dtype: torch.dtype) -> list[Tables]:
        frequencies = at.frequencies(self._frequencies)
        if frequencies is None:
            return super().prepare(at, blocks, dtype)
        rows = self._rows(Places(at.num_rows, at.rows_per_token), blocks, frequencies).to(dtype)
        return self.tables(rows, self.signed_rows(at.distances))


def distinct(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the rows that each sentence needs, so that queries skip the other rows of a fine table.

    If one factor stretches T tokens, they have about 4 T distances; a batch of many factors has far more.

    Args:
        rows: row numbers in a table, [B, T, S].
        count: number of rows of the table.

    Returns:
        The rows that occur, [B, M], filled up with other rows; and the index of each of ``rows`` among
        them, [B, T, S].
    """
    flat = rows.flatten(1)
    occurs = torch.zeros(len(flat), count, dtype=torch.uint8, device=rows.device)
    occurs.scatter_(1, flat, 1)
    places = occurs.cumsum(1) - 1
    width = int(places[:, -1].max()) + 1
    used = occurs.sort(dim=1, descending=True, stable=True).indices[:, :width]
    return used, places.gather(1, flat).view_as(rows)
