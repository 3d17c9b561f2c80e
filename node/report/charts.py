"""The charts of a run's report. Lines differ in dashes and bars in place, so that no colour is needed to distinguish
them; without matplotlib a sentence replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from node.errors import NodeError
from node.log import escape_control
from node.report.drawing import COLOURS, DASHES, GRID, INK, Draw, add_legend, lay_out_panels, render_inline
from node.report.elements import Html, find_spans, make_paragraph

NAME_CHARS = 19


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a round, and its interval, if it has one."""

    x: int
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; its points are in order."""

    label: str
    points: tuple[Point, ...]


def draw_lines(title: str, lines: Sequence[Line], y_label: str) -> Html:
    """Draws values over rounds, with intervals as a band. Empty where no line has a point."""
    drawn = [line for line in lines if line.points]

    def draw() -> tuple[Any, dict[str, str]]:
        canvas, (axes,) = lay_out_panels([""], (7.4, 2.6))
        handles = {}
        for i, line in enumerate(drawn):
            banded = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
            if banded:
                axes.fill_between(
                    *zip(*banded, strict=True), color=COLOURS[i], alpha=0.14, linewidth=0, gid=f"band-{i}"
                )
            look = {"color": COLOURS[i], "linestyle": DASHES[i], "marker": "o" if len(line.points) == 1 else ""}
            (handle,) = axes.plot([p.x for p in line.points], [p.y for p in line.points], **look)
            handles[f"{escape_control(line.label)} {line.points[-1].y:.3f}"] = handle
        _count_rounds(axes)
        axes.set_ylabel(y_label)
        add_legend(canvas, handles)
        return canvas, {f"band-{i}": f"95 % interval of {line.label}" for i, line in enumerate(drawn)}

    return _render(draw, title) if drawn else Html("")


def draw_participation(title: str, members: Sequence[tuple[str, Sequence[int]]], num_rounds: int) -> Html:
    """Draws a row for each member with a bar over the rounds that have its contribution. Empty where there was no
    round."""

    def draw() -> tuple[Any, dict[str, str]]:
        canvas, (axes,) = lay_out_panels([""], (7.4, 0.6 + 0.22 * len(members)))
        names = [escape_control(name) for name, _ in members]
        for i, (_, rounds) in enumerate(members):
            spans = [(first - 0.5, last - first + 1) for first, last in find_spans(rounds)]
            axes.broken_barh([(0.5, num_rounds)], (i - 0.3, 0.6), facecolor="none", edgecolor=GRID)
            axes.broken_barh(spans, (i - 0.3, 0.6), facecolor=INK, gid=f"bars-{i}")
        shown = [
            name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}" for name in names
        ]
        axes.set_yticks(range(len(members)), shown)
        axes.set(xlim=(0.5, num_rounds + 0.5), ylim=(len(members) - 0.5, -0.5))
        axes.grid(visible=False)
        _count_rounds(axes)
        return canvas, {f"bars-{i}": name for i, name in enumerate(names)}

    return _render(draw, title) if members and num_rounds else Html("")


def _count_rounds(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")


def _render(draw: Draw, title: str) -> Html:
    try:
        return Html(render_inline(draw, title, "chart-" + title.partition(" ")[0].lower()))
    except NodeError as error:
        return make_paragraph(f"There is no chart: {error}.", "note")
