"""The changes of who takes part: members, their keys, suspensions, observers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from chain.block import Id
from chain.changes.base import Consent, Kind, Place
from chain.errors import GenesisError, InvalidChange
from chain.evidence import decode_evidence, validate_evidence
from chain.names import PLAIN_NAMES, check_new_name
from chain.schema import Section, check_name, quote
from chain.signing import encode_id
from chain.state import Member, Observer, RetiredKey, State, read_key

ROTATION_HEIGHTS = 1000  # a member rotates its key at most once in so many: else rotations could delay its removal


def _check_new_key(state: State, key: Id) -> None:
    if state.index_of(key) is not None:
        raise InvalidChange.differs("key", "one that is no member's", encode_id(key))
    if any(old.key == key for old in state.retired):
        raise InvalidChange.differs("key", "one that never was a member's", encode_id(key))


def _check_new_name(state: State, name: str, key: Id) -> None:
    """Raises unless the name is new. An observer that takes a seat may keep its name."""
    if state.protocol >= PLAIN_NAMES:
        observers = [observer.name for observer in state.observers if observer.key != key]
        check_new_name("name", name, [member.name for member in state.members] + observers)


def _require_seat(state: State, seat: int) -> Member:
    member = state.get_seat(seat)
    if member is None:
        raise InvalidChange(f"seat {seat}: nobody sits there")
    return member


def _retire(state: State, member: Member, height: int) -> tuple[RetiredKey, ...]:
    return (*state.retired, RetiredKey(member.key, member.seat, member.key_since, height))


def _remove_observer(state: State, key: Id) -> tuple[Observer, ...]:
    """Returns the observers without one that becomes a member."""
    return tuple(observer for observer in state.observers if observer.key != key)


def _replace_member(state: State, new: Member) -> tuple[Member, ...]:
    members = [new if member.seat == new.seat else member for member in state.members]
    return tuple(sorted(members, key=lambda member: member.key))


@dataclass(frozen=True, slots=True)
class _SeatChange(Kind):
    """A change that concerns the member on one seat."""

    seat: int
    keys: ClassVar[tuple[str, ...]] = ("seat",)

    @classmethod
    def read(cls, top: Section) -> Self:
        return cls(top.integer("seat"))

    def to_terms(self) -> dict[str, Any]:
        return {"seat": self.seat}


@dataclass(frozen=True, slots=True)
class _AdmissionChange(Kind):
    """A change that admits a key under the name it is given."""

    key: Id
    given_name: str
    keys: ClassVar[tuple[str, ...]] = ("key", "name")

    @classmethod
    def read(cls, top: Section) -> Self:
        check_name("name", top.text("name"))
        return cls(read_key(top), top.text("name"))

    def to_terms(self) -> dict[str, Any]:
        return {"key": encode_id(self.key), "name": self.given_name}


@dataclass(frozen=True, slots=True)
class AddMember(_AdmissionChange):
    """Adds a member, whose readiness is needed: it has the chain, and its daemon runs."""

    name: ClassVar[str] = "add_member"
    consent: ClassVar[Consent] = Consent.BOTH_QUORUMS

    def get_new_key(self) -> Id | None:
        return self.key

    def apply(self, state: State, place: Place) -> State:
        _check_new_key(state, self.key)
        _check_new_name(state, self.given_name, self.key)
        new = Member(self.key, self.given_name, state.num_seats, since=place.height, key_since=place.height)
        return replace(
            state,
            members=tuple(sorted((*state.members, new), key=lambda member: member.key)),
            observers=_remove_observer(state, self.key),
            num_seats=state.num_seats + 1,
        )


@dataclass(frozen=True, slots=True)
class RemoveMember(_SeatChange):
    """Removes a member. A member that proposes its own removal leaves."""

    name: ClassVar[str] = "remove_member"
    consent: ClassVar[Consent] = Consent.BOTH_QUORUMS

    def apply(self, state: State, place: Place) -> State:
        gone = _require_seat(state, self.seat)
        members = tuple(member for member in state.members if member.seat != self.seat)
        return replace(state, members=members, retired=_retire(state, gone, place.height))


@dataclass(frozen=True, slots=True)
class ReplaceKey(Kind):
    """Puts another key in force for a seat: a rotation if the old key agrees, else a replacement of a lost or stolen
    key. The new key may be an observer's, as with a new member."""

    seat: int
    new: Id
    name: ClassVar[str] = "replace_key"
    keys: ClassVar[tuple[str, ...]] = ("seat", "new")
    consent: ClassVar[Consent] = Consent.REPLACEMENT

    @classmethod
    def read(cls, top: Section) -> Self:
        return cls(top.integer("seat"), read_key(top, "new"))

    def to_terms(self) -> dict[str, Any]:
        return {"seat": self.seat, "new": encode_id(self.new)}

    def get_new_key(self) -> Id | None:
        return self.new

    def may_rotate(self, state: State, height: int) -> bool:
        """Says whether the approval of the member's own two keys is enough at this height."""
        member = _require_seat(state, self.seat)
        return member.key_since == member.since or height - member.key_since >= ROTATION_HEIGHTS

    def apply(self, state: State, place: Place) -> State:
        _check_new_key(state, self.new)
        old = _require_seat(state, self.seat)
        return replace(
            state,
            members=_replace_member(state, replace(old, key=self.new, key_since=place.height)),
            observers=_remove_observer(state, self.new),
            retired=_retire(state, old, place.height),
        )


