"""The state of the screen of `fednode top`: which view, how far it is scrolled, and what a key does to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAGE_LINES = 10


@dataclass(slots=True)
class Screen:
    """Begins with the first of `views`."""

    views: Sequence[str]
    at: int = 0
    scroll: int = 0

    @property
    def view(self) -> str:
        return self.views[self.at]

    def on_key(self, key: str) -> bool:
        """False for the one that ends it. Other keys than those below do nothing.

        In the events up is back in time; in the members it is towards the first.
        """
        if key in ("q", "Q"):
            return False
        if key.isdecimal() and 1 <= int(key) <= len(self.views):
            self._go(int(key) - 1)
        elif key in ("tab", "back"):
            self._go((self.at + (1 if key == "tab" else -1)) % len(self.views))
        elif key in (moves := self._get_moves()):
            self.scroll = max(0, self.scroll + moves[key])
        elif key in ("home", "end"):
            self.scroll = 0
        return True

    def _go(self, at: int) -> None:
        self.at, self.scroll = at, 0

    def _get_moves(self) -> dict[str, int]:
        up = 1 if self.view == "events" else -1
        return {
            "up": up,
            "k": up,
            "down": -up,
            "j": -up,
            "page up": up * PAGE_LINES,
            "page down": -up * PAGE_LINES,
        }
