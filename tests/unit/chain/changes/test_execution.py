"""The heights a change may stand in, that it does so once, and what the body of its block must show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.approvals import sign_approval, sign_readiness
from chain.block import ZERO, Answer, Approval, ApprovedChange, Block, Id
from chain.changes.base import Kind, Place
from chain.changes.change import Change
from chain.changes.execution import (
    READY_HEIGHTS,
    compute_next_state,
    execute_change,
    get_aggregate,
    validate_approved,
    validate_readiness,
)
from chain.changes.members import AddMember, AddObserver, RemoveMember, ReplaceKey
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.errors import GenesisError, InvalidChange, InvalidSignature, LacksConsent
from chain.state import State
from support.data.chains import make_candidate, make_digest, make_genesis, make_keys
from support.data.changes import MODEL, approve, execute, propose

KEYS = make_keys(4)
STRANGER, NEW, OTHER = make_keys(3, "newcomer")
GENESIS = make_genesis(KEYS)
STATE = GENESIS.state


def refuse(state: State, change: Change, height: int, message: str) -> None:
    with pytest.raises(InvalidChange, match=message):
        execute_change(state, change, Place(height, MODEL))


# When


def test_a_change_stands_from_its_first_height_to_its_last() -> None:
    change = propose(EndRun(1), made=4, first=7, expires=9)
    for height in (7, 8, 9):
        assert execute_change(STATE, change, Place(height, MODEL)).run.is_ended
    for height in (5, 6, 10):
        refuse(STATE, change, height, "height of the change: expected 7 to 9, got")
    refuse(STATE, change, 4, "expected more than 4, where it was made, got 4")


@pytest.mark.parametrize(
    ("made", "first", "expires"),
    [(-1, 0, 5), (4, 4, 9), (4, 5, 4), (4, 7, 6), (4, 5, 1005), (4, 1005, 1005), (2**63 - 1, 2**63, 2**63)],
)
def test_a_change_is_open_for_a_thousand_heights_at_most(made: int, first: int, expires: int) -> None:
    with pytest.raises(GenesisError):
        propose(EndRun(1), made=made, first=first, expires=expires)
    assert propose(EndRun(1), made=4, first=5, expires=1004).expires == 1004


def test_only_who_ever_had_a_seat_proposes() -> None:
    refuse(STATE, propose(EndRun(1), by=4), 1, "by: there is no seat 4")
    removed = execute(STATE, RemoveMember(3))
    assert execute_change(removed, propose(EndRun(1), by=3, made=1), Place(2, MODEL)).run.is_ended


# Once


def test_a_change_is_executed_once() -> None:
    change = propose(SetRounds(1, 10, 20))
    back = propose(SetRounds(1, 20, 10))
    state = execute_change(STATE, change, Place(1, MODEL))
    state = execute_change(state, back, Place(2, MODEL))
    refuse(state, change, 3, f"change {change.compute_id(STATE.chain_id).hex()[:8]} was executed before")
    again = replace(change, made=2, first=3, expires=102)  # which members approve anew
    assert execute_change(state, again, Place(3, MODEL)).run.rounds == 20


def test_an_executed_change_is_forgotten_only_once_it_has_expired() -> None:
    first = propose(SetRounds(1, 10, 20), expires=6)
    first_id = first.compute_id(STATE.chain_id)
    state = execute_change(STATE, first, Place(6, MODEL))
    assert state.executed == {first_id: 6}
    next_ = propose(SetRounds(1, 20, 30), made=6, expires=7)
    later = execute_change(state, next_, Place(7, MODEL))
    assert later.executed == {next_.compute_id(STATE.chain_id): 7}
    refuse(later, first, 8, "height of the change: expected 1 to 6, got 8")


def test_what_may_still_stand_is_remembered() -> None:
    first = propose(SetRounds(1, 10, 20), expires=8)
    state = execute_change(STATE, first, Place(2, MODEL))
    state = execute(state, SetRounds(1, 20, 10), 7)
    assert first.compute_id(STATE.chain_id) in state.executed
    refuse(state, first, 8, "was executed before")


def test_a_change_of_another_chain_has_another_id() -> None:
    change = propose(EndRun(1))
    assert change.compute_id(STATE.chain_id) != change.compute_id(make_digest("another chain"))


def test_a_block_of_a_round_leaves_the_state_as_it_is() -> None:
    assert compute_next_state(STATE, make_candidate(GENESIS, GENESIS.block0, KEYS), MODEL) is STATE


def test_a_change_that_does_not_hold_leaves_the_state_as_it_was() -> None:
    before = STATE.canonical
    refuse(STATE, propose(RemoveMember(9)), 1, "nobody sits there")
    assert replace(STATE).canonical == before


def test_the_aggregate_stays_unless_a_run_brings_its_own() -> None:
    terms = STATE.run.to_terms()
    del terms["initial_model"]
    assert get_aggregate(propose(EndRun(1)), MODEL) == MODEL
    assert get_aggregate(propose(StartRun(2, terms, None)), MODEL) == MODEL
    other = make_digest("another model")
    assert get_aggregate(propose(StartRun(2, terms, other)), MODEL) == other


# What the body shows


def get_block_id(height: int) -> Id | None:
    """Final blocks of the heights 100 to 300."""
    return make_digest(f"block {height}") if 100 <= height <= 300 else None


def judge(approved: ApprovedChange, state: State = STATE) -> State:
    return validate_approved(state, approved, Place(301, MODEL), get_block_id)


def approved_by(kind: Kind, *indices: int, ready: tuple[tuple[Id, int, Id, bytes], ...] = ()) -> ApprovedChange:
    change = propose(kind, made=300)
    return ApprovedChange(change.data, tuple(approve(STATE, change, [KEYS[i] for i in indices])), ready)


def stand(kind: Kind, height: int = 300, block_id: Id | None = None) -> tuple[tuple[Id, int, Id, bytes], ...]:
    change_id = propose(kind, made=300).compute_id(STATE.chain_id)
    block_id = make_digest(f"block {height}") if block_id is None else block_id
    ready = sign_readiness(NEW, STATE.chain_id, change_id, height=height, block_id=block_id)
    return ((ready.key, ready.height, ready.block_id, ready.signature),)


def test_an_approved_change_gives_the_state_that_its_execution_gives() -> None:
    kind = EndRun(1)
    assert judge(approved_by(kind, 0, 1, 3)) == execute(STATE, kind, 301)
    join = AddMember(NEW.id, "node4")
    assert judge(approved_by(join, 0, 1, 3, ready=stand(join))) == execute(STATE, join, 301)


def test_answers_by_no_member_are_refused() -> None:
    good = approved_by(EndRun(1), 0, 1, 2)
    stray = sign_approval(STRANGER, STATE.chain_id, propose(EndRun(1), made=300).compute_id(STATE.chain_id))
    with pytest.raises(InvalidChange, match="member index of an answer: expected 0 to 3, got 4"):
        judge(replace(good, answers=(*good.answers, (4, Answer.YES, stray.signature))))
    with pytest.raises(InvalidSignature, match="approval of node3"):
        judge(replace(good, answers=(*good.answers, (3, Answer.YES, stray.signature))))


def test_each_signature_counts_even_when_there_are_enough_without_it() -> None:
    good = approved_by(EndRun(1), 0, 1, 2, 3)
    for i in range(4):
        answers = list(good.answers)
        answers[i] = (i, Answer.YES, bytes(64))
        with pytest.raises(InvalidSignature, match=f"approval of node{i}"):
            judge(replace(good, answers=tuple(answers)))


def test_an_answer_cannot_be_turned_into_another() -> None:
    good = approved_by(EndRun(1), 0, 1, 2)
    turned = tuple((index, Answer.YES_WITHOUT_TRAINING, signature) for index, _, signature in good.answers)
    with pytest.raises(InvalidSignature):
        judge(replace(good, answers=turned))


def test_approvals_of_one_change_do_not_serve_another() -> None:
    other = propose(EndRun(1), made=300, expires=350)
    with pytest.raises(InvalidSignature):
        judge(replace(approved_by(EndRun(1), 0, 1, 2), change=other.data))


def test_what_was_verified_before_is_not_verified_again() -> None:
    good = approved_by(EndRun(1), 0, 1, 2)
    bad = replace(good, answers=((0, Answer.YES, bytes(64)), *good.answers[1:]))
    asked: list[Approval] = []

    def knows(approval: Approval) -> bool:
        asked.append(approval)
        return approval.voter == KEYS[0].id

    assert validate_approved(STATE, bad, Place(301, MODEL), get_block_id, knows).run.is_ended
    assert [approval.voter for approval in asked] == [key.id for key in KEYS[:3]]
    assert asked[0].signature == bytes(64)


def test_consent_is_asked_for_before_any_signature() -> None:
    change = propose(EndRun(1), made=300)
    with pytest.raises(LacksConsent, match="end_run: lacks 1 more of the members"):
        judge(ApprovedChange(change.data, ((0, Answer.YES, bytes(64)), (1, Answer.YES, bytes(64)))))


@pytest.mark.parametrize("height", [200, 0, 301, 2**63 - 1])
def test_readiness_too_old_or_from_the_future_is_refused(height: int) -> None:
    kind = AddMember(NEW.id, "node4")
    with pytest.raises(InvalidChange, match="height of readiness: expected 201 to 300, got"):
        judge(approved_by(kind, 0, 1, 2, ready=stand(kind, height)))


@pytest.mark.parametrize("height", [201, 300])
def test_readiness_at_its_edges_is_accepted(height: int) -> None:
    kind = AddMember(NEW.id, "node4")
    assert judge(approved_by(kind, 0, 1, 2, ready=stand(kind, height))).n == 5


def test_readiness_names_a_final_block() -> None:
    kind = AddMember(NEW.id, "node4")
    for block_id in (make_digest("a fork"), ZERO):
        with pytest.raises(InvalidChange, match="block of readiness"):
            judge(approved_by(kind, 0, 1, 2, ready=stand(kind, 300, block_id)))


def test_readiness_at_a_height_nobody_remembers_is_refused_even_as_none() -> None:
    kind = AddMember(NEW.id, "node4")
    ready = sign_readiness(
        NEW, STATE.chain_id, propose(kind, made=0).compute_id(STATE.chain_id), height=3, block_id=ZERO
    )
    with pytest.raises(InvalidChange, match="block of readiness: expected none known"):
        validate_readiness(ready, propose(kind), 5, lambda height: None)


def test_readiness_is_signed_by_the_new_key_for_this_change() -> None:
    kind = AddMember(NEW.id, "node4")
    key, height, block_id, signature = stand(kind)[0]
    with pytest.raises(InvalidSignature):
        judge(approved_by(kind, 0, 1, 2, ready=((key, height, block_id, bytes(64)),)))
    with pytest.raises(InvalidChange, match="readiness of a key that it does not bring"):
        judge(approved_by(kind, 0, 1, 2, ready=((OTHER.id, height, block_id, signature),)))
    other = AddMember(NEW.id, "node5")
    with pytest.raises(InvalidSignature):
        judge(approved_by(other, 0, 1, 2, ready=stand(kind)))
    with pytest.raises(InvalidChange, match="readiness of a key that it does not bring"):
        judge(approved_by(EndRun(1), 0, 1, 2, ready=stand(EndRun(1))))


def test_a_rotation_is_approved_by_the_old_key_alone() -> None:
    kind = ReplaceKey(2, NEW.id)
    assert judge(approved_by(kind, 2, ready=stand(kind))).index_of(NEW.id) is not None
    with pytest.raises(LacksConsent):
        judge(approved_by(kind, 1, ready=stand(kind)))
    with pytest.raises(LacksConsent):
        judge(approved_by(kind, 2))


def test_the_lowest_readiness_is_what_a_tip_remembers() -> None:
    assert READY_HEIGHTS == 100  # `chain.tip.NUM_HEADERS` follows from it


def test_a_change_that_was_valid_for_another_state_is_judged_by_this_one() -> None:
    kind = AddObserver(NEW.id, "archive")
    observed = execute(STATE, kind, 300)
    with pytest.raises(InvalidChange, match="is an observer already"):
        judge(approved_by(kind, 0, 1, 2), observed)


def test_a_block_nobody_validated_gives_invalid_change() -> None:
    block: Block = make_candidate(GENESIS, GENESIS.block0, KEYS)
    for data in (b"", b"{}", b"\xff", propose(RemoveMember(9)).data):
        stray = replace(block, body=replace(block.body, contributions=(), change=ApprovedChange(data)))
        with pytest.raises(InvalidChange):
            compute_next_state(STATE, stray, MODEL)
