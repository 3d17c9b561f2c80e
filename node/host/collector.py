"""Python's collector of cycles, which here runs seldom, and only over objects made since the start.

A process here makes nearly all of its objects while it loads. Some hundred collections took a seventh of the time in
which a worker loads torch, and each later collection over all objects stops an event loop for tens of milliseconds.
"""

from __future__ import annotations

import gc

OBJECTS_BETWEEN = 20_000  # so many more made than freed since the last collection; Python's default is 700


def collect_seldom() -> None:
    """Makes collections rare. Has to be called first, before large modules are imported."""
    gc.set_threshold(OBJECTS_BETWEEN, *gc.get_threshold()[1:])


def leave_out_loaded() -> None:
    """Excludes all present objects from later collections. Has to be called once everything is loaded that stays."""
    gc.freeze()  # with the few cycles that loading has left: to collect them would take as long as loading some parts
