"""The bytes and the rules of evidence (PROTOCOL §1, §9): two objects that one author signed for one slot, and that
differ.

    Evidence      kind u8 | length u32 | first | length u32 | second

Pure, as `chain.validation`. Evidence proves itself: all it needs is the state that knows who held the key.
"""

from __future__ import annotations

from chain.block import ZERO, Block, Contribution, Evidence, EvidenceKind, Id, Vote
from chain.codec import (
    BLOCK_TAG,
    CONTRIBUTION_TAG,
    MAX_CONTRIBUTION_BYTES,
    MAX_VOTE_BYTES,
    SEALED_HEADER_BYTES,
    VOTE_TAG,
    contribution_fields,
    decode_contribution,
    decode_sealed_header,
    decode_vote,
    encode_contribution,
    encode_sealed_header,
    encode_vote,
    vote_fields,
)
from chain.errors import ChainError, DecodeError, EncodeError, InvalidEvidence, NotAMember
from chain.layout import U8, U32, Error, Reader, check
from chain.signing import encode_id, verify
from chain.state import State

MAX_EVIDENCE_BYTES = 9 + 2 * MAX_CONTRIBUTION_BYTES

_EVIDENCE_MAX_BYTES = {
    EvidenceKind.CONTRIBUTION: MAX_CONTRIBUTION_BYTES,
    EvidenceKind.CANDIDATE: SEALED_HEADER_BYTES,
    EvidenceKind.VOTE: MAX_VOTE_BYTES,
}


def _check_evidence(evidence: Evidence, error: Error) -> None:
    check(error, "evidence kind", evidence.kind, EvidenceKind.CONTRIBUTION, EvidenceKind.VOTE)
    for data in (evidence.first, evidence.second):
        check(error, "size of an object in evidence", len(data), 1, _EVIDENCE_MAX_BYTES[evidence.kind])
    if evidence.first >= evidence.second:
        raise error("evidence: expected two different objects, the smaller first, got them equal or swapped")


def make_evidence(first: Contribution | Block | Vote, second: Contribution | Block | Vote) -> Evidence:
    """Returns evidence of two signed objects of one kind, in order. `validate_evidence` checks whether they prove
    anything."""
    if isinstance(first, Contribution) and isinstance(second, Contribution):
        kind, a, b = EvidenceKind.CONTRIBUTION, encode_contribution(first), encode_contribution(second)
    elif isinstance(first, Block) and isinstance(second, Block):
        kind, a, b = EvidenceKind.CANDIDATE, encode_sealed_header(first), encode_sealed_header(second)
    elif isinstance(first, Vote) and isinstance(second, Vote):
        kind, a, b = EvidenceKind.VOTE, encode_vote(first), encode_vote(second)
    else:
        raise EncodeError.differs("evidence", "two objects of one kind", (type(first).__name__, type(second).__name__))
    evidence = Evidence(kind, min(a, b), max(a, b))
    _check_evidence(evidence, EncodeError)
    return evidence


def encode_evidence(evidence: Evidence) -> bytes:
    _check_evidence(evidence, EncodeError)
    parts = (U32.pack(len(data)) + data for data in (evidence.first, evidence.second))
    return U8.pack(evidence.kind) + b"".join(parts)


def decode_evidence(data: bytes) -> Evidence:
    """Returns the evidence with its two objects as bytes; they are decoded and checked when the evidence is
    validated."""
    reader = Reader("evidence", data, MAX_EVIDENCE_BYTES)
    kind = reader.number(U8)
    check(DecodeError, "evidence kind", kind, EvidenceKind.CONTRIBUTION, EvidenceKind.VOTE)
    first = reader.take(reader.number(U32))
    second = reader.take(reader.number(U32))
    reader.end()
    evidence = Evidence(EvidenceKind(kind), first, second)
    _check_evidence(evidence, DecodeError)
    return evidence


# The rules of evidence


def read_accusation(evidence: Evidence) -> tuple[Id, int]:
    """Returns the key that `evidence` accuses and the height, as its first object states them. No signature is checked.

    Raises InvalidEvidence if they cannot be read.
    """
    try:
        if evidence.kind is EvidenceKind.CONTRIBUTION:
            contribution = decode_contribution(evidence.first)
            return contribution.author, contribution.height
        if evidence.kind is EvidenceKind.CANDIDATE:
            header = decode_sealed_header(ZERO, evidence.first).header
            return header.miner, header.height
        vote = decode_vote(evidence.first)
        return vote.voter, vote.height
    except ChainError as error:
        raise InvalidEvidence(f"{evidence.kind.name.lower()} evidence: {error}") from error


def validate_evidence(state: State, evidence: Evidence) -> tuple[Id, int]:
    """Returns author and height of two objects signed for one slot that differ in more than their signatures.

    The author must have been a member when that height was judged, as far as `state` still keeps its key. Raises
    InvalidEvidence, whatever is wrong with it.
    """
    try:
        if evidence.kind is EvidenceKind.CONTRIBUTION:
            return _validate_contributions(state, evidence)
        if evidence.kind is EvidenceKind.CANDIDATE:
            return _validate_candidates(state, evidence)
        return _validate_votes(state, evidence)
    except InvalidEvidence:
        raise
    except ChainError as error:
        raise InvalidEvidence(f"{evidence.kind.name.lower()} evidence: {error}") from error


def _validate_slot(
    state: State, author: Id, height: int, slots: tuple[object, object], contents: tuple[bytes, bytes]
) -> None:
    if state.find_holder(author, height) is None:
        expected = f"a member's key at height {height}"
        raise NotAMember.differs("author of evidence", expected, encode_id(author))
    if slots[0] != slots[1]:
        raise InvalidEvidence("evidence: expected two objects of one slot, got two slots")
    if contents[0] == contents[1]:
        raise InvalidEvidence("evidence: expected two objects that differ, got one object signed twice")


def _validate_contributions(state: State, evidence: Evidence) -> tuple[Id, int]:
    a, b = decode_contribution(evidence.first), decode_contribution(evidence.second)
    slots = ((a.author, a.height), (b.author, b.height))
    _validate_slot(state, a.author, a.height, slots, (contribution_fields(a), contribution_fields(b)))
    for c in (a, b):
        verify(c.author, c.signature, CONTRIBUTION_TAG, state.chain_id, contribution_fields(c))
    return a.author, a.height


def _validate_candidates(state: State, evidence: Evidence) -> tuple[Id, int]:
    """Validates two sealed headers. Proof of work is not checked: an honest miner signs only the one block it found."""
    a, b = (decode_sealed_header(state.chain_id, data) for data in (evidence.first, evidence.second))
    slots = ((a.header.miner, a.header.height), (b.header.miner, b.header.height))
    _validate_slot(state, a.header.miner, a.header.height, slots, (a.id, b.id))
    for sealed in (a, b):
        verify(sealed.header.miner, sealed.signature, BLOCK_TAG, state.chain_id, sealed.id)
    return a.header.miner, a.header.height


def _validate_votes(state: State, evidence: Evidence) -> tuple[Id, int]:
    a, b = decode_vote(evidence.first), decode_vote(evidence.second)
    _validate_slot(state, a.voter, a.height, (a.slot, b.slot), (vote_fields(a), vote_fields(b)))
    for vote in (a, b):
        verify(vote.voter, vote.signature, VOTE_TAG, state.chain_id, vote_fields(vote))
    return a.voter, a.height
