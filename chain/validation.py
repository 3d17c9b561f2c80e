"""The rules that an object of a chain must obey (PROTOCOL §3), cheapest check first (SECURITY §5).

Pure: each function raises a ChainError that says expected and actual, or returns. A caller that keeps the ids of what
it verified before passes `known`, and those signatures are not checked again. What only a method can judge, the blobs
and the aggregate they give, is the caller's: it recomputes, then `validate_aggregate` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chain.block import (
    HEADER_VERSION,
    ZERO,
    Block,
    Certificate,
    Contribution,
    Digest,
    Evidence,
    EvidenceKind,
    Header,
    Id,
    Phase,
    Vote,
)
from chain.codec import (
    BLOCK_TAG,
    CONTRIBUTION_TAG,
    VOTE_TAG,
    compute_block_id,
    compute_body_digest,
    compute_seal,
    contribution_fields,
    decode_block,
    decode_contribution,
    decode_vote,
    vote_fields,
)
from chain.errors import (
    ChainError,
    InvalidAggregate,
    InvalidBody,
    InvalidCertificate,
    InvalidContribution,
    InvalidDifficulty,
    InvalidEvidence,
    InvalidSeal,
    InvalidSignature,
    InvalidTime,
    NotAMember,
    UnknownParent,
    ValidationError,
    WrongHeight,
)
from chain.genesis import Genesis
from chain.pow import is_valid_work
from chain.signing import encode_id, verify


def _validate_member(genesis: Genesis, what: str, id: Id) -> None:  # noqa: A002 (the node id)
    if genesis.index_of(id) is None:
        raise NotAMember.differs(what, f"one of {genesis.n} members", encode_id(id))


def verify_contribution(genesis: Genesis, c: Contribution) -> None:
    verify(c.author, c.signature, CONTRIBUTION_TAG, genesis.chain_id, contribution_fields(c))


def verify_block(genesis: Genesis, block: Block) -> None:
    verify(block.header.miner, block.signature, BLOCK_TAG, genesis.chain_id, block.id)


def verify_vote(genesis: Genesis, vote: Vote) -> None:
    verify(vote.voter, vote.signature, VOTE_TAG, genesis.chain_id, vote_fields(vote))


# Contributions


def _validate_contribution_fields(genesis: Genesis, c: Contribution, height: int, prev: Id) -> None:
    _validate_member(genesis, "contribution author", c.author)
    if c.height != height:
        raise WrongHeight.differs("contribution height", height, c.height)
    if c.prev != prev:
        raise InvalidContribution.differs("contribution prev", prev, c.prev)
    highest = genesis.limits.max_weight  # itself below 2^29
    if not 1 <= c.weight <= highest:
        raise InvalidContribution.differs("contribution weight", f"1 to {highest}", c.weight)
    last_kind = 0
    for payload in c.payloads:
        if payload.kind <= last_kind:
            raise InvalidContribution.differs("payload kinds", f"more than {last_kind}, sorted", payload.kind)
        if not 1 <= payload.size <= genesis.limits.payload_bytes:
            expected = f"1 to {genesis.limits.payload_bytes} bytes"
            raise InvalidContribution.differs(f"size of payload kind {payload.kind}", expected, payload.size)
        last_kind = payload.kind


def validate_contribution(
    genesis: Genesis, c: Contribution, *, height: int, prev: Id, is_verified: bool = False
) -> None:
    """A contribution on its own, for the block at `height` on the block `prev`.

    `is_verified`: its signature was checked before. Raises NotAMember, WrongHeight, InvalidContribution or
    InvalidSignature.
    """
    _validate_contribution_fields(genesis, c, height, prev)
    if not is_verified:
        verify_contribution(genesis, c)


def _validate_body_fields(genesis: Genesis, block: Block) -> None:
    last = b""
    for i, c in enumerate(block.contributions):
        try:
            _validate_contribution_fields(genesis, c, block.height, block.header.prev)
        except ValidationError as error:
            raise InvalidContribution(f"contribution {i}: {error}") from error
        if c.author <= last:
            problem = "the same author twice" if c.author == last else "a smaller key"
            raise InvalidBody.differs(f"contribution {i}", "authors sorted by key, one each", problem)
        last = c.author
    count = len(block.contributions)
    if count < genesis.min_contributions:
        raise InvalidBody.differs("number of contributions", f"at least {genesis.min_contributions}", count)


def _validate_body_digest(block: Block) -> None:
    body = compute_body_digest(block.contributions)
    if block.header.body != body:
        raise InvalidBody.differs("digest of the body", block.header.body, body)


# Candidates


def _validate_header(genesis: Genesis, h: Header, parent: Header, parent_id: Id, difficulty: int) -> None:
    if h.height != parent.height + 1:
        raise WrongHeight.differs("block height", parent.height + 1, h.height)
    if h.prev != parent_id:
        raise UnknownParent.differs("block prev", parent_id, h.prev)
    if h.difficulty != difficulty:
        raise InvalidDifficulty.differs("block difficulty", difficulty, h.difficulty)
    if h.members_next != genesis.members_digest:
        raise InvalidBody.differs("block members_next", genesis.members_digest, h.members_next)
    if h.version != HEADER_VERSION:
        raise ValidationError.differs("header version", HEADER_VERSION, h.version)
    _validate_member(genesis, "miner", h.miner)
    if h.start_ms > h.time_ms:
        raise InvalidTime.differs("block start_ms", f"at most time_ms {h.time_ms}", h.start_ms)
    if h.time_ms <= parent.time_ms:
        raise InvalidTime.differs("block time_ms", f"more than the parent's {parent.time_ms}", h.time_ms)


def validate_candidate(
    genesis: Genesis,
    block: Block,
    *,
    parent: Header,
    parent_id: Id,
    difficulty: int,
    known: Callable[[Contribution], bool] | None = None,
    is_verified: bool = False,
) -> None:
    """Everything objective about a block but its aggregate; `difficulty` is what the rule gives for its height.

    `known(contribution)` is whether this very contribution, signature included, was verified before: the same fields
    under another signature are not it. `is_verified`: the miner's signature was checked before. Raises the
    ValidationError of the first rule broken, or InvalidSignature.
    """
    _validate_header(genesis, block.header, parent, parent_id, difficulty)
    computed_id = compute_block_id(compute_seal(genesis.chain_id, block.header), block.nonce)
    if block.id != computed_id:
        raise InvalidSeal.differs("block id", computed_id, block.id)
    if not is_valid_work(block.id, difficulty):
        raise InvalidSeal.differs("block id", f"id * {difficulty} < 2^256", block.id)
    _validate_body_fields(genesis, block)
    _validate_body_digest(block)
    if not is_verified:
        verify_block(genesis, block)
    for i, c in enumerate(block.contributions):
        if known is not None and known(c):
            continue
        try:
            verify_contribution(genesis, c)
        except InvalidSignature as error:
            raise InvalidSignature(f"contribution {i}: {error}") from error


def validate_aggregate(block: Block, digest: Digest) -> None:
    """Raise InvalidAggregate unless the header names the digest that was recomputed, `ZERO` for none."""
    if block.header.aggregate != digest:
        raise InvalidAggregate.differs(f"aggregate of height {block.height}", digest, block.header.aggregate)


# Votes and certificates


def validate_vote(genesis: Genesis, vote: Vote) -> None:
    """Raises NotAMember or InvalidSignature. Whether the vote matters now is the voting core's to say."""
    _validate_member(genesis, "voter", vote.voter)
    verify_vote(genesis, vote)


