"""Line charts, drawn by matplotlib. Lines differ in colour, marker and dashes, so any one of these is enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from node.experiments import drawing_style
from node.experiments.drawing_style import COLOURS
from node.experiments.figures import Figure, Line, Panel
from node.experiments.values import PERCENT, show_bytes, show_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", ":", "-.")  # when the colours are used up
_MOST_COLUMNS = 3
_PANEL_INCHES = (3.5, 2.6)
_ALONE_INCHES = (6.6, 3.6)
_BOXES_WIDTH = 0.8  # of all lines at one tick


def assign_colours(figures: Sequence[Figure]) -> dict[str, int]:
    """A number for each label, the same in all figures of a page."""
    labels = dict.fromkeys(line.label for figure in figures for panel in figure.panels for line in panel.lines)
    return {label: i for i, label in enumerate(labels)}


def render_inline(figure: Figure, colours: Mapping[str, int], prefix: str) -> str:
    """The figure as part of a page."""
    return drawing_style.render_inline(lambda: _draw(figure, colours), figure.title, prefix)


def write_files(figure: Figure, colours: Mapping[str, int], stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    return drawing_style.write_files(lambda: _draw(figure, colours), stem)


def _draw(figure: Figure, colours: Mapping[str, int]) -> tuple[Canvas, dict[str, str]]:
    """The figure, and what is to be said of each of its lines by its id."""
    from matplotlib.figure import Figure as Canvas

    count = len(figure.panels)
    columns = min(count, _MOST_COLUMNS)
    rows = math.ceil(count / columns)
    width, height = _ALONE_INCHES if count == 1 else (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    labels = list(dict.fromkeys(line.label for panel in figure.panels for line in panel.lines))
    legend_columns = max(1, min(len(labels), int(width / (0.6 + 0.085 * max(map(len, labels))))))
    legend_inches = 0.25 * math.ceil(len(labels) / legend_columns) + 0.1
    total = height + legend_inches
    canvas = Canvas(figsize=(width, total))
    canvas.set_layout_engine("constrained", rect=(0, legend_inches / total, 1, height / total))
    grid: Any = canvas.subplots(rows, columns, sharex=not figure.ticks, sharey=True, squeeze=False)
    titles: dict[str, str] = {}
    handles: dict[str, Any] = {}
    for i, axes in enumerate(grid.flat):
        if i >= count:
            axes.set_visible(False)
            continue
        _draw_panel(axes, figure, figure.panels[i], colours, f"line-{i}", titles, handles)
        axes.tick_params(labelbottom=i + columns >= count, labelleft=True)
        if i % columns == 0:
            axes.set_ylabel(figure.y_label + (", %" if figure.kind in PERCENT else ""))
        if i + columns >= count:
            axes.set_xlabel(figure.x_label)
    if any(labels):
        canvas.legend(
            [handles[label] for label in labels], labels, loc="lower center", ncols=legend_columns, columnspacing=1.4
        )
    return canvas, titles


def _draw_panel(
    axes: Axes,
    figure: Figure,
    panel: Panel,
    colours: Mapping[str, int],
    name: str,
    titles: dict[str, str],
    handles: dict[str, Any],
) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.label:
        axes.set_title(panel.label)
    axes.grid(visible=False, axis="x")
    if figure.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: show_bytes(value).replace(".0 ", " "))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    if figure.ticks:
        axes.set_xticks(range(len(figure.ticks)), figure.ticks)
    elif not figure.log_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=figure.whole_x))
    if figure.kind in PERCENT:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if figure.kind == "share":
        axes.set_ylim(-0.04, 1.04)
    if figure.boxes:
        _draw_boxes(axes, panel, colours, handles)
        return
    for j, line in enumerate(panel.lines):
        number = colours[line.label]
        look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.6}
        if line.flat:  # it sends nothing: its best is there from the start
            drawn: Any = axes.axhline(max(line.mean), linestyle=(0, (1, 1.2)), **look)
        else:
            look["marker"] = _MARKERS[number % len(_MARKERS)]
            look["markevery"] = max(1, len(line.x) // 10)
            look["linestyle"] = _DASHES[number // len(COLOURS) % len(_DASHES)]
            (drawn,) = axes.plot(line.x, line.mean, markersize=3.8, **look)
            if any(line.std):
                low = [mean - std for mean, std in zip(line.mean, line.std, strict=True)]
                high = [mean + std for mean, std in zip(line.mean, line.std, strict=True)]
                axes.fill_between(line.x, low, high, color=look["color"], alpha=0.14, linewidth=0)
        drawn.set_gid(f"{name}-{j}")
        titles[f"{name}-{j}"] = _describe(figure, line)
        handles.setdefault(line.label, drawn)


def _draw_boxes(axes: Axes, panel: Panel, colours: Mapping[str, int], handles: dict[str, Any]) -> None:
    """At each x a box for each line: its quartiles and median, and whiskers to the least and the greatest."""
    width = _BOXES_WIDTH / max(len(panel.lines), 1)
    for j, line in enumerate(panel.lines):
        look: Any = {"color": COLOURS[colours[line.label] % len(COLOURS)], "linewidth": 1.2}
        for x, values in zip(line.x, line.values, strict=True):
            at = x + (j - (len(panel.lines) - 1) / 2) * width
            left, right, cap = at - 0.4 * width, at + 0.4 * width, 0.2 * width
            low, first, median, third, high = summarise(values)
            (box,) = axes.plot([left, right, right, left, left], [first, first, third, third, first], **look)
            axes.plot([left, right], [median, median], **look)
            for end, quartile in ((low, first), (high, third)):
                axes.plot([at, at], [quartile, end], **look)
                axes.plot([at - cap, at + cap], [end, end], **look)
            handles.setdefault(line.label, box)


def summarise(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """The least, the quartiles with the median between them, and the greatest."""
    if len(values) == 1:
        return (values[0],) * 5
    first, median, third = quantiles(values, method="inclusive")
    return min(values), first, median, third, max(values)


def _describe(figure: Figure, line: Line) -> str:
    """What is shown while the pointer rests on a line."""
    best = max(line.mean) if figure.kind != "loss" else min(line.mean)
    word = "best" if figure.kind in ("accuracy", "loss") else "highest"
    spread = line.std[line.mean.index(best)]
    shown = show_number(figure.kind, best)
    if line.seeds > 1:
        shown += f" ± {show_number(figure.kind, spread, spread=True)}"
    where = line.x[line.mean.index(best)]
    if line.flat:
        return f"{line.label}: {word} {shown}, nothing sent"
    at = figure.ticks[int(where)] if figure.ticks else show_bytes(where) if figure.log_x else f"{where:g}"
    return f"{line.label}: {word} {shown} at {at}"
