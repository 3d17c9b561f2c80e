"""The file all founders share: everything a validator needs to judge the first block, and nothing that a site may
choose.

Its canonical bytes are ASCII JSON with sorted keys, separators `,` and `:` and finite numbers; their hash is the chain
id, and block 0 and the first state are derived from it (PROTOCOL §1). Waits are hashed as values, so that a later
release with other profiles still computes the same chain id. Addresses are hints and are not hashed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from chain.block import ZERO, Block, Body, Digest, Header, Id
from chain.codec import compute_block_id, compute_body_digest, compute_seal
from chain.errors import GenesisError
from chain.layout import MAX_HEIGHT, MAX_TIME_MS, MAX_U64
from chain.names import PLAIN_NAMES, check_new_name
from chain.rules import MAX_ABS, MAX_PAYLOAD_BYTES, MIB, QUORUMS, Limits, PowRules, Rules
from chain.run import TERMS, Run, encode_canonical
from chain.schema import (
    Section,
    check_choice,
    check_name,
    check_range,
    check_unique,
    format_time,
    read_digest,
    read_number,
    read_time,
)
from chain.signing import SIGNATURE_BYTES, encode_id, tag
from chain.state import Member, Observer, State, read_key, read_observer
from chain.waits import PROFILES, Waits

FIRST_PROTOCOL, PROTOCOL_VERSION = 2, 5  # the lowest that a chain may begin with here, and that of a new chain
GENESIS_TAG = tag("genesis")
ADAPTIVE_FACTOR = 64  # `pow.adaptive` bounds difficulty to its first value divided and multiplied by this

_RULES = ("quorum", "waits", "pow", "limits", "min_contributions", "keep_heights", "evidence_heights")
_FORK = ("chain_id", "height", "head", "certificate")
MAX_CERTIFICATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Founder:
    """A member from the start: its key and the name that people call it by. The address is a hint: it is neither hashed
    nor compared."""

    key: Id
    name: str
    address: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The end of a chain that lost its quorum, from which another chain continues: its id, the height and id of its
    head, and the certificate of the head. It is hashed, and nobody verifies across it."""

    chain_id: Digest
    height: int
    head: Id
    certificate: bytes

    def __post_init__(self) -> None:
        check_range("forked_from.height", self.height, 1, MAX_HEIGHT)
        check_range("size of the certificate", len(self.certificate), 1, MAX_CERTIFICATE_BYTES, path="forked_from")

    def to_mapping(self) -> dict[str, Any]:
        return {
            "chain_id": self.chain_id.hex(),
            "height": self.height,
            "head": self.head.hex(),
            "certificate": self.certificate.hex(),
        }

    @classmethod
    def read(cls, section: Section) -> Self:
        """Returns the fork point that a section describes. Raises GenesisError."""
        digests = {name: read_digest(section.path(name), section.text(name)) for name in ("chain_id", "head")}
        text = section.text("certificate")
        if not re.fullmatch(r"([0-9a-f]{2})+", text):
            raise GenesisError(section.path("certificate"), "expected lower-case hex")
        return cls(digests["chain_id"], section.integer("height"), digests["head"], bytes.fromhex(text))


