"""The rules of one height, told as short stories: four members, a quorum of three, no clock but the one in the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

from chain import validation
from chain.block import ZERO, ApprovedChange, Block, Body, Certificate, Contribution, Phase, Vote
from chain.changes.rules import SetRules
from chain.codec import sign_vote
from chain.evidence import validate_evidence
from chain.finality import Timer, TimerKind
from chain.genesis import Genesis
from chain.tip import Tip
from node.consensus.height import actions as round_events
from node.consensus.height.actions import (
    ArrivalTimer,
    ClockTimer,
    CollectTimer,
    ComputeAggregate,
    FetchBlock,
    Now,
    RoundPhase,
    TimerFired,
)
from node.consensus.height.candidates import EARLY_MS
from node.consensus.height.collecting import Collecting
from node.consensus.height.machine import RoundMachine
from node.p2p.refusals import Reason
from support.data.chains import make_candidate, make_contribution, make_digest, make_genesis, make_keys
from support.data.changes import extend_with, make_approved, propose

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
IDS = GENESIS.state.member_ids
DELTA_S, COLLECT_S = GENESIS.rules.waits.delta_s, GENESIS.rules.waits.collect_s
BEGAN_MS = GENESIS.block0.header.time_ms
AGGREGATE = make_digest("aggregate 1")
CHANGE = make_approved(Tip.at(GENESIS.state, [GENESIS.block0]), propose(SetRules({"keep_heights": (2, 3)})), KEYS[:3])

GENESIS_OF_TWO = make_genesis(KEYS, min_contributions=2)

KEYS_7 = make_keys(7)
GENESIS_7 = make_genesis(KEYS_7)

A = TypeVar("A")


class Story:
    """A machine, the time it is told, and every action so far. Member 0 tells it."""

    def __init__(
        self,
        *,
        me: int | None = 0,
        awaited: Iterable[int] = range(4),
        accused: Iterable[int] = (),
        mine: bool = True,
        contributes: bool = True,
        parent_ahead_ms: int = 0,
        crossing_s: float = 0.0,
        change: ApprovedChange | None = None,
        genesis: Genesis = GENESIS,
        height: int = 1,
        empty: Iterable[int] | None = None,
        may_give: Iterable[int] = (),
    ) -> None:
        nothing_of = None if empty is None else {IDS[i] for i in empty}
        self.genesis = genesis
        self.now_s = 0.0
        self.actions: list[round_events.Action] = []
        member = None if me is None else IDS[me]
        collecting = Collecting(
            genesis.state,
            member,
            awaited=[IDS[i] for i in awaited],
            accused=[IDS[i] for i in accused],
            contributes=contributes,
            is_empty=None if nothing_of is None else lambda contribution: contribution.author in nothing_of,
            may_give=[IDS[i] for i in may_give],
        )
        self.machine = RoundMachine(
            genesis.state,
            collecting,
            me=member,
            height=height,
            parent_ms=BEGAN_MS + parent_ahead_ms,
            mine=mine,
            crossing_s=crossing_s,
            change=change,
        )

    def on(self, *events: round_events.Event) -> list[round_events.Action]:
        """What the machine does about these events, at this instant."""
        done: list[round_events.Action] = []
        for event in events:
            done += self.machine.on(event, Now(self.now_s, BEGAN_MS + 1000 + round(self.now_s * 1000)))
        self.actions += done
        return done

    def start(self, **durable: object) -> list[round_events.Action]:
        return self.on(round_events.Started(**durable))  # type: ignore[arg-type]  # the fields of Started

    def verify(self, *members: int) -> list[round_events.Action]:
        """Contributions of these members arrive and their payloads are good."""
        done = []
        for i in members:
            contribution = make_contribution(self.genesis, KEYS[i])
            done += self.on(round_events.ContributionSeen(contribution), round_events.PayloadsVerified(contribution))
        return done

    def validate(self, block: Block) -> list[round_events.Action]:
        return self.on(round_events.CandidateSeen(block), round_events.CandidateValidated(block))

    def vote(self, phase: Phase, block_id: bytes, *members: int, view: int = 0) -> list[round_events.Action]:
        return self.on(*(round_events.VoteSeen(make_vote(i, phase, block_id, view)) for i in members))


def make_vote(member: int, phase: Phase, block_id: bytes, view: int = 0) -> Vote:
    return sign_vote(KEYS[member], GENESIS.chain_id, phase=phase, height=1, view=view, block_id=block_id)


def make_block(miner: int = 1, authors: Iterable[int] = range(4), *, ahead_ms: int = 0, weight: int = 1) -> Block:
    """A candidate for height 1, sealed `ahead_ms` after the story's beginning."""
    contributions = [make_contribution(GENESIS, KEYS[i], weight=weight) for i in authors]
    time_ms = BEGAN_MS + 1000 + ahead_ms
    return make_candidate(GENESIS, GENESIS.block0, KEYS, miner=miner, contributions=contributions, time_ms=time_ms)


