"""The open changes that a node holds, with the approvals and the readiness they have so far (FEDERATION §2).

Bounded whatever members send: a change is kept only with its proposer's own approval, some few and some KiB of each
seat, one answer of each member and one readiness of its new key. Nothing here waits, writes or sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from chain.approvals import compute_change_id, verify_approval, verify_readiness
from chain.block import Answer, Approval, ApprovedChange, Digest, Id, Readiness
from chain.changes.base import Consent, Place
from chain.changes.change import Change, read_change
from chain.changes.consent import Missing, compute_missing
from chain.changes.execution import execute_change, validate_readiness
from chain.changes.members import AddMember, Convict
from chain.changes.runs import SetRounds
from chain.errors import InvalidChange, NotAMember
from chain.signing import encode_id
from chain.state import State
from chain.tip import Tip

MAX_OPEN = 8  # changes of one seat
MAX_OPEN_BYTES = 128 * 1024  # and their bytes

AGEING = (Convict, SetRounds)  # these may become invalid as the height grows, though the state stays the same


class Fate(Enum):
    """The reason why a change is no longer open."""

    EXECUTED = "executed"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"  # other changes made it invalid


@dataclass(frozen=True, slots=True)
class Closed:
    """A change that was dropped, and the reason."""

    id: Digest
    change: Change
    fate: Fate
    why: str


@dataclass(slots=True)
class Proposal:
    """One open change with the approvals and the readiness received for it. `after` is the state that it would give at
    the earliest height at which it can be executed now."""

    id: Digest
    data: bytes
    change: Change
    after: State
    approvals: dict[Id, Approval] = field(default_factory=dict)
    readiness: Readiness | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.data)


class Proposals:
    """The open changes that one node holds, judged on its tip."""

    def __init__(self, tip: Tip) -> None:
        self._tip = tip
        self._open: dict[Digest, Proposal] = {}

    def __repr__(self) -> str:
        return f"<Proposals on {self._tip.height}: {len(self._open)} open>"

    def __iter__(self) -> Iterator[Proposal]:
        """Yields the proposals in the order in which they were made."""
        return iter(sorted(self._open.values(), key=lambda proposal: (proposal.change.made, proposal.id)))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def height(self) -> int:
        """The height of the block that `choose` is for."""
        return self._tip.height + 1

    def get(self, change_id: Digest) -> Proposal | None:
        return self._open.get(change_id)

    # ---- received from members

    def add(self, data: bytes, approval: Approval) -> Proposal | None:
        """Adds a change with its proposer's approval. Returns None if it is held, or was made on a block above the tip
        here. Raises InvalidChange, NotAMember or InvalidSignature."""
        proposal = self.open(data, approval)
        if proposal is not None:
            self._open[proposal.id] = proposal
        return proposal

    def open(self, data: bytes, approval: Approval) -> Proposal | None:
        """Returns the proposal that `add` would add, and adds nothing."""
        change, change_id = read_change(data), compute_change_id(self._tip.state.chain_id, data)
        if change_id in self._open or change.made > self._tip.height:
            return None
        if change_id in self._tip.state.executed:
            raise InvalidChange(f"change {change_id.hex()[:8]} was executed before")
        after = self.check(change)
        proposer = self._tip.state.get_seat(change.by)
        if proposer is None:
            raise NotAMember(f"seat {change.by}, which proposes this: nobody sits there")
        if (approval.change_id, approval.voter) != (change_id, proposer.key):
            raise InvalidChange("a change comes with the approval of whoever proposes it; got another")
        verify_approval(self._tip.state.chain_id, approval)
        return Proposal(change_id, data, change, after, {approval.voter: approval})

    def check(self, change: Change) -> State:
        """Returns the state that a change would give. Raises InvalidChange if it cannot be executed, or if its seat has
        no room left for it."""
        self._check_room(change.by, len(change.data))
        return self._execute(change)

    def _check_room(self, seat: int, num_bytes: int) -> None:
        mine = [proposal for proposal in self._open.values() if proposal.change.by == seat]
        if len(mine) >= MAX_OPEN:
            raise InvalidChange.differs(f"open changes of seat {seat}", f"at most {MAX_OPEN}", len(mine) + 1)
        total = num_bytes + sum(proposal.num_bytes for proposal in mine)
        if total > MAX_OPEN_BYTES:
            raise InvalidChange.differs(f"bytes of open changes of seat {seat}", f"at most {MAX_OPEN_BYTES}", total)

    def knows(self, approval: Approval) -> bool:
        """Says whether this very approval is held, and so was verified."""
        proposal = self._open.get(approval.change_id)
        return proposal is not None and proposal.approvals.get(approval.voter) == approval

    def add_approval(self, approval: Approval) -> bool:
        """Adds a member's answer to an open change; the first answer of each member counts. Returns whether it was new.
        Raises NotAMember or InvalidSignature."""
        proposal = self._open.get(approval.change_id)
        if proposal is None or approval.voter in proposal.approvals:
            return False
        if self._tip.state.index_of(approval.voter) is None:
            raise NotAMember.differs("voter", f"one of {self._tip.state.n} members", encode_id(approval.voter))
        verify_approval(self._tip.state.chain_id, approval)
        proposal.approvals[approval.voter] = approval
        return True

    def add_readiness(self, ready: Readiness) -> bool:
        """Adds the readiness of an open change's new key; one of a higher block replaces an earlier one. Returns
        whether it was new. Raises InvalidChange or InvalidSignature."""
        proposal = self._open.get(ready.change_id)
        if proposal is None:
            return False
        held = proposal.readiness
        if held is not None and held.height >= ready.height:
            return False
        validate_readiness(ready, proposal.change, self._tip.height + 1, self._tip.get_block_id)
        verify_readiness(self._tip.state.chain_id, ready)
        proposal.readiness = ready
        return True

    # ---- on a new tip

    def on_tip(self, tip: Tip) -> list[Closed]:
        """Moves to a new tip. Drops and returns the changes that were executed, have expired or can no longer be
        executed."""
        is_same = tip.state == self._tip.state
        self._tip = tip
        closed = []
        for proposal in list(self):
            fate = self._judge(proposal, is_same=is_same)
            if fate is not None:
                closed.append(Closed(proposal.id, proposal.change, *fate))
                del self._open[proposal.id]
        return closed

    def _judge(self, proposal: Proposal, *, is_same: bool) -> tuple[Fate, str] | None:
        change = proposal.change
        if proposal.id in self._tip.state.executed:
            return Fate.EXECUTED, f"in block {self._tip.height}"
        if change.expires <= self._tip.height:
            return Fate.EXPIRED, f"it could stand up to height {change.expires}"
        if is_same and not isinstance(change.kind, AGEING):
            return None
        proposer = self._tip.state.get_seat(change.by)
        if proposer is None or proposer.key not in proposal.approvals:  # other nodes would not accept it either
            return Fate.SUPERSEDED, f"whoever proposed it does not sit in seat {change.by} any more"
        try:
            proposal.after = self._execute(change)
        except InvalidChange as error:
            return Fate.SUPERSEDED, str(error)
        proposal.approvals = {
            voter: approval
            for voter, approval in proposal.approvals.items()
            if self._tip.state.index_of(voter) is not None
        }
        return None

    def _execute(self, change: Change) -> State:
        """Returns the state after a change at the first height at which it can be executed from here."""
        height = max(self._tip.height + 1, change.first)
        return execute_change(self._tip.state, change, Place(height, self._tip.header.aggregate))

    def compute_missing(self, proposal: Proposal) -> Missing:
        """Returns what a change lacks to be in the next block, apart from its height."""
        kind, height = proposal.change.kind, self._tip.height + 1
        return compute_missing(
            kind, self._tip.state, proposal.after, height, _get_answers(proposal), self._get_ready(proposal)
        )

    def _get_ready(self, proposal: Proposal) -> tuple[Id, ...]:
        ready = self._get_fresh(proposal)
        return () if ready is None else (ready.key,)

    def _get_fresh(self, proposal: Proposal) -> Readiness | None:
        """Returns the readiness of a change's new key, None if there is none or it is too old."""
        ready = proposal.readiness
        if ready is None:
            return None
        try:
            validate_readiness(ready, proposal.change, self._tip.height + 1, self._tip.get_block_id)
        except InvalidChange:
            return None
        return ready

    def choose(
        self, is_alive: Callable[[Id], bool], is_ready: Callable[[Change], bool] = lambda change: True
    ) -> ApprovedChange | None:
        """Returns the change that the next block holds, None if no change is complete. A member joins only while
        `is_alive` says so of its key. `is_ready` says whether what a complete change names is held here.

        Changes with a quorum come first, then convictions, then rotations; within each the one made first.
        """
        for proposal in sorted(self, key=self._rank):
            if self._is_complete(proposal, is_alive) and is_ready(proposal.change):
                return self._make_approved(proposal)
        return None

    def _is_complete(self, proposal: Proposal, is_alive: Callable[[Id], bool]) -> bool:
        change, height = proposal.change, self._tip.height + 1
        if not change.first <= height <= change.expires:
            return False
        if isinstance(change.kind, AddMember) and not is_alive(change.kind.key):
            return False
        if not self.compute_missing(proposal).is_nothing:
            return False
        try:
            self._execute(change)
        except InvalidChange:  # it does not fit the aggregate of this tip
            return False
        return True

    def _rank(self, proposal: Proposal) -> tuple[int, int, Digest]:
        if len(proposal.approvals) >= self._tip.state.q:
            rank = 0
        else:
            rank = 1 if proposal.change.kind.consent is Consent.PROOF else 2
        return rank, proposal.change.made, proposal.id

    def _make_approved(self, proposal: Proposal) -> ApprovedChange:
        index_of = self._tip.state.index_of
        answers = sorted(
            (index, approval.answer, approval.signature)
            for voter, approval in proposal.approvals.items()
            if (index := index_of(voter)) is not None
        )
        ready = self._get_fresh(proposal)
        readiness = () if ready is None else ((ready.key, ready.height, ready.block_id, ready.signature),)
        return ApprovedChange(proposal.data, tuple(answers), readiness)


def _get_answers(proposal: Proposal) -> Mapping[Id, Answer]:
    return {voter: approval.answer for voter, approval in proposal.approvals.items()}
