"""Charts of embeddings, drawn by matplotlib: test samples are dots in the colours of their classes; prototypes are
large marks in the same colours, and their shape says whose they are."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from node.experiments import drawing_style
from node.experiments.embeddings import EmbeddingFigure, Map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Told apart on white and on black.
_COLOURS = (
    *("#3b7dd8", "#f08c1e", "#2f9e44", "#e0393e", "#9561e2", "#8d6346", "#e56db1", "#8a8f98", "#b5b021", "#15aabf"),
)
_EVERYONES = "*"  # the mark of a prototype that is nobody's own
_MARKERS = "PDsX^vpo<>dh"  # of clients, as far as they go
_OPACITY = 0.65  # of a dot
_MOST_COLUMNS = 3
MOST_NAMED = 24  # classes that a legend has room for
_PANEL_INCHES = (3.3, 3.3)
_ALONE_INCHES = (6.0, 5.0)
_LEGEND_ROW_INCHES = 0.24


def render_inline(figure: EmbeddingFigure, prefix: str) -> str:
    """The figure as part of a page."""
    return drawing_style.render_inline(lambda: _draw(figure), describe(figure), prefix)


def write_files(figure: EmbeddingFigure, stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    return drawing_style.write_files(lambda: _draw(figure), stem)


def describe(figure: EmbeddingFigure) -> str:
    """The figure in words."""
    panels = "; ".join(f"{panel.label}: {', '.join(say_counts(panel))}" for panel in figure.panels)
    return f"{figure.title}. {panels}"


def say_counts(panel: Map) -> list[str]:
    """The counts of a panel, in words."""
    num = len(panel.labels)
    said = [f"{num} samples", f"{_percent(panel.num_right, num)} classified rightly"]
    if panel.num_nearest is None:
        return [*said, "no prototypes"]
    said.append(f"{_percent(panel.num_nearest, num)} nearest to a prototype of their class")
    authors = "" if panel.authors is None else f" of {len(np.unique(panel.authors))} clients"
    return [*said, f"{len(panel.classes)} prototypes{authors}"]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def get_colours(count: int) -> list[str]:
    """A colour for each class; of more than ten by hue alone."""
    if count <= len(_COLOURS):
        return list(_COLOURS[:count])
    colours = (colorsys.hls_to_rgb(i / count, 0.42 + 0.16 * (i % 2), 0.65) for i in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours]


# ---- drawing


def _draw(figure: EmbeddingFigure) -> tuple[Canvas, dict[str, str]]:
    """The figure, and what is to be said of its dots and marks by their ids."""
    from matplotlib.figure import Figure as Canvas

    count = len(figure.panels)
    columns = 2 if count == 4 else min(count, _MOST_COLUMNS)
    rows = math.ceil(count / columns)
    width, height = _ALONE_INCHES if count == 1 else (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    legends = [_list_class_handles(figure), _list_author_handles(figure)]
    legends = [handles for handles in legends if handles]
    depths = [_LEGEND_ROW_INCHES * math.ceil(len(own) / _count_columns(own, width)) + 0.08 for own in legends]
    total = height + sum(depths)
    canvas = Canvas(figsize=(width, total))
    canvas.set_layout_engine("constrained", rect=(0, sum(depths) / total, 1, height / total))
    grid: Any = canvas.subplots(rows, columns, squeeze=False)
    titles: dict[str, str] = {}
    for i, axes in enumerate(grid.flat):
        if i < count:
            _draw_panel(axes, figure, figure.panels[i], f"map-{i}", titles)
        else:
            axes.set_visible(False)
    for i, own in enumerate(legends):
        bottom = sum(depths[i + 1 :]) / total
        canvas.legend(
            handles=_by_row(own, _count_columns(own, width)),
            loc="lower center",
            bbox_to_anchor=(0.5, bottom),
            ncols=_count_columns(own, width),
            columnspacing=1.0,
            handletextpad=0.3,
            borderaxespad=0.2,
        )
    return canvas, titles


def _draw_panel(axes: Axes, figure: EmbeddingFigure, panel: Map, name: str, titles: dict[str, str]) -> None:
    scale = 1.0 if len(figure.panels) > 1 else 1.35
    colours = get_colours(len(figure.names))
    axes.set_title(panel.label)
    axes.set_xlabel("\n".join(_say_below(panel)), fontsize=7.5)
    for label, colour in enumerate(colours):
        own = panel.samples[panel.labels == label]
        if len(own):
            dots: dict[str, Any] = {"color": colour, "alpha": _OPACITY, "markersize": 3.4 * scale, "markeredgewidth": 0}
            axes.plot(*own.T, linestyle="none", marker="o", gid=f"{name}-class-{label}", **dots)
            titles[f"{name}-class-{label}"] = f"{panel.names[label]}: {len(own)} samples"
    shapes = _assign_markers(figure)
    for j, (label, author) in enumerate(_list_marks(panel)):
        own = panel.prototypes[_is_mark(panel, label, author)]
        look = _look(shapes.get(author, _EVERYONES), colours[label], len(panel.classes), scale)
        axes.plot(*own.T, linestyle="none", gid=f"{name}-mark-{j}", **look)
        whose = "prototype" if author is None else f"client {author}'s prototype"
        titles[f"{name}-mark-{j}"] = f"{whose} of {panel.names[label]}"
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=drawing_style.GRID)
    axes.margins(0.06)
    axes.set_aspect("equal", adjustable="datalim")


def _say_below(panel: Map) -> list[str]:
    right = f"{_percent(panel.num_right, len(panel.labels))} classified rightly"
    if panel.num_nearest is None:
        return [right, "no prototypes"]
    return [right, f"{_percent(panel.num_nearest, len(panel.labels))} nearest to a prototype of their class"]


def _look(marker: str, colour: str, count: int, scale: float = 1.0) -> dict[str, Any]:
    """Of a prototype's mark: smaller where there are many."""
    size = scale * (13.0 if marker == _EVERYONES else 9.0) * min(1.0, max(0.5, math.sqrt(20 / count)))
    return {
        "marker": marker,
        "markersize": size,
        "markerfacecolor": colour,
        "markeredgecolor": drawing_style.INK,
        "markeredgewidth": 0.9,
        "zorder": 3,
    }


