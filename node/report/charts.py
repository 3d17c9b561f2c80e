"""The charts of a report: SVG within the page, drawn for paper. Lines differ in dashes and carry their names, so that
no colour is needed to tell them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from node.report.elements import Html, find_spans, show

WIDTH, LEFT, RIGHT, TOP = 760.0, 52.0, 190.0, 14.0
PLOT_HEIGHT = 200.0
ROW_HEIGHT, BAR_HEIGHT = 22.0, 13.0
NAME_WIDTH, NAME_CHARS = 130.0, 19
LABEL_GAP = 15.0  # between the names of two lines
MAX_POINTS = 500  # of a line: what is more is not seen on paper

_DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a round, and the interval that it lies in, where there is one."""

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
    """Values over rounds, an interval as a band. Empty where no line has a point."""
    drawn = [Line(line.label, thin_out(line.points)) for line in lines if line.points]
    if not drawn:
        return Html("")
    points = [point for line in drawn for point in line.points]
    first, last = min(point.x for point in points), max(point.x for point in points)
    lows = [point.y if point.low is None else point.low for point in points]
    highs = [point.y if point.high is None else point.high for point in points]
    ticks = choose_ticks(min(lows), max(highs))
    x = _Scale(first, max(last, first + 1), LEFT, WIDTH - RIGHT)
    y = _Scale(ticks[0], ticks[-1], TOP + PLOT_HEIGHT, TOP)
    parts = [_draw_grid(ticks, x, y, first, last, y_label)]
    ends = spread([y(line.points[-1].y) for line in drawn], LABEL_GAP)
    for i, (line, end) in enumerate(zip(drawn, ends, strict=True)):
        parts.append(_draw_line(line, i, x, y, end))
    return _frame(title, TOP + PLOT_HEIGHT + 42, parts)


def draw_participation(title: str, members: Sequence[tuple[str, Sequence[int]]], num_rounds: int) -> Html:
    """A row for each member with a bar over the rounds that have its contribution. Empty where there was no round."""
    if not members or not num_rounds:
        return Html("")
    x = _Scale(0.5, num_rounds + 0.5, NAME_WIDTH, WIDTH - 10)
    parts = []
    for i, (name, rounds) in enumerate(members):
        top = TOP + i * ROW_HEIGHT
        middle = top + ROW_HEIGHT / 2
        shown = name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}"
        parts.append(f'<text x="{NAME_WIDTH - 8:g}" y="{middle + 4:.1f}" text-anchor="end">{show(shown)}</text>')
        edges = x(0.5), top + (ROW_HEIGHT - BAR_HEIGHT) / 2, x(num_rounds + 0.5) - x(0.5)
        parts.append(
            f'<rect class="gap" x="{edges[0]:.1f}" y="{edges[1]:.1f}" width="{edges[2]:.1f}" height="{BAR_HEIGHT:g}"/>'
        )
        for start, end in find_spans(rounds):
            left, right = x(start - 0.5), x(end + 0.5)
            parts.append(
                f'<rect class="bar" x="{left:.2f}" y="{edges[1]:.1f}" width="{right - left:.2f}" '
                f'height="{BAR_HEIGHT:g}"/>'
            )
    bottom = TOP + len(members) * ROW_HEIGHT
    for tick in choose_rounds(1, num_rounds):
        parts.append(f'<text class="soft" x="{x(tick):.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text class="soft" x="{NAME_WIDTH - 8:g}" y="{bottom + 16:.1f}" text-anchor="end">round</text>')
    return _frame(title, bottom + 24, parts)


class _Scale:
    """A straight line from values to places in the drawing."""

    def __init__(self, first: float, last: float, start: float, end: float) -> None:
        self._first, self._start = first, start
        self._factor = (end - start) / (last - first)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._first) * self._factor


def _draw_grid(ticks: Sequence[float], x: _Scale, y: _Scale, first: int, last: int, y_label: str) -> str:
    parts = []
    for tick in ticks:
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="soft" x="{LEFT - 8:g}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    bottom = TOP + PLOT_HEIGHT
    for number in choose_rounds(first, last):
        parts.append(
            f'<text class="soft" x="{x(number):.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{number}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="soft" x="{middle:.1f}" y="{bottom + 36:.1f}" text-anchor="middle">round</text>')
    centre = TOP + PLOT_HEIGHT / 2
    parts.append(
        f'<text class="soft" transform="translate(12 {centre:g}) rotate(-90)" text-anchor="middle">'
        f"{show(y_label)}</text>"
    )
    return "".join(parts)


def _draw_line(line: Line, number: int, x: _Scale, y: _Scale, label_y: float) -> str:
    parts = []
    banded = [(x(p.x), y(p.low), y(p.high)) for p in line.points if p.low is not None and p.high is not None]
    if len(banded) > 1:
        there = " ".join(f"{at:.1f},{high:.1f}" for at, _, high in banded)
        back = " ".join(f"{at:.1f},{low:.1f}" for at, low, _ in reversed(banded))
        parts.append(f'<polygon class="band band-{number}" points="{there} {back}"/>')
    dash = _DASHES[number % len(_DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    if len(line.points) == 1:
        (only,) = line.points
        parts.append(f'<circle class="dot line-{number}" cx="{x(only.x):.1f}" cy="{y(only.y):.1f}" r="3"/>')
    path = " ".join(f"{x(point.x):.1f},{y(point.y):.1f}" for point in line.points)
    parts.append(f'<polyline class="line line-{number}" points="{path}"{dashes}/>')
    end = line.points[-1]
    right = WIDTH - RIGHT
    parts.append(
        f'<line class="leader" x1="{x(end.x):.1f}" y1="{y(end.y):.1f}" x2="{right + 8:g}" y2="{label_y:.1f}"/>'
    )
    parts.append(
        f'<text class="name-{number}" x="{right + 12:g}" y="{label_y + 4:.1f}">{show(line.label)} {end.y:.3f}</text>'
    )
    return "".join(parts)


def _frame(title: str, height: float, parts: Sequence[str]) -> Html:
    return Html(
        f'<svg role="img" aria-label="{show(title)}" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


# ---- places


def thin_out(points: Sequence[Point]) -> tuple[Point, ...]:
    """Of more points than can be seen, the lowest and the highest of each of equal spans, and the last."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    size = math.ceil(2 * len(points) / MAX_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        span = points[start : start + size]
        ends = {min(span, key=lambda point: point.y).x, max(span, key=lambda point: point.y).x}
        kept += [point for point in span if point.x in ends]
    return (*kept, points[-1]) if kept[-1].x != points[-1].x else tuple(kept)


def choose_ticks(low: float, high: float) -> list[float]:
    """Round numbers, at equal distances, that have both within them."""
    span = max(high - low, 1e-6)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 4 >= span)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def choose_rounds(first: int, last: int) -> list[int]:
    """Some ten rounds to be named below a chart, with the first and the last."""
    step = max(1, math.ceil((last - first) / 10))
    step = next(
        size for size in (1, 2, 5, 10, 20, 25, 50, *(10**i * j for i in range(2, 9) for j in (1, 2, 5))) if size >= step
    )
    inner = [number for number in range(-(-first // step) * step, last, step) if number - first >= step / 2]
    return sorted({first, *(number for number in inner if last - number >= step / 2), last})


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Places for labels near those of their lines, `gap` apart at least."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    shown = list(places)
    for above, below in pairwise(order):
        shown[below] = max(shown[below], shown[above] + gap)
    return shown
