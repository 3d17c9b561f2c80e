"""The golden vectors of the ledger's bytes, computed from the keys and the genesis that `vectors/chain.json` holds.

A change of any of them is a fork: nodes before and after it disagree on what is signed. When one is meant, rewrite the
file with `PYTHONPATH=.:tests python tests/support/data/chain_vectors.py` and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chain import pow as work
from chain.block import HEADER_VERSION, Block, Certificate, Header, PayloadRef, Phase
from chain.codec import (
    CONTRIBUTION_TAG,
    VOTE_TAG,
    compute_body_digest,
    compute_seal,
    contribution_fields,
    encode_block,
    encode_body,
    encode_certificate,
    encode_contribution,
    encode_evidence,
    encode_header,
    encode_vote,
    make_block,
    make_evidence,
    sign_contribution,
    sign_vote,
    vote_fields,
)
from chain.genesis import Genesis
from chain.signing import SigningKey, compute_sign_bytes

PATH = Path(__file__).parents[2] / "vectors" / "chain.json"


def load_vectors() -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads(PATH.read_text())
    return vectors


def make_vector_chain(given: dict[str, Any]) -> tuple[Genesis, list[SigningKey], Block]:
    """The genesis, its keys in member order, and block 1: three contributions, difficulty 256, the first nonce."""
    genesis = Genesis.from_mapping(given["genesis"])
    keys = sorted((SigningKey.from_private_bytes(bytes.fromhex(k)) for k in given["private_keys"]), key=lambda k: k.id)
    payloads = [
        [PayloadRef(1, bytes([i + 1]) * 32, 1000 + i), PayloadRef(2, bytes([i + 101]) * 32, 2000)] for i in range(3)
    ]
    contributions = [
        sign_contribution(
            keys[i], genesis.chain_id, height=1, prev=genesis.block0.id, weight=100 + i, payloads=payloads[i]
        )
        for i in range(3)
    ]
    header = Header(
        version=HEADER_VERSION,
        height=1,
        prev=genesis.block0.id,
        body=compute_body_digest(contributions),
        aggregate=b"\xaa" * 32,
        members_next=genesis.members_digest,
        miner=keys[3].id,
        start_ms=genesis.created_at_ms + 5000,
        time_ms=genesis.created_at_ms + 6000,
        difficulty=genesis.pow.difficulty,
    )
    nonce = work.search(compute_seal(genesis.chain_id, header), header.difficulty, 0, 1_000_000)
    assert nonce is not None
    return genesis, keys, make_block(genesis.chain_id, header, nonce, contributions, keys[3])


def compute_vectors(given: dict[str, Any]) -> dict[str, str]:
    """Every vector as hex, by name."""
    genesis, keys, block = make_vector_chain(given)
    contribution = block.contributions[0]
    prevote, precommit = (
        sign_vote(keys[0], genesis.chain_id, phase=phase, height=1, view=2, block_id=block.id) for phase in Phase
    )
    nil = sign_vote(keys[0], genesis.chain_id, phase=Phase.PREVOTE, height=1, view=2, block_id=bytes(32))
    certificate = Certificate(
        2,
        tuple(
            (
                i,
                sign_vote(
                    keys[i], genesis.chain_id, phase=Phase.PRECOMMIT, height=1, view=2, block_id=block.id
                ).signature,
            )
            for i in (0, 1, 3)
        ),
    )
    vectors = {
        "genesis canonical": genesis.canonical,
        "chain id": genesis.chain_id,
        "members digest": genesis.members_digest,
        "block 0": encode_block(genesis.block0),
        "block 0 id": genesis.block0.id,
        "contribution sign bytes": compute_sign_bytes(
            CONTRIBUTION_TAG, genesis.chain_id, contribution_fields(contribution)
        ),
        "contribution": encode_contribution(contribution),
        "body": encode_body(block.contributions),
        "body digest": block.header.body,
        "header": encode_header(block.header),
        "seal": compute_seal(genesis.chain_id, block.header),
        "nonce": block.nonce.to_bytes(8, "big"),
        "block 1 id": block.id,
        "block 1": encode_block(block),
        "prevote sign bytes": compute_sign_bytes(VOTE_TAG, genesis.chain_id, vote_fields(prevote)),
        "prevote": encode_vote(prevote),
        "nil prevote": encode_vote(nil),
        "precommit": encode_vote(precommit),
        "certificate": encode_certificate(certificate),
        "vote evidence": encode_evidence(make_evidence(prevote, nil)),
    }
    return {name: data.hex() for name, data in vectors.items()}


if __name__ == "__main__":
    stored = load_vectors()
    stored["hex"] = compute_vectors(stored["given"])
    PATH.write_text(json.dumps(stored, indent=2) + "\n")
