"""A listener of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]  # is told what is being measured