def _list_marks(panel: Map) -> list[tuple[int, int | None]]:
    """The class and the author of each group of prototypes."""
    authors: Sequence[int | None] = [None] * len(panel.classes) if panel.authors is None else panel.authors.tolist()
    return list(dict.fromkeys(zip(panel.classes.tolist(), authors, strict=True)))


def _is_mark(panel: Map, label: int, author: int | None) -> Any:
    own = panel.classes == label
    return own if author is None or panel.authors is None else own & (panel.authors == author)


def _assign_markers(figure: EmbeddingFigure) -> dict[int | None, str]:
    """A shape for each author in all panels; none are assigned where there are too few shapes."""
    found = (author for panel in figure.panels for _, author in _list_marks(panel) if author is not None)
    authors = sorted(set(found))
    return {} if len(authors) > len(_MARKERS) else dict(zip(authors, _MARKERS, strict=False))


# ---- legends


def _list_class_handles(figure: EmbeddingFigure) -> list[Any]:
    from matplotlib.lines import Line2D

    if len(figure.names) > MOST_NAMED:
        return []
    pairs = zip(figure.names, get_colours(len(figure.names)), strict=True)
    look: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6, "markeredgewidth": 0}
    return [Line2D([], [], label=name, color=colour, **look) for name, colour in pairs]


def _list_author_handles(figure: EmbeddingFigure) -> list[Any]:
    from matplotlib.lines import Line2D

    shapes = {f"client {author}": marker for author, marker in _assign_markers(figure).items()}
    if any(panel.authors is None and len(panel.classes) for panel in figure.panels):
        shapes = {"all clients" if shapes else "mean over clients": _EVERYONES, **shapes}
    if not shapes and any(len(panel.classes) for panel in figure.panels):
        shapes = {"one client each": _EVERYONES}
    marks = [
        Line2D([], [], label=label, linestyle="none", **_look(shape, drawing_style.GRID, 60))
        for label, shape in shapes.items()
    ]
    return [Line2D([], [], label="prototypes:", linestyle="none"), *marks] if marks else []


def _count_columns(handles: Sequence[Any], width: float) -> int:
    """The most that stand side by side in `width` inches, as wide as their labels."""
    widths = [0.35 + 0.066 * len(handle.get_label()) for handle in handles]
    fitting = (n for n in range(len(widths), 1, -1) if sum(max(widths[j::n]) for j in range(n)) <= width)
    return next(fitting, 1)


def _by_row(handles: Sequence[Any], num_columns: int) -> list[Any]:
    """The order in which a legend that is filled by column reads by row."""
    return [handle for j in range(num_columns) for handle in handles[j::num_columns]]
