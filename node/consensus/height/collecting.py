"""The contributions of one height, and the wait for those that are missing (PROTOCOL §3).

A member is awaited while it may still send a contribution worth waiting for. Once a quorum is verified a timer runs, or
once fewer are, but `min_contributions`, where no others are to come. The body of this node's candidate is fixed when
everybody awaited is there, or the timer has fired. How long was waited for whom in vain is what credit is charged with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from chain import codec
from chain.block import Block, Contribution, Id
from chain.state import State
from node.consensus.height.actions import Absence, Now
from node.consensus.height.credit import VainWait


class Collecting:
    """One height's, as one member sees it; `me` is None for an observer.

    `awaited` are the members worth waiting for, `collect_s` at most (the state's own by default): the parent's authors,
    and those seen alive since, but for the `overdrawn`, whose credit is used up. `accused` are the authors with
    evidence, left out of the body. `contributes`: whether this node does. A contribution that `is_empty` is one, and
    does not count towards the quorum that others are waited for after, while one of `may_give` may come: a member that
    sends nothing at once would have the slower ones left out.
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
        self._abstaining: set[Id] = set()  # others that are not to be waited for, as they say
        self._silent: set[Id] = set()  # others that nothing is heard of; of their contributions none is expected
        self._verified_at_s: dict[Id, float] = {}
        self._waiting_s: float | None = None  # since when enough contributions are verified, and the timer runs
        self._waited_s: dict[Id, float] = {}  # in vain, by member, in waits that have ended

    # ---- what is here

    @property
    def awaited(self) -> frozenset[Id]:
        """Who is waited for, or was and is here."""
        return frozenset(self._awaited - self.accused)

    @property
    def verified(self) -> Collection[Id]:
        """Authors whose payloads are here, and fit."""
        return self._verified_at_s.keys()

    @property
    def eligible(self) -> set[Id]:
        """Authors whose contribution may go into the body built here."""
        return self._verified_at_s.keys() - self.accused

    @property
    def has_all_awaited(self) -> bool:
        """Whether there is nobody left to wait for, and enough are here."""
        if len(self._verified_at_s) < len(self._awaited) - len(self.accused):  # asked at every contribution
            return False
        return self._has_enough and self.eligible >= self._awaited - self.accused

    @property
    def _has_enough(self) -> bool:
        """Whether those that are here begin the wait for the others: a quorum, or all of whom a contribution may come,
        where these are fewer; and of contributions that are not empty a quorum, where one may come."""
        eligible, q = self.eligible, self._state.q
        if len(eligible) < min(q, max(self._state.min_contributions, len(self._may_come | eligible))):
            return False
        return self._is_empty is None or self._count_given(eligible) >= q or not self._may_have_quorum

    @property
    def _may_come(self) -> set[Id]:
        """Those whose contribution may come, or is here. Sites abstain that have not approved a run; others are silent,
        or were refused."""
        out = self._abstaining | self._silent | self.refused.keys() | self.accused
        return set(self._state.active_ids) - (out if self.contributes else out | {self._me})

    @property
    def _empty(self) -> set[Id]:
        """Authors whose contribution is empty."""
        is_empty = self._is_empty
        return set() if is_empty is None else {author for author, sent in self.contributions.items() if is_empty(sent)}

    def _count_given(self, authors: set[Id]) -> int:
        return len(authors - self._empty)

    @property
    def _may_have_quorum(self) -> bool:
        """Whether a quorum of contributions that are not empty is here, or may come."""
        return self._count_given(self._may_come & self._may_give | self.eligible) >= self._state.q

    def lacks_given(self, block: Block) -> bool:
        """Whether a block has too many empty contributions, though enough that are not are here, or may come."""
        is_empty = self._is_empty
        if is_empty is None or block.change is not None or not self._may_have_quorum:
            return False
        return sum(not is_empty(contribution) for contribution in block.contributions) < self._state.q

    def add(self, contribution: Contribution) -> bool:
        """A contribution was seen. Whether it is its author's first."""
        if contribution.author in self.contributions:
            return False
        self.contributions[contribution.author] = contribution
        return True

    def has_room_for(self, author: Id) -> bool:
        """Of an author whose two contributions are evidence against it no third one is taken in."""
        return author not in self.accused or author not in self.contributions

    def find_rival(self, contribution: Contribution) -> Contribution | None:
        """The author's first contribution, if it says something else: both are evidence."""
        known = self.contributions.get(contribution.author)
        if known is None or known == contribution:
            return None
        if codec.contribution_fields(known) == codec.contribution_fields(contribution):  # signed anew
            return None
        return known

    def verify(self, contribution: Contribution, now: Now) -> None:
        """The payloads of a contribution fit."""
        if self.contributions.get(contribution.author) == contribution:
            self._verified_at_s.setdefault(contribution.author, now.monotonic_s)

    def begin_wait(self, now: Now) -> bool:
        """Whether the timer is to be started: enough are here, and it does not run yet."""
        if self._waiting_s is not None or self.cutoff_s is not None or not self._has_enough:
            return False
        self._waiting_s = now.monotonic_s
        return True

    def fix_body(self, now: Now) -> tuple[Contribution, ...] | None:
        """The body, once: everyone verified by now, without the accused. None where it is fixed, or too few are."""
        eligible = self.eligible
        if self.cutoff_s is not None or len(eligible) < self._state.min_contributions:
            return None
        self.end_wait(now)
        self.cutoff_s = now.monotonic_s
        return tuple(self.contributions[author] for author in sorted(eligible))

    # ---- whom to wait for

    def on_alive(self, member: Id) -> None:
        """A member is at work on this height."""
        if member in self._state.active_ids and member not in self.refused:
            self._abstaining.discard(member)
            self._silent.discard(member)
            if member not in self._overdrawn:
                self._awaited.add(member)

    def on_resumed(self) -> None:
        """This node is at work on this height after all."""
        if self._me is not None:
            self.contributes = True
            self.on_alive(self._me)

    def on_abstains(self, member: Id, now: Now) -> bool:
        """A member says that it does not contribute. Whether that counts."""
        if member not in self._state.active_ids or member in self.contributions:
            return False
        self._abstaining.add(member)
        self.stop_awaiting(member, now)
        return True

    def on_silent(self, member: Id) -> None:
        """Nothing is heard of a member. It is awaited as before, but not for ever."""
        self._silent.add(member)

    def refuse(self, author: Id, reason: str, now: Now) -> None:
        """The payloads of an author do not fit."""
        self.refused[author] = reason
        self.stop_awaiting(author, now)

    def leave_out(self, author: Id, now: Now) -> None:
        """There is evidence against an author: it is neither awaited nor taken into a body."""
        self._give_up(author, now)
        self.accused.add(author)

    def stop_awaiting(self, member: Id, now: Now) -> None:
        """A member need not be waited for."""
        self._give_up(member, now)
        self._awaited.discard(member)

    def end_wait(self, now: Now) -> None:
        """Long enough. Where evidence has since left too few, the wait starts anew once there are enough again."""
        self._waited_s = self._get_waited_s(now)
        self._waiting_s = None

    def _give_up(self, member: Id, now: Now) -> None:
        """Notes how long was waited for one that is not awaited any more."""
        waited_s = self._get_waited_s(now)
        if member in waited_s:
            self._waited_s[member] = waited_s[member]

    def _get_waited_s(self, now: Now) -> dict[Id, float]:
        """For whom more was waited than for the q-th contribution, until now, and did not come then."""
        waited_s = dict(self._waited_s)
        if self._waiting_s is not None:
            for member in self._awaited - self.accused - self._verified_at_s.keys() - {self._me}:
                waited_s[member] = waited_s.get(member, 0.0) + now.monotonic_s - self._waiting_s
        return waited_s

    # ---- what a block has of it

    def is_complete(self, block: Block) -> bool:
        """Whether it may be prevoted at once, since nobody is missing: if candidates cross, the votes of all settle it.

        With a member away only its silence is left between a split vote and its timers, so Delta is well spent on
        seeing the other candidates first: the best of them is then everybody's.
        """
        # These vote, whatever became of their contributions.
        here = self.accused | self.refused.keys() | self._abstaining | {self._me}
        return block.change is not None or _get_authors(block) >= set(self._state.active_ids) - here

    def find_left_out(self, block: Block, now: Now) -> set[Id]:
        """Authors that the block leaves out though they were in good time here: by 2 Delta before the cut-off."""
        if block.change is not None:
            return set()
        reference_s = now.monotonic_s if self.cutoff_s is None else self.cutoff_s
        return self._find_verified(reference_s - 2 * self._state.rules.waits.delta_s) - _get_authors(block)

    def _find_verified(self, until_s: float | None) -> set[Id]:
        """Eligible authors whose payloads were here by then; None: by now."""
        return {
            author for author, at_s in self._verified_at_s.items() if until_s is None or at_s <= until_s
        } - self.accused

    def find_not_awaited(self, block: Block) -> set[Id]:
        """Others that the block leaves out while this node waits for them, and may do so in its own."""
        if block.change is not None or self.cutoff_s is not None or block.header.miner == self._me:
            return set()
        return set(self.awaited - _get_authors(block) - {self._me})

    def is_short(self, block: Block) -> bool:
        """Whether it leaves out an author of the body that this node mines, or would, who is worth waiting for: another
        could hold everybody up for nothing, by sending late to some."""
        return block.change is None and not self._find_verified(self.cutoff_s) & self.awaited <= _get_authors(block)

    def find_equal_at_s(self, block: Block) -> float | None:
        """When the others may have worked on this body for as long as its miner may have had it to itself, whose own
        contribution was the last to come; None where it was not. Else a member that keeps its contribution back until
        it has mined on it would win every block."""
        at_s = self._verified_at_s.get(block.header.miner)
        others = [self._verified_at_s[author] for author in _get_authors(block) & self._verified_at_s.keys()]
        if at_s is None or block.change is not None or block.header.miner not in _get_authors(block):
            return None
        before_s = max((other_s for other_s in others if other_s != at_s), default=at_s)
        return 2 * at_s - before_s if before_s < at_s else None

    def get_vain_waits(self, block: Block, now: Now) -> dict[Id, VainWait]:
        """For whom was waited in vain at this height, which ends with `block`."""
        if block.change is not None:
            return {}
        authors = _get_authors(block)
        return {
            member: VainWait(min(1.0, waited_s / self.collect_s), self._explain_absence(member))
            for member, waited_s in self._get_waited_s(now).items()
            if member not in authors and waited_s > 0
        }

    def explain_left_out(self, block: Block) -> Mapping[Id, str]:
        """Of each member that this final block has no contribution of, why that may be, as this node has seen it."""
        if block.change is not None:
            return {}
        authors = _get_authors(block)
        return {member: self._explain_absence(member) for member in self._state.active_ids if member not in authors}

    def explain_not_awaited(self, member: Id) -> str:
        """Why nobody need wait for a member at this height, as far as the height itself shows it."""
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
