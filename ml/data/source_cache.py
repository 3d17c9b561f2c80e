"""The source cache: keeps a source open while one command asks for its classes, its shape and its samples in turn.

Opening a source may mean reading all of it, as with a pickle. Sources are kept only within `open_once`: elsewhere every
call reads the files again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ml.data.part import Part, Parts
from ml.data.source import DataSource

_Opened = dict[DataSource, tuple[Parts, dict[str, Part]]]

_opened: ContextVar[_Opened | None] = ContextVar("opened sources", default=None)


@contextmanager
def open_once() -> Iterator[None]:
    """Makes sure that each source is opened only once within the context. The opened sources are forgotten at its end,
    or by `forget_sources`."""
    if _opened.get() is not None:
        yield  # the outer context keeps the sources
        return
    token = _opened.set({})
    try:
        yield
    finally:
        _opened.reset(token)


def forget_sources() -> None:
    """Forgets the opened sources, once nobody will need them again."""
    opened = _opened.get()
    if opened is not None:
        opened.clear()


def open_parts(source: DataSource, opener: Callable[[], Parts]) -> Parts:
    """Returns the parts that were opened before, or opens them by `opener`. Raises DataError, OSError, MemoryError."""
    opened = _opened.get()
    if opened is not None and source in opened:
        return opened[source][0]
    parts = opener()
    if opened is not None:
        opened[source] = parts, {}
    return parts


def open_part(source: DataSource, parts: Parts, name: str, key: str) -> Part:
    """Returns the split that `data.<key>` names, opened now or before. Raises as `open_parts` does."""
    opened = _opened.get()
    if opened is None or source not in opened:
        return parts.open(name, key)
    known = opened[source][1]
    if name not in known:
        known[name] = parts.open(name, key)
    return known[name]
