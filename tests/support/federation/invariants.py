"""The invariants of PROTOCOL §8 that one height can break, checked from outside the members."""

from __future__ import annotations

from collections import Counter

from chain.block import Certificate, Id, Phase, Vote
from chain.votes import VIEW_WINDOW


class InvariantBroken(AssertionError):
    """An invariant is broken. `invariant` is its name in PROTOCOL §8; I10 is a member that never finalises in a settled
    network."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def sign(phase: Phase, height: int, view: int, block_id: Id, voter: Id) -> Vote:
    """Returns a vote with 64 bytes that stand for a signature: they say what was signed and by whom."""
    return Vote(phase, height, view, block_id, voter, _compute_signature(phase, view, block_id, voter))


def _compute_signature(phase: Phase, view: int, block_id: Id, voter: Id) -> bytes:
    return bytes([phase]) + view.to_bytes(4, "big") + block_id[:29] + voter[:30]


class Checker:
    """Remembers everything that honest members ever signed and finalised, whatever they themselves forget."""

    def __init__(self, members: tuple[Id, ...], quorum: int, honest: frozenset[int]) -> None:
        self.decided: dict[int, tuple[Id, Certificate]] = {}
        self.top_view = 0
        self._members = members
        self._quorum = quorum
        self._honest = honest
        self._signed: dict[tuple[int, int, Phase], Id] = {}
        self._lock_views: dict[int, int] = {}

    def on_signed(self, index: int, vote: Vote) -> None:
        """Checks I4: one vote per (height, view, phase), also across crashes."""
        first = self._signed.setdefault((index, vote.view, vote.phase), vote.block_id)
        if first != vote.block_id:
            raise InvariantBroken("I4", f"member {index} would sign twice in view {vote.view} {vote.phase.name}")

    def on_evidence(self, first: Vote, second: Vote) -> None:
        """Checks I4 as others see it: only a liar signs two different votes for one slot."""
        if first.slot != second.slot or first.block_id == second.block_id:
            raise InvariantBroken("I4", f"{first} and {second} prove nothing")
        if self._members.index(first.voter) in self._honest:
            raise InvariantBroken("I4", f"an honest member is shown to equivocate: {first} and {second}")

    def on_lock(self, index: int, view: int, lock: tuple[int, Id] | None) -> None:
        """Checks I5: the lock's view only rises, also across crashes."""
        self.top_view = max(self.top_view, view)
        lock_view = -1 if lock is None else lock[0]
        if lock_view < self._lock_views.get(index, -1):
            raise InvariantBroken("I5", f"the lock of member {index} fell to view {lock_view}")
        self._lock_views[index] = lock_view

    def on_held(self, index: int, votes: tuple[Vote, ...]) -> None:
        """Checks I6: a member holds at most two votes per (member, view, phase) in the window, one beyond it, and the
        proof of the valid block."""
        n = len(self._members)
        if len(votes) > n * (2 * 2 * (2 * VIEW_WINDOW + 1) + 1) + n:
            raise InvariantBroken("I6", f"member {index} holds {len(votes)} votes")
        slot, held = Counter(vote.slot for vote in votes).most_common(1)[0] if votes else (None, 0)
        if held > 3:  # two, and a third from the proof
            raise InvariantBroken("I6", f"member {index} holds {held} votes of {slot}")

    def on_decided(self, index: int, block_id: Id, certificate: Certificate) -> None:
        """Checks I1, I2, I9: one block is decided, it stays so, and q members have signed it."""
        voters = {voter for voter, _ in certificate.signatures}
        if len(voters) < self._quorum or len(voters) != len(certificate.signatures):
            raise InvariantBroken("I9", f"{len(voters)} members finalised, the quorum is {self._quorum}")
        for voter, signature in certificate.signatures:
            if signature != _compute_signature(Phase.PRECOMMIT, certificate.view, block_id, self._members[voter]):
                raise InvariantBroken("I9", f"the signature of member {voter} is for something else")
            said = self._signed.get((voter, certificate.view, Phase.PRECOMMIT))
            if voter in self._honest and said != block_id:
                raise InvariantBroken("I9", f"member {voter} never signed this")
        for other, (earlier, _) in self.decided.items():
            if earlier != block_id:
                raise InvariantBroken("I2" if other == index else "I1", f"{other} and {index} finalised two blocks")
        self.decided.setdefault(index, (block_id, certificate))
