"""What the benchmarks tell somebody of while they measure."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]  # is told what is being measured
