"""Small blobs that are here and not in the store yet: they wait for what is signed on them, and are written with it.

A blob in memory whose digest was checked may be used, and served to peers. It must be durable before this node signs
anything that depends on it: the transaction of a precommit, or of a committed block, writes all waiting blobs (PROTOCOL
§10).
"""

from __future__ import annotations

from collections.abc import Iterable

from chain.block import Digest


class WaitingBlobs:
    """The waiting blobs of one node at the current height."""

    def __init__(self) -> None:
        self._held: dict[Digest, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"WaitingBlobs({len(self)}, bytes={sum(map(len, self._held.values()))})"

    def add(self, digest: Digest, data: bytes) -> None:
        """Adds a blob, which is written with what is signed next."""
        self._held[digest] = data

    def find(self, digest: Digest) -> bytes | None:
        """Returns the bytes of a waiting blob, None if it does not wait."""
        return self._held.get(digest)

    def get_all(self) -> dict[Digest, bytes]:
        """Returns all waiting blobs, for writing them; `remove` those that were written."""
        return dict(self._held)

    def remove(self, digests: Iterable[Digest]) -> None:
        """Removes blobs that are durable now."""
        for digest in digests:
            self._held.pop(digest, None)
