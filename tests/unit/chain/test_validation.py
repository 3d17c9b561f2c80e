"""The rules of blocks, votes, certificates and evidence: each broken one is refused by its own error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chain import protocol, validation
from chain.block import ZERO, Block, Body, Certificate, Contribution, Evidence, EvidenceKind, PayloadRef, Phase, Vote
from chain.codec import (
    compute_block_id,
    compute_seal,
    decode_block,
    decode_certificate,
    decode_contribution,
    decode_vote,
    encode_block,
    encode_certificate,
    encode_contribution,
    encode_vote,
    make_block,
    sign_vote,
)
from chain.errors import (
    ChainError,
    EncodeError,
    InvalidAggregate,
    InvalidBody,
    InvalidCertificate,
    InvalidContribution,
    InvalidDifficulty,
    InvalidEvidence,
    InvalidSeal,
    InvalidSignature,
    InvalidState,
    InvalidTime,
    NotAMember,
    UnknownParent,
    ValidationError,
    WrongHeight,
)
from chain.evidence import decode_evidence, encode_evidence, make_evidence, read_accusation, validate_evidence
from chain.layout import MAX_TIME_MS
from chain.pow import is_valid_work
from chain.state import State
from chain.tip import Tip
from chain.validation import (
    get_precommits,
    validate_aggregate,
    validate_candidate,
    validate_certificate,
    validate_contribution,
    validate_vote,
)
from support.data.chains import (
    make_candidate,
    make_certificate,
    make_chain,
    make_contribution,
    make_genesis,
    make_keys,
    mine,
)

KEYS = make_keys(4)
STRANGER = make_keys(1, "stranger")[0]
GENESIS = make_genesis(KEYS, rounds=0)
STATE = GENESIS.state
OTHER_CHAIN = make_genesis(KEYS, rounds=0, chain_name="other")
BLOCK0 = GENESIS.block0
BLOCK1 = make_candidate(GENESIS, BLOCK0, KEYS)
NO_SIGNATURE = bytes(64)


def judge(
    block: Block,
    *,
    state: State = STATE,
    known: Callable[[Contribution], bool] | None = None,
    is_verified: bool = False,
) -> None:
    """As the block on block 0, in this state."""
    validate_candidate(Tip.at(state, [BLOCK0]), block, known=known, is_verified=is_verified)


def remine(**changes: Any) -> Block:
    """Block 1 with another header, its work and signature good again."""
    return mine(GENESIS, replace(BLOCK1.header, **changes), BLOCK1.contributions, KEYS[0])


def rebody(*contributions: Contribution) -> Block:
    """Block 1 with other contributions under its old header."""
    return replace(BLOCK1, body=Body(contributions))


def suspend(*members: int) -> State:
    suspended = tuple(replace(m, is_suspended=i in members) for i, m in enumerate(STATE.members))
    return replace(STATE, members=suspended)


def with_body(contributions: list[Contribution], **kwargs: Any) -> Block:
    return make_candidate(GENESIS, BLOCK0, KEYS, contributions=contributions, **kwargs)


def flips(data: bytes) -> list[bytes]:
    """`data` with each of its bits flipped, one at a time."""
    number = int.from_bytes(data, "big")
    return [(number ^ (1 << bit)).to_bytes(len(data), "big") for bit in range(8 * len(data))]


# Candidates


def test_a_chain_of_valid_blocks_is_accepted() -> None:
    tip = Tip.at(STATE, [BLOCK0])
    heights = []
    for block, certificate in make_chain(GENESIS, KEYS, 40):
        validate_candidate(tip, block)
        validate_certificate(tip.state, block.id, block.height, certificate)
        tip = tip.extend(block)
        heights.append(tip.height)
    assert heights == [*range(1, 41)]
    assert tip.state == STATE  # no block held a change


def test_a_chain_retargets_both_ways() -> None:
    fast = make_genesis(KEYS, rounds=0, pow={"difficulty": 4, "min": 1, "max": 64, "target_ms": 200})
    assert [b.header.difficulty for b, _ in make_chain(fast, KEYS, 33)] == [4] * 16 + [8] * 16 + [16]
    slow = make_genesis(KEYS, rounds=0, pow={"difficulty": 4, "min": 1, "max": 64, "target_ms": 50})
    assert [b.header.difficulty for b, _ in make_chain(slow, KEYS, 49)] == [4] * 16 + [2] * 16 + [1] * 17


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"height": 2}, WrongHeight, "block height: expected 1, got 2"),
        ({"height": 0}, WrongHeight, "block height: expected 1, got 0"),
        ({"prev": b"\7" * 32}, UnknownParent, f"block prev: expected {BLOCK0.id.hex()}, got 0707"),
        ({"difficulty": 2}, InvalidDifficulty, "block difficulty: expected 4, got 2"),
        ({"difficulty": 8}, InvalidDifficulty, "block difficulty: expected 4, got 8"),
        ({"state_next": ZERO}, InvalidState, f"block state_next: expected {STATE.digest.hex()}, got 0000"),
        ({"state_next": OTHER_CHAIN.state.digest}, InvalidState, "block state_next"),
        ({"version": 1}, InvalidState, "header version: expected 2, got 1"),
        ({"version": 3}, InvalidState, "header version: expected 2, got 3"),
        ({"miner": STRANGER.id}, NotAMember, "miner: expected one of 4 members"),
        ({"miner": ZERO}, NotAMember, "miner"),
        ({"start_ms": BLOCK1.header.time_ms + 1}, InvalidTime, "start_ms: expected at most time_ms"),
        (
            {"start_ms": 0, "time_ms": BLOCK0.header.time_ms},
            InvalidTime,
            "more than the parent's 1795183200000, got 1795183200000",
        ),
        ({"body": ZERO}, InvalidBody, "digest of the body: expected 0000"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(changes: dict[str, Any], error: type[ChainError], message: str) -> None:
    with pytest.raises(error, match=message):
        judge(remine(**changes))


def test_the_version_of_a_header_is_the_protocol_of_the_state_that_judges_it(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = protocol.get_newest() + 1
    monkeypatch.setattr(protocol, "SPOKEN", (*protocol.SPOKEN, newer))
    monkeypatch.setattr(validation, "FIRST_REVEALING", newer + 1)
    upgraded = replace(STATE, protocol=newer)
    judge(remine(version=newer, state_next=upgraded.digest), state=upgraded)
    with pytest.raises(InvalidState, match=f"header version: expected {newer}, got 2"):
        judge(BLOCK1, state=upgraded)


def test_a_run_that_is_over_has_no_rounds_left() -> None:
    genesis = make_genesis(KEYS, rounds=2)
    tip = Tip.at(genesis.state, [genesis.block0])
    *rounds, beyond = (block for block, _ in make_chain(genesis, KEYS, 3))
    for block in rounds:
        validate_candidate(tip, block)
        tip = tip.extend(block)
    with pytest.raises(InvalidBody, match="body: expected a change, as run 1 is over, got a round"):
        validate_candidate(tip, beyond)
    ended = replace(STATE, run=replace(STATE.run, is_ended=True))
    with pytest.raises(InvalidBody, match="as run 1 is over"):
        judge(BLOCK1, state=ended)


def test_a_suspended_member_neither_mines_nor_contributes_and_its_votes_count() -> None:
    state = suspend(0)
    with pytest.raises(NotAMember, match=r"miner: .* is suspended"):
        judge(BLOCK1, state=state)
    with pytest.raises(InvalidContribution, match=r"contribution 0: contribution author: .* is suspended"):
        judge(make_candidate(GENESIS, BLOCK0, KEYS, miner=1), state=state)
    with pytest.raises(NotAMember, match=r"contribution author: .* is suspended"):
        validate_contribution(state, BLOCK1.contributions[0], height=1, prev=BLOCK0.id)
    without = make_candidate(GENESIS, BLOCK0, KEYS, miner=1, authors=[1, 2, 3])
    with pytest.raises(InvalidState, match="state_next"):  # which is all that is left to say against it
        judge(without, state=state)
    validate_vote(state, vote(0))
    validate_certificate(state, BLOCK1.id, 1, make_certificate(GENESIS, BLOCK1, KEYS))


def test_times_at_their_edges_are_accepted() -> None:
    judge(remine(time_ms=MAX_TIME_MS))  # only an acceptable candidate must fit the clock
    for edge, beyond in (
        ({"start_ms": BLOCK1.header.time_ms}, {"start_ms": BLOCK1.header.time_ms + 1}),
        ({"start_ms": 0, "time_ms": BLOCK0.header.time_ms + 1}, {"start_ms": 0, "time_ms": BLOCK0.header.time_ms}),
    ):
        judge(remine(**edge))
        with pytest.raises(InvalidTime):
            judge(remine(**beyond))


def test_too_little_work_is_refused() -> None:
    seal = compute_seal(GENESIS.chain_id, BLOCK1.header)
    nonce = next(n for n in range(1000) if not is_valid_work(compute_block_id(seal, n), 4))
    block = make_block(GENESIS.chain_id, BLOCK1.header, nonce, BLOCK1.body, KEYS[0])
    with pytest.raises(InvalidSeal, match=r"id \* 4 < 2\^256"):
        judge(block)


def test_an_id_that_is_not_the_headers_is_refused() -> None:
    with pytest.raises(InvalidSeal, match="block id: expected"):
        judge(replace(BLOCK1, id=ZERO))


def test_a_block_of_another_chain_is_refused() -> None:
    block = make_candidate(OTHER_CHAIN, OTHER_CHAIN.block0, KEYS)
    with pytest.raises(UnknownParent):
        judge(block)
    grafted = mine(OTHER_CHAIN, BLOCK1.header, BLOCK1.contributions, KEYS[0])
    with pytest.raises(InvalidSeal):
        judge(grafted)


def test_the_miner_must_have_signed_the_id() -> None:
    bad = make_block(GENESIS.chain_id, BLOCK1.header, BLOCK1.nonce, BLOCK1.body, KEYS[1])
    assert bad.id == BLOCK1.id
    with pytest.raises(InvalidSignature, match=f"expected one by {KEYS[0].id.hex()}"):
        judge(bad)
    judge(bad, is_verified=True)  # whoever says so has checked it


# Bodies


def test_a_body_of_min_contributions_is_enough_and_one_less_is_not() -> None:
    judge(make_candidate(GENESIS, BLOCK0, KEYS, authors=[1, 2, 3]))
    with pytest.raises(InvalidBody, match="number of contributions: expected at least 3, got 2"):
        judge(make_candidate(GENESIS, BLOCK0, KEYS, authors=[1, 2]))


def test_contributions_out_of_order_or_doubled_are_refused() -> None:
    first, second, third, fourth = BLOCK1.contributions
    with pytest.raises(
        InvalidBody, match="contribution 1: expected authors sorted by key, one each, got a smaller key"
    ):
        judge(rebody(second, first, third, fourth))
    with pytest.raises(InvalidBody, match=r"contribution 1: .*got the same author twice"):
        judge(rebody(first, first, third, fourth))
    with pytest.raises(InvalidBody, match="digest of the body"):
        judge(rebody(first, second, third))


LARGE = PayloadRef(1, ZERO, GENESIS.rules.limits.payload_bytes + 1)


@pytest.mark.parametrize(
    ("contribution", "message"),
    [
        (make_contribution(GENESIS, STRANGER), "author: expected one of 4 members"),
        (make_contribution(GENESIS, KEYS[0], height=2), "contribution height: expected 1, got 2"),
        (make_contribution(GENESIS, KEYS[0], prev=ZERO), "contribution prev: expected"),
        (make_contribution(GENESIS, KEYS[0], weight=1_000_001), "weight: expected 1 to 1000000, got 1000001"),
        (make_contribution(GENESIS, KEYS[0], payloads=[LARGE]), "size of payload kind 1: expected 1 to 16777216 bytes"),
    ],
)
def test_a_contribution_that_breaks_a_rule_is_refused_alone_and_in_a_body(
    contribution: Contribution, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        validate_contribution(STATE, contribution, height=1, prev=BLOCK0.id)
    others = [c for c in BLOCK1.contributions if c.author != contribution.author][:3]
    with pytest.raises(InvalidContribution, match=rf"contribution \d: .*{message}"):
        judge(with_body([contribution, *others]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": 0}, "weight: expected 1 to 1000000, got 0"),
        ({"payloads": (PayloadRef(2, ZERO, 1), PayloadRef(2, ZERO, 1))}, "payload kinds"),
        ({"payloads": (PayloadRef(1, ZERO, 0),)}, "size of payload"),
    ],
)
def test_a_contribution_that_no_decoder_lets_through_is_refused_too(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidContribution, match=message):
        validate_contribution(STATE, replace(BLOCK1.contributions[0], **change), height=1, prev=BLOCK0.id)


def test_limits_themselves_are_accepted() -> None:
    most = PayloadRef(1, ZERO, GENESIS.rules.limits.payload_bytes)
    contribution = make_contribution(GENESIS, KEYS[0], weight=GENESIS.rules.limits.max_weight, payloads=[most])
    validate_contribution(STATE, contribution, height=1, prev=BLOCK0.id)
    validate_contribution(STATE, make_contribution(GENESIS, KEYS[0], payloads=[]), height=1, prev=BLOCK0.id)
    over = replace(most, size=most.size + 1)
    for beyond in (replace(contribution, weight=contribution.weight + 1), replace(contribution, payloads=(over,))):
        with pytest.raises(InvalidContribution):
            validate_contribution(STATE, beyond, height=1, prev=BLOCK0.id)


def test_a_contribution_from_another_round_or_chain_is_refused() -> None:
    old = BLOCK1.contributions[0]
    with pytest.raises(WrongHeight, match="expected 2, got 1"):
        validate_contribution(STATE, old, height=2, prev=BLOCK1.id)
    for moved in (replace(old, height=2), replace(old, prev=BLOCK1.id)):
        with pytest.raises(InvalidSignature):
            validate_contribution(STATE, moved, height=moved.height, prev=moved.prev)
    foreign = make_contribution(OTHER_CHAIN, KEYS[0], prev=BLOCK0.id)
    with pytest.raises(InvalidSignature):
        validate_contribution(STATE, foreign, height=1, prev=BLOCK0.id)


def test_a_bad_contribution_signature_in_a_body_is_refused_by_its_place() -> None:
    contributions = list(BLOCK1.contributions)
    contributions[2] = replace(contributions[2], signature=NO_SIGNATURE)
    with pytest.raises(InvalidSignature, match="contribution 2: "):
        judge(with_body(contributions))


def test_known_contributions_are_not_verified_again() -> None:
    contributions = list(BLOCK1.contributions)
    contributions[2] = replace(contributions[2], signature=NO_SIGNATURE)
    block = with_body(contributions)
    asked: list[bytes] = []

    def knows(c: Contribution) -> bool:
        asked.append(c.author)
        return c == contributions[2]

    judge(block, known=knows)
    assert asked == [c.author for c in contributions]
    with pytest.raises(InvalidSignature, match="contribution 2: "):
        judge(block, known=lambda c: c in BLOCK1.contributions)


def test_the_cheapest_broken_rule_is_the_one_reported() -> None:
    """Each block breaks its own rule and every dearer one."""
    contributions = tuple(replace(c, signature=NO_SIGNATURE) for c in BLOCK1.contributions)
    unsigned = make_candidate(GENESIS, BLOCK0, KEYS, contributions=contributions)
    with pytest.raises(InvalidSignature, match="contribution 0"):
        judge(unsigned)
    stateless = mine(GENESIS, replace(unsigned.header, state_next=ZERO), contributions, KEYS[0])
    with pytest.raises(InvalidState):
        judge(stateless)
    with pytest.raises(InvalidSignature, match=r"signature over fn1\.block"):
        judge(replace(stateless, signature=NO_SIGNATURE))
    dear = replace(BLOCK1, body=Body(contributions), signature=NO_SIGNATURE)
    with pytest.raises(InvalidBody, match="digest"):
        judge(dear)
    few = replace(dear, body=Body(contributions[:1]))
    with pytest.raises(InvalidBody, match="number of contributions"):
        judge(few)
    unworked = replace(few, id=b"\xff" * 32)
    with pytest.raises(InvalidSeal):
        judge(unworked)
    with pytest.raises(InvalidTime):
        judge(replace(unworked, header=replace(BLOCK1.header, time_ms=0, start_ms=0)))
    with pytest.raises(InvalidDifficulty):
        judge(replace(unworked, header=replace(BLOCK1.header, time_ms=0, start_ms=0, difficulty=9)))
    with pytest.raises(WrongHeight):
        judge(replace(unworked, header=replace(BLOCK1.header, height=9, prev=ZERO, difficulty=9)))


def test_the_aggregate_must_be_the_recomputed_one() -> None:
    validate_aggregate(BLOCK1, BLOCK1.header.aggregate)
    with pytest.raises(InvalidAggregate, match=f"aggregate of height 1: expected {'00' * 32}, got"):
        validate_aggregate(BLOCK1, ZERO)


# Votes and certificates


def vote(key: int = 0, **changes: Any) -> Vote:
    fields: dict[str, Any] = {"phase": Phase.PRECOMMIT, "height": 1, "view": 0, "block_id": BLOCK1.id, **changes}
    return sign_vote(KEYS[key], GENESIS.chain_id, **fields)


def test_a_vote_is_a_members_and_signed() -> None:
    validate_vote(STATE, vote())
    validate_vote(STATE, vote(phase=Phase.PREVOTE, block_id=ZERO, view=2**32 - 1))
    stranger = sign_vote(STRANGER, GENESIS.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=ZERO)
    with pytest.raises(NotAMember, match="voter: expected one of 4 members"):
        validate_vote(STATE, stranger)
    with pytest.raises(InvalidSignature):
        validate_vote(OTHER_CHAIN.state, vote())


@pytest.mark.parametrize(
    "change", [{"phase": Phase.PREVOTE}, {"height": 2}, {"view": 1}, {"block_id": ZERO}, {"voter": KEYS[1].id}]
)
def test_a_vote_moved_to_another_slot_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidSignature):
        validate_vote(STATE, replace(vote(), **change))


def test_q_precommits_certify_and_one_less_do_not() -> None:
    certificate = make_certificate(GENESIS, BLOCK1, KEYS)
    assert len(certificate.signatures) == GENESIS.state.q == 3
    validate_certificate(STATE, BLOCK1.id, 1, certificate)
    fewer = replace(certificate, signatures=certificate.signatures[:2])
    with pytest.raises(InvalidCertificate, match="signatures of 4 members: expected at least 3, got 2"):
        validate_certificate(STATE, BLOCK1.id, 1, fewer)
    every = Certificate(5, tuple((i, vote(i, view=5).signature) for i in range(4)))
    validate_certificate(STATE, BLOCK1.id, 1, every)


def test_a_certificate_counts_different_members_only() -> None:
    entry = (0, vote(0).signature)
    with pytest.raises(InvalidCertificate, match="sorted, one of each"):
        validate_certificate(STATE, BLOCK1.id, 1, Certificate(0, (entry, entry, entry)))
    with pytest.raises(InvalidCertificate, match="member index: expected 0 to 3, got 4"):
        validate_certificate(STATE, BLOCK1.id, 1, Certificate(0, (entry, (1, vote(1).signature), (4, entry[1]))))


def test_a_certificate_is_of_one_block_height_view_and_phase() -> None:
    certificate = make_certificate(GENESIS, BLOCK1, KEYS, view=2)
    validate_certificate(STATE, BLOCK1.id, 1, certificate)
    for block_id, height, view in ((BLOCK0.id, 1, 2), (BLOCK1.id, 2, 2), (BLOCK1.id, 1, 1)):
        with pytest.raises(InvalidCertificate, match="precommit of node0"):
            validate_certificate(STATE, block_id, height, replace(certificate, view=view))
    prevotes = Certificate(0, tuple((i, vote(i, phase=Phase.PREVOTE).signature) for i in range(3)))
    with pytest.raises(InvalidCertificate, match="precommit of node0"):
        validate_certificate(STATE, BLOCK1.id, 1, prevotes)
    nil = Certificate(0, tuple((i, vote(i, block_id=ZERO).signature) for i in range(3)))
    with pytest.raises(InvalidCertificate, match="expected one for a block"):
        validate_certificate(STATE, ZERO, 1, nil)
    with pytest.raises(InvalidCertificate, match="expected one for a block"):
        validate_certificate(STATE, BLOCK0.id, 0, certificate)


def test_one_bad_signature_spoils_a_certificate_and_is_named() -> None:
    entries = [(i, vote(i).signature) for i in range(4)]
    entries[2] = (2, entries[1][1])
    with pytest.raises(InvalidCertificate, match="precommit of node2 in certificate of height 1"):
        validate_certificate(STATE, BLOCK1.id, 1, Certificate(0, tuple(entries)))


def test_known_votes_are_not_verified_again() -> None:
    certificate = make_certificate(GENESIS, BLOCK1, KEYS)
    votes = get_precommits(STATE, BLOCK1.id, 1, certificate)
    assert list(votes) == [vote(i) for i in range(3)]
    forged = Certificate(0, tuple((i, NO_SIGNATURE) for i in range(3)))
    validate_certificate(STATE, BLOCK1.id, 1, forged, known=lambda _: True)
    with pytest.raises(InvalidCertificate):
        validate_certificate(STATE, BLOCK1.id, 1, forged, known=lambda v: v in votes)


# Evidence


def test_two_objects_of_one_slot_are_evidence_against_their_author() -> None:
    contributions = make_contribution(GENESIS, KEYS[2]), make_contribution(GENESIS, KEYS[2], weight=2)
    assert validate_evidence(STATE, make_evidence(*contributions)) == (KEYS[2].id, 1)
    other_parent = make_contribution(GENESIS, KEYS[2], prev=ZERO)
    assert validate_evidence(STATE, make_evidence(contributions[0], other_parent)) == (KEYS[2].id, 1)
    blocks = BLOCK1, make_candidate(GENESIS, BLOCK0, KEYS, authors=[0, 1, 2])
    assert validate_evidence(STATE, make_evidence(*blocks)) == (KEYS[0].id, 1)
    again = make_block(GENESIS.chain_id, BLOCK1.header, BLOCK1.nonce + 1, BLOCK1.body, KEYS[0])
    assert validate_evidence(STATE, make_evidence(BLOCK1, again)) == (KEYS[0].id, 1)  # an honest miner signs one nonce
    votes = vote(3, view=7), vote(3, view=7, block_id=ZERO)
    assert validate_evidence(STATE, make_evidence(*votes)) == (KEYS[3].id, 1)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (vote(), vote(phase=Phase.PREVOTE, block_id=ZERO), "two slots"),
        (vote(), vote(view=1, block_id=ZERO), "two slots"),
        (vote(), vote(height=2, block_id=ZERO), "two slots"),
        (vote(0), vote(1, block_id=ZERO), "two slots"),
        (vote(), replace(vote(), signature=NO_SIGNATURE), "one object signed twice"),
        (vote(), replace(vote(), block_id=ZERO), "signature over fn1.vote"),
        (replace(vote(), block_id=ZERO), vote(), "signature over fn1.vote"),
        (make_contribution(GENESIS, KEYS[0]), make_contribution(GENESIS, KEYS[1]), "two slots"),
        (make_contribution(GENESIS, KEYS[0]), make_contribution(GENESIS, KEYS[0], height=2), "two slots"),
        (make_contribution(GENESIS, STRANGER), make_contribution(GENESIS, STRANGER, weight=2), "author of evidence"),
        (
            make_contribution(OTHER_CHAIN, KEYS[0], prev=BLOCK0.id),
            make_contribution(GENESIS, KEYS[0], weight=2),
            "over fn1",
        ),
        (
            make_contribution(GENESIS, KEYS[0]),
            make_contribution(OTHER_CHAIN, KEYS[0], prev=BLOCK0.id, weight=2),
            "over fn1",
        ),
        (BLOCK1, make_candidate(GENESIS, BLOCK0, KEYS, miner=1), "two slots"),
        (BLOCK1, make_candidate(GENESIS, BLOCK1, KEYS), "two slots"),
        (BLOCK1, replace(BLOCK1, signature=NO_SIGNATURE), "one object signed twice"),
        (BLOCK1, replace(remine(start_ms=0), signature=NO_SIGNATURE), "signature over fn1.block"),
        (make_candidate(OTHER_CHAIN, BLOCK0, KEYS), remine(start_ms=0), "signature over fn1.block"),
        (
            make_candidate(GENESIS, BLOCK0, [STRANGER], contributions=[]),
            make_candidate(GENESIS, BLOCK0, [STRANGER], contributions=[], start_ms=0),
            "author of evidence: expected a member's key at height 1",
        ),
    ],
)
def test_what_proves_nothing_is_not_evidence(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InvalidEvidence, match=message):
        validate_evidence(STATE, make_evidence(first, second))


def test_a_header_whose_body_was_exchanged_is_no_second_one() -> None:
    """What its miner signed commits to the body; whoever swaps it proves nothing."""
    other = remine(start_ms=0)
    evidence = make_evidence(BLOCK1, other)
    assert make_evidence(BLOCK1, replace(other, body=Body())) == evidence
    with pytest.raises(EncodeError, match="two different objects"):
        make_evidence(BLOCK1, replace(BLOCK1, body=Body()))


def test_whom_evidence_accuses_is_read_without_a_signature() -> None:
    blocks = BLOCK1, replace(remine(start_ms=0), signature=NO_SIGNATURE)
    assert read_accusation(make_evidence(*blocks)) == (KEYS[0].id, 1)
    votes = replace(vote(3, height=9), signature=NO_SIGNATURE), vote(3, height=9, block_id=ZERO)
    assert read_accusation(make_evidence(*votes)) == (KEYS[3].id, 9)
    contributions = make_contribution(GENESIS, KEYS[2]), make_contribution(GENESIS, KEYS[2], weight=2)
    assert read_accusation(make_evidence(*contributions)) == (KEYS[2].id, 1)
    for kind in EvidenceKind:
        with pytest.raises(InvalidEvidence, match=f"{kind.name.lower()} evidence: "):
            read_accusation(Evidence(kind, b"a", b"b"))


def test_evidence_of_bytes_that_do_not_decode_is_refused() -> None:
    for kind in EvidenceKind:
        with pytest.raises(InvalidEvidence, match=f"{kind.name.lower()} evidence: "):
            validate_evidence(STATE, Evidence(kind, b"a", b"b"))


# Any single bit


def accept_contribution(data: bytes) -> None:
    validate_contribution(STATE, decode_contribution(data), height=1, prev=BLOCK0.id)


def accept_block(data: bytes) -> None:
    judge(decode_block(GENESIS.chain_id, data))


def accept_vote(data: bytes) -> None:
    validate_vote(STATE, decode_vote(data))


def accept_certificate(data: bytes) -> None:
    validate_certificate(STATE, BLOCK1.id, 1, decode_certificate(data))


def accept_evidence(data: bytes) -> None:
    validate_evidence(STATE, decode_evidence(data))


@pytest.mark.parametrize(
    ("data", "accept"),
    [
        pytest.param(encode_contribution(BLOCK1.contributions[0]), accept_contribution, id="contribution"),
        pytest.param(encode_block(BLOCK1), accept_block, id="block"),
        pytest.param(encode_vote(vote()), accept_vote, id="vote"),
        pytest.param(encode_certificate(make_certificate(GENESIS, BLOCK1, KEYS)), accept_certificate, id="certificate"),
        pytest.param(
            encode_evidence(make_evidence(vote(), vote(block_id=ZERO))), accept_evidence, id="evidence of votes"
        ),
        pytest.param(
            encode_evidence(
                make_evidence(BLOCK1, make_candidate(GENESIS, BLOCK0, KEYS, time_ms=BLOCK1.header.time_ms + 1))
            ),
            accept_evidence,
            id="evidence of candidates",
        ),
    ],
)
def test_any_single_bit_flip_is_refused(data: bytes, accept: Callable[[bytes], None]) -> None:
    accept(data)
    for flipped in flips(data):
        with pytest.raises(ChainError):
            accept(flipped)
