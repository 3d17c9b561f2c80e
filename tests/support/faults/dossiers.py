"""Changes that are proposed, with the consent that each has so far: what is gossiped, kept and mined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from chain.approvals import sign_readiness
from chain.block import ZERO, Answer, Approval, ApprovedChange, Digest, Id, Readiness
from chain.changes import consent
from chain.changes.base import Consent, Place
from chain.changes.change import Change
from chain.changes.execution import execute_change, validate_readiness
from chain.changes.members import ReplaceKey
from chain.errors import InvalidChange
from chain.signing import SigningKey
from chain.state import State

GetBlockId = Callable[[int], Id | None]
Order = tuple[int, int, Digest]  # the order in which miners take changes: by class, `made` and id
RANKS = {Consent.PROOF: 1, Consent.REPLACEMENT: 2}  # all others have class 0 and come first


def approve(change_id: Digest, voter: Id) -> Approval:
    """Returns an approval with 64 bytes that stand for a signature."""
    return Approval(change_id, Answer.YES, voter, b"yes" + change_id + voter[:29])


def is_approved(approval: Approval) -> bool:
    """Says whether `approve` made this: in this world nobody can approve for another."""
    return approval == approve(approval.change_id, approval.voter)


@dataclass(frozen=True, slots=True)
class Dossier:
    """A change, and the consent to it that a site holds."""

    change_id: Digest
    change: Change
    approvals: tuple[Approval, ...] = ()
    readiness: tuple[Readiness, ...] = ()


@dataclass
class Consents:
    """All answers to one change."""

    change: Change
    approvals: dict[Id, Approval] = field(default_factory=dict)
    readiness: dict[Id, Readiness] = field(default_factory=dict)


class Desk:
    """The open changes that a site holds, durable."""

    def __init__(self, chain_id: Digest) -> None:
        self.opened: dict[Digest, Consents] = {}
        self._chain_id = chain_id
        self._results: dict[tuple[Digest, Digest, int], State | None] = {}

    def add(self, dossier: Dossier) -> bool:
        """Adds a dossier. Returns whether anything of it was new."""
        held = self.opened.setdefault(dossier.change_id, Consents(dossier.change))
        before = len(held.approvals) + len(held.readiness)
        is_new = not before
        for approval in dossier.approvals:
            held.approvals.setdefault(approval.voter, approval)
        for ready in dossier.readiness:
            held.readiness.setdefault(ready.key, ready)
        return is_new or len(held.approvals) + len(held.readiness) > before

    def open(self, change: Change) -> Digest:
        """Opens a change of the site's own. Returns its id."""
        change_id = change.compute_id(self._chain_id)
        self.opened.setdefault(change_id, Consents(change))
        return change_id

    def get_dossier(self, change_id: Digest) -> Dossier:
        held = self.opened[change_id]
        return Dossier(change_id, held.change, tuple(held.approvals.values()), tuple(held.readiness.values()))

    def get_held(self) -> frozenset[tuple[Digest, Id]]:
        """Returns who answered which change; each change also without a voter."""
        pairs = ((change_id, key) for change_id, c in self.opened.items() for key in (ZERO, *c.approvals, *c.readiness))
        return frozenset(pairs)

    def get_news(self, held: frozenset[tuple[Digest, Id]]) -> Iterator[Dossier]:
        """Yields the dossiers that a site lacks that holds this much."""
        for change_id, mine in self.opened.items():
            if any((change_id, key) not in held for key in (ZERO, *mine.approvals, *mine.readiness)):
                yield self.get_dossier(change_id)

    def forget(self, state: State, height: int) -> None:
        """Drops changes that were executed, and those that no block from this height on may hold."""
        for change_id, held in list(self.opened.items()):
            if change_id in state.executed or held.change.expires < height:
                del self.opened[change_id]

    def find_complete(self, state: State, height: int, get_block_id: GetBlockId) -> list[tuple[Order, ApprovedChange]]:
        """Finds the changes that may stand at `height`, in the order in which miners take them."""
        found = []
        for change_id, held in self.opened.items():
            after = self._execute(change_id, held.change, state, height)
            if after is None:
                continue
            answers = {key: approval for key, approval in held.approvals.items() if state.index_of(key) is not None}
            ready = {key: r for key, r in held.readiness.items() if _is_valid(r, held.change, height, get_block_id)}
            yes = {key: approval.answer for key, approval in answers.items()}
            if consent.compute_missing(held.change.kind, state, after, height, yes, ready.keys()).is_nothing:
                order = (self._get_rank(held.change, state, len(yes)), held.change.made, change_id)
                found.append((order, _write(state, held.change, answers.values(), ready.values())))
        return sorted(found, key=lambda entry: entry[0])

    @staticmethod
    def _get_rank(change: Change, state: State, num_answers: int) -> int:
        if isinstance(change.kind, ReplaceKey) and num_answers >= state.q:
            return 0
        return RANKS.get(change.kind.consent, 0)

    def _execute(self, change_id: Digest, change: Change, state: State, height: int) -> State | None:
        key = (change_id, state.digest, height)
        if key not in self._results:
            try:
                self._results[key] = execute_change(state, change, Place(height, ZERO))
            except InvalidChange:
                self._results[key] = None
        return self._results[key]


def _is_valid(ready: Readiness, change: Change, height: int, get_block_id: GetBlockId) -> bool:
    try:
        validate_readiness(ready, change, height, get_block_id)
    except InvalidChange:
        return False
    return True


def _write(state: State, change: Change, answers: Iterable[Approval], readiness: Iterable[Readiness]) -> ApprovedChange:
    indexed = ((state.member_ids.index(a.voter), a.answer, a.signature) for a in answers)
    ready = ((r.key, r.height, r.block_id, r.signature) for r in readiness)
    return ApprovedChange(change.data, tuple(sorted(indexed)), tuple(sorted(ready)))


def stand_ready(key: SigningKey, chain_id: Digest, change_id: Digest, height: int, block_id: Id) -> Readiness:
    """Signs the readiness of a new key, by a real signature: there are few."""
    return sign_readiness(key, chain_id, change_id, height=height, block_id=block_id)
