"""A small federation for the fuzz targets to speak of, at height 1, where any nonce is work enough.

Where a signature would end every attempt at once it is believed: whoever has a key can sign anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from chain import approvals, codec, evidence, hints, validation
from chain.block import Id, Phase
from chain.errors import InvalidSignature
from support.data.chains import make_candidate, make_genesis, make_keys

KEYS = make_keys(4)
(NEWCOMER,) = make_keys(1, "newcomer")
GENESIS = make_genesis(KEYS, pow={"difficulty": 1, "min": 1, "max": 1, "target_ms": 100})
PARENT = GENESIS.block0
ME, LIAR = GENESIS.state.member_ids[0], GENESIS.state.member_ids[1]
CANDIDATE = make_candidate(GENESIS, PARENT, KEYS)


def sign_vote(phase: Phase, view: int, block_id: Id, voter: int = 1) -> bytes:
    vote = codec.sign_vote(KEYS[voter], GENESIS.chain_id, phase=phase, height=1, view=view, block_id=block_id)
    return codec.encode_vote(vote)


def believe(id: Id, signature: bytes, *_: object) -> None:  # noqa: A002 (as in chain.signing)
    """Stands for `verify`: whoever is a member may have signed this, unless the signature is all zero."""
    if not any(signature):
        raise InvalidSignature(f"expected a signature by {id.hex()}, got none")


@contextmanager
def believing() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (validation, evidence, approvals, hints):
            stack.enter_context(patch.object(module, "verify", believe))
        yield
