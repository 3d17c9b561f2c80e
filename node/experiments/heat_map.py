"""A partition as a picture: clients across, classes upwards, the darker the more samples. Drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.errors import ConfigError

MAX_ANNOTATED = 400  # cells; more cannot be read as numbers
MAX_TICKS = 40
DPI = 150


def draw_heat_map(
    path: Path, counts: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str], title: str
) -> None:
    """Write a PNG of `counts[i][c]`, how many samples of class c client i has. `clients` and `classes` name them.

    Raises ConfigError when matplotlib is not installed or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--png: expected matplotlib to be installed: pip install 'fednode[report]'") from error
    num_clients, num_classes = len(counts), len(counts[0])
    most = max(max(map(max, counts)), 1)
    annotated = num_clients * num_classes <= MAX_ANNOTATED
    inches = 0.42 if annotated else 0.16
    size = (min(max(num_clients * inches, 3.6), 18) + 2.2, min(max(num_classes * inches, 2.4), 14) + 1.4)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever matplotlib is set up for
    axes = figure.add_subplot()
    image = axes.imshow(list(zip(*counts, strict=True)), cmap="Blues", vmin=0, vmax=most, aspect="auto", origin="lower")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    figure.suptitle(title, fontsize=10, wrap=True)
    step = -(-num_clients // MAX_TICKS)
    slanted = max(map(len, clients)) > 4
    axes.set_xticks(
        range(0, num_clients, step),
        clients[::step],
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )
    step = -(-num_classes // MAX_TICKS)
    axes.set_yticks(range(0, num_classes, step), classes[::step])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    if annotated:
        axes.set_xticks([i - 0.5 for i in range(1, num_clients)], minor=True)
        axes.set_yticks([i - 0.5 for i in range(1, num_classes)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="minor", length=0)
        for client, row in enumerate(counts):
            for c, count in enumerate(row):
                if count:
                    color = "white" if count > 0.6 * most else "black"
                    axes.text(client, c, str(count), ha="center", va="center", fontsize=7, color=color)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("training samples")
    bar.outline.set_visible(False)
    try:
        figure.savefig(path, format="png", metadata={"Title": title, "Software": None})
    except OSError as error:
        raise ConfigError(f"--png: {path}: cannot be written ({error.strerror})") from error
