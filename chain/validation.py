"""The rules that an object of a chain must obey (PROTOCOL §3), cheapest check first (SECURITY §5).

Pure: each function raises a ChainError that says expected and actual, or returns. A signature for which `known` returns
True was verified before and is not checked again. Blobs and their aggregate, which only a method can judge, are left to
the caller: it recomputes the aggregate, then `validate_aggregate` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from chain.beacon import FIRST_REVEALING, does_open, list_commitments
from chain.block import (
    ZERO,
    Approval,
    ApprovedChange,
    Block,
    Certificate,
    Contribution,
    Digest,
    Header,
    Id,
    Measure,
    Phase,
    Vote,
)
from chain.changes.base import Place
from chain.changes.change import read_change
from chain.changes.execution import get_aggregate, validate_approved
from chain.codec import (
    BLOCK_TAG,
    CONTRIBUTION_TAG,
    VOTE_TAG,
    compute_block_id,
    compute_body_digest,
    compute_seal,
    contribution_fields,
    vote_fields,
)
from chain.errors import (
    InvalidAggregate,
    InvalidBody,
    InvalidCertificate,
    InvalidContribution,
    InvalidDifficulty,
    InvalidSeal,
    InvalidSignature,
    InvalidState,
    InvalidTime,
    NotAMember,
    UnknownParent,
    ValidationError,
    WrongHeight,
)
from chain.pow import is_valid_work
from chain.protocol import describe_spoken, speaks
from chain.signing import encode_id, verify
from chain.state import State
from chain.tip import Tip


def _validate_member(state: State, what: str, id: Id) -> None:  # noqa: A002 (the node id)
    if state.index_of(id) is None:
        raise NotAMember.differs(what, f"one of {state.n} members", encode_id(id))


def _validate_active(state: State, what: str, id: Id) -> None:  # noqa: A002 (the node id)
    _validate_member(state, what, id)
    if not state.is_active(id):
        raise NotAMember(f"{what}: {encode_id(id)} is suspended")


def verify_contribution(chain_id: Digest, c: Contribution) -> None:
    verify(c.author, c.signature, CONTRIBUTION_TAG, chain_id, contribution_fields(c))


def verify_block(chain_id: Digest, block: Block) -> None:
    verify(block.header.miner, block.signature, BLOCK_TAG, chain_id, block.id)


def verify_vote(chain_id: Digest, vote: Vote) -> None:
    verify(vote.voter, vote.signature, VOTE_TAG, chain_id, vote_fields(vote))


# Contributions


def _validate_contribution_fields(
    state: State, c: Contribution, height: int, prev: Id, committed: Mapping[Id, Digest]
) -> None:
    _validate_active(state, "contribution author", c.author)
    if c.height != height:
        raise WrongHeight.differs("contribution height", height, c.height)
    if c.prev != prev:
        raise InvalidContribution.differs("contribution prev", prev, c.prev)
    highest = state.rules.limits.max_weight  # itself below 2^29
    if not 1 <= c.weight <= highest:
        raise InvalidContribution.differs("contribution weight", f"1 to {highest}", c.weight)
    if bool(c.commitment) != (state.protocol >= FIRST_REVEALING):
        raise InvalidContribution.differs(
            "contribution", f"one that commits from protocol {FIRST_REVEALING} on", f"protocol {state.protocol}"
        )
    if c.commitment and not does_open(c, committed.get(c.author)):
        expected = "the secret that the parent block has the hash of, zeros for none"
        raise InvalidContribution.differs("what the contribution opens", expected, c.opened)
    if c.measure is not None:
        _validate_measure(state, c.measure, height)
    last_kind = 0
    for payload in c.payloads:
        if payload.kind <= last_kind:
            raise InvalidContribution.differs("payload kinds", f"more than {last_kind}, sorted", payload.kind)
        if not 1 <= payload.size <= state.rules.limits.payload_bytes:
            expected = f"1 to {state.rules.limits.payload_bytes} bytes"
            raise InvalidContribution.differs(f"size of payload kind {payload.kind}", expected, payload.size)
        last_kind = payload.kind


def _validate_measure(state: State, measure: Measure, height: int) -> None:
    """Raises InvalidContribution unless a measure belongs to a round that the run selects by, and is in range. No other
    member can check whether it is true."""
    select = state.run.select
    if select is None or state.run.get_round(height) < 2 or state.run.is_evaluating(height):
        raise InvalidContribution("contribution: expected no measure, as there is no round to select")
    if not 1 <= measure.samples <= state.rules.limits.max_weight:
        expected = f"1 to {state.rules.limits.max_weight}"
        raise InvalidContribution.differs("samples of the measure", expected, measure.samples)
    if measure.value > select.most:
        raise InvalidContribution.differs(f"measure, {select.by} in millionths", f"0 to {select.most}", measure.value)


def validate_contribution(
    state: State,
    c: Contribution,
    *,
    height: int,
    prev: Id,
    committed: Mapping[Id, Digest] = MappingProxyType({}),
    is_verified: bool = False,
) -> None:
    """Validates one contribution for the block at `height`, whose parent is `prev`. `committed` holds the commitment of
    each author in that parent.

    `is_verified`: its signature was checked before. Raises NotAMember, WrongHeight, InvalidContribution or
    InvalidSignature.
    """
    _validate_contribution_fields(state, c, height, prev, committed)
    if not is_verified:
        verify_contribution(state.chain_id, c)


def _validate_body_fields(tip: Tip, block: Block) -> None:
    state, committed = tip.state, list_commitments(tip.block)
    if not state.has_round(block.height):
        raise InvalidBody.differs("body", f"a change, as run {state.run.number} is over", "a round")
    last = b""
    for i, c in enumerate(block.contributions):
        try:
            _validate_contribution_fields(state, c, block.height, block.header.prev, committed)
        except ValidationError as error:
            raise InvalidContribution(f"contribution {i}: {error}") from error
        if c.author <= last:
            problem = "the same author twice" if c.author == last else "a smaller key"
            raise InvalidBody.differs(f"contribution {i}", "authors sorted by key, one each", problem)
        last = c.author
    count = len(block.contributions)
    if count < state.min_contributions:
        raise InvalidBody.differs("number of contributions", f"at least {state.min_contributions}", count)


def _validate_body_digest(block: Block) -> None:
    body = compute_body_digest(block.body)
    if block.header.body != body:
        raise InvalidBody.differs("digest of the body", block.header.body, body)


# Candidates


def _validate_header(tip: Tip, h: Header, difficulty: int) -> None:
    state, parent, parent_id = tip.state, tip.header, tip.id
    if h.height != parent.height + 1:
        raise WrongHeight.differs("block height", parent.height + 1, h.height)
    if not speaks(state.protocol):
        raise InvalidState(f"protocol {state.protocol} is in force, and this release speaks {describe_spoken()}")
    if h.prev != parent_id:
        raise UnknownParent.differs("block prev", parent_id, h.prev)
    if h.difficulty != difficulty:
        raise InvalidDifficulty.differs("block difficulty", difficulty, h.difficulty)
    if h.version != state.protocol:
        raise InvalidState.differs("header version", state.protocol, h.version)
    _validate_active(state, "miner", h.miner)
    if h.start_ms > h.time_ms:
        raise InvalidTime.differs("block start_ms", f"at most time_ms {h.time_ms}", h.start_ms)
    if h.time_ms <= parent.time_ms:
        raise InvalidTime.differs("block time_ms", f"more than the parent's {parent.time_ms}", h.time_ms)


def validate_candidate(
    tip: Tip,
    block: Block,
    *,
    known: Callable[[Contribution], bool] | None = None,
    knows_approval: Callable[[Approval], bool] | None = None,
    is_verified: bool = False,
) -> None:
    """Checks everything about a block on `tip` that follows from the chain, except a round's aggregate.

    `known(contribution)` says whether this very contribution, with this signature, was verified before;
    `knows_approval` says the same of an approval. `is_verified`: the miner's signature was checked before. Raises the
    ValidationError of the first rule broken, or InvalidSignature.
    """
    state, difficulty = tip.state, tip.next_difficulty
    _validate_header(tip, block.header, difficulty)
    computed_id = compute_block_id(compute_seal(state.chain_id, block.header), block.nonce)
    if block.id != computed_id:
        raise InvalidSeal.differs("block id", computed_id, block.id)
    if not is_valid_work(block.id, difficulty):
        raise InvalidSeal.differs("block id", f"id * {difficulty} < 2^256", block.id)
    if block.change is None:
        _validate_body_fields(tip, block)
    _validate_body_digest(block)
    if not is_verified:
        verify_block(state.chain_id, block)
    if block.change is not None:
        after = _validate_change(tip, block, block.change, knows_approval)
    else:
        after = tip.compute_state(block.body)
    if block.header.state_next != after.digest:
        raise InvalidState.differs("block state_next", after.digest, block.header.state_next)
    for i, c in enumerate(block.contributions):
        if known is not None and known(c):
            continue
        try:
            verify_contribution(state.chain_id, c)
        except InvalidSignature as error:
            raise InvalidSignature(f"contribution {i}: {error}") from error


def _validate_change(
    tip: Tip, block: Block, approved: ApprovedChange, knows_approval: Callable[[Approval], bool] | None
) -> State:
    """Validates a change block and its aggregate, which follows from the change. Returns the state after it."""
    place = Place(block.height, tip.header.aggregate)
    after = validate_approved(tip.state, approved, place, tip.get_block_id, knows_approval)
    validate_aggregate(block, get_aggregate(read_change(approved.change), tip.header.aggregate))
    return after


def validate_aggregate(block: Block, digest: Digest) -> None:
    """Raises InvalidAggregate unless the header names the digest that was recomputed, `ZERO` for none."""
    if block.header.aggregate != digest:
        raise InvalidAggregate.differs(f"aggregate of height {block.height}", digest, block.header.aggregate)


# Votes and certificates


def validate_vote(state: State, vote: Vote) -> None:
    """Raises NotAMember or InvalidSignature. `Voting` decides whether the vote still matters."""
    _validate_member(state, "voter", vote.voter)
    verify_vote(state.chain_id, vote)


def validate_certificate(
    state: State,
    block_id: Id,
    height: int,
    certificate: Certificate,
    *,
    known: Callable[[Vote], bool] | None = None,
) -> None:
    """Raises InvalidCertificate unless at least q different members precommitted this block in one view."""
    if block_id == ZERO or height < 1:
        raise InvalidCertificate(f"certificate: expected one for a block above 0, got {block_id.hex()} at {height}")
    indices = [index for index, _ in certificate.signatures]
    if any(not 0 <= index < state.n for index in indices):
        raise InvalidCertificate.differs("certificate member index", f"0 to {state.n - 1}", max(indices))
    if indices != sorted(set(indices)):
        raise InvalidCertificate.differs("certificate members", "sorted, one of each", indices)
    if len(indices) < state.q:
        raise InvalidCertificate.differs(
            f"certificate signatures of {state.n} members", f"at least {state.q}", len(indices)
        )
    for vote in get_precommits(state, block_id, height, certificate):
        if known is not None and known(vote):
            continue
        try:
            verify_vote(state.chain_id, vote)
        except InvalidSignature as error:
            name = state.members[state.member_ids.index(vote.voter)].name
            raise InvalidCertificate(f"precommit of {name} in certificate of height {height}: {error}") from error


def get_precommits(state: State, block_id: Id, height: int, certificate: Certificate) -> Sequence[Vote]:
    """Returns the votes that a certificate stands for; its indices must be those of members."""
    return [
        Vote(Phase.PRECOMMIT, height, certificate.view, block_id, state.member_ids[index], signature)
        for index, signature in certificate.signatures
    ]
