"""Small blobs that wait for what is signed on them."""

from __future__ import annotations

from hashlib import sha256

from node.payloads.waiting_blobs import WaitingBlobs


def get_digest(data: bytes) -> bytes:
    return sha256(data).digest()


def test_what_waits_is_found_until_it_is_durable() -> None:
    waiting = WaitingBlobs()
    for data in (b"one", b"two", b"one"):
        waiting.add(get_digest(data), data)
    assert waiting.find(get_digest(b"one")) == b"one"
    assert waiting.find(get_digest(b"three")) is None
    written = waiting.get_all()
    assert sorted(written.values()) == [b"one", b"two"]
    waiting.add(get_digest(b"three"), b"three")  # meanwhile
    assert get_digest(b"three") not in written
    waiting.remove(written)
    assert (len(waiting), waiting.find(get_digest(b"one"))) == (1, None)
    waiting.remove(written)
    assert waiting.get_all() == {get_digest(b"three"): b"three"}
