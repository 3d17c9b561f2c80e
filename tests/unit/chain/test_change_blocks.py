"""Blocks that change the federation: what makes one valid, which set certifies it, and that chains with them are
audited, stored and exported as any other."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain import protocol
from chain.approvals import sign_approval, sign_readiness
from chain.audit import VerifyReport, export_blocks, read_export, verify_chain, write_export
from chain.block import ZERO, Answer, Approval, ApprovedChange, Block, Body, Certificate, Phase
from chain.changes.base import Kind
from chain.changes.members import AddMember, AddObserver, Convict, Pardon, RemoveMember, ReplaceKey
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.codec import decode_block, decode_certificate, encode_block, encode_certificate, sign_vote
from chain.errors import (
    ChainError,
    InvalidAggregate,
    InvalidBody,
    InvalidCertificate,
    InvalidChange,
    InvalidContribution,
    InvalidDifficulty,
    InvalidSignature,
    InvalidState,
    LacksConsent,
    NotAMember,
    StoreCorrupted,
)
from chain.evidence import encode_evidence, make_evidence
from chain.finality import Voting
from chain.signing import SigningKey
from chain.state import State
from chain.store.interface import BlockRow, Damage
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from chain.tip import NUM_HEADERS, Tip, get_first_read
from chain.validation import validate_candidate, validate_certificate
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import (
    LivingChain,
    approve,
    certify,
    extend_with,
    make_approved,
    make_round,
    propose,
)

KEYS = make_keys(4)
NEW, OTHER = make_keys(2, "newcomer")
GENESIS = make_genesis(KEYS)
EVERYBODY = [*KEYS, NEW, OTHER]
TIP = Tip.at(GENESIS.state, (GENESIS.block0,))
TERMS = {name: value for name, value in GENESIS.run.to_terms().items() if name != "initial_model"}


def start() -> LivingChain:
    return LivingChain(GENESIS, EVERYBODY)


def sign_twice(height: int, key: SigningKey) -> Convict:
    one, two = (
        sign_vote(key, GENESIS.chain_id, phase=Phase.PREVOTE, height=height, view=0, block_id=make_digest(name))
        for name in ("one", "two")
    )
    return Convict(encode_evidence(make_evidence(one, two)))


def make_block(kind: Kind, *voters: int, tip: Tip = TIP, miner: int = 0, **header: Any) -> Block:
    """A change block that members 0, 1 and 2 have approved, unless others are named."""
    change = propose(kind, made=tip.height)
    ready = [key for key in EVERYBODY if key.id == kind.get_new_key()]
    approved = make_approved(tip, change, [KEYS[i] for i in voters or (0, 1, 2)], ready=ready)
    return extend_with(tip, Body(change=approved), KEYS[miner], **header)


def refuse(block: Block, error: type[ChainError], message: str, tip: Tip = TIP) -> None:
    """Refused as it is, and as it comes from its bytes."""
    with pytest.raises(error, match=message):
        validate_candidate(tip, block)
    with pytest.raises(error, match=message):
        validate_candidate(tip, decode_block(GENESIS.chain_id, encode_block(block)))


# Candidates


@pytest.mark.parametrize(
    "kind",
    [
        AddMember(NEW.id, "node4"),
        RemoveMember(3),
        ReplaceKey(3, NEW.id),
        AddObserver(NEW.id, "archive"),
        SetRounds(1, 10, 20),
        EndRun(1),
        StartRun(2, TERMS, make_digest("another model")),
        SetRules({"keep_heights": (2, 3)}),
        Upgrade(3),
    ],
)
def test_the_block_of_an_approved_change_is_valid(kind: Kind) -> None:
    block = make_block(kind)
    validate_candidate(TIP, block)
    validate_candidate(TIP, decode_block(GENESIS.chain_id, encode_block(block)))
    after = TIP.extend(block)
    assert after.state.digest == block.header.state_next != TIP.state.digest
    assert after.judged_by == TIP.state


def test_a_change_block_needs_no_contribution_and_any_active_member_mines_it() -> None:
    for miner in range(4):
        validate_candidate(TIP, make_block(EndRun(1), 1, 2, 3, miner=miner))
    refuse(extend_with(TIP, make_block(EndRun(1)).body, NEW), NotAMember, "miner: expected one of 4 members")


def test_a_change_block_commits_to_the_state_that_follows() -> None:
    wrong = make_block(EndRun(1), state_next=TIP.state.digest)
    refuse(wrong, InvalidState, "block state_next: expected")
    refuse(make_block(EndRun(1), state_next=ZERO), InvalidState, "block state_next")


def test_a_round_commits_to_the_state_in_force() -> None:
    wrong = extend_with(TIP, make_round(TIP, KEYS), KEYS[0], state_next=make_block(EndRun(1)).header.state_next)
    refuse(wrong, InvalidState, "block state_next: expected")


def test_the_aggregate_of_a_change_block_follows_from_it() -> None:
    model = make_digest("another model")
    begins = StartRun(2, TERMS, model)
    assert make_block(EndRun(1)).header.aggregate == TIP.header.aggregate
    assert make_block(begins).header.aggregate == model
    refuse(make_block(EndRun(1), aggregate=model), InvalidAggregate, "aggregate of height 1")
    refuse(make_block(begins, aggregate=TIP.header.aggregate), InvalidAggregate, "aggregate of height 1")


def test_a_run_that_continues_does_so_from_the_parents_aggregate() -> None:
    schema = {"aggregate": {"w": [2]}}
    chain = LivingChain(make_genesis(KEYS, schema=schema), KEYS)
    chain.add_rounds(2)
    block = chain.make_change(StartRun(2, {**TERMS, "schema": schema}, None))
    validate_candidate(chain.tip, block)
    parent = chain.tip.header.aggregate
    chain.add(block)
    assert block.header.aggregate == parent == chain.state.run.initial_model


def test_when_a_run_is_over_only_changes_are_valid() -> None:
    one = LivingChain(make_genesis(KEYS, rounds=1), KEYS)
    one.add_rounds(1)
    ended = start()
    ended.add_change(EndRun(1))
    for chain in (one, ended):
        block = extend_with(chain.tip, make_round(chain.tip, KEYS), KEYS[0])
        with pytest.raises(InvalidBody, match="body: expected a change, as run 1 is over, got a round"):
            validate_candidate(chain.tip, block)
        empty = extend_with(chain.tip, Body(), KEYS[0])
        with pytest.raises(InvalidBody, match="as run 1 is over"):
            validate_candidate(chain.tip, empty)
        validate_candidate(chain.tip, chain.make_change(StartRun(2, TERMS, make_digest("model"))))


def test_after_a_run_is_ended_the_next_one_makes_rounds_again() -> None:
    chain = start()
    chain.add_rounds(2)
    chain.add_change(EndRun(1))
    chain.add_change(AddObserver(OTHER.id, "archive"))
    chain.add_change(StartRun(2, {**TERMS, "rounds": 2}, make_digest("model")))
    chain.add_rounds(2)
    assert not chain.state.has_round(chain.tip.height + 1)
    assert [block.height for block, _ in chain.blocks if block.change is None] == [1, 2, 6, 7]


def test_the_version_of_a_header_is_the_protocol_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(make_block(EndRun(1), version=3), InvalidState, "header version: expected 2, got 3")
    refuse(make_block(Upgrade(3), version=3), InvalidState, "header version: expected 2, got 3")
    chain = start()
    chain.add_change(Upgrade(3))
    old = extend_with(chain.tip, make_round(chain.tip, KEYS), KEYS[0], version=2)
    refuse(old, InvalidState, "header version: expected 3, got 2", chain.tip)
    good = extend_with(chain.tip, make_round(chain.tip, KEYS), KEYS[0])
    validate_candidate(chain.tip, good)
    monkeypatch.setattr(protocol, "SPOKEN", (2,))
    refuse(good, InvalidState, "protocol 3 is in force, and this release speaks 2", chain.tip)


def test_the_suspended_neither_contribute_nor_mine_and_their_votes_count() -> None:
    chain = start()
    chain.add_rounds(1)
    chain.add_change(sign_twice(1, KEYS[1]))
    tip = chain.tip
    mined = extend_with(tip, make_round(tip, [KEYS[0], KEYS[2], KEYS[3]]), KEYS[1])
    refuse(mined, NotAMember, "miner: .* is suspended", tip)
    written = extend_with(tip, make_round(tip, KEYS), KEYS[0])
    refuse(written, InvalidContribution, "contribution 1: contribution author: .* is suspended", tip)
    good = extend_with(tip, make_round(tip, [KEYS[0], KEYS[2], KEYS[3]]), KEYS[0])
    validate_candidate(tip, good)
    validate_certificate(tip.state, good.id, good.height, certify(tip.state, good, KEYS[1:]))
    pardon = make_block(Pardon(1), 0, 1, 2, tip=tip)  # its yes counts, too
    validate_candidate(tip, pardon)
    chain.add(pardon)
    validate_candidate(chain.tip, extend_with(chain.tip, make_round(chain.tip, KEYS), KEYS[1]))


def test_a_round_needs_min_contributions_of_the_state_in_force() -> None:
    chain = start()
    chain.add_change(AddMember(NEW.id, "node4"))  # q goes from 3 to 4
    few = extend_with(chain.tip, make_round(chain.tip, KEYS[:3]), KEYS[0])
    refuse(few, InvalidBody, "number of contributions: expected at least 4, got 3", chain.tip)
    validate_candidate(chain.tip, extend_with(chain.tip, make_round(chain.tip, [*KEYS[:3], NEW]), NEW))


# Consent in a block


def test_too_few_approvals_make_no_block() -> None:
    refuse(make_block(EndRun(1), 0, 1), LacksConsent, "end_run: lacks 1 more of the members")
    change = propose(AddMember(NEW.id, "node4"))
    alone = Body(change=make_approved(TIP, change, KEYS))
    refuse(extend_with(TIP, alone, KEYS[0]), LacksConsent, "lacks the readiness of")


def test_a_body_without_any_answer_is_refused_unless_it_convicts() -> None:
    bare = Body(change=ApprovedChange(propose(EndRun(1)).data))
    refuse(extend_with(TIP, bare, KEYS[0]), LacksConsent, "lacks 3 more of the members")
    chain = start()
    chain.add_rounds(1)
    proof = propose(sign_twice(1, KEYS[3]), made=1)
    validate_candidate(chain.tip, extend_with(chain.tip, Body(change=ApprovedChange(proof.data)), KEYS[0]))


def with_body(**parts: Any) -> Block:
    approved = make_block(EndRun(1)).change
    assert approved is not None
    return extend_with(TIP, Body(change=replace(approved, **parts)), KEYS[0])


def test_an_index_beyond_the_members_is_a_strangers() -> None:
    approved = make_block(EndRun(1)).change
    assert approved is not None
    block = with_body(answers=(*approved.answers, (4, Answer.YES, bytes(64))))
    refuse(block, InvalidChange, "member index of an answer: expected 0 to 3, got 4")


def test_a_forged_approval_is_refused_by_the_name_of_its_member() -> None:
    change = propose(EndRun(1))
    forged = sign_approval(KEYS[3], GENESIS.chain_id, change.compute_id(GENESIS.chain_id))
    answers = approve(TIP.state, change, KEYS[:2])
    block = with_body(answers=(*answers, (2, Answer.YES, forged.signature)))
    refuse(block, InvalidSignature, "approval of node2: ")


def test_approvals_known_before_are_not_verified_again() -> None:
    change = propose(EndRun(1))
    answers = approve(TIP.state, change, KEYS[:2])
    block = with_body(answers=(*answers, (2, Answer.YES, bytes(64))))
    asked: list[Approval] = []

    def knows(approval: Approval) -> bool:
        asked.append(approval)
        return approval.signature == bytes(64)

    validate_candidate(TIP, block, knows_approval=knows)
    assert [approval.voter for approval in asked] == [key.id for key in KEYS[:3]]


@pytest.mark.parametrize(
    ("height", "name", "message"),
    [
        (1, "of another chain", "block of readiness: expected"),
        (3, "of the future", "height of readiness: expected 0 to 2, got 3"),
        (0, None, ""),
        (2, None, ""),
    ],
)
def test_readiness_names_a_block_of_this_chain(height: int, name: str | None, message: str) -> None:
    chain = start()
    chain.add_rounds(2)
    change = propose(AddMember(NEW.id, "node4"), made=2)
    block_id = chain.tips[height].id if name is None else make_digest(name)
    change_id = change.compute_id(GENESIS.chain_id)
    ready = sign_readiness(NEW, GENESIS.chain_id, change_id, height=height, block_id=block_id)
    approved = make_approved(chain.tip, change, KEYS)
    approved = replace(approved, readiness=((ready.key, ready.height, ready.block_id, ready.signature),))
    block = extend_with(chain.tip, Body(change=approved), KEYS[0])
    if message:
        refuse(block, InvalidChange, message, chain.tip)
    else:
        validate_candidate(chain.tip, block)


def test_readiness_is_judged_alike_by_whoever_followed_the_chain_and_whoever_took_it_up() -> None:
    """Heights 4 to 103 are what both remember at 103."""
    chain = LivingChain(make_genesis(KEYS, rounds=0, pow=EASY), EVERYBODY)
    chain.add_rounds(103)
    blocks = [chain.genesis.block0, *(block for block, _ in chain.blocks)]
    taken_up = Tip.at(chain.state, blocks[get_first_read(103) :])
    change = propose(AddMember(NEW.id, "node4"), made=103)
    change_id = change.compute_id(chain.genesis.chain_id)
    for height in (3, 4, 103):
        word = sign_readiness(NEW, chain.genesis.chain_id, change_id, height=height, block_id=blocks[height].id)
        approved = make_approved(chain.tip, change, KEYS)
        approved = replace(approved, readiness=((word.key, word.height, word.block_id, word.signature),))
        block = extend_with(chain.tip, Body(change=approved), KEYS[0])
        for tip in (chain.tip, taken_up):
            if height < 4:
                with pytest.raises(InvalidChange, match="height of readiness: expected 4 to 103, got 3"):
                    validate_candidate(tip, block)
            else:
                validate_candidate(tip, block)


EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}


def test_a_tip_knows_the_ids_of_the_blocks_it_remembers() -> None:
    chain = LivingChain(make_genesis(KEYS[:1], rounds=0, pow=EASY), KEYS[:1])
    chain.add_rounds(NUM_HEADERS + 5)
    head = chain.tip.height
    ids = [chain.genesis.block0.id, *(block.id for block, _ in chain.blocks)]
    for height in range(head - NUM_HEADERS + 1, head + 1):
        assert chain.tip.get_block_id(height) == ids[height]
    for height in (-1, 0, head - NUM_HEADERS, head + 1, 2**63):
        assert chain.tip.get_block_id(height) is None
    assert chain.tips[5].get_block_id(0) == ids[0]
    assert chain.tips[0].get_block_id(0) == ids[0]


def test_a_change_is_not_executed_in_two_blocks() -> None:
    chain = start()
    change = propose(AddObserver(OTHER.id, "archive"))
    body = Body(change=make_approved(TIP, change, KEYS))
    chain.add(extend_with(chain.tip, body, KEYS[0]))
    again = extend_with(chain.tip, body, KEYS[0], state_next=ZERO)
    refuse(again, InvalidChange, "was executed before", chain.tip)


def test_a_replaced_key_approves_nothing() -> None:
    chain = start()
    change = propose(EndRun(1), expires=50)
    answers = approve(TIP.state, change, KEYS)  # made before the rotation
    chain.add_change(ReplaceKey(0, NEW.id))
    tip = chain.tip
    for index, (_, answer, signature) in enumerate(answers):
        body = Body(change=ApprovedChange(change.data, ((index, answer, signature),)))
        refuse(extend_with(tip, body, KEYS[1]), LacksConsent, "lacks 2 more", tip)
    at = tip.state.index_of(NEW.id)
    assert at is not None
    kept = approve(tip.state, change, KEYS[1:])
    validate_candidate(tip, extend_with(tip, Body(change=ApprovedChange(change.data, tuple(kept))), KEYS[1]))
    stolen = tuple(sorted([*kept[:2], (at, Answer.YES, answers[0][2])]))
    refuse(
        extend_with(tip, Body(change=ApprovedChange(change.data, stolen)), KEYS[1]), InvalidSignature, "of node0", tip
    )


@pytest.mark.parametrize("data", [b"{}", b"\xff", b"[" * 5000, b'{"change":"end_run"}', propose(RemoveMember(9)).data])
def test_a_body_with_a_crafted_change_is_refused_and_nothing_else_happens(data: bytes) -> None:
    block = extend_with(TIP, Body(change=ApprovedChange(data)), KEYS[0], state_next=ZERO)
    refuse(block, InvalidChange, "change: |nobody sits there")
    with pytest.raises(InvalidChange):
        TIP.extend(block)


# Turns


def test_the_suspended_are_passed_over_as_coordinators() -> None:
    chain = start()
    chain.add_rounds(1)
    chain.add_change(sign_twice(1, KEYS[1]))
    state = chain.state
    voting = Voting(
        height=3,
        members=state.member_ids,
        quorum=state.q,
        me=None,
        waits=state.rules.waits,
        coordinators=state.active_ids,
    )
    a, _, c, d = (key.id for key in KEYS)
    assert [voting.get_coordinator(view) for view in range(4)] == [a, c, d, a]  # (3 + view) mod 3
    everybody = Voting(height=3, members=state.member_ids, quorum=state.q, me=None, waits=state.rules.waits)
    assert [everybody.get_coordinator(view) for view in range(2)] == [d, a]


def test_a_prevote_of_the_suspended_proposes_nothing_and_counts() -> None:
    chain = start()
    chain.add_rounds(1)
    chain.add_change(sign_twice(1, KEYS[1]))
    state, block_id = chain.state, make_digest("block 3")
    voting = Voting(
        height=3,
        members=state.member_ids,
        quorum=state.q,
        me=None,
        waits=state.rules.waits,
        coordinators=state.active_ids,
    )
    voting.start()
    voting.on_candidate(block_id, acceptable=True, complete=True)
    for key in KEYS[:3]:
        vote = sign_vote(key, GENESIS.chain_id, phase=Phase.PRECOMMIT, height=3, view=0, block_id=block_id)
        voting.on_vote(vote)
    assert voting.finalised == block_id


# Chains whose members change


class Source:
    """The stored rows of a chain, of which a test may change any."""

    def __init__(self, chain: LivingChain, certificates: dict[int, Certificate] | None = None) -> None:
        certificates = certificates or {}
        self.rows = [BlockRow(0, encode_block(chain.genesis.block0), b"")]
        for block, certificate in chain.blocks:
            chosen = certificates.get(block.height, certificate)
            self.rows.append(BlockRow(block.height, encode_block(block), encode_certificate(chosen)))
        self.states = [tip.state for tip in chain.tips]

    @property
    def head_height(self) -> int:
        return len(self.rows) - 1

    def read_rows(self, first: int, last: int) -> Iterator[BlockRow]:
        return iter(self.rows[first : last + 1])

    def get_state(self, height: int) -> State:
        return self.states[height]

    def find_damage(self) -> Iterator[Damage]:
        return iter(())

    def has_blob(self, digest: bytes) -> bool:
        return False

    def check_blob(self, digest: bytes) -> None:
        raise AssertionError(digest)


def grow() -> LivingChain:
    """A join, a conviction, a rotation, a removal, a pardon, an end and a second run, rounds between them."""
    chain = start()
    chain.add_rounds(1)
    chain.add_change(AddMember(NEW.id, "node4"))  # 2
    chain.add_rounds(1)
    chain.add_change(sign_twice(3, KEYS[1]))  # 4
    chain.add_rounds(1)
    chain.add_change(ReplaceKey(0, OTHER.id))  # 6
    chain.add_rounds(1)
    chain.add_change(RemoveMember(3))  # 8
    chain.add_change(Pardon(1))  # 9
    chain.add_rounds(1)
    chain.add_change(EndRun(1))  # 11
    chain.add_change(StartRun(2, {**TERMS, "rounds": 2}, make_digest("model")))  # 12
    chain.add_rounds(2)
    return chain


GROWN = grow()


def fault_of(report: VerifyReport) -> str:
    assert report.fault is not None
    return str(report.fault)


def test_a_chain_with_changes_of_every_set_is_verified() -> None:
    report = verify_chain(GENESIS, Source(GROWN))
    assert report.ok, report.fault
    assert (report.blocks, report.head) == (15, GROWN.tip.id)
    states = [tip.state for tip in GROWN.tips]
    assert [state.n for state in states] == [4, 4, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("first", range(1, 15))
def test_it_is_verified_from_any_height_on(first: int) -> None:
    report = verify_chain(GENESIS, Source(GROWN), first=first)
    assert report.ok, report.fault
    assert report.blocks == 15 - first


def test_every_block_of_it_is_valid_on_its_tip() -> None:
    for tip, (block, certificate) in zip(GROWN.tips, GROWN.blocks, strict=False):
        validate_candidate(tip, block)
        validate_certificate(tip.state, block.id, block.height, certificate)


def certify_by(height: int, state: State, keys: list[SigningKey]) -> Source:
    """The chain with one certificate of this height, by a quorum of `state` from these keys."""
    block = GROWN.blocks[height - 1][0]
    return Source(GROWN, {height: certify(state, block, keys)})


def test_after_a_join_the_old_set_certifies_nothing() -> None:
    old = GROWN.tips[1].state
    report = verify_chain(GENESIS, certify_by(3, old, KEYS))
    assert fault_of(report).startswith("block 3: certificate")
    assert report.blocks == 3


def test_the_block_of_a_join_is_not_certified_by_the_new_set() -> None:
    new = GROWN.tips[2].state
    report = verify_chain(GENESIS, certify_by(2, new, [NEW, *KEYS[:3]]))
    assert "certificate" in fault_of(report)
    assert report.blocks == 2


def test_a_replaced_key_certifies_its_own_change_and_nothing_after_it() -> None:
    before, after = GROWN.tips[5].state, GROWN.tips[6].state
    assert verify_chain(GENESIS, certify_by(6, before, [*KEYS, NEW]), last=6).ok
    assert "block 7" in fault_of(verify_chain(GENESIS, certify_by(7, before, [*KEYS, NEW])))
    assert "block 6" in fault_of(verify_chain(GENESIS, certify_by(6, after, [OTHER, NEW, *KEYS])))


def test_a_removed_member_certifies_its_own_removal_and_nothing_after_it() -> None:
    before = GROWN.tips[7].state
    voters = [KEYS[3], OTHER, NEW, KEYS[2]]
    assert verify_chain(GENESIS, certify_by(8, before, voters), last=8).ok
    assert "block 9" in fault_of(verify_chain(GENESIS, certify_by(9, before, voters)))


def test_an_audit_from_the_middle_judges_certificates_by_the_right_set_too() -> None:
    new = GROWN.tips[2].state
    assert "block 2" in fault_of(verify_chain(GENESIS, certify_by(2, new, [NEW, *KEYS[:3]]), first=2))


def test_a_stored_state_that_the_chain_does_not_commit_to_ends_an_audit() -> None:
    """An audit of the head alone begins with the stored state a hundred heights below its parent."""
    long = LivingChain(make_genesis(KEYS, rounds=0, pow=EASY), EVERYBODY)
    long.add_rounds(2)
    long.add_change(AddObserver(OTHER.id, "archive"))
    long.add_rounds(NUM_HEADERS + 3)
    source = Source(long)
    begin = get_first_read(long.tip.height - 1)
    assert verify_chain(long.genesis, source, first=long.tip.height).ok
    source.states[begin] = replace(source.states[begin], protocol=3)
    report = verify_chain(long.genesis, source, first=long.tip.height)
    assert fault_of(report).startswith(f"block {begin}: stored state")


def test_a_stored_change_that_does_not_hold_ends_an_audit_with_a_fault() -> None:
    source = Source(GROWN)
    row = source.rows[2]
    block = decode_block(GENESIS.chain_id, row.block)
    assert block.change is not None
    bad = replace(block, body=Body(change=replace(block.change, change=propose(RemoveMember(9), made=1).data)))
    source.rows[2] = replace(row, block=encode_block(bad))
    assert "block 2" in fault_of(verify_chain(GENESIS, source))
    assert "nobody sits there" in fault_of(verify_chain(GENESIS, source, first=9))


# Difficulty


def test_a_change_of_proof_of_work_begins_difficulty_anew() -> None:
    """Mining takes 100 ms: the first rules keep it, the second double it at every retarget."""
    chain = LivingChain(make_genesis(KEYS, rounds=0, pow={"difficulty": 4, "min": 1, "max": 8, "target_ms": 100}), KEYS)
    chain.add_rounds(19)
    change = SetRules({"pow.difficulty": (4, 2), "pow.target_ms": (100, 200)})
    block = chain.make_change(change)
    assert (block.height, block.header.difficulty) == (20, 4)  # it is mined by the rules before it
    refused = chain.make_change(change, difficulty=2)
    with pytest.raises(InvalidDifficulty, match="expected 4, got 2"):
        validate_candidate(chain.tip, refused)
    chain.add(block)
    chain.add_rounds(30)
    assert [header.header.difficulty for header, _ in chain.blocks[20:]] == [2] * 12 + [4] * 16 + [8] * 2
    assert verify_chain(chain.genesis, Source(chain)).ok
    assert verify_chain(chain.genesis, Source(chain), first=33).ok


@pytest.mark.parametrize("height", [1, 15, 16, 17, 32, 33])
def test_difficulty_begins_anew_wherever_the_change_stands(height: int) -> None:
    chain = LivingChain(make_genesis(KEYS, rounds=0, pow={"difficulty": 4, "min": 1, "max": 8, "target_ms": 100}), KEYS)
    chain.add_rounds(height - 1)
    chain.add_change(SetRules({"pow.difficulty": (4, 1), "pow.max": (8, 1)}))
    chain.add_rounds(18)
    assert [block.header.difficulty for block, _ in chain.blocks] == [4] * height + [1] * 18


# The store


def fill(path: Path, count: int = len(GROWN.blocks)) -> SqliteStore:
    store = SqliteStore.open(path, GENESIS)
    for block, certificate in GROWN.blocks[:count]:
        store.append(block, certificate)
    return store


def test_a_store_knows_the_state_after_every_height(tmp_path: Path) -> None:
    with fill(tmp_path) as store:
        for _ in range(2):
            assert [store.get_state(height) for height in range(15)] == [tip.state for tip in GROWN.tips]
        assert verify_chain(GENESIS, store).ok
    for readonly in (True, False):
        with SqliteStore.open(tmp_path, GENESIS, readonly=readonly) as store:
            assert [store.get_state(height) for height in (14, 0, 7, 2, 1)] == [
                GROWN.tips[height].state for height in (14, 0, 7, 2, 1)
            ]
            assert verify_chain(GENESIS, store, first=5).ok
            assert list(store.find_damage()) == []


def test_many_blocks_are_appended_as_one_with_the_states_they_give(tmp_path: Path) -> None:
    with SqliteStore.open(tmp_path, GENESIS) as store:
        store.append_all(GROWN.blocks)
        assert [store.get_state(height) for height in range(15)] == [tip.state for tip in GROWN.tips]


def test_a_store_keeps_a_state_for_each_change_and_no_more(tmp_path: Path) -> None:
    with fill(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        heights = [height for (height,) in connection.execute("SELECT height FROM states ORDER BY height")]
    assert heights == [0, 2, 4, 6, 8, 9, 11, 12]


@pytest.mark.parametrize("count", range(1, 15))
def test_a_store_opens_again_at_every_head(tmp_path: Path, count: int) -> None:
    """The head's certificate is by the members before it, its successor's by those after it."""
    fill(tmp_path, count).close()
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.head().block.height == count
        assert store.get_state(count) == GROWN.tips[count].state
        if count < 14:
            store.append(*GROWN.blocks[count])
            assert store.get_state(count + 1) == GROWN.tips[count + 1].state


def test_a_head_certified_by_the_wrong_set_is_not_opened(tmp_path: Path) -> None:
    with fill(tmp_path, 1) as store:
        block = GROWN.blocks[1][0]
        store.append(block, certify(GROWN.tips[2].state, block, [NEW, *KEYS[:3]]))
    with pytest.raises(StoreCorrupted, match="block 2: "):
        SqliteStore.open(tmp_path, GENESIS)


def test_a_change_that_does_not_hold_is_not_appended(tmp_path: Path) -> None:
    with fill(tmp_path, 1) as store:
        block, certificate = GROWN.blocks[1]
        assert block.change is not None
        data = propose(RemoveMember(9), made=1).data
        bad = replace(block, body=Body(change=replace(block.change, change=data)))
        with pytest.raises(InvalidChange, match="nobody sits there"):
            store.append(bad, certificate)
        assert store.head_height == 1
        assert store.get_state(2) == GENESIS.state
        store.append(block, certificate)


def damage(path: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(path / DATABASE, isolation_level=None)) as connection:
        connection.execute(statement, parameters)


def test_a_damaged_state_is_found_and_named(tmp_path: Path) -> None:
    with fill(tmp_path):
        pass
    state = GROWN.tips[4].state.canonical
    damage(tmp_path, "UPDATE states SET state = ? WHERE height = 4", state.replace(b"node1", b"node9"))
    with SqliteStore.open(tmp_path, GENESIS) as store:  # its head's state is whole
        with pytest.raises(StoreCorrupted, match="state after block 4: stored bytes do not match their digest"):
            store.get_state(4)
        with pytest.raises(StoreCorrupted, match="state after block 5"):
            store.get_state(5)
        assert store.get_state(6) == GROWN.tips[6].state
        assert [found.height for found in store.find_damage()] == [4]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM states WHERE height = 12", "UPDATE states SET state = x'00' WHERE height = 12"]
)
def test_a_store_whose_newest_state_is_lost_or_damaged_is_not_opened(tmp_path: Path, statement: str) -> None:
    with fill(tmp_path):
        pass
    damage(tmp_path, statement)
    with pytest.raises(StoreCorrupted, match=r"state after block 1[34]"):
        SqliteStore.open(tmp_path, GENESIS)


def test_a_state_before_genesis_is_missing(tmp_path: Path) -> None:
    with fill(tmp_path, 2) as store:
        with pytest.raises(StoreCorrupted, match="state after block -1: missing"):
            store.get_state(-1)
        assert store.get_state(2**63 - 1) == GROWN.tips[2].state


def test_a_reset_store_begins_with_the_state_of_genesis(tmp_path: Path) -> None:
    with fill(tmp_path):
        pass
    SqliteStore.reset(tmp_path)
    with SqliteStore.open(tmp_path, GENESIS) as store:
        assert store.get_state(0) == store.get_state(14) == GENESIS.state
        store.append_all(GROWN.blocks)
        assert store.get_state(14) == GROWN.tips[14].state


def test_an_export_carries_changes_to_another_store(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with fill(tmp_path / "one") as store:
        assert write_export(stream, GENESIS.chain_id, export_blocks(store, 0, 14)) == 15
    stream.seek(0)
    rows = list(read_export(stream, GENESIS.chain_id))
    read = [(decode_block(GENESIS.chain_id, block), decode_certificate(proof)) for _, block, proof in rows[1:]]
    assert read == GROWN.blocks
    with SqliteStore.open(tmp_path / "two", GENESIS) as store:
        store.append_all(read)
        assert verify_chain(GENESIS, store).ok


def test_a_certificate_has_the_quorum_of_the_state_that_judges() -> None:
    five = GROWN.tips[2].state  # q is 4
    block = GROWN.blocks[2][0]
    certificate = certify(five, block, EVERYBODY)
    with pytest.raises(InvalidCertificate, match="at least 4, got 3"):
        validate_certificate(five, block.id, 3, replace(certificate, signatures=certificate.signatures[:3]))
