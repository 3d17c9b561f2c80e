"""Figures in ink, by matplotlib: for the page as SVG that takes its colours from the page's style, and as files of
their own in colours that suit paper.

Lines are told apart by colour, marker and dashes, so that no single one of them is needed.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import NodeError
from node.experiments.figures import Figure, Line, Panel
from node.experiments.values import show_bytes, show_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# One colour for each line, on paper and on a light page, and as it is on a dark one.
COLOURS = ("#0b62c4", "#d1480b", "#237a36", "#9336b0", "#b8860b", "#0a7c90", "#c2255c", "#1b1f24")
DARK_COLOURS = ("#6cb2ff", "#ff9657", "#67d67a", "#d79bf2", "#e6c34c", "#5ad3e6", "#ff86ae", "#e6e9ed")

_INK, _GRID = "#0a0b0c", "#d0d1d2"  # stand for the page's own, and are replaced by them
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", ":", "-.")  # when the colours are used up
_MOST_COLUMNS = 3
_PANEL_INCHES = (3.5, 2.6)
_ALONE_INCHES = (6.6, 3.6)
_PNG_DPI = 160
_PIXELS_PER_POINT = 1.4  # on the page, at most

_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "svg.hashsalt": "fednode",  # the same results give the same bytes
}


def assign_colours(figures: Sequence[Figure]) -> dict[str, int]:
    """A number for each label, the same in all figures of a page."""
    labels = dict.fromkeys(line.label for figure in figures for panel in figure.panels for line in panel.lines)
    return {label: i for i, label in enumerate(labels)}


def render_inline(figure: Figure, colours: Mapping[str, int], prefix: str) -> str:
    """An `<svg>` to stand in a page: its colours are `currentColor`, `--grid` and `--line-0` to `--line-7`, its ids
    begin with `prefix`, and it refers to nothing outside itself."""
    with _matplotlib_style({"svg.fonttype": "none"}):
        canvas, titles = _draw(figure, colours)
        out = io.StringIO()
        canvas.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _adopt(out.getvalue(), titles, figure.title, prefix)


def write_files(figure: Figure, colours: Mapping[str, int], stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png")]
    with _matplotlib_style({"svg.fonttype": "path"}):
        canvas, _ = _draw(figure, colours)
        canvas.savefig(paths[0], facecolor="white", metadata={"Date": None})
        canvas.savefig(paths[1], facecolor="white", dpi=_PNG_DPI, metadata={"Software": None})
    return paths


def _matplotlib_style(more: Mapping[str, Any]) -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NodeError("expected matplotlib to be installed: pip install 'fednode[report]'") from error
    style: Any = {**_STYLE, **more}
    return matplotlib.rc_context(style)


# ---- drawing


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
            axes.set_ylabel(figure.y_label + (", %" if figure.kind == "accuracy" else ""))
        if i + columns >= count:
            axes.set_xlabel(figure.x_label)
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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.kind == "accuracy":
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
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


def _describe(figure: Figure, line: Line) -> str:
    """What is shown while the pointer rests on a line."""
    best = max(line.mean) if figure.kind != "loss" else min(line.mean)
    spread = line.std[line.mean.index(best)]
    shown = show_number(figure.kind, best)
    if line.seeds > 1:
        shown += f" ± {show_number(figure.kind, spread, spread=True)}"
    where = line.x[line.mean.index(best)]
    if line.flat:
        return f"{line.label}: best {shown}, nothing sent"
    at = figure.ticks[int(where)] if figure.ticks else show_bytes(where) if figure.log_x else f"{where:g}"
    return f"{line.label}: best {shown} at {at}"


# ---- from matplotlib's document to a part of a page

_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')


def _adopt(document: str, titles: Mapping[str, str], title: str, prefix: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    for line_id, text in titles.items():
        svg = svg.replace(f'<g id="{line_id}">', f"<g><title>{html.escape(text)}</title>")
    wanted = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda match: f' id="{prefix}-{match[1]}"' if match[1] in wanted else "", svg)
    svg = _REFERENCE.sub(lambda match: match[0].replace(f"#{match[1]}", f"#{prefix}-{match[1]}"), svg)
    svg = re.sub(r"font: ((?:[a-z]+ |\d+ )*)([\d.]+px) [^;\"]*", r"font-size: \2", svg)
    replacements = {_INK: "currentColor", _GRID: "var(--grid)"}
    replacements |= {colour: f"var(--line-{i})" for i, colour in enumerate(COLOURS)}
    for colour, own in replacements.items():
        svg = svg.replace(colour, own)
    head, rest = svg.split(">", 1)
    width = re.search(r'viewBox="0 0 ([\d.]+)', head)
    size = f' style="max-width:{_PIXELS_PER_POINT * float(width[1]):.0f}px"' if width else ""
    head = re.sub(r' (?:width|height)="[^"]*"', "", head) + size
    return f'{head} role="img" aria-label="{html.escape(title)}">{rest}'
