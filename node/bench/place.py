"""Where benchmarks put what they make, and how little they mine for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DIFFICULTY = 16  # trivial: mining costs its messages and nothing else


@contextmanager
def temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    """Below `parent`, by default where temporary files go."""
    with tempfile.TemporaryDirectory(prefix="fednode-bench-", dir=parent) as directory:
        yield Path(directory)
