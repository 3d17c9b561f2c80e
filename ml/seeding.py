"""The source of all randomness: every generator is seeded by its purpose (ALGORITHMS §1.4).

One run seed fans out by purpose, so that no draw depends on how many draws were made before it:

    derive_seed(S, "model")          initial parameters, the same on every node
    derive_seed(S, "partition")      the samples of each client
    derive_key(S, "split", i)        the samples of site i that are held out
    derive_seed(S, "client", i)      the seed of client i
    derive_seed(client_seed, purpose, round)    inside a client: batches, dropout, k-means starts
"""

from __future__ import annotations

import hashlib

import numpy as np

Part = int | str | bytes


def derive_seed(*parts: Part) -> int:
    """Derives a 63-bit seed from a sequence of parts: SHA-256 over each part's type and length, then the part.

    Types and lengths are hashed too, so ("a", "b"), ("ab",) and (1,), ("1",) are four different seeds. Raises TypeError
    for anything but int, str and bytes (a bool is not taken for an int).
    """
    return int.from_bytes(_hash(b"fednode seed", parts)[:8], "big") >> 1


def derive_key(*parts: Part) -> bytes:
    """Derives 32 bytes from a sequence of parts, as `derive_seed` does: the key of a stream that hides nothing, in a
    rehearsal."""
    return _hash(b"fednode key", parts)


def get_partition_seed(run_seed: int) -> int:
    """Returns the seed that a run's samples are dealt by: `data.partition.seed` of a node's configuration."""
    return derive_seed(run_seed, "partition") % (1 << 31)


def numpy_rng(*parts: Part) -> np.random.Generator:
    """Returns a generator seeded by `parts`. It names PCG64, since numpy's default may change."""
    return np.random.Generator(np.random.PCG64(derive_seed(*parts)))


def _hash(tag: bytes, parts: tuple[Part, ...]) -> bytes:
    digest = hashlib.sha256(tag)
    for part in parts:
        code, data = _encode_part(part)
        digest.update(code + len(data).to_bytes(8, "big") + data)
    return digest.digest()


def _encode_part(part: Part) -> tuple[bytes, bytes]:
    if isinstance(part, bool):
        raise TypeError("a seed part is an int, str or bytes, got bool")
    if isinstance(part, int):
        return b"i", str(part).encode("ascii")
    if isinstance(part, str):
        return b"s", part.encode("utf-8")
    if isinstance(part, bytes):
        return b"b", part
    raise TypeError(f"a seed part is an int, str or bytes, got {type(part).__name__}")
