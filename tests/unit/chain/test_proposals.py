"""Open changes as a node holds them: what is kept, what completes them, which is chosen and when they are dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chain.approvals import compute_change_id, sign_approval, sign_readiness
from chain.block import Answer, Approval, Body, Id
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import AddMember, Convict, Pardon, RemoveMember, ReplaceKey
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds
from chain.errors import InvalidChange, InvalidSignature, NotAMember
from chain.evidence import encode_evidence, make_evidence
from chain.proposals import MAX_OPEN, MAX_OPEN_BYTES, Closed, Fate, Proposal, Proposals
from chain.signing import SigningKey
from chain.validation import validate_candidate
from support.data.chains import make_contribution, make_genesis, make_keys
from support.data.changes import LivingChain, extend_with, make_approved, propose

KEYS = make_keys(4)
NEW = make_keys(1, "newcomer")[0]
OTHER = make_keys(1, "other")[0]
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
RULES = SetRules({"keep_heights": (2, 3)})


def is_here(key: Id) -> bool:
    return True


class Story:
    """Four members at height 3, and what one of them holds of open changes."""

    def __init__(self, rounds: int = 0) -> None:
        self.chain = LivingChain(make_genesis(KEYS, rounds=rounds, pow=EASY), [*KEYS, NEW, OTHER])
        self.chain.add_rounds(3)
        self.held = Proposals(self.chain.tip)

    def make(self, kind: Kind, **header: int) -> tuple[Change, bytes]:
        change = propose(kind, **{"made": 3} | header)
        return change, compute_change_id(self.chain.genesis.chain_id, change.data)

    def sign(self, i: int, change_id: bytes, answer: Answer = Answer.YES) -> Approval:
        return sign_approval(KEYS[i], self.chain.genesis.chain_id, change_id, answer)

    def propose(self, kind: Kind, **header: int) -> Proposal:
        """A change by a seat, held with that seat's approval."""
        change, change_id = self.make(kind, **header)
        proposal = self.held.add(change.data, self.sign(change.by, change_id))
        assert proposal is not None
        return proposal

    def approve(self, proposal: Proposal, *voters: int) -> None:
        for i in voters:
            assert self.held.add_approval(self.sign(i, proposal.id))

    def stand_ready(self, proposal: Proposal, key: SigningKey = NEW) -> None:
        tip = self.chain.tip
        word = sign_readiness(key, tip.state.chain_id, proposal.id, height=tip.height, block_id=tip.id)
        assert self.held.add_readiness(word)

    def grow(self, *, kind: Kind | None = None, rounds: int = 0) -> list[Closed]:
        if kind is not None:
            self.chain.add_change(kind)
        self.chain.add_rounds(rounds)
        return self.held.on_tip(self.chain.tip)

    def choose(self, is_alive: Callable[[Id], bool] = is_here) -> Change | None:
        """The change of the next block, which is then valid."""
        approved = self.held.choose(is_alive)
        if approved is None:
            return None
        block = extend_with(self.chain.tip, Body(change=approved), KEYS[0])
        validate_candidate(self.chain.tip, block)
        change_id = compute_change_id(self.chain.genesis.chain_id, approved.change)
        held = self.held.get(change_id)
        assert held is not None
        return held.change


def test_a_change_is_chosen_once_a_quorum_has_approved_it() -> None:
    story = Story()
    proposal = story.propose(RULES)
    story.approve(proposal, 1)
    assert str(story.held.compute_missing(proposal)) == "1 more of the members"
    assert story.choose() is None
    story.approve(proposal, 2)
    assert story.choose() == proposal.change


def test_a_change_comes_with_its_proposers_own_approval() -> None:
    story = Story()
    change, change_id = story.make(RULES, by=1)
    with pytest.raises(InvalidChange, match="the approval of whoever proposes it"):
        story.held.add(change.data, story.sign(0, change_id))
    with pytest.raises(InvalidChange, match="the approval of whoever proposes it"):
        story.held.add(change.data, story.sign(1, bytes(32)))
    forged = story.sign(1, change_id)
    with pytest.raises(InvalidSignature):
        story.held.add(change.data, Approval(change_id, Answer.YES_WITHOUT_TRAINING, forged.voter, forged.signature))
    assert len(story.held) == 0


def test_a_change_that_cannot_hold_is_not_kept() -> None:
    story = Story()
    for kind in (Pardon(0), RemoveMember(9), SetRules({"keep_heights": (5, 6)})):
        with pytest.raises(InvalidChange):
            story.propose(kind)


def test_what_was_executed_is_not_open_again() -> None:
    story = Story()
    proposal = story.propose(RULES)
    story.approve(proposal, 1, 2)
    approved = story.held.choose(is_here)
    assert approved is not None
    story.chain.add(extend_with(story.chain.tip, Body(change=approved), KEYS[0]))
    (closed,) = story.held.on_tip(story.chain.tip)
    assert (closed.fate, closed.why) == (Fate.EXECUTED, "in block 4")
    with pytest.raises(InvalidChange, match="was executed before"):
        story.held.add(proposal.data, story.sign(0, proposal.id))


def test_a_change_made_on_a_head_that_is_not_here_yet_is_neither_kept_nor_refused() -> None:
    story = Story()
    change, change_id = story.make(RULES, made=4)
    assert story.held.add(change.data, story.sign(0, change_id)) is None
    story.grow(rounds=1)
    assert story.held.add(change.data, story.sign(0, change_id)) is not None
    assert story.held.add(change.data, story.sign(0, change_id)) is None  # it is held


def test_one_seats_storm_of_changes_is_its_own() -> None:
    story = Story()
    for i in range(MAX_OPEN):
        story.propose(SetRounds(1, 0, 100 + i))
    with pytest.raises(InvalidChange, match="open changes of seat 0: expected at most 8, got 9"):
        story.propose(SetRounds(1, 0, 99))
    assert story.propose(RULES, by=1)


