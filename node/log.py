"""Logging: events in the past tense with values, on stderr, as text for people or one JSON object per line.

Times are RFC 3339 in UTC. Values given as `extra={...}` become keys of the JSON object. Whatever a peer may have put
into a message cannot forge a line: control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TextIO

from ml.text import escape_undecoded
from node.errors import ConfigError
from node.finite import to_finite
from node.host.journal import JournalFormatter, is_journal
from node.unseen import escape_unseen

LogFormat = Literal["auto", "text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def format_time(seconds: float) -> str:
    """Returns RFC 3339 UTC with milliseconds, as in `2026-11-20T14:02:11.042Z`."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def escape_control(text: str) -> str:
    """Returns `text` on one line: control characters (C0, DEL, C1, line separators) and invisible characters become
    escapes."""
    text = escape_undecoded(text)
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text
        )
    return escape_unseen(text)


class TextFormatter(logging.Formatter):
    """Formats `2026-11-20T14:02:11.042Z INFO node.consensus.reporter: Finalised block 13`, with a traceback below
    it."""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{format_time(record.created)} {record.levelname:<7} {record.name}: {escape_control(record.getMessage())}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Formats one object per line: `time`, `level`, `logger`, `message`, the record's extra values, `exception` if
    any."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update((key, value) for key, value in record.__dict__.items() if key not in _STANDARD)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(to_finite(entry), default=_show, ensure_ascii=False)


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else escape_undecoded(str(value))


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Says whether to log a record of gRPC. Its traceback for a caller that has gone before its answer was sent is no
    event of this node: a peer could fill the disk with it."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"


class _Values(logging.Filter):
    """Adds values to every record that has none of that name yet."""

    def __init__(self, get: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._get = get

    def filter(self, record: logging.LogRecord) -> bool:
        for key, value in self._get().items():
            record.__dict__.setdefault(key, value)
        return True


@contextmanager
def logging_values(get: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Adds these values to everything that is logged while the context lasts; the JSON format shows them. `get` may be
    called on any thread."""
    values = _Values(get)
    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(values)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(values)


def setup_logging(
    level: str = "info",
    log_format: LogFormat = "auto",
    file: Path | None = None,
    stream: TextIO | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Sends the process's log to `file`, or else to `stream` (stderr); `auto` is text on a terminal, JSON elsewhere.
    Where `env` says that the stream is systemd's journal, each line has its priority.

    Replaces any earlier setup. The file is reopened when it was rotated away. Raises ConfigError if it cannot be
    written.
    """
    handler: logging.Handler
    is_journalled = False
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = WatchedFileHandler(file, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"log.file: {file} cannot be written ({error.strerror})") from error
        as_text = log_format == "text"
    else:
        out = stream or sys.stderr
        handler = logging.StreamHandler(out)
        as_text = log_format == "text" or (log_format == "auto" and out.isatty())
        is_journalled = is_journal(out, env)
    formatter = TextFormatter() if as_text else JsonFormatter()
    handler.setFormatter(JournalFormatter(formatter) if is_journalled else formatter)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_telling)
    logging.captureWarnings(True)
