"""Python's collector of cycles, which here looks seldom, and only at what has come since the start.

A process here makes nearly all of its objects while it loads. Looking through them some hundred times took a seventh of
the time in which a worker loads torch, and each later look at all of them holds an event loop up for tens of
milliseconds.
"""

from __future__ import annotations

import gc

OBJECTS_BETWEEN = 20_000  # more of them than freed since the last look; Python's own is 700


def collect_seldom() -> None:
    """To be called first, before what is large is imported."""
    gc.set_threshold(OBJECTS_BETWEEN, *gc.get_threshold()[1:])


def leave_out_loaded() -> None:
    """To be called once all is loaded that stays: it is looked through no more."""
    gc.freeze()  # with what few cycles loading has left: to look for them here would take as long as loading some parts
