"""The boundary around work that a peer's bytes cause. An unforeseen error there refuses those bytes, counts against
their sender, and is logged with its traceback once. It never ends the node.

    with boundary.around("audit") as crossing:
        await self._audit(block)
    if crossing.failure is not None: ...

Bytes are checked before they are used, and a failed check raises an error of its own. The boundary is for the errors
that no check foresees. An error of the node itself passes through and ends it: a store that cannot be trusted or
written, a disk that fails, a chain that cannot be followed any more, and cancellation. A MemoryError does not end it:
the failed allocation has left nothing behind, those bytes caused it, and a machine that is short of memory altogether
fails elsewhere as well. Nor does a failed assertion of our own.

The node's own acts, signing and committing, have no boundary: a node in doubt about what it has signed stops.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter

from chain.block import Id
from chain.errors import BlobMissing, SlotTaken, StoreError
from chain.signing import encode_id
from node.errors import NodeError

log = logging.getLogger(__name__)

UNFORESEEN = "an error that nobody foresaw"  # the reason given to others; the log has the error
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)  # peers can cause these


class Guarded:
    """Catches the unforeseen error of one piece of work. `failure` is that error, None where there was none."""

    __slots__ = ("_boundary", "_passing", "_peer", "_what", "failure")

    def __init__(self, boundary: Boundary, what: str, peer: Id | None, passing: tuple[type[Exception], ...]) -> None:
        self.failure: Exception | None = None
        self._boundary = boundary
        self._what = what
        self._peer = peer
        self._passing = passing

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            return False
        if not self._boundary.takes(error, self._what, self._peer):
            return False
        self.failure = error
        return True


class Boundary:
    """Catches unforeseen errors for one node. `failures` counts them by the work, `by_peer` by the sender of the
    bytes."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.by_peer: Counter[Id] = Counter()
        self._told: set[tuple[object, ...]] = set()

    def __repr__(self) -> str:
        return f"Boundary(failures={dict(self.failures)}, peers={len(self.by_peer)})"

    def around(self, what: str, peer: Id | None = None, *, passing: tuple[type[Exception], ...] = ()) -> Guarded:
        """Guards work that bytes of `peer` have caused; None: the sender is unknown. Errors of the kinds in `passing`
        are raised: they are answers to the caller."""
        return Guarded(self, what, peer, passing)  # for each message: a generator would take three times as long

    def takes(self, error: Exception, what: str, peer: Id | None = None) -> bool:
        """Counts and logs an unforeseen error. Returns False for an error of the node itself, which has to end it."""
        if is_own_trouble(error):
            return False
        self.failures[what] += 1
        whose = ""
        if peer is not None:
            self.by_peer[peer] += 1
            whose = f" of {encode_id(peer)[:8]}"
        kind = (what, *_locate(error))
        if kind not in self._told:
            self._told.add(kind)
            log.error(
                "%s%s: refused for %s; the node goes on. Please report it", what, whose, UNFORESEEN, exc_info=error
            )
        else:
            log.debug("%s%s: refused as before: %r", what, whose, error)
        return True


def is_own_trouble(error: BaseException) -> bool:
    """Says whether this error has to end the node, whatever bytes caused it."""
    match error:
        case BlobMissing() | SlotTaken():  # handled wherever they are foreseen
            return False
        case StoreError() | NodeError():
            return True
        case BaseExceptionGroup():
            return any(map(is_own_trouble, error.exceptions))
        case TimeoutError() | ConnectionError() | FileNotFoundError():
            return False
        case OSError():
            return error.errno not in _TOO_MANY_FILES
    return not isinstance(error, Exception)


def _locate(error: BaseException) -> tuple[object, ...]:
    """Returns the error's type, and the file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = () if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return (type(error), *place)