@dataclass(frozen=True, eq=False)
class Genesis:
    """The definition of a chain. It is valid once built, however it was built; it is not slotted, because it caches
    what it derives.

    It says how a chain begins. Each height is judged by the state before it; `state` is the first state. Founders are
    sorted by key. Two are equal when their chain ids are. `forked_from` is the end of the chain that this one
    continues, if there is one.
    """

    protocol: int
    chain_name: str
    created_at_ms: int
    founders: tuple[Founder, ...]
    run: Run
    rules: Rules
    profile: str
    observers: tuple[Observer, ...] = ()
    forked_from: ForkPoint | None = None

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        check_name("chain_name", self.chain_name)
        check_range("created_at", self.created_at_ms, 0, MAX_TIME_MS)
        check_choice("profile", self.profile, tuple(PROFILES))
        if self.run.first_protocol > self.protocol:
            raise GenesisError("protocol", f"expected {self.run.first_protocol} for such a run, got {self.protocol}")
        state = self.state  # building it checks members, rules and the run
        if self.rules.min_contributions is not None:
            check_range("min_contributions", self.rules.min_contributions, 1, state.q)
        if self.protocol >= PLAIN_NAMES and self.forked_from is None:  # a fork keeps the names of the chain before
            self._check_names()

    def _check_names(self) -> None:
        named = [(f"members[{i}].name", founder.name) for i, founder in enumerate(self.founders)]
        named += [(f"observers[{i}].name", observer.name) for i, observer in enumerate(self.observers)]
        for i, (path, name) in enumerate(named):
            check_new_name(path, name, [other for _, other in named[:i]])

    @cached_property
    def state(self) -> State:
        """State(0), which judges height 1. The seat of each founder is its place in key order."""
        return State(
            chain_id=self.chain_id,
            protocol=self.protocol,
            members=tuple(Member(founder.key, founder.name, seat) for seat, founder in enumerate(self.founders)),
            observers=self.observers,
            run=self.run,
            rules=self.rules,
            num_seats=len(self.founders),
        )

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that are hashed. Parsed as JSON they are a mapping that `from_mapping` accepts."""
        return encode_canonical(self._to_hashed())

    @cached_property
    def chain_id(self) -> Digest:
        return hashlib.sha256(GENESIS_TAG + self.canonical).digest()

    @cached_property
    def block0(self) -> Block:
        """The block at height 0: no proof of work, no miner, no certificate; its aggregate is the initial model."""
        header = Header(
            version=self.protocol,
            height=0,
            prev=ZERO,
            body=compute_body_digest(Body()),
            aggregate=self.run.initial_model,
            state_next=self.state.digest,
            miner=ZERO,
            start_ms=self.created_at_ms,
            time_ms=self.created_at_ms,
            difficulty=1,
        )
        return Block(
            header, 0, Body(), bytes(SIGNATURE_BYTES), compute_block_id(compute_seal(self.chain_id, header), 0)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genesis) and self.chain_id == other.chain_id

    def __hash__(self) -> int:
        return hash(self.chain_id)

    @classmethod
    def from_mapping(cls, obj: Mapping[str, Any]) -> Self:
        """Returns the genesis that the readable form describes (INTERFACES §3). Raises GenesisError naming the field,
        expected and got."""
        named = ("protocol", "chain_name", "created_at", "members", "observers", "profile", "forked_from")
        top = Section("", obj, (*named, *TERMS, *_RULES))
        check_protocol(top.integer("protocol"))
        profile = top.text("profile")
        check_choice("profile", profile, tuple(PROFILES))
        observers = [read_observer(f"observers[{i}]", item) for i, item in enumerate(top.items("observers", []))]
        return cls(
            protocol=top.integer("protocol"),
            chain_name=top.text("chain_name"),
            created_at_ms=read_time("created_at", top.value("created_at")),
            founders=_read_founders(top),
            run=Run.from_terms(top, number=1, first_height=1),
            rules=_read_rules(top, profile),
            profile=profile,
            observers=tuple(sorted(observers, key=lambda observer: observer.key)),
            forked_from=ForkPoint.read(top.section("forked_from", _FORK)) if top.has("forked_from") else None,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Returns the readable form: JSON-able, with addresses, and sizes in MiB where they are whole MiB. Terms that
        are rarely set are omitted where they are at their defaults."""
        mapping = self._to_hashed()
        for entry, founder in zip(mapping["members"], self.founders, strict=True):
            if founder.address:
                entry["address"] = founder.address
        if self.rules.limits.payload_bytes % MIB == 0:
            del mapping["limits"]["payload_bytes"]
            mapping["limits"]["payload_mib"] = self.rules.limits.payload_bytes // MIB
        for name in ("observers", "schema", "min_contributions"):
            if not mapping[name]:
                del mapping[name]
        return mapping

    def _to_hashed(self) -> dict[str, Any]:
        hashed = {
            "protocol": self.protocol,
            "chain_name": self.chain_name,
            "created_at": format_time(self.created_at_ms),
            "members": [{"key": encode_id(founder.key), "name": founder.name} for founder in self.founders],
            "observers": [{"key": encode_id(observer.key), "name": observer.name} for observer in self.observers],
            **self.run.to_terms(),
            "profile": self.profile,
            **self.rules.to_mapping(),
        }
        if self.forked_from is not None:
            hashed["forked_from"] = self.forked_from.to_mapping()
        return hashed


