"""One height of the ledger for one member: events in, actions out, and no waiting (PROTOCOL §3).

`RoundMachine` decides when there are enough contributions, what goes into this node's candidate and which candidates
are acceptable, and passes votes through `chain.finality`. `node.consensus.service` sends it the events and carries out
the actions; all sockets, clocks, disks and processes are there. The same events lead to the same actions.

    TRAIN ──► COLLECT ──► MINE ──► VOTE ──► (finalised)      votes and collecting go on in every phase
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from chain import finality
from chain.block import ApprovedChange, Block, Certificate, Contribution, Id, Vote
from chain.evidence import make_evidence
from chain.state import State
from node.consensus.height.actions import (
    Accuse,
    Accused,
    Action,
    AggregateComputed,
    ArrivalTimer,
    CandidateRefused,
    CandidateSeen,
    CandidateValidated,
    CastVote,
    ChangeCompleted,
    CheckCandidate,
    ClockTimer,
    CollectTimer,
    ComputeAggregate,
    ContributionSeen,
    Event,
    FetchBlock,
    FetchPayloads,
    Finalise,
    Halt,
    MemberAbstains,
    MemberAlive,
    MemberSilent,
    Mine,
    MineChange,
    Mined,
    Now,
    Objection,
    PayloadsRefused,
    PayloadsVerified,
    Resumed,
    RoundPhase,
    Started,
    StartTimer,
    StopMining,
    TimerFired,
    TrainingFailed,
    VoteSeen,
)
from node.consensus.height.candidates import Candidates
from node.consensus.height.collecting import Collecting


class RoundMachine:
    """Applies the rules of `state` to one height for one node. `parent_ms` is the time of the parent block.

    `collecting` says which members are awaited, and whether this node contributes. `me` is None for an observer. A
    member that does not contribute collects, mines and votes like any other.

    A candidate with the contributions of all members waits `crossing_s` before it is prevoted, since other members may
    have mined one at the same time. A candidate without some of them waits `delta_s` (by default the state's own). A
    `change` with all approvals is mined at once; after a run's last round only changes are mined.
    """

    def __init__(
        self,
        state: State,
        collecting: Collecting,
        *,
        me: Id | None,
        height: int,
        parent_ms: int,
        mine: bool = True,
        crossing_s: float = 0.0,
        delta_s: float | None = None,
        change: ApprovedChange | None = None,
    ) -> None:
        self.height = height
        self._has_round = state.has_round(height)
        self._change = change
        self._me = me
        self._mines = mine and me is not None
        self._collecting = collecting
        self._body: tuple[Contribution, ...] = ()
        self._candidates = Candidates(state, parent_ms)
        self._crossing_s = crossing_s
        self._crossed = crossing_s <= 0  # candidates mined at the same time have had time to arrive
        self._satisfied = False  # there is an acceptable candidate: mining on would only split the vote
        self._mining = False
        self._computing = False  # computing the aggregate to mine on; a change need not wait for it
        self._finalised = False
        members, coordinators, waits = state.member_ids, state.active_ids, state.rules.waits
        waits = waits if delta_s is None else replace(waits, delta_s=delta_s)
        self._voting = finality.Voting(
            height=height, members=members, coordinators=coordinators, quorum=state.q, me=me, waits=waits
        )

    # ---- state that others may read

    @property
    def phase(self) -> RoundPhase:
        if self._finalised or self.is_idle:
            return RoundPhase.DONE
        if self.contributes and self._me not in self.contributions:
            return RoundPhase.TRAIN
        if self._mining:
            return RoundPhase.MINE
        return RoundPhase.VOTE if self.is_cut_off else RoundPhase.COLLECT

    @property
    def is_idle(self) -> bool:
        """Says whether there is nothing to do at this height: it has no round, and no change so far."""
        return not (self._has_round or self._mining or self.candidates)

    @property
    def contributes(self) -> bool:
        """Says whether this node contributes, so that others await it."""
        return self._collecting.contributes

    @property
    def abstains(self) -> bool:
        """Says whether this node is a member that does not contribute to this round, so that others need not await
        it."""
        return self._me is not None and self._has_round and not self.contributes

    @property
    def view(self) -> int:
        return self._voting.view

    @property
    def is_cut_off(self) -> bool:
        """Says whether the body of this node's candidate is fixed."""
        return self._collecting.cutoff_s is not None

    @property
    def is_satisfied(self) -> bool:
        """Says whether there is a candidate to prevote, so that nobody need mine any more."""
        return self._satisfied

    @property
    def contributions(self) -> Mapping[Id, Contribution]:
        """Returns the first contribution seen of each author."""
        return self._collecting.contributions

    @property
    def refused(self) -> Mapping[Id, str]:
        """Returns the authors whose payloads did not fit, each with the reason."""
        return self._collecting.refused

    @property
    def verified(self) -> Collection[Id]:
        """Returns the authors whose payloads have arrived and fit."""
        return self._collecting.verified

    @property
    def awaited(self) -> frozenset[Id]:
        """Returns the members whose contribution is worth waiting for."""
        return self._collecting.awaited

    @property
    def candidates(self) -> Mapping[Id, Block]:
        """Returns the candidates that are kept, by id."""
        return self._candidates.blocks

    @property
    def objections(self) -> Mapping[Id, Objection]:
        """Returns for each candidate that is not prevoted in view 0, or at all, the reason, by id."""
        return self._candidates.objections

    def has_room(self, thing: Contribution | Block | Vote, coming: Collection[Id] = ()) -> bool:
        """Says whether an object would be accepted if it is authentic: no third contribution of an author after two
        that are evidence, and no third candidate of a miner. The number of votes is bounded where they are counted.
        `coming` are ids of candidates of the same miner that are queued already."""
        match thing:
            case Contribution(author=author):
                return self._has_round and self._collecting.has_room_for(author)
            case Block():
                return self._candidates.has_room_for(thing, coming)
            case Vote():
                return True

    @property
    def collecting(self) -> Collecting:
        """Returns the contributions of this height, and who is awaited."""
        return self._collecting

    @property
    def voting(self) -> finality.Voting:
        return self._voting

    # ---- events

    def on(self, event: Event, now: Now) -> list[Action]:
        """Applies one event. Returns the actions that follow from it, none once the height is finalised."""
        if self._finalised:
            return []
        match event:
            case Started():
                return self._on_started(event, now)
            case ContributionSeen(contribution):
                return self._on_contribution(contribution, now)
            case PayloadsVerified(contribution):
                self._collecting.verify(contribution, now)
                return self._settle(now)
            case PayloadsRefused(contribution, reason):
                self._collecting.refuse(contribution.author, reason, now)
                return self._settle(now)
            case MemberAlive(member):
                self._collecting.on_alive(member)
                return []
            case MemberAbstains(member):
                return self._settle(now) if self._collecting.on_abstains(member, now) else []
            case MemberSilent(member):
                self._collecting.on_silent(member)
                return self._settle(now)
            case Resumed():
                self._collecting.on_resumed()
                return []
            case TrainingFailed():
                return self._on_training_failed(now)
            case AggregateComputed(digest):
                return self._on_aggregate(digest)
            case Mined(block):
                return self._on_mined(block, now)
            case CandidateSeen(block):
                return self._on_candidate(block, now)
            case CandidateValidated(block):
                return self._on_validated(block, now)
            case CandidateRefused():
                self._candidates.refuse(event)
                return self._follow_certificate()
            case VoteSeen(vote):
                return self._from_voting(self._voting.on_vote(vote), now)
            case Accused(member):
                return self._leave_out(member, now)
            case ChangeCompleted(change):
                return self._mine_change(change)
            case TimerFired(timer):
                match timer:
                    case CollectTimer():
                        self._collecting.end_wait(now)
                        return self._cut_off(now)
                    case ClockTimer():
                        return self._judge_held(now)
                    case ArrivalTimer():
                        return self._on_crossing_timer(now)
                    case _:
                        return self._from_voting(self._voting.on_timer(timer), now)

    def _on_started(self, event: Started, now: Now) -> list[Action]:
        if event.votes:
            actions = self._from_voting(self._voting.resume(event.votes, event.justification), now)
        else:
            actions = self._from_voting(self._voting.start(), now)
        if event.candidate is not None:
            self._mines = False  # one candidate per miner and height, also across a crash
            actions += self._on_candidate(event.candidate, now)
        if event.contribution is not None:
            self._collecting.contributes = self._me is not None
            actions += self._on_contribution(event.contribution, now)
        return actions if self._change is None else actions + self._mine_change(self._change)

    # ---- COLLECT

    def _on_contribution(self, contribution: Contribution, now: Now) -> list[Action]:
        if self._collecting.add(contribution):
            return [FetchPayloads(contribution)]
        return self._compare(contribution, now)

    def _compare(self, contribution: Contribution, now: Now) -> list[Action]:
        """Accuses an author of whom two different authentic contributions were seen."""
        rival = self._collecting.find_rival(contribution)
        return [] if rival is None else self._accuse(contribution.author, rival, contribution, now)

    def _on_training_failed(self, now: Now) -> list[Action]:
        self._collecting.contributes = False
        if self._me is None:
            return []
        self._collecting.stop_awaiting(self._me, now)
        return self._settle(now)

    def _settle(self, now: Now) -> list[Action]:
        """Starts the wait once enough contributions are verified, and ends it when all awaited are."""
        starts = self._collecting.begin_wait(now)
        wait: list[Action] = [StartTimer(CollectTimer(), self._collecting.collect_s)] if starts else []
        return wait + (self._cut_off(now) if self._collecting.has_all_awaited else [])

    def _cut_off(self, now: Now) -> list[Action]:
        """Fixes the body: all contributions that are verified by now, without those of the accused."""
        body = self._collecting.fix_body(now)
        if body is None:
            return []
        self._body = body
        actions = self._judge_held(now)  # at candidates that were held while this node waited
        if not self._mines or self._mining or self._satisfied or self._finalised:
            return actions
        self._mining = self._computing = True
        return [*actions, ComputeAggregate(self._body)]

    # ---- MINE

    def _mine_change(self, change: ApprovedChange) -> list[Action]:
        """Mines a change at once, whatever contributions there are. So a change can end or repair a round that does not
        finish."""
        if not self._mines or self._satisfied or (self._mining and not self._computing):
            return []
        self._mining, self._computing = True, False
        return [MineChange(change)]

    def _on_aggregate(self, digest: bytes) -> list[Action]:
        computing, self._computing = self._computing, False
        return [Mine(self._body, digest)] if computing else []

    def _on_mined(self, block: Block, now: Now) -> list[Action]:
        self._mining = self._mines = False  # one candidate a height
        self._candidates.blocks[block.id] = block
        return self._on_validated(block, now)

    def _stop_mining(self) -> list[Action]:
        was_mining, self._mining, self._computing = self._mining, False, False
        return [StopMining()] if was_mining else []

    # ---- VOTE

    def _on_candidate(self, block: Block, now: Now) -> list[Action]:
        if block.id in self.candidates:
            return []
        actions: list[Action] = []
        for contribution in block.contributions:
            actions += self._compare(contribution, now)
        rival = self._candidates.find_rival(block)
        if rival is not None:
            actions += self._accuse(block.header.miner, rival, block, now)
        if self._candidates.has_room_for(block):
            self._candidates.blocks[block.id] = block
            actions.append(CheckCandidate(block))
        return actions

    def _on_validated(self, block: Block, now: Now) -> list[Action]:
        self._candidates.recomputed.add(block.id)
        return self._judge(block, now)

    def _judge(self, block: Block, now: Now) -> list[Action]:
        """Puts a recomputed candidate to the vote if it is not held, and judges it again later if it is."""
        objection = self._candidates.judge(block, self._collecting, self.view, now)
        actions: list[Action] = []
        if block.id in self._candidates.early and (after_s := self._candidates.plan_look(block, now)) is not None:
            actions.append(StartTimer(ClockTimer(), after_s))
        if self._candidates.is_held(block, now):
            return actions + self._follow_certificate()
        if self._candidates.note_arrival(now, acceptable=objection is None) and not self._crossed:
            actions.append(StartTimer(ArrivalTimer(), self._crossing_s))
        if objection is None:
            self._satisfied = True
            actions += self._stop_mining()
            for outdone in self._candidates.outdo(self._collecting):
                actions += self._put_to_vote(outdone, False, now)
        return actions + self._put_to_vote(block, objection is None, now)

    def _put_to_vote(self, block: Block, acceptable: bool, now: Now) -> list[Action]:
        complete = self._crossed and self._collecting.is_complete(block)
        voting = self._voting.on_candidate(block.id, acceptable=acceptable, complete=complete)
        return self._from_voting(voting, now)

    def _on_crossing_timer(self, now: Now) -> list[Action]:
        """Lets the best of the acceptable candidates that no member is missing from be prevoted."""
        self._crossed = True
        actions: list[Action] = []
        for block in self._candidates.get_acceptable():
            if not self._finalised:
                actions += self._put_to_vote(block, True, now)
        return actions

    def _judge_held(self, now: Now) -> list[Action]:
        """Judges the candidates again that may have become acceptable with time."""
        actions: list[Action] = []
        for block in self._candidates.take_early():
            if not self._finalised:
                actions += self._judge(block, now)
        return actions

    @property
    def apart_s(self) -> float | None:
        """Returns the seconds between the first acceptable candidate and the newest valid one; None if none was
        acceptable."""
        return self._candidates.apart_s

    def _accuse(
        self, author: Id, first: Contribution | Block | Vote, second: Contribution | Block | Vote, now: Now
    ) -> list[Action]:
        return [Accuse(make_evidence(first, second), author), *self._leave_out(author, now)]

    def _leave_out(self, author: Id, now: Now) -> list[Action]:
        """Makes this node neither await an author nor include it in a body from now on."""
        self._collecting.leave_out(author, now)
        return self._settle(now)

    def _from_voting(self, decided: Sequence[finality.Action], now: Now) -> list[Action]:
        actions: list[Action] = []
        for action in decided:
            match action:
                case finality.Cast():
                    actions.append(CastVote(action, self.candidates.get(action.block_id)))
                case finality.StartTimer(timer, after_s):
                    actions.append(StartTimer(timer, after_s))
                case finality.FetchBlock(block_id):
                    if self._candidates.want(block_id):
                        actions.append(FetchBlock(block_id))
                case finality.Equivocation(first, second):
                    actions += self._accuse(first.voter, first, second, now)
                case finality.Finalise(block_id, certificate):
                    actions += self._finalise(block_id, certificate)
        if self.view > 0 and self._candidates.release_hasty():  # from view 1 on a miner need not have waited
            actions += self._judge_held(now)
        return actions + self._follow_certificate()

    def _follow_certificate(self) -> list[Action]:
        """Finalises a certified block, whatever the clock says. A node that cannot get the blobs follows the
        certificate too, and audits the block when they arrive. Halts if the block is certified but wrong."""
        certified = self._voting.certified
        if self._finalised or certified is None:
            return []
        if certified[0] in self._candidates.recomputed:
            return self._finalise(*certified)
        refusal = self._candidates.refusals.get(certified[0])
        if refusal is None:
            return []
        if refusal.wrong:
            self._finalised = True
            return [*self._stop_mining(), Halt(f"height {self.height}: certified, but {refusal.reason}")]
        return self._finalise(*certified)

    def _finalise(self, block_id: Id, certificate: Certificate) -> list[Action]:
        if self._finalised:
            return []
        self._finalised = True
        finalise = Finalise(self.candidates[block_id], certificate, audited=block_id in self._candidates.recomputed)
        return [*self._stop_mining(), finalise]

    def __repr__(self) -> str:
        return f"<RoundMachine {self.height}: {self.phase.value}, view {self.view}, {self._collecting!r}>"
