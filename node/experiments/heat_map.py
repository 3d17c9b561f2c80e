"""A partition as a picture: clients across, classes upwards, the darker the more samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.report.drawing import applied_style, lay_out_panels, write_png

MAX_ANNOTATED = 400  # cells; numbers in more would be too small to read
MAX_TICKS = 40


def draw_heat_map(
    path: Path, counts: Sequence[Sequence[int]], clients: Sequence[str], classes: Sequence[str], title: str
) -> None:
    """Writes a PNG of `counts[i][c]`, the number of samples of class c that client i has. `clients` and `classes` name
    them.

    Raises ConfigError when matplotlib is not installed or the file cannot be written.
    """
    num_clients, num_classes = len(counts), len(counts[0])
    most = max(*map(max, counts), 1)
    is_annotated = num_clients * num_classes <= MAX_ANNOTATED
    inches = 0.42 if is_annotated else 0.16
    size = (min(max(num_clients * inches, 3.6), 18) + 2.2, min(max(num_classes * inches, 2.4), 14) + 1.4)
    with applied_style("--png"):
        figure, (axes,) = lay_out_panels([""], size)
        look: Any = {"cmap": "Blues", "vmin": 0, "vmax": most, "aspect": "auto", "origin": "lower"}
        image = axes.imshow(list(zip(*counts, strict=True)), **look)
        axes.grid(visible=False)
        axes.set(xlabel="client", ylabel="class")
        across, down = -(-num_clients // MAX_TICKS), -(-num_classes // MAX_TICKS)
        axes.set_xticks(
            range(0, num_clients, across), clients[::across], rotation=45 if max(map(len, clients)) > 4 else 0
        )
        axes.set_yticks(range(0, num_classes, down), classes[::down])
        axes.tick_params(length=0, labelsize=8)
        if is_annotated:
            for client, row in enumerate(counts):
                for c, count in enumerate(row):
                    colour = "white" if count > 0.6 * most else "black"
                    axes.text(client, c, str(count or ""), ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(image, ax=axes, pad=0.02, label="training samples")
        write_png(figure, path, title)
