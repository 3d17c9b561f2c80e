"""Convictions: evidence proves itself, within its window, against whoever held the key at its height."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.block import Block, Contribution, Evidence, EvidenceKind, Phase, Vote
from chain.changes.members import AddMember, AddObserver, Convict, Pardon, RemoveMember, ReplaceKey
from chain.codec import encode_vote, sign_vote
from chain.errors import GenesisError, InvalidChange
from chain.evidence import encode_evidence, make_evidence
from chain.schema import Section
from chain.signing import SigningKey
from chain.state import State
from support.data.chains import make_candidate, make_contribution, make_digest, make_genesis, make_keys
from support.data.changes import execute

KEYS = make_keys(4)
NEW = make_keys(1, "newcomer")[0]
GENESIS = make_genesis(KEYS)
STATE = GENESIS.state  # evidence_heights is 100


def sign_twice(height: int, key: SigningKey = KEYS[0], *, chain_id: bytes = STATE.chain_id) -> Convict:
    """Proof that this key voted twice in one slot."""
    one, two = (
        sign_vote(key, chain_id, phase=Phase.PREVOTE, height=height, view=0, block_id=make_digest(name))
        for name in ("one", "two")
    )
    return Convict(encode_evidence(make_evidence(one, two)))


def refuse(state: State, kind: Convict, height: int, message: str) -> None:
    with pytest.raises(InvalidChange, match=message):
        execute(state, kind, height)


def test_a_proven_liar_is_suspended_and_nothing_else() -> None:
    after = execute(STATE, sign_twice(5), 9)
    assert after.members == (replace(STATE.members[0], is_suspended=True), *STATE.members[1:])
    assert (after.n, after.q) == (4, 3)
    assert after.active_ids == STATE.member_ids[1:]


def prove(first: Contribution | Block | Vote, second: Contribution | Block | Vote) -> Convict:
    return Convict(encode_evidence(make_evidence(first, second)))


EXAMPLES = {
    EvidenceKind.CONTRIBUTION: prove(
        make_contribution(GENESIS, KEYS[0], weight=1), make_contribution(GENESIS, KEYS[0], weight=2)
    ),
    EvidenceKind.CANDIDATE: prove(
        make_candidate(GENESIS, GENESIS.block0, KEYS, time_ms=GENESIS.created_at_ms + 200),
        make_candidate(GENESIS, GENESIS.block0, KEYS, time_ms=GENESIS.created_at_ms + 300),
    ),
    EvidenceKind.VOTE: sign_twice(1),
}


@pytest.mark.parametrize("kind", list(EvidenceKind))
def test_two_of_any_signed_kind_convict(kind: EvidenceKind) -> None:
    assert not execute(STATE, EXAMPLES[kind], 2).is_active(KEYS[0].id)


@pytest.mark.parametrize(
    ("height", "holds"), [(99, False), (100, False), (101, True), (150, True), (199, True), (200, False)]
)
def test_evidence_is_younger_than_evidence_heights_and_older_than_its_block(height: int, holds: bool) -> None:
    """Of height 100: in (h - 100, h), so from block 101 to block 199."""
    if holds:
        assert not execute(STATE, sign_twice(100), height).is_active(KEYS[0].id)
    else:
        refuse(STATE, sign_twice(100), height, "height of the evidence: expected")


@pytest.mark.parametrize("evidence_heights", [0, 1])
def test_no_evidence_holds_where_it_expires_at_once(evidence_heights: int) -> None:
    state = replace(STATE, rules=replace(STATE.rules, evidence_heights=evidence_heights))
    refuse(state, sign_twice(8), 9, "height of the evidence")


def test_nobody_is_suspended_twice() -> None:
    after = execute(STATE, sign_twice(5), 9)
    refuse(after, sign_twice(6), 10, "node0 is suspended already")


def test_a_pardon_is_for_all_up_to_its_height() -> None:
    pardoned = execute(execute(STATE, sign_twice(5), 9), Pardon(0), 20)
    for height in (5, 6, 20):
        refuse(pardoned, sign_twice(height), 30, "expected more than 20, up to which node0 was pardoned")
    assert not execute(pardoned, sign_twice(21), 30).is_active(KEYS[0].id)


def test_what_an_old_key_signed_suspends_the_seat_under_its_new_one() -> None:
    rotated = execute(STATE, ReplaceKey(0, NEW.id), 7)
    after = execute(rotated, sign_twice(7), 9)  # height 7 was judged by the state before
    assert not after.is_active(NEW.id)
    assert after.get_seat(0) == replace(rotated.get_seat(0) or STATE.members[0], is_suspended=True)
    refuse(rotated, sign_twice(8), 9, "a member's key at height 8")
    refuse(rotated, sign_twice(7, NEW), 9, "a member's key at height 7")
    assert not execute(rotated, sign_twice(8, NEW), 9).is_active(NEW.id)


def test_who_is_gone_is_not_convicted() -> None:
    removed = execute(STATE, RemoveMember(0), 7)
    refuse(removed, sign_twice(6), 9, "who is a member no more")
    refuse(STATE, sign_twice(6, NEW), 9, "a member's key at height 6")
    observed = execute(STATE, AddObserver(NEW.id, "archive"), 1)
    refuse(observed, sign_twice(6, NEW), 9, "a member's key at height 6")


def test_what_a_joiner_signed_before_it_was_a_member_is_nothing() -> None:
    joined = execute(STATE, AddMember(NEW.id, "node4"), 7)
    refuse(joined, sign_twice(7, NEW), 9, "a member's key at height 7")
    assert not execute(joined, sign_twice(8, NEW), 9).is_active(NEW.id)


def test_a_quorum_always_stays_unsuspended() -> None:
    once = execute(STATE, sign_twice(5), 9)
    refuse(once, sign_twice(5, KEYS[1]), 10, "members not suspended: expected at least 3, got 2")
    three = make_genesis(KEYS[:3]).state  # q is 3
    refuse(three, sign_twice(5, chain_id=three.chain_id), 9, "members not suspended: expected at least 3, got 2")


def test_evidence_that_proves_nothing_is_refused() -> None:
    chain_id, block = STATE.chain_id, make_digest("one")
    vote = sign_vote(KEYS[0], chain_id, phase=Phase.PREVOTE, height=5, view=0, block_id=block)
    later = sign_vote(KEYS[0], chain_id, phase=Phase.PREVOTE, height=5, view=1, block_id=make_digest("two"))
    other = sign_vote(KEYS[1], chain_id, phase=Phase.PREVOTE, height=5, view=0, block_id=make_digest("two"))
    forged = replace(vote, block_id=make_digest("forged"))
    resigned = replace(vote, signature=bytes(64))
    for second, message in (
        (later, "two slots"),
        (other, "two slots"),
        (forged, "signature over"),
        (resigned, "one object signed twice"),
    ):
        refuse(STATE, Convict(encode_evidence(make_evidence(vote, second))), 9, message)
    refuse(STATE, sign_twice(5, chain_id=make_digest("another chain")), 9, "signature over")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\3" + bytes(8),
        b"\4\0\0\0\1a\0\0\0\1b",
        b"\3\0\0\0\1b\0\0\0\1a",
        b"\3\0\0\0\1a\0\0\0\1b",
        b"\2\0\0\0\1a\0\0\0\1b",
        b"\1\0\0\0\1a\0\0\0\1b",
        b"\1\xff\xff\xff\xff",
        sign_twice(5).evidence + b"\0",
        sign_twice(5).evidence[:-1],
    ],
)
def test_bytes_that_are_no_evidence_are_refused(data: bytes) -> None:
    refuse(STATE, Convict(data), 9, "convict: ")


def test_objects_of_different_kinds_prove_nothing() -> None:
    vote = sign_vote(KEYS[0], STATE.chain_id, phase=Phase.PREVOTE, height=5, view=0, block_id=make_digest("one"))
    contribution = encode_evidence(Evidence(EvidenceKind.CONTRIBUTION, *sorted((encode_vote(vote), b"x"))))
    refuse(STATE, Convict(contribution), 9, "contribution evidence")


@settings(max_examples=300)
@given(st.sampled_from(EvidenceKind), st.data())
def test_evidence_with_any_byte_changed_proves_nothing(kind: EvidenceKind, data: st.DataObject) -> None:
    """Whatever a peer makes of good evidence, all that comes of it is InvalidChange."""
    good = EXAMPLES[kind].evidence
    at = data.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + data.draw(st.binary(max_size=2)) + good[at + 1 :]
    if changed != good:
        refuse(STATE, Convict(changed), 2, "convict: |height of the evidence|member no more")


@pytest.mark.parametrize("text", ["0", "zz", "AB", "a b", "0a 0b", "é", "٠٠"])
def test_evidence_has_one_spelling(text: str) -> None:
    with pytest.raises(GenesisError, match="hex"):
        Convict.read(Section("", {"evidence": text}, ("evidence",)))