def validate_certificate(
    genesis: Genesis,
    block_id: Id,
    height: int,
    certificate: Certificate,
    *,
    known: Callable[[Vote], bool] | None = None,
) -> None:
    """Raise InvalidCertificate unless at least q different members precommitted this block in one view."""
    if block_id == ZERO or height < 1:
        raise InvalidCertificate(f"certificate: expected one for a block above 0, got {block_id.hex()} at {height}")
    indices = [index for index, _ in certificate.signatures]
    if any(not 0 <= index < genesis.n for index in indices):
        raise InvalidCertificate.differs("certificate member index", f"0 to {genesis.n - 1}", max(indices))
    if indices != sorted(set(indices)):
        raise InvalidCertificate.differs("certificate members", "sorted, one of each", indices)
    if len(indices) < genesis.q:
        raise InvalidCertificate.differs(
            f"certificate signatures of {genesis.n} members", f"at least {genesis.q}", len(indices)
        )
    for vote in get_precommits(genesis, block_id, height, certificate):
        if known is not None and known(vote):
            continue
        try:
            verify_vote(genesis, vote)
        except InvalidSignature as error:
            name = genesis.members[genesis.member_ids.index(vote.voter)].name
            raise InvalidCertificate(f"precommit of {name} in certificate of height {height}: {error}") from error


