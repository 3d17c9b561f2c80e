"""The vote on one height (PROTOCOL §4): events in, actions out; no clock, no network, no disk, no signatures.

Proof of work proposes blocks; this decides which one is final. Every member prevotes, precommits what a quorum has
prevoted, and is locked on it from then on; q precommits for one block in one view are its certificate. Whoever drives
a `Voting` checks signatures before `on_vote`, validates blocks before `on_candidate`, and carries out the actions
in their order. A `Cast` is carried out in four steps: for a non-nil precommit make the block and the justification
durable; make the signed row durable (on conflict take the stored row instead); send it, after the justification where
there is one; feed it back through `on_vote`. A vote counts, also here, only once it is fed back.

Safety is Tendermint's argument (Buchman, Kwon, Milosevic 2018, "The latest gossip on BFT consensus"): it needs
2q - n > f and that no member ever signs two votes for one (height, view, phase).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from chain.block import ZERO, Certificate, Id, Phase, Vote
from chain.votes import Slot, VoteSet
from chain.waits import Waits


class TimerKind(Enum):
    GRACE = "grace"  # view 0: an acceptable candidate is here, a better or fuller one may be on its way
    PROPOSE = "propose"  # at its end, prevote nil
    PREVOTE = "prevote"  # at its end, precommit nil
    PRECOMMIT = "precommit"  # at its end, enter the next view


class Step(IntEnum):
    """The next step that this member takes in its view."""

    PREVOTE = 1
    PRECOMMIT = 2
    WAIT = 3


@dataclass(frozen=True, slots=True)
class Timer:
    kind: TimerKind
    view: int


@dataclass(frozen=True, slots=True)
class Cast:
    """Asks the driver to sign and send this vote. `justification` holds the q prevotes behind a non-nil precommit or
    behind a proposal."""

    phase: Phase
    view: int
    block_id: Id
    justification: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    after_s: float


@dataclass(frozen=True, slots=True)
class Finalise:
    block_id: Id
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class FetchBlock:
    """Asks the driver to fetch a block that others vote for and that is not held here."""

    block_id: Id


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Two votes of one member for one slot: evidence against it."""

    first: Vote
    second: Vote


Action = Cast | StartTimer | Finalise | FetchBlock | Equivocation


@dataclass(frozen=True, slots=True)
class _Candidate:
    acceptable: bool
    complete: bool


