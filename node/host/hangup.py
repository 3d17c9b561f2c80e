"""SIGHUP means two things: read the configuration again, or the terminal is gone. A node in the foreground of a
terminal that was closed has nobody left to end it, so it ends; any other reads its configuration."""

from __future__ import annotations

import os
from contextlib import suppress


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, and that is still there."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        return True
    return False
