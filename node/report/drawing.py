"""The drawing of all charts by matplotlib: as SVG within a page, in the page's colours, and as files that suit
paper."""

from __future__ import annotations

import html
import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# Distinguishable on white and on black.
COLOURS = (
    *("#3b7dd8", "#f08c1e", "#2f9e44", "#e0393e", "#9561e2", "#8d6346", "#e56db1", "#8a8f98", "#b5b021", "#15aabf"),
)
DASHES = ("-", "--", ":", "-.")  # the next one whenever all colours are used
INK, GRID = "#0a0b0c", "#d0d1d2"  # replaced by the page's own colours
DPI = 150
MOST_COLUMNS = 3  # of panels in a row
_PIXELS_PER_POINT = 1.4  # the largest size on the page

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
    "text.parse_math": False,  # a dollar sign in a label is no formula
    "svg.hashsalt": "fednode",  # the same results make the same bytes
}

Draw = Callable[[], "tuple[Canvas, Mapping[str, str]]"]  # a drawing, and the titles of its groups by their ids


def applied_style(option: str = "", **more: Any) -> Any:
    """Returns a context in which the style applies. Raises NodeError where matplotlib is missing; ConfigError if an
    `option` of a command needs it."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        said = "expected matplotlib to be installed: pip install 'fednode[report]'"
        raise (ConfigError(f"{option}: {said}") if option else NodeError(said)) from error
    style: Any = {**_STYLE, **more}
    return matplotlib.rc_context(style)


def check_picture(path: Path, option: str = "--png") -> None:
    """Raises ConfigError if the picture cannot be drawn, before its content is computed."""
    if importlib.util.find_spec("matplotlib") is None:
        applied_style(option)
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: {path}: cannot be written (no such directory)")


def lay_out_panels(
    labels: Sequence[str], inches: tuple[float, float], alone: tuple[float, float] | None = None, **shared: Any
) -> tuple[Canvas, list[Any]]:
    """Returns a drawing with axes under each label, of this width and height in inches, in rows of three; a single
    panel may have another size, `alone`."""
    from matplotlib.figure import Figure as Canvas

    columns = min(len(labels), MOST_COLUMNS)
    rows = -(-len(labels) // columns)
    size = (inches[0] * columns, inches[1] * rows) if alone is None or len(labels) > 1 else alone
    canvas = Canvas(figsize=size, layout="constrained")
    grid: Any = canvas.subplots(rows, columns, squeeze=False, **shared)
    for axes, label in zip(grid.flat, labels, strict=False):
        axes.set_title(label)
        axes.tick_params(labelbottom=True, labelleft=True)
    for axes in grid.flat[len(labels) :]:
        axes.set_visible(False)
    return canvas, list(grid.flat[: len(labels)])


def add_legend(canvas: Canvas, handles: Mapping[str, Any]) -> None:
    """Adds a legend below all panels, in as many columns as there is room for."""
    columns = max(1, min(len(handles), int(canvas.get_figwidth() / (0.6 + 0.085 * max(map(len, handles))))))
    canvas.set_figheight(canvas.get_figheight() + 0.25 * -(-len(handles) // columns))
    canvas.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)


def render_inline(draw: Draw, description: str, prefix: str) -> str:
    """Returns an `<svg>` for a page: it has the page's ink and grid, its ids begin with `prefix`, and it refers to
    nothing outside itself."""
    with applied_style(**{"svg.fonttype": "none"}), warnings.catch_warnings(action="ignore"):  # missing letters
        canvas, titles = draw()
        out = io.StringIO()
        canvas.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _adopt(out.getvalue(), titles, description, prefix)


def write_files(draw: Draw, stem: Path) -> list[Path]:
    """Writes `stem`.svg and `stem`.png, on white."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png")]
    with applied_style(**{"svg.fonttype": "path"}), warnings.catch_warnings(action="ignore"):
        canvas, _ = draw()
        canvas.savefig(paths[0], facecolor="white", metadata={"Date": None})
        canvas.savefig(paths[1], facecolor="white", dpi=DPI, metadata={"Software": None})
    return paths


def write_png(canvas: Canvas, path: Path, title: str) -> None:
    """Writes the file that `--png` names. Raises ConfigError where it cannot be written."""
    canvas.suptitle(title, fontsize=9, wrap=True)
    try:
        canvas.savefig(path, format="png", dpi=DPI, metadata={"Title": title, "Software": None})
    except OSError as error:
        raise ConfigError(f"--png: {path}: cannot be written ({error.strerror})") from error


# ---- from matplotlib's document to a fragment of a page

_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_MARKS = re.compile(r'<g( clip-path="[^"]*")>\s*((?:<use [^>]*/>\s*)+)</g>')
_MARK = re.compile(r'<use href="([^"]*)" x="([^"]*)" y="([^"]*)" style="([^"]*)"/>')


def _adopt(document: str, titles: Mapping[str, str], description: str, prefix: str) -> str:
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", document[document.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' xmlns(?::\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    for line_id, text in titles.items():
        svg = svg.replace(f'<g id="{line_id}">', f"<g><title>{html.escape(text)}</title>")
    wanted = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda match: f' id="{prefix}-{match[1]}"' if match[1] in wanted else "", svg)
    svg = _REFERENCE.sub(lambda match: match[0].replace(f"#{match[1]}", f"#{prefix}-{match[1]}"), svg)
    svg = _MARKS.sub(_shorten, svg)
    svg = re.sub(r"font: ((?:[a-z]+ |\d+ )*)([\d.]+px) [^;\"]*", r"font-size: \2", svg)
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    head, rest = svg.split(">", 1)
    width = re.search(r'viewBox="0 0 ([\d.]+)', head)
    size = f' style="max-width:{_PIXELS_PER_POINT * float(width[1]):.0f}px"' if width else ""
    head = re.sub(r' (?:width|height)="[^"]*"', "", head) + size
    return f'{head} role="img" aria-label="{html.escape(description)}">{rest}'


def _shorten(group: re.Match[str]) -> str:
    """Shortens a group of marks of one style: writes the style once, and positions to a hundredth of a point."""
    marks = _MARK.findall(group[2])
    looks = {look for *_, look in marks}
    if len(looks) != 1 or len(marks) != group[2].count("<use "):
        return group[0]
    placed = "".join(f'<use href="{name}" x="{float(x):.2f}" y="{float(y):.2f}"/>' for name, x, y, _ in marks)
    return f'<g{group[1]} style="{looks.pop()}">{placed}</g>'
