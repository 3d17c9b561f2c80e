"""The beacon of a height: randomness that everybody can check and nobody chooses, by which rounds draw (PROTOCOL §2).

A contribution commits to a secret by its hash, and opens the one that its author committed to in the parent block. The
beacon of the height after a block hashes what the block's authors opened in it, by author:

    SHA-256(tag | height | author | secret | author | secret ...)

A secret is fixed one block before it counts, and no nonce, signature or certificate enters the beacon. A member that
was not in the parent block opens nothing, and so does not enter it either. Under protocol 2 the beacon was the block's
id, which its miner could grind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from chain.block import ZERO, Block, Contribution, Digest, Id
from chain.layout import U64
from chain.signing import SigningKey, tag

FIRST_REVEALING = 3  # the first protocol under which contributions commit and open
BEACON_TAG = tag("beacon")
SECRET_TAG = tag("secret")


class Reveal(NamedTuple):
    """The part of a contribution that beacons are computed from: a secret that was committed to, `ZERO` for none, and
    the commitment to the next. Both are empty under protocol 2."""

    opened: bytes = b""
    commitment: Digest = b""


NO_REVEAL = Reveal()


def make_reveal(key: SigningKey, chain_id: Digest, parent: Block, protocol: int) -> Reveal:
    """Makes the reveal of a contribution by `key` to the block after `parent`. Secrets are derived from the key, so
    that none is lost or made twice."""
    if protocol < FIRST_REVEALING:
        return NO_REVEAL
    committed = list_commitments(parent).get(key.id)
    opened = ZERO if committed is None else _make_secret(key, chain_id, parent.height)
    return Reveal(opened, commit(_make_secret(key, chain_id, parent.height + 1)))


def _make_secret(key: SigningKey, chain_id: Digest, height: int) -> bytes:
    """Derives the secret that a contribution to this height commits to, 32 bytes."""
    return key.derive_secret(SECRET_TAG, chain_id, U64.pack(height))


def commit(secret: bytes) -> Digest:
    """Returns the commitment to a secret: its hash."""
    return hashlib.sha256(SECRET_TAG + secret).digest()


def list_commitments(block: Block) -> Mapping[Id, Digest]:
    """Returns the commitment, by author, that each author of a block has to open in the next block."""
    return {c.author: c.commitment for c in block.contributions if c.commitment}


def does_open(c: Contribution, committed: Digest | None) -> bool:
    """Says whether a contribution opens its author's commitment, or opens nothing if there was no commitment."""
    return c.opened == ZERO if committed is None else commit(c.opened) == committed


def compute_beacon(parent: Block) -> bytes:
    """Computes the beacon of the height after `parent`, 32 bytes."""
    if parent.header.version < FIRST_REVEALING:
        return parent.id
    opened = (c.author + c.opened for c in parent.contributions if c.opened != ZERO)
    return hashlib.sha256(BEACON_TAG + U64.pack(parent.height + 1) + b"".join(opened)).digest()
