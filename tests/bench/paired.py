"""One call against a barer one: both are made in turn, so that the machine's moods meet both. What is counted is this
thread's CPU time, which what else runs on the machine hardly touches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from node.experiments.measured import describe_spread

Call = Callable[[], object]

RESOLUTION_S = 1e-6


def compare_calls(ours: Call, bare: Call, *, seconds: float, repeats: int) -> dict[str, Any]:
    """Calls per CPU second of both, and `ratio`: how many times as long ours takes. `seconds` are about what either is
    made for in each of `repeats` rounds."""
    counts = _find_count(ours, seconds), _find_count(bare, seconds)
    took = [(_time(ours, counts[0]), _time(bare, counts[1])) for _ in range(repeats)]
    return {
        "per_s": describe_spread([1 / our_s for our_s, _ in took]),
        "bare_per_s": describe_spread([1 / bare_s for _, bare_s in took]),
        "ratio": describe_spread([our_s / bare_s for our_s, bare_s in took]),
    }


def _find_count(call: Call, seconds: float) -> int:
    count, took_s = 1, _time(call, 1)
    while count * took_s < seconds / 4:
        count *= 2
        took_s = _time(call, count)
    return max(1, round(seconds / took_s))


def _time(call: Call, count: int) -> float:
    """CPU seconds of one call."""
    was_on = gc.isenabled()
    gc.disable()  # as timeit does
    try:
        began_s = time.thread_time()
        for _ in range(count):
            call()
        return max(time.thread_time() - began_s, RESOLUTION_S) / count
    finally:
        if was_on:
            gc.enable()
