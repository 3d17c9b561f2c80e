"""What is signed of a block, as bare bytes: for the library's verification alone, against which ours is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from chain import codec, validation
from chain.block import Block, Certificate, Contribution, Id, Vote
from chain.genesis import Genesis
from chain.signing import compute_sign_bytes


@dataclass(frozen=True, slots=True)
class Signed:
    signer: Id
    signature: bytes
    data: bytes

    @classmethod
    def of_block(cls, genesis: Genesis, block: Block) -> Signed:
        data = compute_sign_bytes(codec.BLOCK_TAG, genesis.chain_id, block.id)
        return cls(block.header.miner, block.signature, data)

    @classmethod
    def of_contribution(cls, genesis: Genesis, contribution: Contribution) -> Signed:
        fields = codec.contribution_fields(contribution)
        data = compute_sign_bytes(codec.CONTRIBUTION_TAG, genesis.chain_id, fields)
        return cls(contribution.author, contribution.signature, data)

    @classmethod
    def of_vote(cls, genesis: Genesis, vote: Vote) -> Signed:
        data = compute_sign_bytes(codec.VOTE_TAG, genesis.chain_id, codec.vote_fields(vote))
        return cls(vote.voter, vote.signature, data)


def list_candidate(genesis: Genesis, block: Block) -> list[Signed]:
    """The miner's and the contributors'."""
    contributions = (Signed.of_contribution(genesis, contribution) for contribution in block.contributions)
    return [Signed.of_block(genesis, block), *contributions]


def list_certificate(genesis: Genesis, block: Block, certificate: Certificate) -> list[Signed]:
    votes = validation.get_precommits(genesis, block.id, block.height, certificate)
    return [Signed.of_vote(genesis, vote) for vote in votes]


def make_bare_check(signed: Iterable[Signed]) -> Callable[[], None]:
    """Verifies all of them and does nothing else. Keys are read beforehand, as a node keeps its members'."""
    held = list(signed)
    public = {signer: Ed25519PublicKey.from_public_bytes(signer) for signer in {one.signer for one in held}}

    def check() -> None:
        for one in held:
            public[one.signer].verify(one.signature, one.data)

    return check
