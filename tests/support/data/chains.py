"""Small chains for tests: keys from numbers, a genesis of n members, blocks and certificates that are valid.

The difficulty is a handful of hashes, so that a test can mine what it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from chain import pow as work
from chain.beacon import NO_REVEAL, make_reveal
from chain.block import Block, Body, Certificate, Contribution, Header, Id, PayloadRef, Phase
from chain.codec import compute_body_digest, compute_seal, make_block, sign_contribution, sign_vote
from chain.difficulty import LOOKBACK, compute_next_difficulty
from chain.genesis import FIRST_PROTOCOL, Genesis
from chain.signing import SigningKey, encode_id

ROUND_MS = 1000  # from one block's time to the next one's
MINING_MS = 100  # milliseconds of that which were spent on mining


def make_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def make_keys(n: int, label: str = "member") -> list[SigningKey]:
    """Makes the same n keys in every run, sorted by id: `keys[i]` is member i."""
    keys = [SigningKey.from_private_bytes(make_digest(f"{label} {i}")) for i in range(n)]
    return sorted(keys, key=lambda key: key.id)


def make_genesis_mapping(keys: Sequence[SigningKey], **overrides: Any) -> dict[str, Any]:
    """Makes a genesis in its readable form; members are node0, node1, … in key order. An override replaces a whole
    top-level field."""
    return {
        "protocol": FIRST_PROTOCOL,
        "chain_name": "test",
        "created_at": "2026-11-20T14:00:00Z",
        "members": [{"key": encode_id(key.id), "name": f"node{i}"} for i, key in enumerate(keys)],
        "method": {
            "name": "dfpl",
            "lambda": 1.0,
            "aux": "l2",
            "local_iterations": 20,
            "batch_size": 32,
            "lr": 0.1,
            "momentum": 0.0,
            "decay": 1.0,
        },
        "model": {"name": "mlp", "hidden": [64, 32]},
        "classes": [str(i) for i in range(10)],
        "input": {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]},
        "initial_model": make_digest("initial model").hex(),
        "rounds": 10,
        "quorum": "bft",
        "profile": "local",
        "pow": {"difficulty": 4, "min": 1, "max": 2**32, "target_ms": 100},
        "limits": {"max_weight": 1_000_000, "payload_mib": 16},
        **overrides,
    }


def make_genesis(keys: Sequence[SigningKey], **overrides: Any) -> Genesis:
    return Genesis.from_mapping(make_genesis_mapping(keys, **overrides))


def make_contribution(
    genesis: Genesis,
    key: SigningKey,
    *,
    height: int = 1,
    prev: Id | None = None,
    weight: int = 1,
    payloads: Sequence[PayloadRef] | None = None,
) -> Contribution:
    """Makes a contribution signed by `key`, by default for height 1; one payload of kind 1 whose digest follows from
    key and height."""
    if payloads is None:
        payloads = (PayloadRef(1, hashlib.sha256(key.id + height.to_bytes(8, "big")).digest(), 1024),)
    prev = genesis.block0.id if prev is None else prev
    reveal = make_reveal(key, genesis.chain_id, genesis.block0, genesis.protocol) if height == 1 else NO_REVEAL
    return sign_contribution(
        key, genesis.chain_id, height=height, prev=prev, weight=weight, payloads=payloads, reveal=reveal
    )


def make_candidate(
    genesis: Genesis,
    parent: Block,
    keys: Sequence[SigningKey],
    *,
    miner: int = 0,
    authors: Iterable[int] | None = None,
    contributions: Sequence[Contribution] | None = None,
    aggregate: bytes | None = None,
    difficulty: int | None = None,
    start_ms: int | None = None,
    time_ms: int | None = None,
) -> Block:
    """Makes a mined and signed block on `parent` by `keys[miner]`, with a contribution of every key in `authors` (all).

    The aggregate is a digest that depends on the height alone. Without `difficulty` it is the parent's, or genesis' on
    block 0, which is right everywhere but at a retarget.
    """
    height = parent.height + 1
    if contributions is None:
        chosen = range(len(keys)) if authors is None else authors
        contributions = [make_contribution(genesis, keys[i], height=height, prev=parent.id) for i in chosen]
    contributions = sorted(contributions, key=lambda c: c.author)
    if difficulty is None:
        difficulty = parent.header.difficulty if parent.height else genesis.rules.pow.difficulty
    if time_ms is None:
        time_ms = parent.header.time_ms + ROUND_MS
    header = Header(
        version=genesis.protocol,
        height=height,
        prev=parent.id,
        body=compute_body_digest(Body(tuple(contributions))),
        aggregate=make_digest(f"aggregate {height}") if aggregate is None else aggregate,
        state_next=genesis.state.digest,
        miner=keys[miner].id,
        start_ms=time_ms - MINING_MS if start_ms is None else start_ms,
        time_ms=time_ms,
        difficulty=difficulty,
    )
    return mine(genesis, header, contributions, keys[miner])


def mine(genesis: Genesis, header: Header, contributions: Sequence[Contribution], key: SigningKey) -> Block:
    """Returns the block with the first nonce of enough work, whatever else is wrong with the header."""
    nonce = work.search(compute_seal(genesis.chain_id, header), header.difficulty, 0, 10_000_000)
    assert nonce is not None, f"no nonce for difficulty {header.difficulty}"
    return make_block(genesis.chain_id, header, nonce, Body(tuple(contributions)), key)


def make_certificate(genesis: Genesis, block: Block, keys: Sequence[SigningKey], *, view: int = 0) -> Certificate:
    """Makes a certificate with precommits of the first q of `keys` that are members."""
    signatures: list[tuple[int, bytes]] = []
    for key in keys:
        index = genesis.state.index_of(key.id)
        if index is not None and len(signatures) < genesis.state.q:
            vote = sign_vote(
                key, genesis.chain_id, phase=Phase.PRECOMMIT, height=block.height, view=view, block_id=block.id
            )
            signatures.append((index, vote.signature))
    return Certificate(view, tuple(sorted(signatures)))


def make_chain(genesis: Genesis, keys: Sequence[SigningKey], length: int) -> list[tuple[Block, Certificate]]:
    """Makes heights 1 .. length, with their certificates, difficulty retargeted by the rule; miners take turns."""
    chain: list[tuple[Block, Certificate]] = []
    blocks = [genesis.block0]
    for height in range(1, length + 1):
        headers = [block.header for block in blocks[-LOOKBACK:]]
        difficulty = compute_next_difficulty(genesis.rules.pow, genesis.state.q, height, headers)
        block = make_candidate(genesis, blocks[-1], keys, miner=height % len(keys), difficulty=difficulty)
        blocks.append(block)
        chain.append((block, make_certificate(genesis, block, keys)))
    return chain
