"""Values that JSON lacks: in records and answers null stands for numbers that are not finite (PROTOCOL §9), and an
escape for a byte of a file's name that is not UTF-8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ml.text import escape_undecoded


def to_finite(value: Any) -> Any:
    """Returns the same value, or mapping or list of values, with None for every float that is not finite, and with text
    that can be encoded."""
    if isinstance(value, str):
        return escape_undecoded(value)
    if isinstance(value, Mapping):
        return {key: to_finite(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [to_finite(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