def test_the_bytes_of_a_seats_changes_are_bounded() -> None:
    story = Story()
    change, change_id = story.make(RULES)
    held = story.held.add(change.data, story.sign(0, change_id))
    assert held is not None
    held.data = bytes(MAX_OPEN_BYTES)  # as if it were so large
    with pytest.raises(InvalidChange, match="bytes of open changes of seat 0"):
        story.propose(EndRun(1))


def test_of_each_member_one_answer_counts_and_strangers_have_none() -> None:
    story = Story()
    proposal = story.propose(RULES)
    assert not story.held.add_approval(story.sign(0, proposal.id, Answer.YES_WITHOUT_TRAINING))
    assert not story.held.add_approval(story.sign(1, bytes(32)))  # of no change that is open
    with pytest.raises(NotAMember):
        story.held.add_approval(sign_approval(NEW, story.chain.genesis.chain_id, proposal.id))
    forged = story.sign(1, proposal.id)
    with pytest.raises(InvalidSignature):
        story.held.add_approval(Approval(proposal.id, Answer.YES_WITHOUT_TRAINING, forged.voter, forged.signature))
    assert set(proposal.approvals) == {KEYS[0].id}


def test_a_member_joins_only_while_it_is_alive_and_ready() -> None:
    story = Story()
    proposal = story.propose(AddMember(NEW.id, "node4"))
    story.approve(proposal, 1, 2)
    assert story.choose() is None
    story.stand_ready(proposal)
    assert story.choose(lambda key: key != NEW.id) is None
    assert story.choose() == proposal.change


def test_readiness_grows_old_and_is_given_anew() -> None:
    story = Story()
    proposal = story.propose(AddMember(NEW.id, "node4"), expires=300)
    story.approve(proposal, 1, 2)
    story.stand_ready(proposal)
    story.grow(rounds=99)
    assert story.choose() is not None
    story.grow(rounds=1)
    assert story.choose() is None
    story.stand_ready(proposal)
    assert story.choose() == proposal.change


def test_readiness_of_another_key_is_refused() -> None:
    story = Story()
    proposal = story.propose(AddMember(NEW.id, "node4"))
    with pytest.raises(InvalidChange, match="a key that it does not bring"):
        story.stand_ready(proposal, OTHER)


def test_changes_with_a_quorum_come_before_convictions_and_those_before_rotations() -> None:
    story = Story()
    first, second = (
        make_contribution(story.chain.genesis, KEYS[3], height=3, prev=story.chain.blocks[1][0].id, weight=weight)
        for weight in (1, 2)
    )
    rotation = story.propose(ReplaceKey(2, NEW.id), by=2, made=1)
    story.stand_ready(rotation)
    assert story.choose() == rotation.change
    conviction = story.propose(Convict(encode_evidence(make_evidence(first, second))), by=1, made=2)
    assert story.choose() == conviction.change
    rules = story.propose(RULES)
    assert story.choose() == conviction.change
    story.approve(rules, 1, 2)
    assert story.choose() == rules.change


def test_among_equals_the_change_made_first_is_taken() -> None:
    story = Story()
    later, earlier = story.propose(RULES, made=3), story.propose(EndRun(1), made=2, by=1)
    story.approve(later, 1, 2)
    story.approve(earlier, 0, 2)
    assert story.choose() == earlier.change


def test_a_change_waits_for_the_height_from_which_it_may_stand_and_is_dropped_after_its_last() -> None:
    story = Story()
    proposal = story.propose(RULES, first=6, expires=7)
    story.approve(proposal, 1, 2)
    assert story.choose() is None
    assert story.grow(rounds=2) == []
    assert story.choose() == proposal.change
    (closed,) = story.grow(rounds=2)
    assert (closed.fate, closed.why) == (Fate.EXPIRED, "it could stand up to height 7")
    assert len(story.held) == 0


def test_a_change_that_another_has_made_impossible_is_dropped_with_the_reason() -> None:
    story = Story()
    story.propose(RULES)
    (closed,) = story.grow(kind=SetRules({"keep_heights": (2, 4)}))
    assert closed.fate is Fate.SUPERSEDED
    assert "keep_heights in force: expected 2, got 4" in closed.why


def test_rounds_that_are_made_meanwhile_supersede_fewer_of_them() -> None:
    story = Story()
    story.propose(SetRounds(1, 0, 4))
    assert story.grow(rounds=1) == []
    (closed,) = story.grow(rounds=1)
    assert (closed.fate, "at least the 5 made" in closed.why) == (Fate.SUPERSEDED, True)


def test_approvals_of_members_removed_meanwhile_do_not_count() -> None:
    story = Story()
    proposal = story.propose(RULES)
    story.approve(proposal, 1, 3)
    assert story.choose() == proposal.change
    assert story.grow(kind=RemoveMember(3)) == []
    assert set(proposal.approvals) == {KEYS[0].id, KEYS[1].id}
    assert str(story.held.compute_missing(proposal)) == "1 more of the members"  # 3 of 3 are a quorum


def test_a_change_of_a_seat_that_is_empty_is_refused() -> None:
    story = Story()
    story.grow(kind=RemoveMember(3))
    change, change_id = story.make(RULES, by=3)
    with pytest.raises(NotAMember):
        story.held.add(change.data, story.sign(3, change_id))


def test_what_is_chosen_holds_the_answers_by_member_index() -> None:
    story = Story()
    proposal = story.propose(RULES, by=2)
    story.approve(proposal, 3, 0, 1)
    approved = story.held.choose(is_here)
    assert approved is not None
    assert approved == make_approved(story.chain.tip, proposal.change, KEYS)
