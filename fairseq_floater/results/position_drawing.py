"""Draw position tables: matrix, norms, principal components and similarity; and terms of attention."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_floater.figures import COLOURS, empty_figure
from fairseq_floater.results.attention_terms import TERMS, Term
from fairseq_floater.results.position_rows import PositionTable

# Norms are on a logarithmic scale if those past T are more than this many times those up to T.
_LOGARITHMIC_FROM = 20.0
# Components past T are cut off at this many times their largest value up to T.
_HIGHEST_COMPONENT = 3.0
# A similarity matrix of more rows shows every second, third, ... of them.
_MOST_SIMILARITY_ROWS = 600
_PANELS = ("position matrix", "norm of a row", "principal components (share)", "cosine similarity")

_MOST_NAMED_HEADS = 8
_RIGHT_OF_TERM = {
    "bias": "attention where contents are equal",
    "turn": "angle of a pair of channels, folded",
    "content": "cosine of the vectors of two distances",
    "values": "cosine of the vectors of two distances",
}
_PAST = {"color": "#e4e4e4", "zorder": 0, "linewidth": 0}


def draw(
    positions: Sequence[PositionTable | Term],
    output: str,
    *,
    heading: Sequence[str],
    signature: str,
) -> None:
    """Draw four panels per table and two per term into ``output``, with ``signature`` at the bottom."""
    tables = [table for table in positions if isinstance(table, PositionTable)]
    terms = [term for term in positions if isinstance(term, Term)]
    lines = [*heading]
    if any(one.has_past for one in positions):
        lines.insert(1, f"black line: T; {'dashed, ' * bool(tables)}on grey: past it")
    number = len(positions)
    height = 0.9 + 0.15 * len(lines) + 1.85 * number + 0.35 * len(terms)
    fonts = {"font.size": 8, "axes.titlesize": 9, "figure.titlesize": 9}
    with empty_figure(output, (10.0, height), dpi=200, settings=fonts) as canvas:
        grid = canvas.add_gridspec(number, 4, width_ratios=(1.5, 1, 1, 1))
        for row, table in enumerate(tables):
            axes = [canvas.add_subplot(grid[row, column]) for column in range(4)]
            _draw_matrix(axes[0], table, _colour_limit(table))
            _draw_norms(axes[1], table)
            _draw_components(axes[2], table)
            _draw_similarity(axes[3], table)
            for panel, title in zip(axes, _PANELS if row == 0 else ()):
                panel.set_title(title)
        for row, term in enumerate(terms, start=len(tables)):
            left, right = (canvas.add_subplot(grid[row, half]) for half in (slice(2), slice(2, 4)))
            _draw_term(left, right, term)
        canvas.suptitle("\n".join(lines))
        canvas.supxlabel(textwrap.fill(signature, 190, break_on_hyphens=False), fontsize=7)


def draw_panels(panels: Sequence[tuple[str, PositionTable]], output: str, signature: str) -> None:
    """Draw the matrices of several tables, (title, table), side by side in one scale of colours."""
    limit, size = max(_colour_limit(table) for _, table in panels), (0.8 + 2.2 * len(panels), 3.0)
    fonts = {"font.size": 8, "axes.titlesize": 8}
    with empty_figure(output, size, dpi=200, settings=fonts) as canvas:
        every = canvas.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, table) in zip(every, panels):
            bar = _draw_matrix(axes, table, limit)
            axes.set_title(f"{title}\n{table.name}")
            axes.set_ylabel("position" if axes is every[0] else "")
            if axes is not every[-1]:
                bar.remove()
        canvas.supxlabel(signature, fontsize=6)


def dimension_order(rows: Tensor) -> tuple[str, Tensor]:
    """Return the name of an order that makes ``rows`` [N, C] readable, and the dimensions' indices [C] in it.

    The paper permutes its matrices too. The order is ``direction`` if the first principal component has
    more than half of the variance (a trajectory that goes one way): dimensions are sorted by their weight
    in it. Otherwise it is ``speed`` (a trajectory that turns): dimensions are sorted by their mean square
    step, fast ones first, like the frequencies of a sinusoid.
    """
    _, sizes, directions = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    if sizes[0] ** 2 > sizes.square().sum() / 2:
        return "direction", directions[0].argsort()
    return "speed", rows.diff(dim=0).square().mean(dim=0).argsort(descending=True)


def principal_components(table: PositionTable) -> tuple[Tensor, list[float]]:
    """Project all rows on the first three principal components of the rows up to T.

    Returns:
        Coordinates [N, 3], and the share of the variance that each component explains.
    """
    mean = table.known.mean(dim=0)
    _, sizes, directions = torch.linalg.svd(table.known - mean, full_matrices=False)
    coordinates = (table.rows - mean) @ directions[:3].T
    variance = sizes.square()
    return coordinates, (variance / variance.sum().clamp(min=1e-30))[:3].tolist()


def _colour_limit(table: PositionTable) -> float:
    """Return the limit of the colours: the 99 % quantile of absolute values in the rows up to T."""
    sizes = table.known.abs().flatten().sort().values
    return float(sizes[int(0.99 * (len(sizes) - 1))]) or 1.0


def _draw_matrix(axes: Any, table: PositionTable, limit: float) -> Any:
    """Draw rows as colours, red above zero, and return the colour bar."""
    order, permutation = dimension_order(table.known)
    bar = _image(axes, table.rows[:, permutation], "RdBu_r", -limit, limit, extend="both")
    axes.set_ylabel(f"{table.name}\nposition")
    axes.set_xlabel(f"dimension, by {order}")
    if table.has_past:
        axes.axhline(len(table.known) - 0.5, color="black", linewidth=1.0)
    return bar


def _image(
    axes: Any,
    values: Tensor,
    colours: str,
    least: float,
    most: float,
    extend: str = "neither",
    **style: Any,
) -> Any:
    """Draw ``values`` as colours, and return the colour bar beside them."""
    image = axes.imshow(values, cmap=colours, vmin=least, vmax=most, aspect="auto", **style)
    return axes.figure.colorbar(image, ax=axes, extend=extend, pad=0.02)


def _draw_norms(axes: Any, table: PositionTable) -> None:
    norms = table.rows.norm(dim=1)
    _draw_curve(axes, table, norms, COLOURS[0])
    known = float(norms[: table.trained].max())
    if float(norms.max()) > _LOGARITHMIC_FROM * known > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")  # the default writes TeX, which `figures` turns off
        axes.set_ylabel("logarithmic")
    else:
        axes.set_ylim(0, 1.08 * float(norms.max()) or 1.0)


def _draw_components(axes: Any, table: PositionTable) -> None:
    coordinates, shares = principal_components(table)
    for column, share, colour in zip(coordinates.T, shares, COLOURS):
        _draw_curve(axes, table, column, colour, label=f"{share:.0%}")
    known = float(coordinates[: table.trained].abs().max())
    low, high = axes.get_ylim()
    if known > 0:
        most = _HIGHEST_COMPONENT * known
        axes.set_ylim(max(low, -most), min(high, most))
    axes.legend(fontsize=6, handlelength=1.2, edgecolor="none", framealpha=0.6)


def _draw_curve(
    axes: Any, table: PositionTable, values: Tensor, colour: str, **options: Any
) -> None:
    """Draw ``values`` [N] over positions, past T dashed and on grey."""
    end = len(table.known)
    axes.plot(values[:end], color=colour, **options)
    if table.has_past:
        past = range(end - 1, len(values))
        axes.plot(past, values[end - 1 :], color=colour, linestyle=(0, (2, 1)))
        axes.axvline(end - 0.5, color="black", linewidth=1.0)
        axes.axvspan(end - 0.5, len(values), color="#eeeeee", zorder=0)
    axes.set_xlim(0, len(values) - 1)
    axes.set_xlabel("position")


def _draw_similarity(axes: Any, table: PositionTable) -> None:
    step = -(-len(table.rows) // _MOST_SIMILARITY_ROWS)
    rows = F.normalize(table.rows[::step], dim=1)
    low, high = -0.5, len(table.rows) - 0.5
    _image(axes, rows @ rows.T, "PuOr", -1, 1, extent=(low, high, high, low))
    axes.set_xlabel("position")
    if table.has_past:
        axes.axhline(len(table.known) - 0.5, color="black", linewidth=1.0)
        axes.axvline(len(table.known) - 0.5, color="black", linewidth=1.0)


def _draw_term(left: Any, right: Any, term: Term) -> None:
    _draw_heads(left, term, term.values)
    if len(left.get_legend_handles_labels()[0]) > 1:
        style = {"fontsize": 6, "handlelength": 1.0, "handletextpad": 0.4, "frameon": False}
        left.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), borderaxespad=0.2, **style)
    left.set_title(TERMS[term.stream])
    left.set_ylabel(f"{term.stack}, block {term.block}\n{term.stream}")
    right.set_title(_RIGHT_OF_TERM[term.stream])
    if term.stream == "bias":
        _draw_heads(right, term, term.image)
        right.set_ylim(bottom=0)
    else:
        _draw_image(right, term)


def _draw_heads(axes: Any, term: Term, values: Tensor) -> None:
    """Draw ``values`` [H, M] as curves, the first head dark; one curve if all heads are equal."""
    from matplotlib import colormaps

    heads = values if bool((values != values[:1]).any()) else values[:1]
    # The brightest end of the map is hard to see on white.
    shades = [colormaps["viridis"](0.85 * h / max(len(heads) - 1, 1)) for h in range(len(heads))]
    for number, (curve, shade) in enumerate(zip(heads, shades), start=1):
        named = len(heads) <= _MOST_NAMED_HEADS or number in (1, len(heads))
        label = f"head {number}" if named else None
        axes.plot(term.distances, curve, color=shade, linewidth=1.1, label=label)
    sizes = heads[heads.isfinite()]
    most = float(sizes.abs().max())
    if float(sizes.max() - sizes.min()) < 1e-5 * most:  # else rounding would fill the panel
        axes.set_ylim(min(0.0, 1.1 * float(sizes.min())), 1.1 * most)
    _mark_past(axes, term)
    axes.set_xlim(int(term.distances[0]), int(term.distances[-1]))
    axes.set_xlabel("distance d = i - j, keys before the query to the right")
    axes.grid(True, linewidth=0.4, color="#cccccc")


def _draw_image(axes: Any, term: Term) -> None:
    low, high = int(term.distances[0]) - 0.5, int(term.distances[-1]) + 0.5
    is_turn = term.stream == "turn"
    style: dict[str, Any] = {"interpolation": "nearest"}
    if is_turn:
        style |= {"origin": "upper", "extent": (low, high, len(term.image) - 0.5, -0.5)}
        bar = _image(axes, term.image, "cividis", 0, 180, **style)
        bar.set_ticks([0, 90, 180], labels=["0°", "90°", "180°"])
    else:
        style |= {"origin": "lower", "extent": (low, high, low, high)}
        _image(axes, term.image, "PuOr", -1, 1, **style)
    axes.set_xlim(low, high)
    axes.set_xlabel("distance d = i - j")
    axes.set_ylabel("pair of channels" if is_turn else "distance d")
    if term.has_past and term.trained is not None:
        for end in (term.trained - 0.5, 0.5 - term.trained)[: 2 if low < -1 else 1]:
            axes.axvline(end, color="white" if is_turn else "black", linewidth=1.0)
            if not is_turn:
                axes.axhline(end, color="black", linewidth=1.0)


def _mark_past(axes: Any, term: Term) -> None:
    if not term.has_past or term.trained is None:
        return
    end, furthest = term.trained - 0.5, int(term.distances[-1])
    axes.axvspan(end, furthest, **_PAST)
    axes.axvline(end, color="black", linewidth=1.0)
    if int(term.distances[0]) < 0:
        axes.axvspan(-furthest, -end, **_PAST)
        axes.axvline(-end, color="black", linewidth=1.0)
