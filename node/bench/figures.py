"""A listener of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]  # receives a line on what is being measured
