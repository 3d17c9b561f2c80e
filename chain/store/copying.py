"""The copy of a database that is in use: whole, and as new as its last page.

SQLite's backup runs on the connection that writes: rows written meanwhile are copied too, and it waits for a
transaction under way. So it may run on another thread. It pauses between its steps.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from chain.store.blob_files import translated_os_errors
from chain.store.rows import translated
from chain.store.sqlite import SqliteStore

_PAGES = 64  # per step: a vote waits for no more than these
_REST_S = 0.001
_BUSY_S = 0.005  # between two attempts while a transaction is under way


def copy_database(store: SqliteStore, target: Path, on_progress: Callable[[float], None]) -> None:
    """Writes a durable copy to `target`, which must not exist. `on_progress` is called with the part that is done, from
    0 to 1, and may raise to stop the copy. Raises StoreError."""

    def on_step(status: int, remaining: int, total: int) -> None:
        on_progress(1.0 - remaining / total if total else 1.0)
        time.sleep(_REST_S)

    with translated(str(target)), closing(sqlite3.connect(target, isolation_level=None)) as copy:
        store.rows.connection.backup(copy, pages=_PAGES, progress=on_step, sleep=_BUSY_S)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    with translated_os_errors(target):
        target.chmod(0o600)
        fd = os.open(target, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