def check_protocol(protocol: int) -> None:
    """Raises GenesisError for a protocol that a chain of this release cannot begin with."""
    if protocol == 1:
        raise GenesisError(
            "protocol",
            "1 was that of releases up to 0.2: make a new genesis with 'fednode genesis new', or go on with 0.2",
        )
    check_range("protocol", protocol, FIRST_PROTOCOL, PROTOCOL_VERSION)


# Reading the readable form


def _read_founders(top: Section) -> tuple[Founder, ...]:
    founders: list[Founder] = []
    seen: dict[Id, int] = {}
    for i, item in enumerate(top.items("members")):
        path = f"members[{i}]"
        entry = Section(path, item, ("key", "name", "address"))
        key = read_key(entry)
        if key in seen:
            raise GenesisError(f"{path}.key", f"expected one entry per key, got that of members[{seen[key]}] again")
        seen[key] = i
        founders.append(Founder(key, entry.text("name"), entry.text("address", "")))
    check_unique("members", [founder.name for founder in founders], "name")  # by the file's order, for the message
    return tuple(sorted(founders, key=lambda founder: founder.key))


def _read_rules(top: Section, profile: str) -> Rules:
    quorum = top.text("quorum")
    check_choice("quorum", quorum, QUORUMS)
    return Rules(
        quorum=quorum,
        waits=_read_waits(top, profile),
        pow=_read_pow(top),
        limits=_read_limits(top),
        min_contributions=top.optional_integer("min_contributions"),
        keep_heights=top.integer("keep_heights", 2),
        evidence_heights=top.integer("evidence_heights", 100),
    )


def _read_waits(top: Section, profile: str) -> Waits:
    names = tuple(f.name for f in fields(Waits))
    section = top.section("waits", names, {})
    values = asdict(PROFILES[profile])
    return Waits(**{name: read_number(section.path(name), section.value(name, values[name])) for name in names})


def _read_pow(top: Section) -> PowRules:
    """Returns the rules of proof of work. Difficulty is constant unless `adaptive` or bounds in the file let it
    change."""
    section = top.section("pow", ("difficulty", "min", "max", "target_ms", "adaptive"))
    difficulty, adaptive = section.integer("difficulty"), section.flag("adaptive", False)
    factor = ADAPTIVE_FACTOR if adaptive else 1
    return PowRules(
        difficulty=difficulty,
        min=section.integer("min", max(1, difficulty // factor)),
        max=section.integer("max", min(MAX_U64, difficulty * factor)),
        target_ms=section.integer("target_ms"),
    )


def _read_limits(top: Section) -> Limits:
    section = top.section("limits", ("max_weight", "payload_mib", "payload_bytes", "max_abs"))
    if section.has("payload_mib") and section.has("payload_bytes"):
        raise GenesisError(section.path("payload_bytes"), "expected payload_mib or payload_bytes, got both")
    if section.has("payload_bytes"):
        payload_bytes = section.integer("payload_bytes")
    else:
        mib = section.integer("payload_mib")
        check_range("limits.payload_mib", mib, 1, MAX_PAYLOAD_BYTES // MIB)
        payload_bytes = mib * MIB
    max_abs = read_number(section.path("max_abs"), section.value("max_abs", MAX_ABS))
    return Limits(section.integer("max_weight"), payload_bytes, max_abs)
