"""The state of a federation: who its members are, what they train, by which rules.

`State(h)` is what judges height h + 1: its certificate, votes, contributions and coordinators. It follows from genesis
and the changes in the blocks up to h, and every header commits to it, so that all members derive the same
(FEDERATION §1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Self

from chain.block import Digest, Id
from chain.codec import MAX_MEMBERS
from chain.errors import GenesisError, InvalidKey
from chain.layout import MAX_HEIGHT, MAX_U16, MAX_U32
from chain.rules import Rules
from chain.run import Run, encode_canonical
from chain.schema import Section, check_name, check_range, check_unique, quote, read_digest
from chain.signing import decode_id, encode_id, tag, validate_public_key

STATE_TAG = tag("state")
LEAST_MASKED = 4  # the fewest members of a federation with masked sums: each sum then holds two honest ones


@dataclass(frozen=True, slots=True)
class Member:
    """A member: the key that it signs with, the name that people call it by, and its seat, which stays the same when
    the key changes.

    `since` is the height of the block that admitted it, 0 for a founder; `key_since` is the height of the block that
    put its key in force. A suspended member neither contributes nor proposes; its votes count. Evidence of what it did
    up to height `pardoned_at` no longer counts against it.
    """

    key: Id
    name: str
    seat: int
    since: int = 0
    key_since: int = 0
    is_suspended: bool = False
    pardoned_at: int = 0


@dataclass(frozen=True, slots=True)
class Observer:
    """An observer: a key that may sync and read, and nothing else."""

    key: Id
    name: str


@dataclass(frozen=True, slots=True)
class RetiredKey:
    """A key that a member held before, in force in the states `first` to `last` - 1. The state keeps it for as long as
    evidence may name it."""

    key: Id
    seat: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class State:
    """The state after some height. It is valid once built, or GenesisError names the part that is wrong. It is not
    slotted, because it caches what it derives.

    Members and observers are sorted by key: that order gives the member index and the coordinator. `num_seats` counts
    all seats ever assigned; `pow_since` is the height of the block that last changed the rules of proof of work;
    `executed` are the changes that must not be executed again, with the height at which each expires. Two states are
    equal when their digests are.
    """

    chain_id: Digest
    protocol: int
    members: tuple[Member, ...]
    observers: tuple[Observer, ...]
    run: Run
    rules: Rules
    num_seats: int
    pow_since: int = 0
    retired: tuple[RetiredKey, ...] = ()
    executed: Mapping[Digest, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("protocol", self.protocol, 1, MAX_U16)
        check_range("number of members", len(self.members), 1, MAX_MEMBERS, path="members")
        check_range("num_seats", self.num_seats, 1, MAX_U32)
        check_range("pow_since", self.pow_since, 0, MAX_HEIGHT)
        self._check_members()
        self._check_observers()
        if 2 * self.q - self.n <= 0:  # two quorums must share a member, or two blocks could both be final
            raise GenesisError("quorum", f"expected 2q - n > 0, got q = {self.q} of n = {self.n}")
        if self.run.is_masked and not self.run.is_ended:
            self._check_masked()

    def _check_masked(self) -> None:
        """Raises GenesisError if a masked sum could hold fewer than two members who share what they send with
        nobody."""
        if self.n < LEAST_MASKED:
            raise GenesisError("members", f"expected at least {LEAST_MASKED} with aggregation masked_sum, got {self.n}")
        if self.rules.quorum != "bft":
            raise GenesisError("quorum", f"expected bft with aggregation masked_sum, got {self.rules.quorum}")
        if self.min_contributions < self.q:
            raise GenesisError(
                "min_contributions", f"expected a quorum with aggregation masked_sum, got {self.min_contributions}"
            )

    def _check_members(self) -> None:
        _check_keys("members", [(member.key, member.name) for member in self.members])
        seats = [member.seat for member in self.members]
        if len(set(seats)) != len(seats) or not all(0 <= seat < self.num_seats for seat in seats):
            raise GenesisError("members", f"expected seats below {self.num_seats}, one each, got {seats}")

    def _check_observers(self) -> None:
        check_range("number of observers", len(self.observers), 0, MAX_MEMBERS, path="observers")
        if self.observers:
            _check_keys("observers", [(observer.key, observer.name) for observer in self.observers])
        for i, observer in enumerate(self.observers):
            if observer.key in self._indices:
                raise GenesisError(f"observers[{i}].key", f"expected no member's key, got {encode_id(observer.key)}")

    # ---- who decides

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def q(self) -> int:
        """The quorum: the number of members whose votes decide."""
        return self.rules.compute_quorum(self.n)

    @property
    def min_contributions(self) -> int:
        """The lowest number of contributions that the block of a round may hold."""
        return min(self.rules.min_contributions or self.q, self.q)

    @cached_property
    def member_ids(self) -> tuple[Id, ...]:
        return tuple(member.key for member in self.members)

    @cached_property
    def _indices(self) -> dict[Id, int]:
        return {key: i for i, key in enumerate(self.member_ids)}

    def index_of(self, id: Id) -> int | None:  # noqa: A002 (the node id)
        """Returns the member's place in key order, None for a stranger."""
        return self._indices.get(id)

    def get_member(self, id: Id) -> Member | None:  # noqa: A002 (the node id)
        """Returns the member that holds this key now, None for a stranger."""
        index = self._indices.get(id)
        return None if index is None else self.members[index]

    def get_seat(self, seat: int) -> Member | None:
        """Returns the member on this seat, None if the seat is empty."""
        return next((member for member in self.members if member.seat == seat), None)

    @cached_property
    def active_ids(self) -> tuple[Id, ...]:
        """The keys of the members that are not suspended, in key order: they may contribute, mine and coordinate."""
        return tuple(member.key for member in self.members if not member.is_suspended)

    def is_active(self, id: Id) -> bool:  # noqa: A002 (the node id)
        member = self.get_member(id)
        return member is not None and not member.is_suspended

    def find_holder(self, key: Id, height: int) -> int | None:
        """Returns the seat that held `key` in the state that judged `height`; None if none did, or if the state no
        longer keeps that key."""
        member = self.get_member(key)
        if member is not None and member.key_since < height:
            return member.seat
        return next((old.seat for old in self.retired if old.key == key and old.first < height <= old.last), None)

    def has_round(self, height: int) -> bool:
        """Says whether the block at `height`, which this state judges, may be a round. If not, it can only be a
        change."""
        return self.run.has_round(height)

    # ---- its bytes

    @cached_property
    def canonical(self) -> bytes:
        """The canonical bytes of the state, which `digest` hashes."""
        return encode_canonical(
            {
                "protocol": self.protocol,
                "members": [
                    {
                        "key": encode_id(member.key),
                        "name": member.name,
                        "seat": member.seat,
                        "since": member.since,
                        "key_since": member.key_since,
                        "is_suspended": member.is_suspended,
                        "pardoned_at": member.pardoned_at,
                    }
                    for member in self.members
                ],
                "observers": [{"key": encode_id(observer.key), "name": observer.name} for observer in self.observers],
                "run": self.run.to_mapping(),
                "rules": self.rules.to_mapping(),
                "num_seats": self.num_seats,
                "pow_since": self.pow_since,
                "retired": [
                    {"key": encode_id(old.key), "seat": old.seat, "first": old.first, "last": old.last}
                    for old in self.retired
                ],
                "executed": {change_id.hex(): expires for change_id, expires in self.executed.items()},
            }
        )

    @cached_property
    def digest(self) -> Digest:
        """The SHA-256 digest of the state; the header of the block at its height holds it as `state_next`."""
        return hashlib.sha256(STATE_TAG + self.chain_id + self.canonical).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"State({self.digest.hex()[:8]}, n={self.n}, q={self.q}, run={self.run.number})"

    @classmethod
    def decode(cls, chain_id: Digest, data: bytes) -> Self:
        """Returns the state that has these canonical bytes. Raises GenesisError."""
        try:
            obj = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise GenesisError("", f"state: expected JSON, got {quote(data[:40])}") from error
        state = cls._from_mapping(chain_id, obj)
        if state.canonical != data:
            raise GenesisError("", "state: expected canonical bytes, got another spelling of them")
        return state

    @classmethod
    def _from_mapping(cls, chain_id: Digest, obj: object) -> Self:
        top = Section("", obj, tuple(f.name for f in fields(cls) if f.name != "chain_id"))
        executed = top.value("executed")
        if not isinstance(executed, Mapping):
            raise GenesisError("executed", f"expected a mapping, got {quote(executed)}")
        ids = {text: read_digest("executed", text) for text in executed}
        expiries = Section("executed", executed, tuple(executed))
        return cls(
            chain_id=chain_id,
            protocol=top.integer("protocol"),
            members=tuple(_read_member(f"members[{i}]", item) for i, item in enumerate(top.items("members"))),
            observers=tuple(read_observer(f"observers[{i}]", item) for i, item in enumerate(top.items("observers"))),
            run=Run.from_mapping(top.value("run")),
            rules=Rules.from_mapping(top.value("rules")),
            num_seats=top.integer("num_seats"),
            pow_since=top.integer("pow_since"),
            retired=tuple(_read_retired(f"retired[{i}]", item) for i, item in enumerate(top.items("retired"))),
            executed={ids[text]: expiries.integer(text) for text in executed},
        )


