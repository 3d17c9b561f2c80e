"""The contributions of one height, and the wait for those that are missing (PROTOCOL §3).

A member is awaited while it may still send a contribution that is worth waiting for. A timer starts when a quorum of
contributions is verified, or at least `min_contributions` if no more can come. The body of this node's candidate is
fixed when all awaited members are verified, or when the timer fires. A member's credit is charged with the time that
was waited for it in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from chain import codec
from chain.block import Block, Contribution, Id
from chain.state import State
from node.consensus.height.actions import Absence, Now
from node.consensus.height.credit import VainWait


class Collecting:
    """Collects the contributions of one height for one member; `me` is None for an observer.

    `awaited` are the members that are worth waiting for: the parent's authors, and members that are at work on this
    height, without the `overdrawn`, whose credit is used up. The wait takes at most `collect_s` (by default the state's
    own). `accused` are authors against whom there is evidence; the body leaves them out. `contributes` says whether
    this node contributes.

    `is_empty` says whether a contribution of a run of masked sums is empty. While enough members of `may_give` may
    still send one that is not, only those count towards the quorum that starts the timer. Otherwise a member that sends
    an empty one at once would have the slower ones left out.
    """

    def __init__(
        self,
        state: State,
        me: Id | None,
        *,
        awaited: Collection[Id],
        overdrawn: Collection[Id] = (),
        accused: Collection[Id] = (),
        contributes: bool = True,
        collect_s: float | None = None,
        is_empty: Callable[[Contribution], bool] | None = None,
        may_give: Collection[Id] = (),
    ) -> None:
        self._is_empty = is_empty
        self._may_give = frozenset(may_give)
        self.contributes = contributes and me is not None
        self.contributions: dict[Id, Contribution] = {}  # by author, the first seen of each
        self.refused: dict[Id, str] = {}  # authors whose payloads did not fit, and why
        self.accused = set(accused)
        self.collect_s = state.rules.waits.collect_s if collect_s is None else collect_s
        self.cutoff_s: float | None = None  # when the body was fixed
        self._state = state
        self._me = me
        self._overdrawn = frozenset(overdrawn)
        self._awaited = {
            member
            for member in awaited
            if member in state.active_ids and member not in self._overdrawn and (contributes or member != me)
        }
        self._abstaining: set[Id] = set()  # other members that have said that they do not contribute
        self._silent: set[Id] = set()  # other members from which nothing comes; no contribution of theirs is expected
        self._verified_at_s: dict[Id, float] = {}
        self._waiting_s: float | None = None  # when the timer started
        self._waited_s: dict[Id, float] = {}  # seconds waited in vain, by member, in waits that have ended

    # ---- what has arrived

    @property
    def awaited(self) -> frozenset[Id]:
        """Returns the members that this node waits for, or waited for before they were verified."""
        return frozenset(self._awaited - self.accused)

    @property
    def verified(self) -> Collection[Id]:
        """Returns the authors whose payloads have arrived and fit."""
        return self._verified_at_s.keys()

    @property
    def eligible(self) -> set[Id]:
        """Returns the authors whose contribution may go into the body of this node's candidate."""
        return self._verified_at_s.keys() - self.accused

    @property
    def has_all_awaited(self) -> bool:
        """Says whether enough contributions are verified and no member is left to wait for."""
        if len(self._verified_at_s) < len(self._awaited) - len(self.accused):  # a cheap test first
            return False
        return self._has_enough and self.eligible >= self._awaited - self.accused

    @property
    def _has_enough(self) -> bool:
        """Says whether enough contributions are verified to start the timer: a quorum, or fewer if no more can come. In
        a run of masked sums a quorum of them must not be empty, unless so many cannot come."""
        eligible, q = self.eligible, self._state.q
        if len(eligible) < min(q, max(self._state.min_contributions, len(self._may_come | eligible))):
            return False
        return self._is_empty is None or self._count_given(eligible) >= q or not self._may_have_quorum

    @property
    def _may_come(self) -> set[Id]:
        """Returns the members whose contribution has arrived or may arrive: all active ones without those that abstain
        (their site has not approved the run), are silent, were refused or are accused."""
        out = self._abstaining | self._silent | self.refused.keys() | self.accused
        return set(self._state.active_ids) - (out if self.contributes else out | {self._me})

    @property
    def _empty(self) -> set[Id]:
        """Returns the authors whose contribution is empty."""
        is_empty = self._is_empty
        return set() if is_empty is None else {author for author, sent in self.contributions.items() if is_empty(sent)}

    def _count_given(self, authors: set[Id]) -> int:
        return len(authors - self._empty)

    @property
    def _may_have_quorum(self) -> bool:
        """Says whether a quorum of contributions that are not empty has arrived or may arrive."""
        return self._count_given(self._may_come & self._may_give | self.eligible) >= self._state.q

    def lacks_given(self, block: Block) -> bool:
        """Says whether a block has less than a quorum of contributions that are not empty, though a quorum of them has
        arrived or may arrive."""
        is_empty = self._is_empty
        if is_empty is None or block.change is not None or not self._may_have_quorum:
            return False
        return sum(not is_empty(contribution) for contribution in block.contributions) < self._state.q

    def add(self, contribution: Contribution) -> bool:
        """Notes a contribution. Returns whether it is its author's first."""
        if contribution.author in self.contributions:
            return False
        self.contributions[contribution.author] = contribution
        return True

    def has_room_for(self, author: Id) -> bool:
        """Says whether another contribution of an author may be accepted. After two that are evidence it may not."""
        return author not in self.accused or author not in self.contributions

    def find_rival(self, contribution: Contribution) -> Contribution | None:
        """Returns the author's first contribution if it differs from this one, so that both are evidence; else None."""
        known = self.contributions.get(contribution.author)
        if known is None or known == contribution:
            return None
        if codec.contribution_fields(known) == codec.contribution_fields(contribution):  # the same, signed again
            return None
        return known

    def verify(self, contribution: Contribution, now: Now) -> None:
        """Notes that the payloads of a contribution fit."""
        if self.contributions.get(contribution.author) == contribution:
            self._verified_at_s.setdefault(contribution.author, now.monotonic_s)

    def begin_wait(self, now: Now) -> bool:
        """Returns whether the timer has to start: enough contributions are verified, and it does not run yet."""
        if self._waiting_s is not None or self.cutoff_s is not None or not self._has_enough:
            return False
        self._waiting_s = now.monotonic_s
        return True

    def fix_body(self, now: Now) -> tuple[Contribution, ...] | None:
        """Fixes the body once and returns it: the contributions that are verified by now, without the accused. Returns
        None if it is fixed already, or has too few contributions."""
        eligible = self.eligible
        if self.cutoff_s is not None or len(eligible) < self._state.min_contributions:
            return None
        self.end_wait(now)
        self.cutoff_s = now.monotonic_s
        return tuple(self.contributions[author] for author in sorted(eligible))

    # ---- whom to wait for

    def on_alive(self, member: Id) -> None:
        """Notes that a member is at work on this height."""
        if member in self._state.active_ids and member not in self.refused:
            self._abstaining.discard(member)
            self._silent.discard(member)
            if member not in self._overdrawn:
                self._awaited.add(member)

    def on_resumed(self) -> None:
        """Notes that this node contributes to this height after all."""
        if self._me is not None:
            self.contributes = True
            self.on_alive(self._me)

    def on_abstains(self, member: Id, now: Now) -> bool:
        """Notes that a member does not contribute, as it says. Returns whether that changes anything."""
        if member not in self._state.active_ids or member in self.contributions:
            return False
        self._abstaining.add(member)
        self.stop_awaiting(member, now)
        return True

    def on_silent(self, member: Id) -> None:
        """Notes that a member is silent. It is awaited as before, but the timer may start without its contribution."""
        self._silent.add(member)

    def refuse(self, author: Id, reason: str, now: Now) -> None:
        """Notes that the payloads of an author do not fit."""
        self.refused[author] = reason
        self.stop_awaiting(author, now)

    def leave_out(self, author: Id, now: Now) -> None:
        """Notes evidence against an author: it is neither awaited nor in a body from now on."""
        self._give_up(author, now)
        self.accused.add(author)

    def stop_awaiting(self, member: Id, now: Now) -> None:
        """Notes that this node need not wait for a member."""
        self._give_up(member, now)
        self._awaited.discard(member)

    def end_wait(self, now: Now) -> None:
        """Ends the wait. If evidence has left too few contributions since, it starts again once there are enough."""
        self._waited_s = self._get_waited_s(now)
        self._waiting_s = None

    def _give_up(self, member: Id, now: Now) -> None:
        """Notes how long this node waited for a member that it does not await any more."""
        waited_s = self._get_waited_s(now)
        if member in waited_s:
            self._waited_s[member] = waited_s[member]

    def _get_waited_s(self, now: Now) -> dict[Id, float]:
        """Returns the seconds waited for each member that was still missing after the timer started."""
        waited_s = dict(self._waited_s)
        if self._waiting_s is not None:
            for member in self._awaited - self.accused - self._verified_at_s.keys() - {self._me}:
                waited_s[member] = waited_s.get(member, 0.0) + now.monotonic_s - self._waiting_s
        return waited_s

    # ---- how a block compares with it

    def is_complete(self, block: Block) -> bool:
        """Says whether a block may be prevoted at once since no member is missing from it. If there are several such
        blocks, the votes of all members decide between them.

        If a member is away, its missing vote can split the vote and leave the decision to timers. So it pays to wait
        Delta for other candidates first: all members then prevote the best.
        """
        # These members vote, whatever became of their contributions.
        here = self.accused | self.refused.keys() | self._abstaining | {self._me}
        return block.change is not None or _get_authors(block) >= set(self._state.active_ids) - here

    def find_left_out(self, block: Block, now: Now) -> set[Id]:
        """Returns the authors that the block leaves out though their payloads were here 2 Delta before the cut-off."""
        if block.change is not None:
            return set()
        reference_s = now.monotonic_s if self.cutoff_s is None else self.cutoff_s
        return self._find_verified(reference_s - 2 * self._state.rules.waits.delta_s) - _get_authors(block)

    def _find_verified(self, until_s: float | None) -> set[Id]:
        """Returns the eligible authors whose payloads were here by `until_s`; None stands for now."""
        return {
            author for author, at_s in self._verified_at_s.items() if until_s is None or at_s <= until_s
        } - self.accused

    def find_not_awaited(self, block: Block) -> set[Id]:
        """Returns the other members that the block leaves out while this node still waits for them."""
        if block.change is not None or self.cutoff_s is not None or block.header.miner == self._me:
            return set()
        return set(self.awaited - _get_authors(block) - {self._me})

    def is_short(self, block: Block) -> bool:
        """Says whether a block leaves out an author that is in the body of this node and is worth waiting for. Others
        do not count: such a member could delay every height by sending its contribution late to some."""
        return block.change is None and not self._find_verified(self.cutoff_s) & self.awaited <= _get_authors(block)

    def find_equal_at_s(self, block: Block) -> float | None:
        """Returns when the others have had this body for as long as its miner may have had it alone; None if the
        miner's own contribution was not the last to arrive. Otherwise a member could win every block: it would send its
        contribution only once it has mined on it."""
        at_s = self._verified_at_s.get(block.header.miner)
        others = [self._verified_at_s[author] for author in _get_authors(block) & self._verified_at_s.keys()]
        if at_s is None or block.change is not None or block.header.miner not in _get_authors(block):
            return None
        before_s = max((other_s for other_s in others if other_s != at_s), default=at_s)
        return 2 * at_s - before_s if before_s < at_s else None

    def get_vain_waits(self, block: Block, now: Now) -> dict[Id, VainWait]:
        """Returns the members that were awaited in vain at this height, which ends with `block`, each with its
        `VainWait`."""
        if block.change is not None:
            return {}
        authors = _get_authors(block)
        return {
            member: VainWait(min(1.0, waited_s / self.collect_s), self._explain_absence(member))
            for member, waited_s in self._get_waited_s(now).items()
            if member not in authors and waited_s > 0
        }

    def explain_left_out(self, block: Block) -> Mapping[Id, str]:
        """Returns the members that have no contribution in this final block, each with the reason as this node has seen
        it."""
        if block.change is not None:
            return {}
        authors = _get_authors(block)
        return {member: self._explain_absence(member) for member in self._state.active_ids if member not in authors}

    def explain_not_awaited(self, member: Id) -> str:
        """Returns the reason at this height why a member is not awaited."""
        if member in self.accused:
            return Absence.SIGNED_TWICE
        if member in self.refused:
            return self.refused[member]
        return Absence.ABSTAINED if member in self._abstaining else Absence.NOT_HEARD

    def _explain_absence(self, member: Id) -> str:
        if member not in self.contributions:
            is_known = member in self._abstaining or (member == self._me and not self.contributes)
            return Absence.ABSTAINED if is_known else Absence.NOT_SENT
        if member in self.refused:
            return self.refused[member]
        if member not in self._verified_at_s:
            return Absence.NOT_FETCHED
        if member in self.accused:
            return Absence.SIGNED_TWICE
        return Absence.LATE

    def __repr__(self) -> str:
        return f"<Collecting: {len(self.verified)} verified of {len(self.contributions)}, {len(self.awaited)} awaited>"


def _get_authors(block: Block) -> set[Id]:
    return {contribution.author for contribution in block.contributions}
