"""Small payloads that their authors push right behind a contribution, so that nobody need ask for them (PROTOCOL §7).

Nothing is trusted: a blob is taken of no one but the author of an authentic contribution to the height in hand, or to
the next, that names its digest and its size, once, and up to MAX_PUSHED_BYTES for each contribution; what turns out to
have another digest counts too. It stays in memory until the height is over, as several contributions may name it.
Whatever did not come is pulled.
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
    """What the author of one contribution may still push: sizes by digest, and the bytes left to it."""

    sizes: dict[Digest, int]
    left_bytes: int = MAX_PUSHED_BYTES


class PushedPayloads:
    """One node's. What is wanted of them is `waiting` to be written."""

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
        """What came for heights below is not wanted any more."""
        self._height = height
        self._expected = {slot: expected for slot, expected in self._expected.items() if slot[0] >= height}
        self._held = {digest: held for digest, held in self._held.items() if held[0] >= height}

    def expect(self, contribution: Contribution) -> None:
        """The author of this contribution, which is authentic, may push what it names. Of two the first one counts."""
        slot = (contribution.height, contribution.author)
        if slot not in self._expected:
            sizes = {ref.digest: ref.size for ref in contribution.payloads if ref.size <= MAX_PUSHED_BYTES}
            self._expected[slot] = _Expected(sizes)

    def offer(self, author: Id, data: bytes, *, is_relayed: bool = False) -> bool:
        """Takes in what `author` has pushed, or what another has brought right behind the author's contribution; false
        if there is no contribution here that it could belong to. What was hashed is on the author's account, whatever
        it is; of what is relayed, only what the author named is."""
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
        """Until this height is over, or a later one for which it is held already."""
        until, _ = self._held.get(digest, (height, data))
        self._held[digest] = (max(until, height), data)

    def keep(self, height: int, data: bytes) -> None:
        """One of this node's own, for `height`: it need not be read again."""
        self._hold(height, hashlib.sha256(data).digest(), data)

    def find(self, digest: Digest) -> bytes | None:
        """A blob that is held here, for whoever lacks it."""
        held = self._held.get(digest)
        return None if held is None else held[1]

    def take(self, digest: Digest) -> bytes | None:
        """A blob that was pushed, on its way into the store; None where it is to be fetched."""
        held = self._held.get(digest)
        if held is None:
            return None
        self._waiting.add(digest, held[1])
        return held[1]


def choose_pushed(
    spec: MethodSpec, round_number: int, contribution: Contribution, payloads: Mapping[str, bytes]
) -> Iterator[bytes]:
    """Those of one's own payloads that go right behind the contribution: what is voted on, while it is small. What is
    not what the contribution says, as that of an earlier life was signed, is none of it."""
    streamed = spec.get_streamed(round_number)
    voted = (spec.rules(round_number).keys() | set(streamed.values())) - streamed.keys()
    left_bytes = MAX_PUSHED_BYTES
    for ref in contribution.payloads:
        kind = payload.kind_name(ref.kind)
        data = payloads.get(kind, b"") if kind in voted else b""
        if 0 < len(data) <= left_bytes and hashlib.sha256(data).digest() == ref.digest:
            left_bytes -= len(data)
            yield data
