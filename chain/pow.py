"""Proof of work: an id is valid when `int(id) * difficulty < 2**256` (PROTOCOL §1).

It is a lottery, a rate limit and a cost on rewriting history, not the safety argument: finality is (PROTOCOL §6).
This module needs the standard library's hashlib and struct alone, so that a mining process starts in milliseconds.
"""

from __future__ import annotations

import hashlib
import struct

USUAL_DIFFICULTY = 65_536  # some tens of milliseconds of one core's work

_IDS = 1 << 256
_NONCES = 1 << 64


def is_valid_work(block_id: bytes, difficulty: int) -> bool:
    """Says whether an id meets a difficulty, the expected number of hashes per block (at least 1)."""
    return difficulty >= 1 and int.from_bytes(block_id, "big") * difficulty < _IDS


def compute_highest_id(difficulty: int) -> bytes:
    """Returns the highest id that meets the difficulty, so that a miner compares bytes and not integers."""
    if difficulty < 1:
        raise ValueError(f"difficulty: expected at least 1, got {difficulty}")
    return ((_IDS - 1) // difficulty).to_bytes(32, "big")


def search(seal: bytes, difficulty: int, start: int, count: int) -> int | None:
    """Returns the first nonce of start .. start + count - 1 whose id meets the difficulty, None if there is none.

    Nonces end at 2**64 - 1 and do not wrap around.
    """
    highest = compute_highest_id(difficulty)
    copy = hashlib.sha256(seal).copy  # a tenth faster than hashing seal + nonce afresh
    pack = struct.Struct(">Q").pack
    for nonce in range(start, min(start + count, _NONCES)):
        state = copy()
        state.update(pack(nonce))
        if state.digest() <= highest:
            return nonce
    return None
