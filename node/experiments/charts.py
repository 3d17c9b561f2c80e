"""The pictures of a report, drawn by matplotlib: lines and boxes, heat maps, answers, and maps of embeddings.

Lines differ in colour, marker and dashes, so any one of these is enough. On a map test samples are dots in the colours
of their classes; prototypes are large marks in the same colours, and their shape says whose they are.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from node.experiments.answers import Answers, AnswersFigure
from node.experiments.embeddings import EmbeddingFigure, Map
from node.experiments.figures import Figure, Line, Panel
from node.experiments.values import PERCENT, show_number
from node.report.drawing import COLOURS, DASHES, GRID, INK, Draw, add_legend, lay_out_panels
from node.report.elements import show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

AnyFigure = Figure | AnswersFigure | EmbeddingFigure
Drawn = tuple["Canvas", dict[str, str]]

MOST_WRITTEN = 12  # classes, up to which counts and names are written
MOST_NAMED = 24  # at most so many classes fit a legend
_MARKERS = "osD^vPX*"
_EVERYONES = "*"  # the mark of a prototype without an author
_SHAPES = "PDsX^vpo<>dh"  # marks of clients' prototypes
_BOXES_WIDTH = 0.8  # of all boxes at one tick together


def make_draw(figure: AnyFigure, numbers: Mapping[str, int]) -> Draw:
    """Returns the function that draws the figure; `numbers` choose the look of each line, by its label."""
    match figure:
        case Figure(draw="grid"):
            return lambda: _draw_grid(figure)
        case Figure():
            return lambda: _draw_lines(figure, numbers)
        case AnswersFigure():
            return lambda: _draw_answers(figure)
        case EmbeddingFigure():
            return lambda: _draw_maps(figure)


# ---- lines and boxes


def number_lines(figures: Sequence[AnyFigure]) -> dict[str, int]:
    """Returns a number for each label, so that it looks the same in all figures of a page."""
    lines = [line for one in figures if isinstance(one, Figure) for panel in one.panels for line in panel.lines]
    return {label: i for i, label in enumerate(dict.fromkeys(line.label for line in lines))}


def _draw_lines(figure: Figure, numbers: Mapping[str, int]) -> Drawn:
    labels = [panel.label for panel in figure.panels]
    canvas, grid = lay_out_panels(labels, (3.5, 2.6), (6.6, 3.6), sharex=not figure.ticks, sharey=True)
    canvas.supylabel(figure.y_label + (", %" if figure.kind in PERCENT else ""), fontsize=9)
    titles: dict[str, str] = {}
    handles: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(grid, figure.panels, strict=True)):
        _set_axes(axes, figure)
        for j, line in enumerate(panel.lines):
            number = numbers[line.label]
            look = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.6}
            is_box = figure.draw == "box"
            drawn = _draw_boxes(axes, panel, j, look) if is_box else _draw_line(axes, line, number, look)
            if not is_box:
                drawn.set_gid(f"line-{i}-{j}")
                titles[f"line-{i}-{j}"] = _describe(figure, line)
            handles.setdefault(line.label, drawn)
    if any(handles):
        add_legend(canvas, handles)
    return canvas, titles


def _set_axes(axes: Axes, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(visible=False, axis="x")
    axes.set_xlabel(figure.x_label)
    if figure.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: show_bytes(value).replace(".0 ", " "))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    elif figure.ticks:
        axes.set_xticks(range(len(figure.ticks)), figure.ticks)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=figure.whole_x))
    if figure.kind in PERCENT:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if figure.kind == "share":
        axes.set_ylim(-0.04, 1.04)


def _draw_line(axes: Axes, line: Line, number: int, look: dict[str, Any]) -> Any:
    if line.flat:  # it sends nothing, so its best value is a flat line
        return axes.axhline(max(line.mean), linestyle=(0, (1, 1.2)), **look)
    if any(line.std):
        low, high = ([mean + sign * std for mean, std in zip(line.mean, line.std, strict=True)] for sign in (-1, 1))
        axes.fill_between(line.x, low, high, color=look["color"], alpha=0.14, linewidth=0)
    look |= {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 3.8, "markevery": max(1, len(line.x) // 10)}
    return axes.plot(line.x, line.mean, linestyle=DASHES[number // len(COLOURS) % len(DASHES)], **look)[0]


def _draw_boxes(axes: Axes, panel: Panel, j: int, look: dict[str, Any]) -> Any:
    """Draws at each x a box for each line: quartiles and median, and whiskers to the least and the greatest."""
    width = _BOXES_WIDTH / len(panel.lines)
    for x, values in zip(panel.lines[j].x, panel.lines[j].values, strict=True):
        at = x + (j - (len(panel.lines) - 1) / 2) * width
        left, right = at - 0.4 * width, at + 0.4 * width
        low, first, median, third, high = summarise(values)
        xs = [left, right, right, left, left, math.nan, left, right, math.nan, at, at, math.nan, at, at]
        ys = [first, first, third, third, first, math.nan, median, median, math.nan, low, first, math.nan, third, high]
        (box,) = axes.plot(xs, ys, **look)
    return box


def summarise(values: Sequence[float]) -> tuple[float, ...]:
    """Returns the least, the quartiles with the median between them, and the greatest."""
    return tuple(np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist())


def _describe(figure: Figure, line: Line) -> str:
    """Returns what is shown while the pointer rests on a line."""
    best = min(line.mean) if figure.kind == "loss" else max(line.mean)
    i = line.mean.index(best)
    word = "best" if figure.kind in ("accuracy", "loss") else "highest"
    where = "nothing sent" if line.flat else f"at {figure.show_x(line.x[i])}"
    return f"{line.label}: {word} {figure.show_mean(line, i)} {where}"


# ---- heat maps and answers


def _shade(axes: Axes, shares: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]) -> None:
    """Draws fields, the darker the larger their share of 1; one that is not a number stays empty."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    colours = LinearSegmentedColormap.from_list("", [to_rgba(COLOURS[0], 0.0), to_rgba(COLOURS[0], 0.75)])
    axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1)
    for y, row in enumerate(texts):
        for x, text in enumerate(row):
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7)
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _draw_grid(figure: Figure) -> Drawn:
    width = max(2.4, 0.62 * len(figure.ticks)) + 0.9
    height = max(1.4, 0.42 * max(len(panel.lines) for panel in figure.panels)) + 0.8
    canvas, grid = lay_out_panels([panel.label for panel in figure.panels], (width, height))
    canvas.suptitle(figure.y_label + (", %" if figure.kind in PERCENT else ""), fontsize=9)
    means = [mean for panel in figure.panels for line in panel.lines for mean in line.mean]
    pale, dark = (max(means), min(means)) if figure.better == "lower" else (min(means), max(means))
    places = [float(x) for x in range(len(figure.ticks))]
    for axes, panel in zip(grid, figure.panels, strict=True):
        rows = [dict(zip(line.x, line.mean, strict=True)) for line in panel.lines]
        shares = [[(row.get(x, math.nan) - pale) / (dark - pale or 1.0) for x in places] for row in rows]
        texts = [[show_number(figure.kind, row[x]) if x in row else "" for x in places] for row in rows]
        _shade(axes, shares, texts)
        axes.set_xticks([x + 0.5 for x in places], figure.ticks)
        axes.set_yticks([y + 0.5 for y in range(len(rows))], [line.label for line in panel.lines])
        axes.set_xlabel(figure.x_label)
    return canvas, {}


