"""Cases of a parametrised test of which some run by default, and the others in the slow stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Returns the first so many cases as they are, the others marked slow. A tuple is a case of several arguments."""
    listed = list(cases)
    return [*listed[:count], *(pytest.param(*_to_arguments(case), marks=pytest.mark.slow) for case in listed[count:])]


def _to_arguments(case: Any) -> Sequence[Any]:
    return case if isinstance(case, tuple) else (case,)