@dataclass(frozen=True, slots=True)
class Convict(Kind):
    """Suspends a member that signed two objects for one slot; the evidence proves it."""

    evidence: bytes
    name: ClassVar[str] = "convict"
    keys: ClassVar[tuple[str, ...]] = ("evidence",)
    consent: ClassVar[Consent] = Consent.PROOF

    @classmethod
    def read(cls, top: Section) -> Self:
        text = top.text("evidence")
        try:
            data = bytes.fromhex(text)
        except ValueError as error:
            raise GenesisError("evidence", f"expected hex, got {quote(text)}") from error
        if data.hex() != text:
            raise GenesisError("evidence", "expected lower-case hex without spaces")
        return cls(data)

    def to_terms(self) -> dict[str, Any]:
        return {"evidence": self.evidence.hex()}

    def apply(self, state: State, place: Place) -> State:
        author, height = validate_evidence(state, decode_evidence(self.evidence))
        first = place.height - state.rules.evidence_heights + 1
        if not first <= height < place.height:
            raise InvalidChange.differs("height of the evidence", f"{first} to {place.height - 1}", height)
        seat = state.find_holder(author, height)
        member = None if seat is None else state.get_seat(seat)
        if member is None:
            raise InvalidChange(f"evidence accuses {encode_id(author)}, who is a member no more")
        if member.is_suspended:
            raise InvalidChange(f"{member.name} is suspended already")
        if height <= member.pardoned_at:
            expected = f"more than {member.pardoned_at}, up to which {member.name} was pardoned"
            raise InvalidChange.differs("height of the evidence", expected, height)
        return replace(state, members=_replace_member(state, replace(member, is_suspended=True)))


@dataclass(frozen=True, slots=True)
class Pardon(_SeatChange):
    """Ends a suspension."""

    name: ClassVar[str] = "pardon"

    def apply(self, state: State, place: Place) -> State:
        member = _require_seat(state, self.seat)
        if not member.is_suspended:
            raise InvalidChange(f"{member.name} is not suspended")
        pardoned = replace(member, is_suspended=False, pardoned_at=place.height)
        return replace(state, members=_replace_member(state, pardoned))


@dataclass(frozen=True, slots=True)
class AddObserver(_AdmissionChange):
    """Lets a key sync and read."""

    name: ClassVar[str] = "add_observer"

    def apply(self, state: State, place: Place) -> State:
        _check_new_key(state, self.key)
        if any(observer.key == self.key for observer in state.observers):
            raise InvalidChange(f"{encode_id(self.key)} is an observer already")
        _check_new_name(state, self.given_name, self.key)
        new = Observer(self.key, self.given_name)
        return replace(state, observers=tuple(sorted((*state.observers, new), key=lambda observer: observer.key)))


@dataclass(frozen=True, slots=True)
class RemoveObserver(Kind):
    """Ends a key's right to sync and read."""

    key: Id
    name: ClassVar[str] = "remove_observer"
    keys: ClassVar[tuple[str, ...]] = ("key",)

    @classmethod
    def read(cls, top: Section) -> Self:
        return cls(read_key(top))

    def to_terms(self) -> dict[str, Any]:
        return {"key": encode_id(self.key)}

    def apply(self, state: State, place: Place) -> State:
        observers = _remove_observer(state, self.key)
        if len(observers) == len(state.observers):
            raise InvalidChange(f"{encode_id(self.key)} is no observer")
        return replace(state, observers=observers)
