"""Checks of the numbers that a bound is computed from."""

from __future__ import annotations

import math

from ml.errors import BoundError


def check(name: str, value: float, *, zero: bool = False) -> float:
    """Returns the value, which has to be finite and above 0, or with `zero` at least 0. Raises BoundError."""
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise BoundError(f"{name}: expected a finite number {'of at least' if zero else 'above'} 0, got {value:g}")
    return value