def _draw_answers(figure: AnswersFigure) -> Drawn:
    canvas, grid = lay_out_panels([panel.label for panel in figure.panels], (3.4, 3.4))
    draw: Mapping[str, Callable[[Any, Answers], None]] = {
        "confusion": _draw_confusion,
        "roc": _draw_roc,
        "calibration": _draw_calibration,
    }
    for axes, panel in zip(grid, figure.panels, strict=True):
        axes.set_aspect("equal")
        draw[figure.kind](axes, panel)
    return canvas, {}


def _draw_confusion(axes: Axes, panel: Answers) -> None:
    """Draws a confusion matrix: the darker a field, the larger the share of the class's samples."""
    num = len(panel.names)
    shares = panel.confusion / panel.confusion.sum(axis=1, keepdims=True).clip(min=1)
    texts = [[str(count or "") for count in row] for row in panel.confusion.tolist()] if num <= MOST_WRITTEN else ()
    _shade(axes, shares.tolist(), texts)
    axes.set_ylim(num, 0)
    shown = range(0, num, -(-num // MOST_WRITTEN))
    names = [panel.names[i] for i in shown]
    axes.set_xticks([i + 0.5 for i in shown], names, rotation=45 if max(map(len, names)) > 3 else 0)
    axes.set_yticks([i + 0.5 for i in shown], names)
    axes.tick_params(labelsize=7)
    axes.set_xlabel("given")
    axes.set_ylabel("class")


def _draw_roc(axes: Axes, panel: Answers) -> None:
    _set_unit_square(axes, "1 - specificity", "sensitivity")
    for i, (name, (roc, area)) in enumerate(panel.rocs.items()):
        look: Any = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
        axes.plot(roc.false_rate, roc.true_rate, linewidth=1.2, label=f"{name}, AUC {area:.3f}", **look)
    if 0 < len(panel.rocs) <= MOST_WRITTEN:
        axes.legend(loc="lower right", fontsize=6, handlelength=1.8)


def _draw_calibration(axes: Axes, panel: Answers) -> None:
    """Draws a dot for each bin of confidence, the larger the more samples it has."""
    _set_unit_square(axes, "confidence", "accuracy")
    told = panel.reliability
    axes.plot(told.confidence, told.accuracy, color=COLOURS[0], linewidth=1.0)
    sizes = 12 + 120 * told.counts / max(1, int(told.counts.max()))
    axes.scatter(told.confidence, told.accuracy, s=sizes, color=COLOURS[0], linewidths=0)
    axes.text(0.03, 0.95, f"calibration error {told.error:.3f}", color=INK, fontsize=7, va="top")


def _set_unit_square(axes: Axes, x_label: str, y_label: str) -> None:
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=1)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel=x_label, ylabel=y_label)