def get_precommits(genesis: Genesis, block_id: Id, height: int, certificate: Certificate) -> Sequence[Vote]:
    """The votes a certificate stands for; its indices must be members'."""
    return [
        Vote(Phase.PRECOMMIT, height, certificate.view, block_id, genesis.member_ids[index], signature)
        for index, signature in certificate.signatures
    ]


# Evidence


def read_accusation(evidence: Evidence) -> tuple[Id, int]:
    """Whom `evidence` accuses, and at which height, by its own word: what can be known without checking a signature.

    Raises InvalidEvidence if there is nothing to read.
    """
    try:
        if evidence.kind is EvidenceKind.CONTRIBUTION:
            contribution = decode_contribution(evidence.first)
            return contribution.author, contribution.height
        if evidence.kind is EvidenceKind.CANDIDATE:
            header = decode_block(ZERO, evidence.first).header
            return header.miner, header.height
        vote = decode_vote(evidence.first)
        return vote.voter, vote.height
    except ChainError as error:
        raise InvalidEvidence(f"{evidence.kind.name.lower()} evidence: {error}") from error


def validate_evidence(genesis: Genesis, evidence: Evidence) -> tuple[Id, int]:
    """The author and height of two objects signed for one slot that differ in more than their signatures.

    Raises InvalidEvidence, whatever is wrong with it.
    """
    try:
        if evidence.kind is EvidenceKind.CONTRIBUTION:
            return _validate_contributions_evidence(genesis, evidence)
        if evidence.kind is EvidenceKind.CANDIDATE:
            return _validate_candidates_evidence(genesis, evidence)
        return _validate_votes_evidence(genesis, evidence)
    except InvalidEvidence:
        raise
    except ChainError as error:
        raise InvalidEvidence(f"{evidence.kind.name.lower()} evidence: {error}") from error


def _validate_slot(genesis: Genesis, author: Id, slots: tuple[object, object], contents: tuple[bytes, bytes]) -> None:
    _validate_member(genesis, "author of evidence", author)
    if slots[0] != slots[1]:
        raise InvalidEvidence("evidence: expected two objects of one slot, got two slots")
    if contents[0] == contents[1]:
        raise InvalidEvidence("evidence: expected two objects that differ, got one object signed twice")


def _validate_contributions_evidence(genesis: Genesis, evidence: Evidence) -> tuple[Id, int]:
    a, b = decode_contribution(evidence.first), decode_contribution(evidence.second)
    slots = ((a.author, a.height), (b.author, b.height))
    _validate_slot(genesis, a.author, slots, (contribution_fields(a), contribution_fields(b)))
    verify_contribution(genesis, a)
    verify_contribution(genesis, b)
    return a.author, a.height


def _validate_candidates_evidence(genesis: Genesis, evidence: Evidence) -> tuple[Id, int]:
    """Work is not asked for: the miner signed two blocks, and an honest one signs only the block it found."""
    a, b = (decode_block(genesis.chain_id, data) for data in (evidence.first, evidence.second))
    slots = ((a.header.miner, a.height), (b.header.miner, b.height))
    _validate_slot(genesis, a.header.miner, slots, (a.id, b.id))
    for block in (a, b):  # else a relay could hang any body on a signed header
        _validate_body_digest(block)
    verify_block(genesis, a)
    verify_block(genesis, b)
    return a.header.miner, a.height


def _validate_votes_evidence(genesis: Genesis, evidence: Evidence) -> tuple[Id, int]:
    a, b = decode_vote(evidence.first), decode_vote(evidence.second)
    _validate_slot(genesis, a.voter, (a.slot, b.slot), (vote_fields(a), vote_fields(b)))
    verify_vote(genesis, a)
    verify_vote(genesis, b)
    return a.voter, a.height
