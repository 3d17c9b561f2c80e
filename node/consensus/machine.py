"""One height of the ledger, as one member lives it: events in, actions out, nothing that waits (PROTOCOL §3).

`RoundMachine` decides when contributions are enough, what goes into this node's candidate, which candidates are
acceptable, and passes votes through `chain.finality`. `node.consensus.service` carries the actions out and owns every
socket, clock, disk and process. The same events give the same actions.

    TRAIN ──► COLLECT ──► MINE ──► VOTE ──► (finalised)      votes and collecting go on in every phase
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from chain import codec, finality
from chain.block import Block, Certificate, Contribution, Id, Vote
from chain.genesis import Genesis
from node.consensus.actions import (
    Absence,
    Accuse,
    Accused,
    Action,
    AggregateComputed,
    CandidateRefused,
    CandidateSeen,
    CandidateValidated,
    CastVote,
    CheckCandidate,
    ClockTimer,
    CollectTimer,
    ComputeAggregate,
    ContributionSeen,
    CrossingTimer,
    Event,
    FetchBlock,
    FetchPayloads,
    Finalise,
    Halt,
    MemberAbstains,
    MemberAlive,
    Mine,
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
from node.consensus.credit import VainWait
from node.p2p.refusals import Reason

FUTURE_MS = 2_000  # how far a candidate's time may be ahead of the clock to be acceptable in view 0 (PROTOCOL §3)
EARLY_MS = 10_000  # and to be valid at all: one that is further ahead is held until its time comes, never refused
LOOK_S = 1.0  # between two looks at what is held, at most: clocks are set
MAX_CANDIDATES_PER_MINER = 2  # the second is evidence (I6); more only where votes name them


class RoundMachine:
    """The rules of one height for one node, on a parent of the time `parent_ms`.

    `awaited` are the members worth waiting for, `collect_s` at most (genesis' own by default): the parent's authors,
    and those seen alive since, but for the `overdrawn`, whose credit is used up. `accused` are the authors with
    evidence, left out of the body built here. `me` is None for an observer. A member that does not contribute
    (`contributes`) collects, mines and votes like any other. `crossing_s` is for how long a candidate that nobody is
    missing from waits for others that may cross it.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        me: Id | None,
        height: int,
        parent_ms: int,
        awaited: Collection[Id],
        overdrawn: Collection[Id] = (),
        accused: Collection[Id] = (),
        mine: bool = True,
        contributes: bool = True,
        collect_s: float | None = None,
        crossing_s: float = 0.0,
    ) -> None:
        self.height = height
        self.refused: dict[Id, str] = {}  # authors whose payloads did not fit, and why
        self._genesis = genesis
        self._parent_ms = parent_ms
        self._collect_s = genesis.waits.collect_s if collect_s is None else collect_s
        self._me = me
        self._mines = mine and me is not None
        self._contributes = contributes and me is not None
        self._overdrawn = frozenset(overdrawn)
        self._awaited = {
            member
            for member in awaited
            if member in genesis.member_ids and member not in self._overdrawn and (contributes or member != me)
        }
        self._abstaining: set[Id] = set()  # others that are not to be waited for, as they say
        self._accused = set(accused)
        self._contributions: dict[Id, Contribution] = {}
        self._verified_at_s: dict[Id, float] = {}
        self._collecting_s: float | None = None  # since when the q-th contribution is verified, and its timer runs
        self._waited_s: dict[Id, float] = {}  # in vain, by member, in waits that have ended
        self._cutoff_s: float | None = None
        self._body: tuple[Contribution, ...] = ()
        self._candidates: dict[Id, Block] = {}
        self._recomputed: set[Id] = set()  # candidates that are valid, once their time has come
        self._early: set[Id] = set()  # of these, those that the clock still speaks against
        self._look_at_s = inf  # when they are looked at again
        self._refusals: dict[Id, CandidateRefused] = {}
        self._objections: dict[Id, Objection] = {}
        self._wanted: set[Id] = set()  # blocks that votes name and that were asked for
        self._crossing_s = crossing_s
        self._crossed = crossing_s <= 0  # what crosses the first candidate is here
        self._first_s: float | None = None  # when the first acceptable candidate was
        self._last_s = 0.0  # and the newest valid one
        self._satisfied = False  # an acceptable candidate is here: mining on would only split the vote
        self._mining = False
        self._finalised = False
        self._voting = finality.Voting(
            height=height, members=genesis.member_ids, quorum=genesis.q, me=me, waits=genesis.waits
        )

    # ---- what others may ask

    @property
    def phase(self) -> RoundPhase:
        if self._finalised:
            return RoundPhase.DONE
        if self._contributes and self._me not in self._contributions:
            return RoundPhase.TRAIN
        if self._mining:
            return RoundPhase.MINE
        return RoundPhase.COLLECT if self._cutoff_s is None else RoundPhase.VOTE

    @property
    def contributes(self) -> bool:
        """Whether others have reason to await this node's contribution."""
        return self._contributes

    @property
    def abstains(self) -> bool:
        """Whether others need not wait for this node's contribution, since there will be none."""
        return self._me is not None and not self._contributes

    @property
    def view(self) -> int:
        return self._voting.view

    @property
    def is_cut_off(self) -> bool:
        """Whether the body of this node's candidate is fixed."""
        return self._cutoff_s is not None

    @property
    def is_satisfied(self) -> bool:
        """Whether there is a candidate to prevote, so that nobody need mine any more."""
        return self._satisfied

    @property
    def contributions(self) -> Mapping[Id, Contribution]:
        """By author, the first seen of each."""
        return self._contributions

    @property
    def verified(self) -> Collection[Id]:
        return self._verified_at_s.keys()

    @property
    def candidates(self) -> Mapping[Id, Block]:
        return self._candidates

    @property
    def objections(self) -> Mapping[Id, Objection]:
        """By candidate, why it is not one to prevote in view 0, or at all."""
        return self._objections

    def has_room(self, thing: Contribution | Block | Vote) -> bool:
        """Whether this would be taken in, were it authentic: of an author whose two contributions are evidence against
        it no third one is, of a miner no third candidate, and votes are bounded by the book they go into."""
        match thing:
            case Contribution(author=author):
                return author not in self._accused or author not in self._contributions
            case Block():
                return self._has_room_for(thing)
            case Vote():
                return True

    def _has_room_for(self, block: Block) -> bool:
        """Two of each miner are (I6), and whatever the votes have asked for: a miner that made three must not be able
        to leave its quorum without the one that was locked. Votes ask for a proposal once a view, so this stays small.
        """
        if block.id in self._wanted:
            return True
        rivals = sum(other.header.miner == block.header.miner for other in self._candidates.values())
        return rivals < MAX_CANDIDATES_PER_MINER

    def explain_left_out(self, block: Block) -> dict[Id, str]:
        """Of each member that this final block has no contribution of, why that may be, as this node has seen it."""
        authors = {contribution.author for contribution in block.contributions}
        return {member: self._explain_absence(member) for member in self._genesis.member_ids if member not in authors}

    def _explain_absence(self, member: Id) -> str:
        if member not in self._contributions:
            is_known = member in self._abstaining or (member == self._me and not self._contributes)
            return Absence.ABSTAINED if is_known else Absence.NOT_SENT
        if member in self.refused:
            return self.refused[member]
        if member not in self._verified_at_s:
            return Absence.NOT_FETCHED
        if member in self._accused:
            return Absence.SIGNED_TWICE
        return Absence.LATE

    def explain_not_awaited(self, member: Id) -> str:
        """Why nobody need wait for a member at this height, as far as the height itself shows it."""
        if member in self._accused:
            return Absence.SIGNED_TWICE
        if member in self.refused:
            return self.refused[member]
        return Absence.ABSTAINED if member in self._abstaining else Absence.NOT_HEARD

    @property
    def awaited(self) -> frozenset[Id]:
        return frozenset(self._awaited - self._accused)

    @property
    def voting(self) -> finality.Voting:
        return self._voting

    # ---- events

    def on(self, event: Event, now: Now) -> list[Action]:
        """Apply one event and say what to do about it. After the height is finalised nothing more happens."""
        if self._finalised:
            return []
        match event:
            case Started():
                return self._on_started(event, now)
            case ContributionSeen(contribution):
                return self._on_contribution(contribution, now)
            case PayloadsVerified(contribution):
                return self._on_payloads_verified(contribution, now)
            case PayloadsRefused(contribution, reason):
                return self._on_payloads_refused(contribution, reason, now)
            case MemberAlive(member):
                return self._on_alive(member)
            case MemberAbstains(member):
                return self._on_abstains(member, now)
            case Resumed():
                return self._on_resumed()
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
            case CandidateRefused(block, reason):
                self._objections[block.id] = Objection(event.kind, reason)
                self._refusals[block.id] = event
                return self._follow_certificate()
            case VoteSeen(vote):
                return self._from_voting(self._voting.on_vote(vote), now)
            case Accused(member):
                return self._leave_out(member, now)
            case TimerFired(timer):
                match timer:
                    case CollectTimer():
                        return self._on_collect_timer(now)
                    case ClockTimer():
                        return self._on_clock_timer(now)
                    case CrossingTimer():
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
            self._contributes = self._me is not None
            actions += self._on_contribution(event.contribution, now)
        return actions

    # ---- COLLECT

    def _on_contribution(self, contribution: Contribution, now: Now) -> list[Action]:
        author = contribution.author
        if author not in self._contributions:
            self._contributions[author] = contribution
            return [FetchPayloads(contribution)]
        return self._compare(contribution, now)

    def _compare(self, contribution: Contribution, now: Now) -> list[Action]:
        """An authentic contribution that says something else than its author's first one is evidence."""
        known = self._contributions.get(contribution.author)
        if known is None or known == contribution:
            return []
        if codec.contribution_fields(known) == codec.contribution_fields(contribution):  # signed anew
            return []
        return self._accuse(contribution.author, known, contribution, now)

    def _on_payloads_verified(self, contribution: Contribution, now: Now) -> list[Action]:
        author = contribution.author
        if self._contributions.get(author) != contribution or author in self._verified_at_s:
            return []
        self._verified_at_s[author] = now.monotonic_s
        actions: list[Action] = []
        if len(self._eligible()) >= self._genesis.q and self._collecting_s is None and self._cutoff_s is None:
            self._collecting_s = now.monotonic_s
            actions.append(StartTimer(CollectTimer(), self._collect_s))
        if self._has_all_awaited():
            actions += self._cut_off(now)
        return actions

    def _on_payloads_refused(self, contribution: Contribution, reason: str, now: Now) -> list[Action]:
        self.refused[contribution.author] = reason
        return self._stop_awaiting(contribution.author, now)

    def _on_alive(self, member: Id) -> list[Action]:
        if member in self._genesis.member_ids and member not in self.refused:
            self._abstaining.discard(member)
            if member not in self._overdrawn:
                self._awaited.add(member)
        return []

    def _on_abstains(self, member: Id, now: Now) -> list[Action]:
        if member not in self._genesis.member_ids or member in self._contributions:
            return []
        self._abstaining.add(member)
        return self._stop_awaiting(member, now)

    def _on_resumed(self) -> list[Action]:
        if self._me is None:
            return []
        self._contributes = True
        return self._on_alive(self._me)

    def _on_training_failed(self, now: Now) -> list[Action]:
        self._contributes = False
        return self._stop_awaiting(self._me, now) if self._me is not None else []

    def _stop_awaiting(self, member: Id, now: Now) -> list[Action]:
        self._give_up(member, now)
        self._awaited.discard(member)
        return self._cut_off(now) if self._has_all_awaited() else []

    def _on_collect_timer(self, now: Now) -> list[Action]:
        """Long enough. Where evidence has since left too few, the wait starts anew with the next q-th."""
        self._end_wait(now)
        return self._cut_off(now)

    def _give_up(self, member: Id, now: Now) -> None:
        """Notes how long was waited for one that is not awaited any more."""
        waited_s = self._get_waited_s(now)
        if member in waited_s:
            self._waited_s[member] = waited_s[member]

    def _end_wait(self, now: Now) -> None:
        self._waited_s = self._get_waited_s(now)
        self._collecting_s = None

    def _get_waited_s(self, now: Now) -> dict[Id, float]:
        """For whom more was waited than for the q-th contribution, until now, and did not come then."""
        waited_s = dict(self._waited_s)
        if self._collecting_s is not None:
            for member in self._get_missing():
                waited_s[member] = waited_s.get(member, 0.0) + now.monotonic_s - self._collecting_s
        return waited_s

    def _get_missing(self) -> set[Id]:
        """Others that are still awaited."""
        return self._awaited - self._accused - self._verified_at_s.keys() - {self._me}

    def get_vain_waits(self, block: Block, now: Now) -> dict[Id, VainWait]:
        """For whom was waited in vain at this height, which ends with `block`."""
        authors = {contribution.author for contribution in block.contributions}
        return {
            member: VainWait(min(1.0, waited_s / self._collect_s), self._explain_absence(member))
            for member, waited_s in self._get_waited_s(now).items()
            if member not in authors and waited_s > 0
        }

    def _eligible(self) -> set[Id]:
        """Authors whose contribution may go into the body built here."""
        return self._verified_at_s.keys() - self._accused

    def _has_all_awaited(self) -> bool:
        eligible = self._eligible()
        return len(eligible) >= self._genesis.q and eligible >= self._awaited - self._accused

    def _cut_off(self, now: Now) -> list[Action]:
        """Fix the body: everyone verified by now, without the accused."""
        eligible = self._eligible()
        if self._cutoff_s is not None or len(eligible) < self._genesis.min_contributions:
            return []
        self._end_wait(now)
        self._cutoff_s = now.monotonic_s
        self._body = tuple(self._contributions[author] for author in sorted(eligible))
        if not self._mines or self._satisfied:
            return []
        self._mining = True
        return [ComputeAggregate(self._body)]

    # ---- MINE

    def _on_aggregate(self, digest: bytes) -> list[Action]:
        return [Mine(self._body, digest)] if self._mining else []

    def _on_mined(self, block: Block, now: Now) -> list[Action]:
        self._mining = False
        self._candidates[block.id] = block
        return self._on_validated(block, now)

    def _stop_mining(self) -> list[Action]:
        if not self._mining:
            return []
        self._mining = False
        return [StopMining()]

    # ---- VOTE

    def _on_candidate(self, block: Block, now: Now) -> list[Action]:
        if block.id in self._candidates:
            return []
        actions: list[Action] = []
        for contribution in block.contributions:
            actions += self._compare(contribution, now)
        rival = next((other for other in self._candidates.values() if other.header.miner == block.header.miner), None)
        if rival is not None:
            actions += self._accuse(block.header.miner, rival, block, now)
        if self._has_room_for(block):
            self._candidates[block.id] = block
            actions.append(CheckCandidate(block))
        return actions

    def _on_validated(self, block: Block, now: Now) -> list[Action]:
        self._recomputed.add(block.id)
        return self._judge(block, now)

    def _judge(self, block: Block, now: Now) -> list[Action]:
        """Takes a recomputed candidate into the vote once its time has come, and holds it until then. What hangs on a
        clock is looked at again, never refused: two could else lock on a block that a third refuses for ever."""
        self._objections.pop(block.id, None)  # its blobs have come since, or its time
        self._early.discard(block.id)
        objection = self._find_objection(block, now)
        actions: list[Action] = []
        if objection is not None:
            self._objections[block.id] = objection
            if objection.kind is Reason.CLOCK:
                self._early.add(block.id)
                actions += self._look_again(block, now)
        if self._is_held(block, now):
            return actions + self._follow_certificate()
        self._last_s = now.monotonic_s
        if objection is None:
            if self._first_s is None:
                self._first_s = now.monotonic_s
                if not self._crossed:
                    actions.append(StartTimer(CrossingTimer(), self._crossing_s))
            self._satisfied = True
            actions += self._stop_mining()
        return actions + self._put_to_vote(block, objection is None, now)

    def _put_to_vote(self, block: Block, acceptable: bool, now: Now) -> list[Action]:
        complete = self._crossed and self._is_complete(block)
        voting = self._voting.on_candidate(block.id, acceptable=acceptable, complete=complete)
        return self._from_voting(voting, now)

    def _on_crossing_timer(self, now: Now) -> list[Action]:
        """The best of the candidates that nobody is missing from, if there is one, is prevoted now."""
        self._crossed = True
        acceptable = [block_id for block_id in self._recomputed if block_id not in self._objections]
        actions: list[Action] = []
        for block_id in sorted(acceptable):
            if not self._finalised:
                actions += self._put_to_vote(self._candidates[block_id], True, now)
        return actions

    @property
    def apart_s(self) -> float | None:
        """How long after the first acceptable candidate the newest one was here; None where there was none."""
        return None if self._first_s is None else max(0.0, self._last_s - self._first_s)

    def _is_held(self, block: Block, now: Now) -> bool:
        """Whether its time is too far ahead for it to be valid yet. A time that the parent forces never is."""
        time_ms = block.header.time_ms
        return time_ms > self._parent_ms + 1 and time_ms > now.wall_ms + EARLY_MS

    def _look_again(self, block: Block, now: Now) -> list[Action]:
        """A timer for when its time comes, unless one runs that fires before."""
        limit_ms = EARLY_MS if self._is_held(block, now) else FUTURE_MS
        after_s = min(LOOK_S, (block.header.time_ms - limit_ms - now.wall_ms) / 1000)
        if now.monotonic_s + after_s >= self._look_at_s:
            return []
        self._look_at_s = now.monotonic_s + after_s
        return [StartTimer(ClockTimer(), after_s)]

    def _on_clock_timer(self, now: Now) -> list[Action]:
        self._look_at_s = inf
        actions: list[Action] = []
        for block_id in sorted(self._early):
            if not self._finalised:
                actions += self._judge(self._candidates[block_id], now)
        return actions

    def _is_complete(self, block: Block) -> bool:
        """Whether it may be prevoted at once, since nobody is missing: if candidates cross, the votes of all settle it.

        With a member away only its silence is left between a split vote and its timers, so Delta is well spent on
        seeing the other candidates first: the best of them is then everybody's.
        """
        authors = {contribution.author for contribution in block.contributions}
        # These vote, whatever became of their contributions.
        here = self._accused | self.refused.keys() | self._abstaining | {self._me}
        return authors >= set(self._genesis.member_ids) - here

    def _find_objection(self, block: Block, now: Now) -> Objection | None:
        """View 0's subjective rule: no time ahead of the clock, no author left out that I had in good time."""
        ahead_ms = block.header.time_ms - max(now.wall_ms, self._parent_ms + 1)
        if ahead_ms > FUTURE_MS:
            return Objection(Reason.CLOCK, f"its time is {ahead_ms / 1000:.1f} s ahead of the clock here")
        reference_s = now.monotonic_s if self._cutoff_s is None else self._cutoff_s
        in_time_s = reference_s - 2 * self._genesis.waits.delta_s
        expected = {author for author, at_s in self._verified_at_s.items() if at_s <= in_time_s} - self._accused
        missing = expected - {contribution.author for contribution in block.contributions}
        if not missing:
            return None
        names = ", ".join(
            self._genesis.members[self._genesis.member_ids.index(author)].name for author in sorted(missing)
        )
        return Objection(Reason.LEAVES_OUT, f"it leaves out {names}, in time here")

    def _accuse(
        self, author: Id, first: Contribution | Block | Vote, second: Contribution | Block | Vote, now: Now
    ) -> list[Action]:
        return [Accuse(codec.make_evidence(first, second), author), *self._leave_out(author, now)]

    def _leave_out(self, author: Id, now: Now) -> list[Action]:
        """From now on this node neither awaits the author nor takes it into a body."""
        self._give_up(author, now)
        self._accused.add(author)
        return self._cut_off(now) if self._has_all_awaited() else []

    def _from_voting(self, decided: Sequence[finality.Action], now: Now) -> list[Action]:
        actions: list[Action] = []
        for action in decided:
            match action:
                case finality.Cast():
                    actions.append(CastVote(action, self._candidates.get(action.block_id)))
                case finality.StartTimer(timer, after_s):
                    actions.append(StartTimer(timer, after_s))
                case finality.FetchBlock(block_id):
                    self._wanted.add(block_id)
                    if block_id not in self._candidates:
                        actions.append(FetchBlock(block_id))
                case finality.Equivocation(first, second):
                    actions += self._accuse(first.voter, first, second, now)
                case finality.Finalise(block_id, certificate):
                    actions += self._finalise(block_id, certificate)
        return actions + self._follow_certificate()

    def _follow_certificate(self) -> list[Action]:
        """A certificate suffices, whatever the clock here says. Whoever cannot get the blobs follows it too, and audits
        when they arrive."""
        certified = self._voting.certified
        if self._finalised or certified is None:
            return []
        if certified[0] in self._recomputed:
            return self._finalise(*certified)
        refusal = self._refusals.get(certified[0])
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
        finalise = Finalise(self._candidates[block_id], certificate, audited=block_id in self._recomputed)
        return [*self._stop_mining(), finalise]
