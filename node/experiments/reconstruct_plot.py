"""The picture of an attack: samples across, the attack's images of them downwards, and a block for
each random layer or model that was attacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ml.data.base import Images
from node.report.drawing import applied_style, lay_out_panels, write_png

INCHES = 0.42  # of a sample
GAP = 0.06  # between samples, in parts of one


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """The samples of one run by row: as they are, as they were shared, and as each attack recovered them. Images [N, C,
    H, W] in 0..1; with other than one or three channels, only the first are shown."""

    title: str
    rows: Mapping[str, Images]


def draw_panels(path: Path, panels: Sequence[Panel], title: str) -> None:
    """Writes a PNG of all panels. Raises ConfigError where that fails."""
    rows = list(panels[0].rows)
    num_samples = len(panels[0].rows[rows[0]])
    size = (num_samples * INCHES + 0.5, len(rows) * INCHES + 0.5)
    with applied_style("--png"):
        figure, grid = lay_out_panels([panel.title for panel in panels], size)
        for axes, panel in zip(grid, panels, strict=True):
            edges = (0, num_samples, len(rows), 0)
            axes.imshow(lay_out(list(panel.rows.values())), vmin=0, vmax=1, cmap="gray", extent=edges)
            axes.grid(visible=False)
            axes.set_yticks([row + 0.5 for row in range(len(rows))], rows)
            axes.set_xticks([])
            axes.tick_params(length=0, labelsize=8)
            axes.spines[:].set_visible(False)
        write_png(figure, path, title)


def lay_out(rows: Sequence[Images]) -> Images:
    """Joins rows of images into one image [H, W] or [H, W, 3], white between them."""
    num_samples, channels, height, width = rows[0].shape
    shown = 3 if channels >= 3 else 1
    gap = max(1, round(GAP * width))
    laid_out = np.ones((len(rows) * (height + gap) - gap, num_samples * (width + gap) - gap, shown), np.float32)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (height + gap), j * (width + gap)
            laid_out[top : top + height, left : left + width] = image[:shown].transpose(1, 2, 0)
    return laid_out[:, :, 0] if shown == 1 else laid_out
