"""Masked sums: the sum of members' vectors, from vectors that are each hidden (Bonawitz et al. 2017, on a ledger).

A member i of the roster R sends, modulo 2^64,

    y_i = q_i + PRG(b_i) + sum over j in R, j > i of PRG(s_ij) - sum over j in R, j < i of PRG(s_ij)

with SHA-256 of its own seed b_i and of every s_ij, a seed that it shares with j alone. The block of inputs fixes U, the
members whose vectors are summed. Only then does each i in U open b_i, and s_ij for those j that are not in U: in the
sum over U all other pairs have cancelled. A member that opens something else than it committed to is refused. If one of
U does not open, nothing can be unmasked, and nothing is: the round ends without a mean.

Neither PRG(b_i) alone nor the pairs' masks alone would hide a member whose y_i comes late; both together do.

Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017. There shares of seeds replace members
that drop out; here a block says who has dropped out, before anything is opened (`docs/design/protocol.md`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ml.aggregation.fixed_point import Integers

SEED_BYTES = 32
BLOCK_ELEMENTS = 64 * 1024  # masked at a time
_TAG = b"fn1.mask\0\0\0\0\0\0\0\0"
_ZEROS = bytes(8 * BLOCK_ELEMENTS)


def commit(seed: bytes) -> bytes:
    """Returns the hash of a seed. A member sends it long before it opens the seed, if it ever does."""
    return hashlib.sha256(_TAG + seed).digest()


def is_added(one: bytes, other: bytes) -> bool:
    """Says whether the member `one` adds the mask that it shares with `other`; if so, `other` subtracts it."""
    return one < other


def add_mask(values: Integers, seed: bytes, *, subtract: bool = False) -> None:
    """Adds PRG(seed) to the vector in place, modulo 2^64: the key stream of AES-256 in counter mode."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"seed: expected {SEED_BYTES} bytes, got {len(seed)}")
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    for start in range(0, len(values), BLOCK_ELEMENTS):
        part = values[start : start + BLOCK_ELEMENTS].view(np.uint64)
        mask = np.frombuffer(stream.update(_ZEROS[: 8 * len(part)]), "<u8")
        if subtract:
            part -= mask
        else:
            part += mask


def add_vectors(vectors: Sequence[Integers]) -> Integers:
    """Returns the sum of vectors modulo 2^64."""
    total = np.zeros(len(vectors[0]), np.uint64)
    for vector in vectors:
        total += vector.view(np.uint64)
    return total.view(np.int64)


def mask_vector(values: Integers, me: bytes, own_seed: bytes, shared: Sequence[tuple[bytes, bytes]]) -> Integers:
    """Returns y of a member: its vector masked by its own seed, and by the seed shared with each other member of the
    roster."""
    masked = values.copy()
    add_mask(masked, own_seed)
    for other, seed in shared:
        add_mask(masked, seed, subtract=not is_added(me, other))
    return masked


def list_opened(me: bytes, roster: Sequence[bytes], summed: Sequence[bytes]) -> list[bytes]:
    """Lists the members whose seeds a member in the sum opens, in order: itself, and, for the seeds that it shares with
    them, the members that are not in the sum."""
    there = set(summed)
    return [me, *(other for other in roster if other not in there)]


def unmask(total: Integers, roster: Sequence[bytes], opened: Sequence[tuple[bytes, Sequence[bytes]]]) -> Integers:
    """Returns the sum of the unmasked vectors; `opened` has, for each member in the sum, the seeds of `list_opened`."""
    summed = [member for member, _ in opened]
    bare = total.copy()
    for member, seeds in opened:
        for other, seed in zip(list_opened(member, roster, summed), seeds, strict=True):
            add_mask(bare, seed, subtract=other == member or is_added(member, other))
    return bare
