"""The picture of an attack, drawn by matplotlib: samples across, the attack's images of them downwards, and a block for
each random layer or model that was attacked."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ml.data.base import Images
from node.errors import ConfigError

DPI = 150
INCHES = 0.42  # of a sample
MAX_BLOCKS = 3  # beside each other
GAP = 0.06  # between samples, in parts of one


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Samples of one run by row, as they are, as they were shared, and as attacks recovered them. Images [N, C, H, W]
    in 0..1; of others than one or three channels, the first are shown."""

    title: str
    rows: Mapping[str, Images]


def check_picture(path: Path, option: str = "--png") -> None:
    """Raise ConfigError where drawing would, before what it is to draw has been computed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"{option}: expected matplotlib to be installed: pip install 'fednode[report]'")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: {path}: cannot be written (no such directory)")


def draw_panels(path: Path, panels: Sequence[Panel], title: str) -> None:
    """Write a PNG of all panels. Raises ConfigError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(len(panels), MAX_BLOCKS)
    down = -(-len(panels) // across)
    num_rows, num_samples = len(panels[0].rows), len(next(iter(panels[0].rows.values())))
    size = (across * (num_samples * INCHES + 0.2) + 0.9, down * (num_rows * INCHES + 0.35) + 0.6)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever matplotlib is set up for
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for i, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        axes.imshow(
            lay_out(list(panel.rows.values())), vmin=0, vmax=1, cmap="gray", extent=(0, num_samples, num_rows, 0)
        )
        axes.set_title(panel.title, fontsize=9)
        names = list(panel.rows) if i % across == 0 else []
        axes.set_yticks([row + 0.5 for row in range(len(names))], names)
        axes.set_xticks([])
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=9, wrap=True)
    try:
        figure.savefig(path, format="png", metadata={"Title": title, "Software": None})
    except OSError as error:
        raise ConfigError(f"--png: {path}: cannot be written ({error.strerror})") from error


def lay_out(rows: Sequence[Images]) -> Images:
    """One image [H, W] or [H, W, 3] of rows of images, white between them."""
    num_samples, channels, height, width = rows[0].shape
    shown = 3 if channels >= 3 else 1
    gap = max(1, round(GAP * width))
    laid_out = np.ones((len(rows) * (height + gap) - gap, num_samples * (width + gap) - gap, shown), np.float32)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (height + gap), j * (width + gap)
            laid_out[top : top + height, left : left + width] = image[:shown].transpose(1, 2, 0)
    return laid_out[:, :, 0] if shown == 1 else laid_out
