"""The marks of `fednode top`: a state is a word and a shape, and a colour on top. Terminals that show no more than
ASCII get other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from node.log import escape_control

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
# Phases of a round: a letter each, so that a bar of them can be read without colours.
PHASES = {
    "train": ("T", "blue"),
    "exchange": ("E", "cyan"),
    "mine": ("M", "yellow"),
    "vote": ("V", "magenta"),
    "apply": ("A", "green"),
}
_SHAPES = {
    "up": ("●", "*", "green"),
    "silent": ("◐", "~", "yellow"),
    "through": ("◒", ">", "cyan"),
    "away": ("○", "o", "red"),
    "suspended": ("⊘", "x", "red"),
    "good": ("✔", "+", "green"),
    "bad": ("✖", "!", "bold red"),
    "note": ("▲", "-", "yellow"),
}


@dataclass(frozen=True, slots=True)
class Pen:
    """Writes shapes as the terminal can show them."""

    is_plain: bool = False

    def mark(self, state: str) -> Text:
        """The shape of a state, in its colour."""
        shape, plain, style = _SHAPES[state]
        return Text(plain if self.is_plain else shape, style=style)

    def draw_bars(self, values: Sequence[float]) -> str:
        """A small bar for each value, the lowest the shortest."""
        bars = PLAIN_BARS if self.is_plain else BARS
        if not values:
            return ""
        low, high = min(values), max(values)
        if high - low < 1e-9:
            return bars[len(bars) // 2] * len(values)
        return "".join(bars[min(len(bars) - 1, int((value - low) / (high - low) * len(bars)))] for value in values)

    def draw_progress(self, done: int, total: int, width: int) -> str:
        """`[=====-----]`, or with blocks."""
        filled = 0 if total <= 0 else min(width, width * done // total)
        full, empty = ("=", "-") if self.is_plain else ("█", "░")
        return f"[{full * filled}{empty * (width - filled)}]"


def write(text: str, style: str = "") -> Text:
    """One line of text that anybody may have written: nothing in it moves the cursor."""
    return Text(escape_control(text), style=style, no_wrap=True, overflow="ellipsis")
