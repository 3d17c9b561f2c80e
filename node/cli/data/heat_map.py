"""A table of counts as a heat map on a terminal: shaded where there are colours, plain numbers where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style

_LIGHT, _DARK = (222, 235, 247), (8, 48, 107)


def print_heat_map(
    console: Console, labels: Sequence[str], facts: Sequence[str], counts: Sequence[Sequence[int]]
) -> None:
    """Prints `counts` in numbered columns, before each row its label and its facts: aligned lines, headings first.

    On a terminal that is too narrow, the columns that do not fit follow in bands below, with the labels again but not
    the facts. In a pipe every row is one line.
    """
    lefts = [f"{label}  {fact} " for label, fact in zip(labels, facts, strict=True)]
    num_columns = len(counts[0])
    most = max(max(map(max, counts)), 1)
    width = max(len(str(most)), len(str(num_columns - 1)))
    start = 0
    while start < num_columns:
        room = (console.width - len(lefts[0])) // (width + 2) if console.is_terminal else num_columns
        columns = range(start, min(start + max(room, 1), num_columns))
        if start:
            console.print()
        _print_band(console, lefts, counts, columns, width, most)
        start, lefts = columns.stop, [f"{label} " for label in labels]


def _print_band(
    console: Console, lefts: Sequence[str], counts: Sequence[Sequence[int]], columns: range, width: int, most: int
) -> None:
    from rich.text import Text

    lines = [Text(lefts[0] + "".join(f" {column:>{width}} " for column in columns))]
    for left, row in zip(lefts[1:], counts, strict=True):
        line = Text(left)
        for column in columns:
            line.append(f" {row[column] or '-':>{width}} ", _get_style(row[column] / most))
        lines.append(line)
    for line in lines:
        if not console.is_terminal:
            line.rstrip()
        console.print(line, soft_wrap=True)


def _get_style(share: float) -> Style | None:
    """Returns a background from light to dark; None for zero."""
    from rich.style import Style

    if share == 0:
        return None
    red, green, blue = (round(light + share * (dark - light)) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return Style(color="white" if share > 0.5 else "black", bgcolor=f"rgb({red},{green},{blue})")
