"""Small blobs that are here and not in the store yet: they wait for what is signed on them, and are written with it.

A blob that is here and has its digest may be worked with, and given to who asks. Durable it has to be where a word is
given on it: a precommit, or a block that is committed, takes all that wait into its own transaction (PROTOCOL §10).
"""

from __future__ import annotations

from collections.abc import Iterable

from chain.block import Digest


class WaitingBlobs:
    """One node's, of the height in hand."""

    def __init__(self) -> None:
        self._held: dict[Digest, bytes] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"WaitingBlobs({len(self)}, bytes={sum(map(len, self._held.values()))})"

    def add(self, digest: Digest, data: bytes) -> None:
        """Has it written with what is signed next."""
        self._held[digest] = data

    def find(self, digest: Digest) -> bytes | None:
        """The bytes of one that waits."""
        return self._held.get(digest)

    def get_all(self) -> dict[Digest, bytes]:
        """What is to be written now; `remove` those that were."""
        return dict(self._held)

    def remove(self, digests: Iterable[Digest]) -> None:
        """These are durable."""
        for digest in digests:
            self._held.pop(digest, None)
