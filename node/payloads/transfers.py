"""The transfers of large blobs, in and out, as `fednode status` shows them and the log now and then tells.

A blob that a contribution was seen to name is shown by its kind and author, any other by its digest. Payloads of
streamed kinds, which may take minutes, are logged from their beginning; other blobs once they have lasted LINE_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chain.block import Contribution, Digest, Id
from ml.payload import kind_code
from node.clock import Clock

log = logging.getLogger(__name__)

LARGE_BYTES = 1 << 20  # transfers of no more are too short to be shown
LINE_S = 5.0  # between two lines about one transfer
MAX_NAMED = 4096  # blobs; if there are more, the first are dropped
MB = 1e6


@dataclass(frozen=True, slots=True)
class Named:
    """The kind and the author of a blob that is a payload."""

    kind: str
    author: Id


@dataclass(slots=True, eq=False)
class Transfer:
    """The transfer of one blob from or to one peer: `done` of `total` bytes, of which `resumed` were there before."""

    peer: Id
    is_incoming: bool
    digest: Digest
    named: Named | None
    total: int
    resumed: int
    done: int
    started_s: float
    told_s: float | None = None  # of the last line about it


class Transfers:
    """The transfers of one node. `get_name` returns the name of a peer; `on_wrong` is called for each peer that served
    other bytes than those asked for."""

    def __init__(
        self, clock: Clock, get_name: Callable[[Id], str], on_wrong: Callable[[Id], None] = lambda peer: None
    ) -> None:
        self._clock = clock
        self._get_name = get_name
        self.on_wrong = on_wrong
        self._under_way: list[Transfer] = []
        self._named: dict[Digest, Named] = {}

    def __repr__(self) -> str:
        return f"Transfers(under_way={len(self._under_way)}, named={len(self._named)})"

    def __iter__(self) -> Iterator[Transfer]:
        """Yields the transfers under way, the oldest first."""
        return iter(tuple(self._under_way))

    def name(self, contributions: Iterable[Contribution], kinds: Collection[str]) -> None:
        """Shows payloads of these kinds by kind and author from now on. The first contribution that names a blob
        counts."""
        names = {kind_code(kind): kind for kind in kinds}  # by code: a contribution may have kinds that nobody knows
        for contribution in contributions:
            for ref in contribution.payloads:
                if ref.kind in names:
                    self._named.setdefault(ref.digest, Named(names[ref.kind], contribution.author))
        while len(self._named) > MAX_NAMED:
            del self._named[next(iter(self._named))]

    @contextmanager
    def follow(
        self, peer: Id, digest: Digest, *, is_incoming: bool, resumed: int, total: int
    ) -> Iterator[Callable[[int], None]]:
        """Follows a transfer for as long as the context is open. Yields a function to call with each number of bytes
        that passed."""
        now_s = self._clock.monotonic()
        transfer = Transfer(peer, is_incoming, digest, self._named.get(digest), total, resumed, resumed, now_s)
        if total <= LARGE_BYTES:
            yield lambda num_bytes: None
            return
        if transfer.named is not None:
            self._tell(transfer, f"began at {self._show_progress(transfer)}")
        self._under_way.append(transfer)
        try:
            yield lambda num_bytes: self._on_passed(transfer, num_bytes)
        except BaseException as error:
            if transfer.told_s is not None and transfer.done < total:
                is_over = isinstance(error, GeneratorExit | asyncio.CancelledError)
                why = "given up" if is_over else str(error) or type(error).__name__
                self._tell(transfer, f"broke off at {self._show_progress(transfer)}: {why}")
            raise
        else:
            if transfer.told_s is not None:
                seconds = self._clock.monotonic() - now_s
                self._tell(transfer, f"done, {self._show_progress(transfer)} in {seconds:.1f} s")
        finally:
            self._under_way.remove(transfer)

    def _on_passed(self, transfer: Transfer, num_bytes: int) -> None:
        transfer.done += num_bytes
        since_s = transfer.started_s if transfer.told_s is None else transfer.told_s
        if transfer.done < transfer.total and self._clock.monotonic() - since_s >= LINE_S:
            self._tell(transfer, self._show_progress(transfer))

    def _tell(self, transfer: Transfer, what: str) -> None:
        transfer.told_s = self._clock.monotonic()
        log.info("%s  %s", self.describe(transfer.digest, transfer.peer, is_incoming=transfer.is_incoming), what)

    def describe(self, digest: Digest, peer: Id, *, is_incoming: bool) -> str:
        """Returns text such as `encrypted set of node2 from node3`."""
        named, blob = self._named.get(digest), f"blob {digest.hex()[:8]}"
        if named is not None:
            blob = f"{named.kind.replace('_', ' ')} of {self._get_name(named.author)}"
        return f"{blob} {'from' if is_incoming else 'to'} {self._get_name(peer)}"

    @staticmethod
    def _show_progress(transfer: Transfer) -> str:
        return f"{transfer.done / MB:.1f} of {transfer.total / MB:.1f} MB"
