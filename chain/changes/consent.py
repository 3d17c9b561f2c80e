"""The consent to a change: whose yes it has, and whose it still lacks (FEDERATION §2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from chain.block import Answer, Id
from chain.changes.base import Consent, Kind
from chain.changes.members import ReplaceKey
from chain.errors import LacksConsent
from chain.signing import encode_id
from chain.state import State


@dataclass(frozen=True, slots=True)
class Missing:
    """The consent that a change still lacks: numbers of approvals by the members before it and by those after it, the
    number of sites that train, and the readiness of a new key."""

    before: int = 0
    after: int = 0
    training: int = 0
    readiness: Id | None = None

    @property
    def is_nothing(self) -> bool:
        return not (self.before or self.after or self.training) and self.readiness is None

    def __str__(self) -> str:
        lacks = []
        if self.before:
            lacks.append(f"{self.before} more of the members")
        if self.after:
            lacks.append(f"{self.after} more of the members that there will be")
        if self.training:
            lacks.append(f"{self.training} more that will train")
        if self.readiness is not None:
            lacks.append(f"the readiness of {encode_id(self.readiness)}")
        return ", ".join(lacks) or "nothing"


def compute_missing(
    kind: Kind, before: State, after: State, height: int, answers: Mapping[Id, Answer], ready: Collection[Id]
) -> Missing:
    """Returns the consent that this change lacks to be in the block at `height`, between the states before and after
    it.

    `answers` are those of members of `before`, by key; `ready` are the new keys whose readiness was received.
    """
    if kind.consent is Consent.PROOF:
        return Missing()
    new_key = kind.get_new_key()
    readiness = new_key if new_key is not None and new_key not in ready else None
    if isinstance(kind, ReplaceKey) and kind.may_rotate(before, height):
        member = before.get_seat(kind.seat)
        if member is not None and member.key in answers:
            return Missing(readiness=readiness)
    lacks_before = max(0, before.q - len(answers))
    if kind.consent is Consent.BOTH_QUORUMS:
        staying = {member.key for member in after.members}
        count = len(staying.intersection(answers)) + len(staying.difference(before.member_ids).intersection(ready))
        lacks_after = max(0, after.q - count)
        if after.member_ids == before.member_ids:  # the same members by another rule: one approval counts for both
            return Missing(max(lacks_before, lacks_after), readiness=readiness)
        return Missing(lacks_before, lacks_after, readiness=readiness)
    if kind.consent is Consent.TRAINING:
        training = sum(answer is Answer.YES and before.is_active(key) for key, answer in answers.items())
        return Missing(lacks_before, training=max(0, before.min_contributions - training))
    return Missing(lacks_before, readiness=readiness)


def validate_consent(
    kind: Kind, before: State, after: State, height: int, answers: Mapping[Id, Answer], ready: Collection[Id]
) -> None:
    """Raises LacksConsent unless nothing is missing."""
    missing = compute_missing(kind, before, after, height, answers, ready)
    if not missing.is_nothing:
        raise LacksConsent(f"{kind.name}: lacks {missing}")
