"""Numbers that are not finite: JSON has none such, so in records and answers null stands for them (PROTOCOL §9)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def to_finite(value: Any) -> Any:
    """The same value, or mapping or list of values, with None for every float that is not finite."""
    if isinstance(value, Mapping):
        return {key: to_finite(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [to_finite(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