def _check_keys(path: str, named: Sequence[tuple[Id, str]]) -> None:
    """Raises GenesisError unless every key can be an identity, keys are sorted without repeats, and names are all
    different."""
    for i, (key, name) in enumerate(named):
        try:
            validate_public_key(key)
        except InvalidKey as error:
            raise GenesisError(f"{path}[{i}].key", str(error)) from error
        check_name(f"{path}[{i}].name", name)
        if i and named[i - 1][0] >= key:
            same = named[i - 1][0] == key
            problem = "one entry per key, got it twice" if same else f"{path} sorted by key"
            raise GenesisError(f"{path}[{i}].key", f"expected {problem}: {encode_id(key)}")
    check_unique(path, tuple(name for _, name in named), "name")


def read_key(section: Section, name: str = "key") -> Id:
    """Returns the key that a section holds in its text form. Raises GenesisError."""
    try:
        return decode_id(section.text(name))
    except InvalidKey as error:
        raise GenesisError(section.path(name), str(error)) from error


def read_observer(path: str, obj: object) -> Observer:
    entry = Section(path, obj, ("key", "name"))
    return Observer(read_key(entry), entry.text("name"))


def _read_member(path: str, obj: object) -> Member:
    entry = Section(path, obj, tuple(f.name for f in fields(Member)))
    member = Member(
        key=read_key(entry),
        name=entry.text("name"),
        seat=entry.integer("seat"),
        since=entry.integer("since"),
        key_since=entry.integer("key_since"),
        is_suspended=entry.flag("is_suspended"),
        pardoned_at=entry.integer("pardoned_at"),
    )
    check_range(entry.path("seat"), member.seat, 0, MAX_U32)
    for name in ("since", "key_since", "pardoned_at"):
        check_range(entry.path(name), getattr(member, name), 0, MAX_HEIGHT)
    return member


def _read_retired(path: str, obj: object) -> RetiredKey:
    entry = Section(path, obj, tuple(f.name for f in fields(RetiredKey)))
    old = RetiredKey(read_key(entry), entry.integer("seat"), entry.integer("first"), entry.integer("last"))
    check_range(entry.path("seat"), old.seat, 0, MAX_U32)
    check_range(entry.path("first"), old.first, 0, MAX_HEIGHT)
    check_range(entry.path("last"), old.last, old.first + 1, MAX_HEIGHT)
    return old
