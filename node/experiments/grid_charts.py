"""Heat maps of two axes, drawn by matplotlib: the darker the better, with the number in each field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.experiments import drawing_style
from node.experiments.drawing_style import COLOURS
from node.experiments.grids import Grid, GridFigure, say_figures
from node.experiments.values import PERCENT, show_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_DARKEST = 0.75
_FIELD_INCHES = (0.62, 0.42)
_EDGE_INCHES = (0.9, 0.8)


def render_inline(figure: GridFigure, prefix: str) -> str:
    """The figure as part of a page."""
    return drawing_style.render_inline(lambda: _draw(figure), describe(figure), prefix)


def write_files(figure: GridFigure, stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    return drawing_style.write_files(lambda: _draw(figure), stem)


def describe(figure: GridFigure) -> str:
    """The figure in words."""
    panels = "; ".join(f"{panel.label}: {', '.join(say_figures(figure, panel))}" for panel in figure.panels)
    return f"{figure.title}. {panels}"


def _draw(figure: GridFigure) -> tuple[Canvas, dict[str, str]]:
    width = max(2.4, _FIELD_INCHES[0] * max(len(panel.columns) for panel in figure.panels)) + _EDGE_INCHES[0]
    height = max(1.4, _FIELD_INCHES[1] * max(len(panel.rows) for panel in figure.panels)) + _EDGE_INCHES[1]
    canvas, grid = drawing_style.lay_out_panels(len(figure.panels), (width, height))
    canvas.suptitle(figure.value_label + (", %" if figure.kind in PERCENT else ""), fontsize=9)
    means = [mean for panel in figure.panels for mean in panel.means]
    low, high = min(means), max(means)
    for axes, panel in zip(grid, figure.panels, strict=True):
        _draw_panel(axes, figure, panel, low, high)
    return canvas, {}


def _draw_panel(axes: Axes, figure: GridFigure, panel: Grid, low: float, high: float) -> None:
    axes.set_title(panel.label)
    axes.grid(visible=False)
    for y, row in enumerate(panel.cells):
        for x, cell in enumerate(row):
            if cell is None or cell.mean is None:
                continue
            share = 1.0 if high == low else (cell.mean - low) / (high - low)
            share = 1.0 - share if figure.better == "lower" else share
            field: Any = {"color": COLOURS[0], "alpha": _DARKEST * share, "linewidth": 0}
            axes.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], **field)
            axes.text(x + 0.5, y + 0.5, show_number(figure.kind, cell.mean), ha="center", va="center", fontsize=7)
    axes.set_xlim(0, len(panel.columns))
    axes.set_ylim(0, len(panel.rows))
    axes.set_xticks([x + 0.5 for x in range(len(panel.columns))], panel.columns)
    axes.set_yticks([y + 0.5 for y in range(len(panel.rows))], panel.rows)
    axes.tick_params(length=0)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
