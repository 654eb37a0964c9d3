"""Draw the positions of each system as a picture inside the page."""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path
from typing import NamedTuple

from fairseq_floater.checkpoints.reading import CheckpointError
from fairseq_floater.results.page.work import ScoredSystem
from fairseq_floater.results.position_figure import plot_positions

_QUALITY = 80
_WIDTH = 1200  # pixels: twice what a column of the page shows


class Picture(NamedTuple):
    """A data URI, and what the figure says of itself; ``uri`` is empty where there is nothing to draw."""

    uri: str
    text: str
    warnings: list[str]


def position_picture(system: ScoredSystem, data: Path) -> Picture | None:
    """Draw Figure 3 of the average of a system's first seed; None where no checkpoint is left.

    Args:
        system: one of the page's.
        data: binarised data, which tell the trained length; they may be gone.
    """
    from PIL import Image  # comes with matplotlib

    folder = next(iter(system.folders.values()), None)
    if folder is None or not (average := folder / "average.pt").is_file():
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "positions.png"
        try:
            figure = plot_positions(average, path, data=str(data) if data.is_dir() else None)
        except (CheckpointError, ValueError) as error:
            return Picture("", str(error), [])
        small = io.BytesIO()
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            rgb.thumbnail((_WIDTH, rgb.height))
            rgb.save(small, "webp", quality=_QUALITY)
    text = base64.b64encode(small.getvalue()).decode("ascii")
    words = f"Positions of {system.label}: {figure.title}"
    return Picture(f"data:image/webp;base64,{text}", words, figure.warnings)
