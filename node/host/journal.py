"""Lines for systemd's journal, which reads the priority of each from its start (sd-daemon(3))."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

# From syslog(3).
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


def is_journal(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Says whether `stream` goes to the journal: it is the file that systemd names in JOURNAL_STREAM."""
    with suppress(OSError, ValueError):  # no file at all, or closed
        status = os.fstat(stream.fileno())
        return env.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


def mark_lines(text: str, level: int) -> str:
    """Returns `text` with its priority before every line: each is an entry of its own. `level` is one of `logging`."""
    priority = next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG)
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


class JournalFormatter(logging.Formatter):
    """Formats records for the journal: the line of `inner`, with its priority."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return mark_lines(self._inner.format(record), record.levelno)
