"""Draw what positions inside attention do at each distance: curves of all heads, and an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fairseq_floater.results.attention_terms import TERMS, Term

_MOST_NAMED_HEADS = 8
_RIGHT = {
    "bias": "attention where contents are equal",
    "turn": "angle of a pair of channels, folded",
    "content": "cosine of the vectors of two distances",
    "values": "cosine of the vectors of two distances",
}
_PAST = {"color": "#e4e4e4", "zorder": 0, "linewidth": 0}


def draw_term(left: Any, right: Any, term: Term) -> None:
    """Draw the curves of ``term`` on the axes ``left``, and its image, or weights, on ``right``."""
    _draw_curves(left, term, term.values)
    if len(left.get_legend_handles_labels()[0]) > 1:
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "borderaxespad": 0.2}
        left.legend(fontsize=6, handlelength=1.0, handletextpad=0.4, frameon=False, **beside)
    left.set_title(TERMS[term.stream])
    left.set_ylabel(f"{term.stack}, block {term.block}\n{term.stream}")
    right.set_title(_RIGHT[term.stream])
    if term.stream == "bias":
        _draw_curves(right, term, term.image)
        right.set_ylim(bottom=0)
    else:
        _draw_image(right, term)


def _draw_curves(axes: Any, term: Term, values: Tensor) -> None:
    """Draw ``values`` [H, M], the first head dark; heads that all say the same once."""
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
    """Draw the angles of a turn by pair, or the cosines of two distances."""
    low, high = int(term.distances[0]) - 0.5, int(term.distances[-1]) + 0.5
    is_turn = term.stream == "turn"
    bottom, top = (len(term.image) - 0.5, -0.5) if is_turn else (low, high)
    colours, least, most = ("cividis", 0, 180) if is_turn else ("PuOr", -1, 1)
    image = axes.imshow(
        term.image,
        extent=(low, high, bottom, top),
        aspect="auto",
        origin="upper" if is_turn else "lower",
        interpolation="nearest",
        cmap=colours,
        vmin=least,
        vmax=most,
    )
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    if is_turn:
        bar.set_ticks([0, 90, 180], labels=["0°", "90°", "180°"])
    axes.set_xlim(low, high)
    axes.set_xlabel("distance d = i - j")
    axes.set_ylabel("pair of channels" if is_turn else "distance d")
    if term.has_past and term.trained is not None:
        for end in (term.trained - 0.5, 0.5 - term.trained)[: 2 if low < -1 else 1]:
            axes.axvline(end, color="white" if is_turn else "black", linewidth=1.0)
            if not is_turn:
                axes.axhline(end, color="black", linewidth=1.0)


def _mark_past(axes: Any, term: Term) -> None:
    """Lay grey over the distances that no training sentence has."""
    if not term.has_past or term.trained is None:
        return
    end, furthest = term.trained - 0.5, int(term.distances[-1])
    axes.axvspan(end, furthest, **_PAST)
    axes.axvline(end, color="black", linewidth=1.0)
    if int(term.distances[0]) < 0:
        axes.axvspan(-furthest, -end, **_PAST)
        axes.axvline(-end, color="black", linewidth=1.0)
