"""The check of a number in a theorem that may not be below another."""

from __future__ import annotations

import math

from ml.errors import BoundError


def check_at_least(name: str, value: float, least: float) -> float:
    """Returns the value, which has to be finite and no less than `least`. Raises BoundError."""
    if not math.isfinite(value) or value < least:
        raise BoundError(f"{name}: expected a finite number of at least {least:g}, got {value:g}")
    return value