class Voting:
    """One member's part in the vote on one height; `me` is None for an observer, which follows the vote and never
    votes.

    `coordinators` are the members whose prevotes are proposals, one view each in turn: all members, unless some are
    suspended.
    """

    def __init__(
        self,
        *,
        height: int,
        members: tuple[Id, ...],
        quorum: int,
        me: Id | None,
        waits: Waits,
        coordinators: tuple[Id, ...] | None = None,
    ) -> None:
        self.height = height
        self.members = members
        self._coordinators = coordinators or members
        self.quorum = quorum
        self.me = me
        self.view = 0
        self.step = Step.PREVOTE
        self.lock: tuple[int, Id] | None = None
        self.valid: tuple[int, Id] | None = None
        self.certified: tuple[Id, Certificate] | None = None
        self.finalised: Id | None = None
        self._waits = waits
        self._index = {member: i for i, member in enumerate(members)}
        self._candidates: dict[Id, _Candidate] = {}
        self._book = VoteSet()
        self._polkas: dict[Id, tuple[Vote, ...]] = {}  # block -> its prevotes in the latest view that gave it a quorum
        self._started: set[TimerKind] = set()  # in this view
        self._asked: set[Id] = set()
        self._actions: list[Action] = []

    def __repr__(self) -> str:
        return (
            f"Voting(height={self.height}, view={self.view}, step={self.step.name}, locked={self.lock is not None}, "
            f"finalised={self.finalised is not None})"
        )

    # Events. Each returns the actions that follow; there are none once the block is final.

    def start(self) -> list[Action]:
        """Starts a fresh height, at which this member has signed nothing yet."""
        return self._settle()

    def resume(self, own_votes: Sequence[Vote], justification: Sequence[Vote]) -> list[Action]:
        """Restores the vote after a restart from the stored votes; it is called instead of `start`. The driver sends
        the own votes again.

        The driver passes the stored blocks to `on_candidate` afterwards. The view is then the highest one signed, the
        step follows the votes signed in it, and lock = valid = the latest non-nil precommit (PROTOCOL §4, "Durable
        before signed").
        """
        for vote in (*own_votes, *sorted(justification, key=lambda vote: vote.view)):
            self._hold(vote)
        return self._settle()

    def on_candidate(self, block_id: Id, *, acceptable: bool, complete: bool) -> list[Action]:
        """Accepts a valid block. The driver calls it again when `acceptable` or `complete` changes.

        Both matter in view 0 only. `complete` means that the block has contributions of all awaited authors. The driver
        bounds how many candidates there are (two per miner, I6).
        """
        self._candidates[block_id] = _Candidate(acceptable, complete)
        self._raise_valid(block_id)
        return self._settle()

    def on_vote(self, vote: Vote) -> list[Action]:
        """Accepts a vote for this height whose signature was checked, also an own one. A stranger's vote is ignored."""
        if vote.voter in self._index:
            self._hold(vote)
        return self._settle()

    def on_timer(self, timer: Timer) -> list[Action]:
        """Handles a timer that ran out. A timer of a view or a step that has passed is ignored."""
        if timer.view == self.view and self.finalised is None and self.certified is None:
            self._expire(timer.kind)
        return self._settle()

    # Questions, for Status and its repair (PROTOCOL §5).

    def get_coordinator(self, view: int) -> Id:
        return self._coordinators[(self.height + view) % len(self._coordinators)]

    def get_votes(self) -> tuple[Vote, ...]:
        """Returns all votes worth sending to a peer that lacks them."""
        return self.get_missing({})

    def get_bitmaps(self) -> tuple[tuple[int, Phase, int], ...]:
        """Returns (view, phase, bitmap) for each phase of each view in which at least one vote is held."""
        return tuple((view, phase, self.vote_bitmap(view, phase)) for view, phase in sorted(self._book.get_slots()))

    def get_missing(self, bitmaps: Mapping[Slot, int]) -> tuple[Vote, ...]:
        """Returns the votes of `get_votes` that a peer lacks which holds only the votes in `bitmaps`."""
        missing = (
            vote
            for vote in itertools.chain(self.get_proof(), self._book.get_all())
            if not bitmaps.get((vote.view, vote.phase), 0) >> self._index[vote.voter] & 1
        )
        return tuple(dict.fromkeys(missing))

    def get_proof(self) -> tuple[Vote, ...]:
        """Returns the q prevotes behind the valid block, or none if there is no such block."""
        return self._polkas.get(self.valid[1], ()) if self.valid else ()

    def vote_bitmap(self, view: int, phase: Phase) -> int:
        """Returns a bitmap whose bit i is set when a vote of member i in this phase of this view is held."""
        bitmap = 0
        for vote in self._book.get_votes(view, phase):
            bitmap |= 1 << self._index[vote.voter]
        return bitmap

    # Received votes.

    def _hold(self, vote: Vote) -> None:
        if self.certified is not None:
            return
        rivals = self._book.get_slot(vote)
        if not self._book.add(vote):
            return
        if len(rivals) == 1:
            self._actions.append(Equivocation(rivals[0], vote))
        if vote.voter == self.me:
            self._follow_own_vote(vote)
        if vote.block_id != ZERO:
            self._weigh(vote)

    def _follow_own_vote(self, vote: Vote) -> None:
        """Sets view, step and lock by a vote that this member signed, before or after a restart: a signed vote binds
        it."""
        if vote.view > self.view:
            self._enter(vote.view)
        if vote.view == self.view:
            self.step = max(self.step, Step.PRECOMMIT if vote.phase is Phase.PREVOTE else Step.WAIT)
        is_locking = vote.phase is Phase.PRECOMMIT and vote.block_id != ZERO
        if is_locking and (self.lock is None or vote.view >= self.lock[0]):
            self.lock = (vote.view, vote.block_id)
            if self.valid is None or vote.view >= self.valid[0]:
                self.valid = self.lock

    def _weigh(self, vote: Vote) -> None:
        """Acts on a quorum for the block of this vote, in whatever view, if the vote has completed one."""
        if self._book.get_tally(vote.view, vote.phase).get(vote.block_id, 0) < self.quorum:
            return
        if vote.phase is Phase.PRECOMMIT:
            self._certify(self._book.get_votes_for(vote.view, vote.phase, vote.block_id))
        else:
            self._note_polka(vote.view, vote.block_id)
        self._fetch(vote.block_id)

    def _note_polka(self, view: int, block_id: Id) -> None:
        known = self._polkas.get(block_id)
        if known is None or known[0].view < view:
            self._polkas[block_id] = self._book.get_votes_for(view, Phase.PREVOTE, block_id)
            self._raise_valid(block_id)

    def _raise_valid(self, block_id: Id) -> None:
        """§4 precommit: sets `valid` to this block if it is held and q prevoted it in a later view than that of
        `valid`."""
        prevotes = self._polkas.get(block_id)
        if prevotes is None or block_id not in self._candidates:
            return
        if self.valid is None or prevotes[0].view > self.valid[0]:
            self.valid = (prevotes[0].view, block_id)

    def _certify(self, precommits: tuple[Vote, ...]) -> None:
        """§4 finalise: makes the certificate from q precommits for one block in one view. Only the block itself may
        still be missing."""
        signatures = sorted((self._index[vote.voter], vote.signature) for vote in precommits)
        self.certified = (precommits[0].block_id, Certificate(precommits[0].view, tuple(signatures)))

    def _fetch(self, block_id: Id) -> None:
        if block_id not in self._candidates and block_id not in self._asked:
            self._asked.add(block_id)
            self._actions.append(FetchBlock(block_id))

    # The rules of §4 are tried until none applies; each returns whether it changed the view or the step.

    def _settle(self) -> list[Action]:
        rules = (self._jump, self._prevote, self._precommit, self._leave_view)
        while self.certified is None and any(rule() for rule in rules):
            pass
        if self.certified is None:
            self._start_timers()
        else:
            self._finalise(*self.certified)
        actions, self._actions = self._actions, []
        return actions

    def _finalise(self, block_id: Id, certificate: Certificate) -> None:
        if self.finalised is None and block_id in self._candidates:
            self.finalised = block_id
            self._actions.append(Finalise(block_id, certificate))

    def _jump(self) -> bool:
        """§4 next view: enters a higher view if n-q+1 distinct members are there or beyond, as at least one of them is
        honest."""
        if self._book.get_highest_view() <= self.view:
            return False
        views = sorted((vote.view for vote in self._book.latest.values()), reverse=True)
        enough = len(self.members) - self.quorum + 1
        if len(views) < enough or views[enough - 1] <= self.view:
            return False
        self._enter(views[enough - 1])
        return True

    def _prevote(self) -> bool:
        if self.step is not Step.PREVOTE:
            return False
        choice, proof = self._choose_first() if self.view == 0 else self._choose_later()
        if choice is None:
            return False
        self._cast_prevote(choice, proof)
        return True

    def _choose_first(self) -> tuple[Id | None, tuple[Vote, ...]]:
        """§4 prevote, view 0: returns an acceptable candidate with all awaited authors, without waiting for a timer."""
        full = (block_id for block_id, held in self._candidates.items() if held.acceptable and held.complete)
        return min(full, default=None), ()

    def _choose_later(self) -> tuple[Id | None, tuple[Vote, ...]]:
        """§4 prevote, view v > 0: returns the block that the coordinator proposes by its prevote."""
        coordinator = self.get_coordinator(self.view)
        return self._choose_proposal() if coordinator == self.me else (self._choose_proposed(coordinator), ())

    def _choose_proposal(self) -> tuple[Id | None, tuple[Vote, ...]]:
        """Returns the block that this member proposes: the valid block if there is one, with its prevotes, which may
        free members that are locked on another block; else the best candidate, an acceptable one if there is any."""
        if self.valid is None:
            return self._get_best_acceptable() or min(self._candidates, default=None), ()
        block_id = self.valid[1]
        return (block_id, self._polkas.get(block_id, ())) if block_id in self._candidates else (None, ())

    def _choose_proposed(self, coordinator: Id) -> Id | None:
        """Returns the block that another coordinator proposes, if it is valid here and this member's lock allows it."""
        for vote in self._book.get_votes(self.view, Phase.PREVOTE):
            if vote.voter == coordinator and vote.block_id != ZERO:
                self._fetch(vote.block_id)
                if vote.block_id in self._candidates and self._is_free_for(vote.block_id):
                    return vote.block_id
        return None

    def _is_free_for(self, block_id: Id) -> bool:
        """Says whether the lock allows this block: there is no lock, it is on this block, or a quorum prevoted this
        block after it."""
        if self.lock is None or self.lock[1] == block_id:
            return True
        prevotes = self._polkas.get(block_id)
        return prevotes is not None and prevotes[0].view > self.lock[0]

    def _precommit(self) -> bool:
        """§4 precommit: precommits the block that q members prevoted in this view; nil if q prevoted nil, or, early, if
        no block can reach a quorum any more."""
        if self.step is Step.WAIT:
            return False
        tally = self._book.get_tally(self.view, Phase.PREVOTE)
        for block_id in tally:
            if block_id != ZERO and tally[block_id] >= self.quorum and block_id in self._candidates:
                self._lock(block_id)
                return True
        if self._is_lost(Phase.PREVOTE, tally):
            self._cast_precommit(ZERO)
            return True
        return False

    def _lock(self, block_id: Id) -> None:
        self.lock = (self.view, block_id)  # and valid has been raised to it already
        self._cast_precommit(block_id, self._book.get_votes_for(self.view, Phase.PREVOTE, block_id))

    def _leave_view(self) -> bool:
        """§4 next view: enters the next view after q nil precommits, or once no block can be certified in this view any
        more."""
        if not self._is_lost(Phase.PRECOMMIT, self._book.get_tally(self.view, Phase.PRECOMMIT)):
            return False
        self._enter(self.view + 1)
        return True

    def _is_lost(self, phase: Phase, tally: Mapping[Id, int]) -> bool:
        """§4 early: says whether q members voted nil, or no block could reach a quorum even with the votes of all
        silent members.

        The second holds only once votes of q members have arrived, as with the timers: n-q+1 nil votes leave no block a
        quorum, and members of that number that are cut off from the others would go from view to view on them.
        """
        if tally.get(ZERO, 0) >= self.quorum:
            return True
        silent = len(self.members) - self._book.count_voters(self.view, phase)
        best = max((count for block_id, count in tally.items() if block_id != ZERO), default=0)
        return best + silent < self.quorum <= self._book.count_reached(self.view, phase)

    def _enter(self, view: int) -> None:
        self.view = view
        self.step = Step.PREVOTE
        self._started.clear()
        self._asked &= self._polkas.keys()
        self._book.move(view)

    def _cast_prevote(self, block_id: Id, justification: tuple[Vote, ...] = ()) -> None:
        self.step = Step.PRECOMMIT
        self._cast(Cast(Phase.PREVOTE, self.view, block_id, justification))

    def _cast_precommit(self, block_id: Id, justification: tuple[Vote, ...] = ()) -> None:
        self.step = Step.WAIT
        self._cast(Cast(Phase.PRECOMMIT, self.view, block_id, justification))

    def _cast(self, cast: Cast) -> None:
        if self.me is not None:
            self._actions.append(cast)

    # Timers.

    def _start_timers(self) -> None:
        """Starts the timers of §4. The vote timers wait for votes of q members, so that members cut off from the others
        do not go from view to view.

        A member that has reached a later phase or view counts as well: it may have skipped this view and never vote in
        it, and the members in this view must not wait for it.
        """
        if self.step is Step.PREVOTE and self._candidates:
            self._start(TimerKind.PROPOSE, self._waits.compute_propose_s(self.view))
            if self.view == 0 and TimerKind.GRACE not in self._started and self._get_best_acceptable() is not None:
                self._start(TimerKind.GRACE, self._waits.delta_s)
        if self.step is not Step.WAIT and self._book.count_reached(self.view, Phase.PREVOTE) >= self.quorum:
            self._start(TimerKind.PREVOTE, self._waits.compute_vote_s(self.view))
        if self._book.count_reached(self.view, Phase.PRECOMMIT) >= self.quorum:
            self._start(TimerKind.PRECOMMIT, self._waits.compute_vote_s(self.view))

    def _start(self, kind: TimerKind, after_s: float) -> None:
        if kind not in self._started:
            self._started.add(kind)
            self._actions.append(StartTimer(Timer(kind, self.view), after_s))

    def _expire(self, kind: TimerKind) -> None:
        if kind is TimerKind.GRACE and self.step is Step.PREVOTE:
            best = self._get_best_acceptable()
            if best is not None:
                self._cast_prevote(best)
        elif kind is TimerKind.PROPOSE and self.step is Step.PREVOTE:
            self._cast_prevote(ZERO)
        elif kind is TimerKind.PREVOTE and self.step is not Step.WAIT:
            self._cast_precommit(ZERO)
        elif kind is TimerKind.PRECOMMIT:
            self._enter(self.view + 1)

    def _get_best_acceptable(self) -> Id | None:
        return min((block_id for block_id, held in self._candidates.items() if held.acceptable), default=None)
