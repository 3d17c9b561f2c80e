"""Clock skew: the difference between two clocks, and the limit beyond which one of them is called wrong. It imports
little, as commands that query a node use it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

# Beyond it a member's candidates are not acceptable in view 0 (`node.consensus.height.candidates.FUTURE_MS`).
MAX_SKEW_S = 2.0
ENOUGH_TO_TELL = 3  # clocks: where two differ nobody can say which is wrong

K = TypeVar("K")


def compute_skews_s(clocks_s: Mapping[K, float]) -> dict[K, float]:
    """Returns the seconds by which each clock is ahead of the lower median of all of them; an empty result for fewer
    than two clocks."""
    if len(clocks_s) < 2:
        return {}
    median_s = compute_lower_median(clocks_s.values())
    return {key: clock_s - median_s for key, clock_s in clocks_s.items()}


def compute_lower_median(values: Collection[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def is_wrong(skew_s: float) -> bool:
    return abs(skew_s) > MAX_SKEW_S


def describe_skew(skew_s: float, num_clocks: int) -> str:
    return f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the median of {num_clocks} members' clocks"