# ---- maps of embeddings


def get_colours(count: int) -> list[str]:
    """Returns a colour for each class; more than ten differ by hue alone."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    colours = (colorsys.hls_to_rgb(i / count, 0.42 + 0.16 * (i % 2), 0.65) for i in range(count))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in colours]


def _draw_maps(figure: EmbeddingFigure) -> Drawn:
    canvas, grid = lay_out_panels([panel.label for panel in figure.panels], (3.3, 3.3), (6.0, 5.0))
    authors = sorted({author for panel in figure.panels for _, author in panel.list_marks() if author is not None})
    shapes = {} if len(authors) > len(_SHAPES) else dict(zip(authors, _SHAPES, strict=False))
    titles: dict[str, str] = {}
    handles: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(grid, figure.panels, strict=True)):
        for label, colour in enumerate(get_colours(len(figure.names))):
            own = panel.samples[panel.labels == label]
            name, look = f"map-{i}-class-{label}", {"color": colour, "alpha": 0.65, "markeredgewidth": 0}
            (dots,) = axes.plot(*own.T, linestyle="none", marker="o", markersize=3.4, gid=name, **look)
            if len(own):
                titles[name] = f"{panel.names[label]}: {len(own)} samples"
            if len(figure.names) <= MOST_NAMED:
                handles.setdefault(figure.names[label], dots)
        _draw_prototypes(axes, panel, f"map-{i}", shapes, get_colours(len(figure.names)), titles, handles)
        axes.set_xlabel("\n".join(panel.said[1:3]), fontsize=7.5)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set(visible=True, color=GRID)
        axes.margins(0.06)
        axes.set_aspect("equal", adjustable="datalim")
    if handles:
        add_legend(canvas, handles)
    return canvas, titles


def _draw_prototypes(
    axes: Axes,
    panel: Map,
    name: str,
    shapes: Mapping[int, str],
    colours: Sequence[str],
    titles: dict[str, str],
    handles: dict[str, Any],
) -> None:
    """Draws a mark of its own shape for each author, smaller where there are many."""
    size = min(1.0, max(0.5, math.sqrt(20 / max(1, len(panel.classes)))))
    for j, (label, author) in enumerate(panel.list_marks()):
        shape = _EVERYONES if author is None else shapes.get(author, _EVERYONES)
        look: dict[str, Any] = {"marker": shape, "markersize": size * (13 if shape == _EVERYONES else 9)}
        look |= {"color": colours[label], "markeredgecolor": INK, "markeredgewidth": 0.9, "zorder": 3}
        own = panel.prototypes[panel.is_mark(label, author)]
        (marks,) = axes.plot(*own.T, linestyle="none", gid=f"{name}-mark-{j}", **look)
        whose = "prototype" if author is None else f"client {author}'s prototype"
        titles[f"{name}-mark-{j}"] = f"{whose} of {panel.names[label]}"
        handles.setdefault(whose if author is None or author in shapes else "one client's prototype", marks)