def pick(actions: Sequence[round_events.Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def get_authors(contributions: Sequence[Contribution]) -> list[int]:
    return [IDS.index(contribution.author) for contribution in contributions]


# COLLECT


def test_a_contribution_has_its_payloads_looked_at_once() -> None:
    story = Story()
    story.start()
    contribution = make_contribution(GENESIS, KEYS[1])
    assert story.on(round_events.ContributionSeen(contribution)) == [round_events.FetchPayloads(contribution)]
    assert story.on(round_events.ContributionSeen(contribution)) == []
    assert story.machine.contributions == {IDS[1]: contribution}
    assert not story.machine.verified


def test_the_cutoff_comes_when_all_awaited_are_verified() -> None:
    story = Story()
    story.start()
    assert not pick(story.verify(0, 1, 2), ComputeAggregate)
    (compute,) = pick(story.verify(3), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2, 3]
    assert story.machine.is_cut_off


def test_below_q_nothing_is_cut_off_even_when_nobody_else_is_awaited() -> None:
    story = Story(awaited=[0, 1])
    story.start()
    story.verify(0, 1)
    assert not story.machine.is_cut_off
    story.verify(2)
    assert story.machine.is_cut_off


def test_collect_s_starts_at_the_qth_verified_contribution_and_once() -> None:
    story = Story()
    story.start()
    assert not pick(story.verify(0, 1), round_events.StartTimer)
    assert pick(story.verify(2), round_events.StartTimer) == [round_events.StartTimer(CollectTimer(), COLLECT_S)]
    story.now_s = COLLECT_S
    (compute,) = pick(story.on(TimerFired(CollectTimer())), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]


def test_a_height_may_wait_for_contributions_in_its_own_time() -> None:
    members = GENESIS_7.state.member_ids
    collecting = Collecting(GENESIS_7.state, members[0], awaited=members, collect_s=3600.0)
    machine = RoundMachine(GENESIS_7.state, collecting, me=members[0], height=1, parent_ms=BEGAN_MS)
    machine.on(round_events.Started(), Now(0, BEGAN_MS))
    started: list[round_events.Action] = []
    for key in KEYS_7[:5]:
        contribution = make_contribution(GENESIS_7, key)
        machine.on(round_events.ContributionSeen(contribution), Now(1, BEGAN_MS))
        started += machine.on(round_events.PayloadsVerified(contribution), Now(1, BEGAN_MS))
    assert pick(started, round_events.StartTimer) == [round_events.StartTimer(CollectTimer(), 3600.0)]


def test_a_contribution_after_the_cutoff_is_kept_and_changes_no_body() -> None:
    story = Story()
    story.start()
    story.verify(0, 1, 2)
    story.on(TimerFired(CollectTimer()))
    assert not pick(story.verify(3), ComputeAggregate)
    assert IDS[3] in story.machine.verified
    (mine,) = story.on(round_events.AggregateComputed(AGGREGATE))
    assert isinstance(mine, round_events.Mine)
    assert get_authors(mine.contributions) == [0, 1, 2]
    assert mine.aggregate == AGGREGATE


def test_a_refused_contribution_is_not_awaited_and_its_author_keeps_its_votes() -> None:
    story = Story()
    story.start()
    bad = make_contribution(GENESIS, KEYS[3])
    story.verify(0, 1, 2)
    story.on(round_events.ContributionSeen(bad))
    (compute,) = pick(story.on(round_events.PayloadsRefused(bad, "not a number")), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]
    assert story.machine.refused == {IDS[3]: "not a number"}
    story.on(round_events.MemberAlive(IDS[3]))
    assert IDS[3] not in story.machine.awaited
    block = make_block(miner=1, authors=[0, 1, 2])
    story.validate(block)
    story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
    assert pick(story.actions, round_events.Finalise)


def test_a_member_seen_alive_is_awaited_again() -> None:
    story = Story(awaited=[0, 1, 2])
    story.start()
    story.on(round_events.MemberAlive(IDS[3]), round_events.MemberAlive(b"\7" * 32))
    assert story.machine.awaited == set(IDS)
    story.verify(0, 1, 2)
    assert not story.machine.is_cut_off
    story.verify(3)
    assert story.machine.is_cut_off


def test_who_says_that_it_will_not_contribute_is_not_waited_for_and_its_vote_still_comes() -> None:
    story = Story()
    story.start()
    story.verify(0, 1, 2)
    assert not story.machine.is_cut_off
    (compute,) = pick(story.on(round_events.MemberAbstains(IDS[3])), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]
    block = make_block(miner=1, authors=[0, 1, 2])
    assert pick(story.validate(block), round_events.CastVote)  # at once: nobody's contribution is missing
    assert story.machine.collecting.explain_left_out(block) == {IDS[3]: round_events.Absence.ABSTAINED}


def test_abstaining_is_taken_back_by_contributing_and_comes_too_late_after_it() -> None:
    story = Story()
    story.start()
    story.verify(0, 1)
    story.on(round_events.MemberAbstains(IDS[3]), round_events.MemberAlive(IDS[3]))
    story.verify(2)
    assert not story.machine.is_cut_off
    story.on(round_events.ContributionSeen(make_contribution(GENESIS, KEYS[3])))
    story.on(round_events.MemberAbstains(IDS[3]), round_events.MemberAbstains(b"\7" * 32))
    assert IDS[3] in story.machine.awaited
    story.verify(3)
    assert story.machine.is_cut_off


def test_a_member_that_does_not_contribute_waits_for_the_others_mines_and_votes() -> None:
    story = Story(contributes=False)
    story.start()
    assert (story.machine.phase, story.machine.abstains) == (RoundPhase.COLLECT, True)
    story.verify(1, 2)
    assert pick(story.verify(3), ComputeAggregate)
    assert pick(story.validate(make_block(miner=1, authors=[1, 2, 3])), round_events.CastVote)


def test_one_that_resumes_waits_for_itself_again() -> None:
    story = Story(contributes=False)
    story.start()
    story.verify(1, 2)
    story.on(round_events.Resumed())
    assert (story.machine.phase, story.machine.abstains) == (RoundPhase.TRAIN, False)
    assert not pick(story.verify(3), ComputeAggregate)
    assert pick(story.verify(0), ComputeAggregate)


def test_fewer_than_a_quorum_suffice_where_one_abstains_and_one_is_silent() -> None:
    story = Story(genesis=GENESIS_OF_TWO)
    story.start()
    story.on(round_events.MemberAbstains(IDS[2]))
    assert not pick(story.verify(0, 1), round_events.StartTimer)  # member 3 may be training for long
    started = story.on(round_events.MemberSilent(IDS[3]))
    assert started == [round_events.StartTimer(CollectTimer(), COLLECT_S)]  # it is awaited, and not for ever
    assert story.on(round_events.MemberSilent(IDS[3])) == []
    (compute,) = pick(story.on(TimerFired(CollectTimer())), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1]


def test_where_the_silent_one_is_not_awaited_the_cutoff_comes_at_once() -> None:
    story = Story(genesis=GENESIS_OF_TWO, awaited=[0, 1, 2])
    story.start()
    story.on(round_events.MemberSilent(IDS[3]), round_events.MemberAbstains(IDS[2]))
    (compute,) = pick(story.verify(0, 1), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1]


def test_a_silent_member_that_speaks_again_is_waited_for_like_any_other() -> None:
    story = Story(genesis=GENESIS_OF_TWO)
    story.start()
    story.on(round_events.MemberAbstains(IDS[2]), round_events.MemberSilent(IDS[3]), round_events.MemberAlive(IDS[3]))
    assert not pick(story.verify(0, 1), round_events.StartTimer)
    assert pick(story.verify(3), ComputeAggregate)


def test_fewer_than_a_quorum_suffice_where_one_abstains_and_one_was_refused() -> None:
    story = Story(genesis=GENESIS_OF_TWO)
    story.start()
    story.on(round_events.MemberAbstains(IDS[2]))
    story.verify(0, 1)
    bad = make_contribution(GENESIS_OF_TWO, KEYS[3])
    story.on(round_events.ContributionSeen(bad))
    (compute,) = pick(story.on(round_events.PayloadsRefused(bad, "not a number")), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1]


def test_below_min_contributions_nothing_is_cut_off_whoever_is_silent() -> None:
    story = Story()
    story.start()
    story.verify(0, 1)
    assert not story.on(round_events.MemberAbstains(IDS[2]), round_events.MemberSilent(IDS[3]))
    assert not story.machine.is_cut_off


def test_an_observer_does_not_abstain_for_it_has_nothing_to_abstain_from() -> None:
    story = Story(me=None)
    story.on(round_events.Started(), round_events.Resumed())
    assert (story.machine.contributes, story.machine.abstains) == (False, False)


def test_what_was_signed_before_is_contributed_by_one_that_does_not_contribute_now() -> None:
    story = Story(contributes=False)
    story.start(contribution=make_contribution(GENESIS, KEYS[0]))
    assert (story.machine.contributes, story.machine.abstains) == (True, False)


def test_who_is_accused_is_neither_awaited_nor_taken_in() -> None:
    story = Story(accused=[3])
    story.start()
    assert not pick(story.verify(3, 0, 1), ComputeAggregate)
    (compute,) = pick(story.verify(2), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]


def test_two_contributions_of_one_author_are_evidence_and_leave_it_out_at_once() -> None:
    story = Story()
    story.start()
    story.on(round_events.ContributionSeen(make_contribution(GENESIS, KEYS[3])))
    story.verify(0, 1, 2)
    assert not story.machine.is_cut_off
    done = story.on(round_events.ContributionSeen(make_contribution(GENESIS, KEYS[3], weight=2)))
    (accuse,) = pick(done, round_events.Accuse)
    assert validate_evidence(GENESIS.state, accuse.evidence) == (IDS[3], 1)
    (compute,) = pick(done, ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]


def test_evidence_from_others_leaves_the_author_out_too() -> None:
    story = Story()
    story.start()
    story.verify(0, 1, 2)
    (compute,) = pick(story.on(round_events.Accused(IDS[3])), ComputeAggregate)
    assert get_authors(compute.contributions) == [0, 1, 2]


def test_a_body_with_another_contribution_of_a_known_author_is_evidence() -> None:
    story = Story()
    story.start()
    story.verify(3)
    block = make_candidate(
        GENESIS,
        GENESIS.block0,
        KEYS,
        miner=1,
        contributions=[make_contribution(GENESIS, KEYS[i], weight=7 if i == 3 else 1) for i in range(4)],
    )
    (accuse,) = pick(story.on(round_events.CandidateSeen(block)), round_events.Accuse)
    assert accuse.author == IDS[3]


def test_the_wait_starts_anew_when_evidence_has_left_too_few() -> None:
    members = GENESIS_7.state.member_ids
    collecting = Collecting(GENESIS_7.state, members[0], awaited=members)
    machine = RoundMachine(GENESIS_7.state, collecting, me=members[0], height=1, parent_ms=BEGAN_MS)
    contributions = [make_contribution(GENESIS_7, key) for key in KEYS_7]

    def verify(i: int, at_s: float) -> list[round_events.Action]:
        now = Now(at_s, BEGAN_MS)
        seen = machine.on(round_events.ContributionSeen(contributions[i]), now)
        return seen + machine.on(round_events.PayloadsVerified(contributions[i]), now)

    machine.on(round_events.Started(), Now(0, BEGAN_MS))
    started = [action for i in range(5) for action in verify(i, 0.0)]
    assert len(pick(started, round_events.StartTimer)) == 1
    machine.on(round_events.Accused(members[4]), Now(1, BEGAN_MS))
    assert machine.on(TimerFired(CollectTimer()), Now(2, BEGAN_MS)) == []
    again = verify(5, 3.0)  # five again without the accused, and member 6 never comes
    assert pick(again, round_events.StartTimer) == [round_events.StartTimer(CollectTimer(), COLLECT_S)]
    (compute,) = pick(machine.on(TimerFired(CollectTimer()), Now(5, BEGAN_MS)), ComputeAggregate)
    assert [members.index(contribution.author) for contribution in compute.contributions] == [0, 1, 2, 3, 5]


def test_a_failed_training_stops_contributing_and_not_mining_or_voting() -> None:
    story = Story()
    story.start()
    story.verify(1, 2, 3)
    assert not story.machine.is_cut_off
    (compute,) = pick(story.on(round_events.TrainingFailed()), ComputeAggregate)
    assert get_authors(compute.contributions) == [1, 2, 3]
    assert not story.machine.contributes
    (mine,) = story.on(round_events.AggregateComputed(AGGREGATE))
    assert isinstance(mine, round_events.Mine)
    block = make_block(miner=0, authors=[1, 2, 3])
    assert pick(story.on(round_events.Mined(block)), round_events.CastVote)


# MINE


def mine_until_candidate(story: Story) -> None:
    story.start()
    story.verify(0, 1, 2, 3)
    story.on(round_events.AggregateComputed(AGGREGATE))
    assert story.machine.phase is RoundPhase.MINE


def test_mining_stops_when_an_acceptable_rival_arrives() -> None:
    story = Story()
    mine_until_candidate(story)
    rival = make_block(miner=1)
    assert not pick(story.on(round_events.CandidateSeen(rival)), round_events.StopMining)
    assert pick(story.on(round_events.CandidateValidated(rival)), round_events.StopMining)
    assert story.machine.phase is RoundPhase.VOTE


def test_mining_goes_on_while_the_rival_is_not_acceptable() -> None:
    story = Story()
    mine_until_candidate(story)
    story.now_s = 1.0
    assert not pick(story.validate(make_block(miner=1, ahead_ms=60_000)), round_events.StopMining)
    assert story.machine.phase is RoundPhase.MINE


def test_nothing_is_mined_when_an_acceptable_candidate_came_first() -> None:
    story = Story()
    story.start()
    story.verify(0, 1, 2)
    story.validate(make_block(miner=1))
    assert not pick(story.verify(3), ComputeAggregate)
    assert story.machine.is_cut_off


def test_an_aggregate_that_comes_after_the_rival_is_not_mined_on() -> None:
    story = Story()
    story.start()
    story.verify(0, 1, 2, 3)
    story.validate(make_block(miner=1))
    assert story.on(round_events.AggregateComputed(AGGREGATE)) == []


def test_an_own_block_is_prevoted_without_being_recomputed() -> None:
    story = Story()
    mine_until_candidate(story)
    block = make_block(miner=0)
    done = story.on(round_events.Mined(block))
    assert not pick(done, round_events.CheckCandidate)
    (cast,) = pick(done, round_events.CastVote)
    assert (cast.cast.phase, cast.cast.block_id, cast.block) == (Phase.PREVOTE, block.id, block)


def test_a_node_with_its_own_candidate_from_before_the_crash_mines_no_second() -> None:
    story = Story()
    own = make_block(miner=0, ahead_ms=5)
    done = story.start(candidate=own, contribution=make_contribution(GENESIS, KEYS[0]))
    assert pick(done, round_events.CheckCandidate) == [round_events.CheckCandidate(own)]
    story.on(round_events.PayloadsVerified(make_contribution(GENESIS, KEYS[0])))
    assert not pick(story.verify(1, 2, 3), ComputeAggregate)
    assert story.machine.is_cut_off


def test_a_node_told_not_to_mine_collects_and_votes() -> None:
    story = Story(mine=False)
    story.start()
    assert not pick(story.verify(0, 1, 2, 3), ComputeAggregate)
    assert pick(story.validate(make_block()), round_events.CastVote)


# VOTE: which candidates are acceptable, which complete


def test_a_candidate_of_all_members_is_prevoted_at_once() -> None:
    story = Story()
    story.start()
    block = make_block()
    (cast,) = pick(story.validate(block), round_events.CastVote)
    assert cast.cast.block_id == block.id


def test_a_candidate_without_somebody_is_prevoted_after_delta() -> None:
    """Though that member is not awaited any more: with one vote less to come, crossing candidates cost timers."""
    story = Story(awaited=range(3))
    story.start()
    block = make_block(authors=[0, 1, 2])
    done = story.validate(block)
    assert not pick(done, round_events.CastVote)
    grace = Timer(TimerKind.GRACE, 0)
    assert round_events.StartTimer(grace, DELTA_S) in done
    (cast,) = pick(story.on(TimerFired(grace)), round_events.CastVote)
    assert cast.cast.block_id == block.id


def start_hasty_story() -> tuple[Story, Block]:
    """Member 3 is still awaited, and another's candidate without it is here already."""
    story = Story()
    story.start()
    story.verify(0, 1, 2)
    block = make_block(authors=[0, 1, 2])
    done = story.validate(block)
    assert not pick(done, round_events.CastVote)
    assert [timer.timer for timer in pick(done, round_events.StartTimer)] == [ClockTimer()]  # none of the vote's
    assert "node3" in story.machine.objections[block.id].why
    return story, block


def test_a_candidate_that_did_not_wait_for_somebody_loses_to_one_that_did() -> None:
    story, hasty = start_hasty_story()
    story.now_s = 0.8 * COLLECT_S
    assert pick(story.verify(3), ComputeAggregate)
    assert hasty.id in story.machine.objections
    story.now_s += DELTA_S
    whole = make_block(miner=2)
    (cast,) = pick(story.validate(whole), round_events.CastVote)
    assert cast.cast.block_id == whole.id
    story.now_s += 2 * DELTA_S
    story.on(TimerFired(ClockTimer()))
    assert hasty.id in story.machine.objections


def test_a_whole_candidate_outdoes_one_that_was_acceptable_before() -> None:
    story, hasty = start_hasty_story()
    story.now_s = 0.8 * COLLECT_S
    story.verify(3)
    story.now_s += 2 * DELTA_S
    story.on(TimerFired(ClockTimer()))
    assert hasty.id not in story.machine.objections
    assert pick(story.validate(make_block(miner=2)), round_events.CastVote)
    assert hasty.id in story.machine.objections


def test_a_candidate_that_did_not_wait_is_taken_once_the_wait_was_in_vain() -> None:
    story, hasty = start_hasty_story()
    story.now_s = COLLECT_S
    done = story.on(TimerFired(CollectTimer()))
    grace = Timer(TimerKind.GRACE, 0)
    assert round_events.StartTimer(grace, DELTA_S) in done
    assert not pick(done, ComputeAggregate)
    (cast,) = pick(story.on(TimerFired(grace)), round_events.CastVote)
    assert cast.cast.block_id == hasty.id


def test_nor_is_it_held_for_longer_where_too_few_are_here_to_wait() -> None:
    story = Story()
    story.start()
    hasty = make_block(authors=[0, 1, 2])
    story.validate(hasty)
    story.now_s = COLLECT_S
    story.on(TimerFired(ClockTimer()))
    assert hasty.id not in story.machine.objections


def test_several_that_did_not_wait_are_looked_at_once_when_view_1_begins() -> None:
    story, hasty = start_hasty_story()
    other = make_block(authors=[0, 1, 2], miner=2)
    story.validate(other)
    coordinator = IDS.index(story.machine.voting.get_coordinator(1))
    story.vote(Phase.PREVOTE, ZERO, *(i for i in (1, 2, 3) if i != coordinator), view=1)
    done = story.vote(Phase.PREVOTE, hasty.id, coordinator, view=1)
    cast = pick(done, round_events.CastVote)[0].cast
    assert (cast.phase, cast.view, cast.block_id) == (Phase.PREVOTE, 1, hasty.id)


def test_from_view_1_on_nobody_need_have_waited() -> None:
    story, hasty = start_hasty_story()
    coordinator = IDS.index(story.machine.voting.get_coordinator(1))
    story.vote(Phase.PREVOTE, ZERO, *(i for i in (1, 2, 3) if i != coordinator), view=1)
    done = story.vote(Phase.PREVOTE, hasty.id, coordinator, view=1)
    cast = pick(done, round_events.CastVote)[0].cast
    assert (cast.phase, cast.view, cast.block_id) == (Phase.PREVOTE, 1, hasty.id)


@pytest.mark.parametrize("absent", ["refused", "accused"])
def test_who_was_refused_or_accused_is_not_missed(absent: str) -> None:
    story = Story(accused=[3] if absent == "accused" else [])
    story.start()
    if absent == "refused":
        bad = make_contribution(GENESIS, KEYS[3])
        story.on(round_events.ContributionSeen(bad), round_events.PayloadsRefused(bad, "too long"))
    assert pick(story.validate(make_block(authors=[0, 1, 2])), round_events.CastVote)


@pytest.mark.parametrize(("verified_before_s", "acceptable"), [(2 * DELTA_S, False), (1.9 * DELTA_S, True)])
def test_whoever_was_verified_two_delta_before_my_cutoff_must_be_in(verified_before_s: float, acceptable: bool) -> None:
    story = Story(awaited=range(4))
    story.start()
    story.now_s = 10.0 - verified_before_s
    story.verify(3)
    story.now_s = 10.0
    story.verify(0, 1, 2)
    assert story.machine.is_cut_off
    story.now_s = 60.0  # how late the candidate comes does not matter
    story.validate(make_block(authors=[0, 1, 2]))
    story.now_s += 2 * DELTA_S  # for which another may come that leaves nobody out
    story.on(TimerFired(round_events.ClockTimer()))
    grace = story.on(TimerFired(Timer(TimerKind.GRACE, 0)))
    assert bool(pick(grace, round_events.CastVote)) is acceptable


def test_before_my_cutoff_the_present_counts_as_the_cutoff() -> None:
    story = Story()
    story.start()
    story.verify(3)
    story.now_s = 2 * DELTA_S
    story.validate(make_block(authors=[0, 1, 2]))
    assert not pick(story.on(TimerFired(Timer(TimerKind.GRACE, 0))), round_events.CastVote)


def test_an_author_with_evidence_may_be_left_out() -> None:
    story = Story(accused=[3])
    story.start()
    story.verify(3)
    story.now_s = 1.0
    assert pick(story.validate(make_block(authors=[0, 1, 2])), round_events.CastVote)


@pytest.mark.parametrize(("ahead_ms", "acceptable"), [(2000, True), (2001, False), (-900, True)])
def test_a_clock_two_seconds_ahead_is_the_limit_in_view_0(ahead_ms: int, acceptable: bool) -> None:
    story = Story()
    story.start()
    assert bool(pick(story.validate(make_block(ahead_ms=ahead_ms)), round_events.CastVote)) is acceptable


def test_from_view_1_on_an_unacceptable_candidate_is_voted_for() -> None:
    story = Story(me=3)
    story.start()
    censoring = make_block(miner=1, authors=[0, 1, 2])
    story.verify(3)
    story.now_s = 1.0
    story.validate(censoring)
    assert not pick(story.actions, round_events.CastVote)
    coordinator = IDS.index(story.machine.voting.get_coordinator(1))
    assert coordinator != 3
    others = [i for i in (0, 1, 2) if i != coordinator]
    done = story.vote(Phase.PREVOTE, ZERO, *others, view=1)  # two in view 1: jump
    assert story.machine.view == 1
    done = story.vote(Phase.PREVOTE, censoring.id, coordinator, view=1)
    cast = pick(done, round_events.CastVote)[0]
    assert (cast.cast.phase, cast.cast.view, cast.cast.block_id) == (Phase.PREVOTE, 1, censoring.id)


def test_where_candidates_cross_the_best_of_them_is_prevoted_once_they_are_here() -> None:
    story = Story(crossing_s=0.03)
    story.start()
    blocks = [make_block(miner=miner) for miner in (1, 2, 3)]
    first, *others = sorted(blocks, key=lambda block: block.id, reverse=True)
    assert round_events.StartTimer(ArrivalTimer(), 0.03) in story.validate(first)
    for block in others:
        story.now_s += 0.01
        assert round_events.StartTimer(ArrivalTimer(), 0.03) not in story.validate(block)
    assert not pick(story.actions, round_events.CastVote)
    story.now_s = 0.03
    (cast,) = pick(story.on(TimerFired(ArrivalTimer())), round_events.CastVote)
    assert (cast.cast.phase, cast.cast.view, cast.cast.block_id) == (Phase.PREVOTE, 0, min(each.id for each in blocks))
    assert story.machine.apart_s == pytest.approx(0.02)


def test_where_none_cross_nothing_is_waited_for() -> None:
    story = Story()
    story.start()
    assert pick(story.validate(make_block()), round_events.CastVote)
    assert story.machine.apart_s == 0.0


def test_with_somebody_missing_delta_is_waited_whatever_crosses() -> None:
    story = Story(crossing_s=DELTA_S / 2, awaited=range(3))
    story.start()
    block = make_block(authors=[0, 1, 2])
    story.validate(block)
    assert not pick(story.on(TimerFired(ArrivalTimer())), round_events.CastVote)
    assert pick(story.on(TimerFired(Timer(TimerKind.GRACE, 0))), round_events.CastVote)


def test_a_candidate_that_nobody_finds_acceptable_says_nothing_of_crossing() -> None:
    story = Story(crossing_s=0.03)
    story.start()
    story.validate(make_block(ahead_ms=5_000))
    assert story.machine.apart_s is None


def test_a_time_that_the_parent_forces_is_nobodys_fault() -> None:
    """Its block is far ahead of the clock; what follows on it has to be later still."""
    story = Story(parent_ahead_ms=60_000)
    story.start()
    forced = make_block(miner=1, ahead_ms=59_001)
    assert pick(story.validate(forced), round_events.CastVote)


def test_what_is_acceptable_counts_from_the_time_that_the_parent_forces() -> None:
    story = Story(parent_ahead_ms=6_000)
    story.start()
    early = make_block(miner=1, ahead_ms=7_002)
    assert not pick(story.validate(early), round_events.CastVote)
    assert pick(story.validate(make_block(miner=2, ahead_ms=7_001)), round_events.CastVote)


def test_a_parent_from_the_future_lets_nobody_go_further() -> None:
    story = Story(parent_ahead_ms=60_000)
    story.start()
    further = make_block(miner=1, ahead_ms=59_002)
    story.validate(further)
    assert_not_valid(story, further)


def assert_not_valid(story: Story, block: Block) -> None:
    """A proposal of the block in view 1 is not followed."""
    coordinator = IDS.index(story.machine.voting.get_coordinator(1))
    story.vote(Phase.PREVOTE, block.id, *{coordinator, 1, 2}, view=1)
    assert not pick(story.actions, round_events.CastVote)


def test_a_candidate_that_is_too_early_is_held_until_its_time_comes() -> None:
    story = Story()
    story.start()
    block = make_block(ahead_ms=EARLY_MS + 700)
    (timer,) = pick(story.validate(block), round_events.StartTimer)
    assert timer == round_events.StartTimer(ClockTimer(), 0.7)
    assert story.machine.objections[block.id].kind is Reason.CLOCK
    assert_not_valid(story, block)
    story.now_s = 0.7
    (cast,) = pick(story.on(TimerFired(ClockTimer())), round_events.CastVote)[:1]
    assert (cast.cast.phase, cast.cast.view, cast.cast.block_id) == (Phase.PREVOTE, 1, block.id)


def test_what_is_held_is_looked_at_every_second_since_clocks_are_set() -> None:
    story = Story()
    story.start()
    block = make_block(ahead_ms=3_600_000)
    assert pick(story.validate(block), round_events.StartTimer) == [round_events.StartTimer(ClockTimer(), 1.0)]
    story.now_s = 1.0
    assert story.on(TimerFired(ClockTimer())) == [round_events.StartTimer(ClockTimer(), 1.0)]
    story.now_s = 3_600.0
    assert pick(story.on(TimerFired(ClockTimer())), round_events.CastVote)
    assert not story.machine.objections


def test_a_candidate_becomes_acceptable_when_its_time_comes() -> None:
    story = Story()
    story.start()
    block = make_block(ahead_ms=2_400)
    (timer,) = [each for each in pick(story.validate(block), round_events.StartTimer) if each.timer == ClockTimer()]
    assert timer.after_s == 0.4
    story.now_s = 0.4
    (cast,) = pick(story.on(TimerFired(ClockTimer())), round_events.CastVote)
    assert (cast.cast.phase, cast.cast.view, cast.cast.block_id) == (Phase.PREVOTE, 0, block.id)


def test_a_held_candidate_is_looked_at_in_time_whatever_else_is_held() -> None:
    story = Story()
    story.start()
    story.validate(make_block(miner=1, ahead_ms=3_600_000))
    soon = make_block(miner=2, ahead_ms=EARLY_MS + 20)
    assert pick(story.validate(soon), round_events.StartTimer) == [round_events.StartTimer(ClockTimer(), 0.02)]
    later = make_block(miner=3, ahead_ms=EARLY_MS + 30)
    assert not pick(story.validate(later), round_events.StartTimer)


@pytest.mark.parametrize("certificate_first", [True, False])
def test_a_certificate_overrides_every_clock(certificate_first: bool) -> None:
    story = Story()
    story.start()
    block = make_block(ahead_ms=3_600_000)
    story.on(round_events.CandidateSeen(block))
    if certificate_first:
        story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
        done = story.on(round_events.CandidateValidated(block))
    else:
        story.on(round_events.CandidateValidated(block))
        done = story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
    (finalise,) = pick(done, round_events.Finalise)
    assert finalise.audited


def test_a_second_candidate_of_a_miner_is_evidence_and_a_third_finds_no_room() -> None:
    story = Story()
    story.start()
    first, second, third = (make_block(miner=1, ahead_ms=i) for i in range(3))
    assert not pick(story.validate(first), round_events.Accuse)
    (accuse,) = pick(story.validate(second), round_events.Accuse)
    assert validate_evidence(GENESIS.state, accuse.evidence) == (IDS[1], 1)
    assert not story.machine.has_room(third)
    assert not pick(story.on(round_events.CandidateSeen(third)), round_events.CheckCandidate)
    assert set(story.machine.candidates) == {first.id, second.id}
    assert story.machine.has_room(make_block(miner=2))


def test_a_third_candidate_is_let_in_once_a_quorum_stands_behind_it() -> None:
    """Else a miner of three could keep from each honest member the one that the others are locked on."""
    story = Story()
    story.start()
    for i in range(2):
        story.validate(make_block(miner=1, ahead_ms=i))
    third = make_block(miner=1, ahead_ms=2)
    assert pick(story.vote(Phase.PREVOTE, third.id, 1, 2, 3), FetchBlock) == [FetchBlock(third.id)]
    assert story.machine.has_room(third)
    assert pick(story.on(round_events.CandidateSeen(third)), round_events.CheckCandidate)
    (cast,) = pick(story.on(round_events.CandidateValidated(third)), round_events.CastVote)
    assert (cast.cast.phase, cast.cast.block_id, cast.block) == (Phase.PRECOMMIT, third.id, third)


def test_two_votes_for_one_slot_are_evidence() -> None:
    story = Story()
    story.start()
    story.vote(Phase.PREVOTE, ZERO, 2)
    (accuse,) = pick(story.vote(Phase.PREVOTE, make_digest("b"), 2), round_events.Accuse)
    assert accuse.author == IDS[2]
    assert validate_evidence(GENESIS.state, accuse.evidence) == (IDS[2], 1)


def test_a_precommit_carries_its_block_and_its_prevotes() -> None:
    story = Story()
    story.start()
    block = make_block()
    story.validate(block)
    done = story.vote(Phase.PREVOTE, block.id, 0, 1, 2)
    (cast,) = pick(done, round_events.CastVote)
    assert cast.cast.phase is Phase.PRECOMMIT
    assert cast.block == block
    assert {vote.voter for vote in cast.cast.justification} == {IDS[0], IDS[1], IDS[2]}


# Finalising


def test_q_precommits_finalise_and_then_nothing_more_happens() -> None:
    story = Story()
    mine_until_candidate(story)
    block = make_block(ahead_ms=60_000)  # not acceptable: mining goes on until the certificate
    story.validate(block)
    done = story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
    (finalise,) = pick(done, round_events.Finalise)
    assert finalise.block == block
    assert finalise.audited
    assert pick(done, round_events.StopMining)
    validation.validate_certificate(GENESIS.state, block.id, 1, finalise.certificate)
    assert story.verify(3) == story.validate(make_block(miner=2)) == []


def test_a_certified_block_that_is_not_here_is_asked_for() -> None:
    story = Story()
    story.start()
    block = make_block()
    assert pick(story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3), FetchBlock) == [FetchBlock(block.id)]
    assert not pick(story.on(round_events.CandidateSeen(block)), round_events.Finalise)
    assert pick(story.on(round_events.CandidateValidated(block)), round_events.Finalise)


@pytest.mark.parametrize("certificate_first", [True, False])
def test_a_certificate_is_followed_when_the_blobs_are_not_to_be_had(certificate_first: bool) -> None:
    story = Story()
    story.start()
    block = make_block()
    story.on(round_events.CandidateSeen(block))
    gone = round_events.CandidateRefused(block, "its blobs are not to be had", wrong=False)
    if certificate_first:
        story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
        done = story.on(gone)
    else:
        story.on(gone)
        done = story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
    (finalise,) = pick(done, round_events.Finalise)
    assert not finalise.audited
    assert isinstance(finalise.certificate, Certificate)


@pytest.mark.parametrize("certificate_first", [True, False])
def test_a_certified_block_known_to_be_wrong_halts(certificate_first: bool) -> None:
    story = Story()
    story.start()
    block = make_block()
    story.on(round_events.CandidateSeen(block))
    wrong = round_events.CandidateRefused(block, "the aggregate is another", wrong=True)
    if certificate_first:
        story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
        done = story.on(wrong)
    else:
        story.on(wrong)
        done = story.vote(Phase.PRECOMMIT, block.id, 1, 2, 3)
    assert pick(done, round_events.Halt) == [round_events.Halt("height 1: certified, but the aggregate is another")]
    assert not pick(story.actions, round_events.Finalise)
    assert story.on(round_events.CandidateValidated(block)) == []


def test_blobs_that_turn_up_late_make_a_refused_candidate_valid() -> None:
    story = Story()
    story.start()
    block = make_block()
    story.on(round_events.CandidateSeen(block), round_events.CandidateRefused(block, "not yet", wrong=False))
    assert not pick(story.actions, round_events.CastVote)
    assert pick(story.on(round_events.CandidateValidated(block)), round_events.CastVote)


def test_a_restart_takes_up_the_lock_and_says_nothing_new() -> None:
    block = make_block()
    prevotes = tuple(make_vote(i, Phase.PREVOTE, block.id) for i in range(3))
    own = (prevotes[0], make_vote(0, Phase.PRECOMMIT, block.id))
    story = Story()
    story.start(votes=own, justification=prevotes)
    story.validate(block)
    assert not pick(story.actions, round_events.CastVote)
    assert story.machine.voting.lock == (0, block.id)
    story.vote(Phase.PRECOMMIT, block.id, 1, 2)
    (finalise,) = pick(story.actions, round_events.Finalise)
    assert finalise.audited


def test_an_observer_follows_and_does_nothing() -> None:
    story = Story(me=None)
    story.start()
    story.verify(0, 1, 2, 3)
    block = make_block()
    story.validate(block)
    story.vote(Phase.PREVOTE, block.id, 0, 1, 2)
    assert not pick(story.actions, round_events.CastVote)
    assert not pick(story.actions, ComputeAggregate)
    story.vote(Phase.PRECOMMIT, block.id, 0, 1, 2)
    assert pick(story.actions, round_events.Finalise)


def test_the_phases_follow_one_another() -> None:
    story = Story()
    story.start()
    phases = [story.machine.phase]
    story.verify(0)
    phases.append(story.machine.phase)
    story.verify(1, 2, 3)
    phases.append(story.machine.phase)
    story.validate(make_block())
    phases.append(story.machine.phase)
    story.vote(Phase.PRECOMMIT, make_block().id, 1, 2, 3)
    phases.append(story.machine.phase)
    assert phases == [RoundPhase.TRAIN, RoundPhase.COLLECT, RoundPhase.MINE, RoundPhase.VOTE, RoundPhase.DONE]


# CHANGES


def make_change_block(miner: int = 1) -> Block:
    return extend_with(Tip.at(GENESIS.state, [GENESIS.block0]), Body(change=CHANGE), KEYS[miner])


def complete() -> round_events.ChangeCompleted:
    return round_events.ChangeCompleted(CHANGE)


def test_a_change_that_is_complete_when_a_height_begins_is_mined_at_once_and_once() -> None:
    story = Story(change=CHANGE)
    assert pick(story.start(), round_events.MineChange) == [round_events.MineChange(CHANGE)]
    assert story.on(complete()) == []


def test_a_change_that_becomes_complete_in_a_round_is_mined_though_contributions_are_missing() -> None:
    story = Story()
    story.start()
    story.verify(0, 1)
    assert story.on(complete()) == [round_events.MineChange(CHANGE)]


def test_a_body_that_is_complete_while_a_change_is_mined_is_not_mined_beside_it() -> None:
    story = Story()
    story.start()
    story.on(complete())
    assert not pick(story.verify(0, 1, 2, 3), ComputeAggregate)
    assert not pick(story.on(round_events.AggregateComputed(AGGREGATE)), round_events.Mine)


def test_an_aggregate_that_does_not_come_is_not_waited_for() -> None:
    """Nor is it mined on once it comes after all: one search at a time."""
    story = Story()
    story.start()
    assert pick(story.verify(0, 1, 2, 3), ComputeAggregate)
    assert story.on(complete()) == [round_events.MineChange(CHANGE)]
    assert story.on(round_events.AggregateComputed(AGGREGATE)) == []


def test_a_round_that_is_mined_or_has_a_candidate_comes_before_a_change() -> None:
    mining = Story()
    mine_until_candidate(mining)
    assert mining.on(complete()) == []
    satisfied = Story()
    satisfied.start()
    satisfied.validate(make_block())
    assert satisfied.on(complete()) == []


@pytest.mark.parametrize("told", [{"me": None}, {"mine": False}])
def test_an_observer_and_who_is_told_not_to_mine_leave_changes_to_others(told: dict[str, Any]) -> None:
    story = Story(change=CHANGE, **told)
    assert not pick(story.start(), round_events.MineChange)
    assert story.on(complete()) == []
    story.validate(make_change_block())
    story.vote(Phase.PRECOMMIT, make_change_block().id, 1, 2, 3)
    assert len(pick(story.actions, round_events.Finalise)) == 1


def test_who_pauses_mines_changes_and_votes_for_them() -> None:
    story = Story(contributes=False, change=CHANGE)
    assert pick(story.start(), round_events.MineChange)
    block = make_change_block(miner=0)
    assert pick(story.on(round_events.Mined(block)), round_events.CastVote)


def test_a_change_of_another_ends_the_search_for_ones_own_and_is_prevoted_without_anyones_contribution() -> None:
    story = Story(change=CHANGE)
    story.start()
    story.verify(0, 1, 2)
    story.now_s = 10.0
    done = story.validate(make_change_block())
    assert pick(done, round_events.StopMining)
    assert [cast.cast.block_id for cast in pick(done, round_events.CastVote)] == [make_change_block().id]


def test_nothing_happens_at_an_idle_height_until_there_is_a_change() -> None:
    story = Story(genesis=make_genesis(KEYS, rounds=1), height=2, contributes=False)
    assert story.start() == []
    assert story.machine.is_idle
    assert story.machine.phase is RoundPhase.DONE
    assert not story.machine.has_room(make_contribution(GENESIS, KEYS[1]))
    assert story.on(complete()) == [round_events.MineChange(CHANGE)]
    assert not story.machine.is_idle
    assert story.machine.phase is RoundPhase.MINE


def test_who_signed_a_candidate_before_a_crash_mines_no_change_beside_it() -> None:
    story = Story(change=CHANGE)
    done = story.start(candidate=make_block(miner=0))
    assert not pick(done, round_events.MineChange)
    assert story.on(complete()) == []


# Empty contributions, of members that have no part in a masked sum


def test_an_empty_contribution_does_not_begin_the_wait_for_others_that_have_one() -> None:
    story = Story(empty=[3], may_give=[0, 1, 2])
    story.start()
    assert not pick(story.verify(3, 0, 1), round_events.StartTimer)  # three of four, as many as decide
    (timer, *_) = pick(story.verify(2), round_events.StartTimer)
    assert isinstance(timer.timer, CollectTimer)


def test_where_too_few_can_have_one_empty_contributions_count_as_all_others() -> None:
    story = Story(empty=[2, 3], may_give=[0, 1])
    story.start()
    (timer, *_) = pick(story.verify(3, 0, 1), round_events.StartTimer)
    assert isinstance(timer.timer, CollectTimer)


def test_one_that_is_silent_is_not_waited_for_without_end() -> None:
    story = Story(empty=[3], may_give=[0, 1, 2])
    story.start()
    story.verify(3, 0, 1)
    assert pick(story.on(round_events.MemberSilent(IDS[2])), round_events.StartTimer)


def test_a_block_with_too_few_inputs_is_none_to_prevote_while_more_are_to_come() -> None:
    story = Story(empty=[3], may_give=[0, 1, 2], awaited=[0, 1, 3])
    story.start()
    story.verify(3, 0, 1)
    block = make_block(miner=3, authors=[0, 1, 3])
    story.validate(block)
    assert story.machine.objections[block.id].why == "it has too few inputs for a sum, and more are to come"
    other = Story(empty=[2, 3], may_give=[0, 1], awaited=[0, 1, 3])
    other.start()
    other.verify(3, 0, 1)
    other.validate(block)
    assert block.id not in other.machine.objections
