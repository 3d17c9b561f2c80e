"""The golden vectors of the ledger's bytes, computed from the keys and the genesis that `vectors/chain.json` holds.

A change of any of them is a fork: nodes before and after it disagree on what is signed. When one is meant, rewrite the
file with `PYTHONPATH=.:tests python tests/support/data/chain_vectors.py` and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chain import pow as work
from chain.approvals import (
    APPROVAL_TAG,
    READINESS_TAG,
    approval_fields,
    encode_approval,
    encode_readiness,
    readiness_fields,
    sign_approval,
    sign_readiness,
)
from chain.block import ApprovedChange, Block, Body, Certificate, Header, PayloadRef, Phase
from chain.changes.base import Place
from chain.changes.change import Change
from chain.changes.execution import execute_change
from chain.changes.members import AddMember
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
    encode_header,
    encode_vote,
    make_block,
    sign_contribution,
    sign_vote,
    vote_fields,
)
from chain.evidence import encode_evidence, make_evidence
from chain.genesis import Genesis
from chain.signing import SigningKey, compute_sign_bytes

PATH = Path(__file__).parents[2] / "vectors" / "chain.json"


def load_vectors() -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads(PATH.read_text())
    return vectors


def make_vector_chain(given: dict[str, Any]) -> tuple[Genesis, list[SigningKey], Block]:
    """Makes the genesis, its keys in member order, and block 1: three contributions, difficulty 256, the first nonce
    with enough work."""
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
    body = Body(tuple(contributions))
    header = Header(
        version=genesis.protocol,
        height=1,
        prev=genesis.block0.id,
        body=compute_body_digest(body),
        aggregate=b"\xaa" * 32,
        state_next=genesis.state.digest,
        miner=keys[3].id,
        start_ms=genesis.created_at_ms + 5000,
        time_ms=genesis.created_at_ms + 6000,
        difficulty=genesis.rules.pow.difficulty,
    )
    nonce = work.search(compute_seal(genesis.chain_id, header), header.difficulty, 0, 1_000_000)
    assert nonce is not None
    return genesis, keys, make_block(genesis.chain_id, header, nonce, body, keys[3])


def compute_vectors(given: dict[str, Any]) -> dict[str, str]:
    """Computes every vector as hex, by name."""
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
        "state canonical": genesis.state.canonical,
        "state digest": genesis.state.digest,
        "block 0": encode_block(genesis.block0),
        "block 0 id": genesis.block0.id,
        "contribution sign bytes": compute_sign_bytes(
            CONTRIBUTION_TAG, genesis.chain_id, contribution_fields(contribution)
        ),
        "contribution": encode_contribution(contribution),
        "body": encode_body(block.body),
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
        **compute_change_vectors(genesis, keys, block),
    }
    return {name: data.hex() for name, data in vectors.items()}


def compute_change_vectors(genesis: Genesis, keys: list[SigningKey], block: Block) -> dict[str, bytes]:
    """Computes the vectors of a fifth member that joins in block 2: the change, its approvals by members 0, 1 and 3,
    the newcomer's readiness, and what follows from it."""
    newcomer = SigningKey.from_private_bytes(bytes(range(32)))
    change = Change(AddMember(newcomer.id, "node4"), by=0, made=1, first=2, expires=101, note="ethics vote 2026-11")
    change_id = change.compute_id(genesis.chain_id)
    approvals = [sign_approval(keys[i], genesis.chain_id, change_id) for i in (0, 1, 3)]
    ready = sign_readiness(newcomer, genesis.chain_id, change_id, height=1, block_id=block.id)
    approved = ApprovedChange(
        change.data,
        tuple((i, approval.answer, approval.signature) for i, approval in zip((0, 1, 3), approvals, strict=True)),
        ((ready.key, ready.height, ready.block_id, ready.signature),),
    )
    after = execute_change(genesis.state, change, Place(2, block.header.aggregate))
    return {
        "change": change.data,
        "change id": change_id,
        "approval sign bytes": compute_sign_bytes(APPROVAL_TAG, genesis.chain_id, approval_fields(approvals[0])),
        "approval": encode_approval(approvals[0]),
        "readiness sign bytes": compute_sign_bytes(READINESS_TAG, genesis.chain_id, readiness_fields(ready)),
        "readiness": encode_readiness(ready),
        "change body": encode_body(Body(change=approved)),
        "change body digest": compute_body_digest(Body(change=approved)),
        "state after the change": after.canonical,
        "state digest after the change": after.digest,
    }


if __name__ == "__main__":
    stored = load_vectors()
    stored["hex"] = compute_vectors(stored["given"])
    PATH.write_text(json.dumps(stored, indent=2) + "\n")
