"""The drawing style of all figures by matplotlib: SVG for the page, which takes the colours of the page's style, and
separate files in colours that suit paper."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import NodeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# One colour for each line, on paper and on a light page, and as it is on a dark one.
COLOURS = ("#0b62c4", "#d1480b", "#237a36", "#9336b0", "#b8860b", "#0a7c90", "#c2255c", "#1b1f24")
DARK_COLOURS = ("#6cb2ff", "#ff9657", "#67d67a", "#d79bf2", "#e6c34c", "#5ad3e6", "#ff86ae", "#e6e9ed")

INK, GRID = "#0a0b0c", "#d0d1d2"  # stand for the page's own, and are replaced by them
_PNG_DPI = 160
_PIXELS_PER_POINT = 1.4  # on the page, at most

_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar in a label is a dollar
    "svg.hashsalt": "fednode",  # the same results give the same bytes
}


Draw = Callable[[], "tuple[Canvas, Mapping[str, str]]"]  # a drawing, and what is to be said of its groups by their ids


def render_inline(draw: Draw, description: str, prefix: str) -> str:
    """An `<svg>` to stand in a page: its colours are `currentColor`, `--grid` and `--line-0` to `--line-7`, its ids
    begin with `prefix`, and it refers to nothing outside itself."""
    with _matplotlib_style({"svg.fonttype": "none"}):
        canvas, titles = draw()
        out = io.StringIO()
        canvas.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _adopt(out.getvalue(), titles, description, prefix)


def write_files(draw: Draw, stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png")]
    with _matplotlib_style({"svg.fonttype": "path"}):
        canvas, _ = draw()
        canvas.savefig(paths[0], facecolor="white", metadata={"Date": None})
        canvas.savefig(paths[1], facecolor="white", dpi=_PNG_DPI, metadata={"Software": None})
    return paths


def applied_style() -> Any:
    """The style for as long as a block lasts, for a figure that stands in no report. Raises NodeError where matplotlib
    is missing."""
    return _matplotlib_style({})


def _matplotlib_style(more: Mapping[str, Any]) -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NodeError("expected matplotlib to be installed: pip install 'fednode[report]'") from error
    style: Any = {**_STYLE, **more}
    return matplotlib.rc_context(style)


MOST_COLUMNS = 3


def lay_out_panels(count: int, inches: tuple[float, float]) -> tuple[Canvas, list[Any]]:
    """A drawing with axes for so many panels, each so wide and high, in rows of three."""
    from matplotlib.figure import Figure as Canvas

    columns = min(count, MOST_COLUMNS)
    rows = math.ceil(count / columns)
    canvas = Canvas(figsize=(inches[0] * columns, inches[1] * rows), layout="constrained")
    grid: Any = canvas.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return canvas, list(grid.flat[:count])


# ---- from matplotlib's document to a part of a page

_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_MARKS = re.compile(r'<g( clip-path="[^"]*")>\s*((?:<use [^>]*/>\s*)+)</g>')
_MARK = re.compile(r'<use href="([^"]*)" x="([^"]*)" y="([^"]*)" style="([^"]*)"/>')


def _adopt(document: str, titles: Mapping[str, str], description: str, prefix: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    for line_id, text in titles.items():
        svg = svg.replace(f'<g id="{line_id}">', f"<g><title>{html.escape(text)}</title>")
    wanted = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda match: f' id="{prefix}-{match[1]}"' if match[1] in wanted else "", svg)
    svg = _REFERENCE.sub(lambda match: match[0].replace(f"#{match[1]}", f"#{prefix}-{match[1]}"), svg)
    svg = _MARKS.sub(_shorten, svg)
    svg = re.sub(r"font: ((?:[a-z]+ |\d+ )*)([\d.]+px) [^;\"]*", r"font-size: \2", svg)
    replacements = {INK: "currentColor", GRID: "var(--grid)"}
    replacements |= {colour: f"var(--line-{i})" for i, colour in enumerate(COLOURS)}
    for colour, own in replacements.items():
        svg = svg.replace(colour, own)
    head, rest = svg.split(">", 1)
    width = re.search(r'viewBox="0 0 ([\d.]+)', head)
    size = f' style="max-width:{_PIXELS_PER_POINT * float(width[1]):.0f}px"' if width else ""
    head = re.sub(r' (?:width|height)="[^"]*"', "", head) + size
    return f'{head} role="img" aria-label="{html.escape(description)}">{rest}'


def _shorten(group: re.Match[str]) -> str:
    """Marks of one look: it is said once, and their places to a hundredth of a point."""
    marks = _MARK.findall(group[2])
    looks = {look for *_, look in marks}
    if len(looks) != 1 or len(marks) != group[2].count("<use "):
        return group[0]
    placed = "".join(f'<use href="{name}" x="{float(x):.2f}" y="{float(y):.2f}"/>' for name, x, y, _ in marks)
    return f'<g{group[1]} style="{looks.pop()}">{placed}</g>'
