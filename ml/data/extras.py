"""Libraries that only some formats need."""

from __future__ import annotations

import importlib

from ml.errors import DataError


def require_extra(module: str, distribution: str) -> None:
    """Import `module`, or raise DataError with the line that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"expected {distribution} to be installed: pip install 'fednode[data]'") from error
