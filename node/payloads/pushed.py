"""Small payloads that their authors push right behind a contribution, so that nobody need ask for them (PROTOCOL §7).

Nothing is trusted: a blob is accepted only from the author of an authentic contribution for the current height or the
next that names its digest and its size. It is accepted once, and up to MAX_PUSHED_BYTES for each contribution; bytes
that turn out to have another digest count too. It stays in memory until the height is over, as several contributions
may name it. Blobs that were not pushed are pulled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chain.block import Contribution, Digest, Id
from ml import payload
from ml.specs import MethodSpec
from node.payloads.waiting_blobs import WaitingBlobs

MAX_PUSHED_BYTES = 64 * 1024  # of one contribution


@dataclass(slots=True)
class _Expected:
    """The blobs that the author of one contribution may still push: sizes by digest, and the bytes left to it."""

    sizes: dict[Digest, int]
    left_bytes: int = MAX_PUSHED_BYTES


class PushedPayloads:
    """The pushed payloads of one node. Those that it uses become `waiting` blobs, which are written later."""

    def __init__(self, waiting: WaitingBlobs) -> None:
        self._waiting = waiting
        self._height = 0
        self._expected: dict[tuple[int, Id], _Expected] = {}
        self._held: dict[Digest, tuple[int, bytes]] = {}  # with the height of the contribution

    def __repr__(self) -> str:
        return f"PushedPayloads(height={self._height}, expected={len(self._expected)}, held={len(self._held)})"

    @property
    def held_bytes(self) -> int:
        return sum(len(data) for _, data in self._held.values())

    def on_height(self, height: int) -> None:
        """Drops the blobs of lower heights."""
        self._height = height
        self._expected = {slot: expected for slot, expected in self._expected.items() if slot[0] >= height}
        self._held = {digest: held for digest, held in self._held.items() if held[0] >= height}

    def expect(self, contribution: Contribution) -> None:
        """Lets the author of this authentic contribution push the blobs that it names. Of two contributions the first
        counts."""
        slot = (contribution.height, contribution.author)
        if slot not in self._expected:
            sizes = {ref.digest: ref.size for ref in contribution.payloads if ref.size <= MAX_PUSHED_BYTES}
            self._expected[slot] = _Expected(sizes)

    def offer(self, author: Id, data: bytes, *, is_relayed: bool = False) -> bool:
        """Accepts a blob that `author` has pushed, or that another node relays behind the author's contribution.
        Returns False if no contribution here names it. Every blob that was hashed counts against the author's bytes; a
        relayed one only if the author named it."""
        slots = [(height, self._expected.get((height, author))) for height in (self._height, self._height + 1)]
        fitting = [
            (height, expected)
            for height, expected in slots
            if expected is not None and len(data) in expected.sizes.values() and len(data) <= expected.left_bytes
        ]
        if not fitting:
            return False  # before anything is hashed
        digest = hashlib.sha256(data).digest()
        for height, expected in fitting:
            is_named = expected.sizes.get(digest) == len(data)
            if is_named or not is_relayed:
                expected.left_bytes -= len(data)
            if is_named:
                del expected.sizes[digest]
                self._hold(height, digest, data)
                return True
        return False

    def _hold(self, height: int, digest: Digest, data: bytes) -> None:
        """Holds a blob until this height is over, or a later one for which it is held already."""
        until, _ = self._held.get(digest, (height, data))
        self._held[digest] = (max(until, height), data)

    def keep(self, height: int, data: bytes) -> None:
        """Holds one of this node's own blobs for `height`, so that it need not be read again."""
        self._hold(height, hashlib.sha256(data).digest(), data)

    def find(self, digest: Digest) -> bytes | None:
        """Returns a blob that is held here, None if it is not: for a peer that lacks it."""
        held = self._held.get(digest)
        return None if held is None else held[1]

    def take(self, digest: Digest) -> bytes | None:
        """Returns a pushed blob and adds it to the waiting blobs; None if it was not pushed and must be fetched."""
        held = self._held.get(digest)
        if held is None:
            return None
        self._waiting.add(digest, held[1])
        return held[1]


def choose_pushed(
    spec: MethodSpec, round_number: int, contribution: Contribution, payloads: Mapping[str, bytes]
) -> Iterator[bytes]:
    """Yields this node's own payloads that it pushes right behind the contribution: the small ones that are voted on. A
    payload is skipped if its bytes differ from what the contribution names, as after a restart with a contribution
    signed before."""
    streamed = spec.get_streamed(round_number)
    voted = (spec.rules(round_number).keys() | set(streamed.values())) - streamed.keys()
    left_bytes = MAX_PUSHED_BYTES
    for ref in contribution.payloads:
        kind = payload.kind_name(ref.kind)
        data = payloads.get(kind, b"") if kind in voted else b""
        if 0 < len(data) <= left_bytes and hashlib.sha256(data).digest() == ref.digest:
            left_bytes -= len(data)
            yield data
