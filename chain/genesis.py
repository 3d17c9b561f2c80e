"""The file all members share: everything a validator needs to judge a block, and nothing that a site may choose.

Its canonical bytes are ASCII JSON with sorted keys, separators `,` and `:` and finite numbers; their hash is the chain
id, and block 0 is derived from it (PROTOCOL §1). Waits are hashed as values, so that a later release with other
profiles still computes the same chain id. Addresses are hints and are not hashed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from chain.block import HEADER_VERSION, ZERO, Block, Digest, Header, Id
from chain.codec import (
    MAX_HEIGHT,
    MAX_MEMBERS,
    MAX_TIME_MS,
    MAX_U32,
    MAX_U64,
    WEIGHT_LIMIT,
    compute_block_id,
    compute_body_digest,
    compute_members_digest,
    compute_seal,
)
from chain.errors import GenesisError, InvalidKey
from chain.schema import (
    Section,
    check_choice,
    check_name,
    check_range,
    check_unique,
    copy_tree,
    format_time,
    quote,
    read_digest,
    read_number,
    read_time,
)
from chain.signing import SIGNATURE_BYTES, decode_id, encode_id, tag, validate_public_key
from chain.waits import PROFILES, Waits

PROTOCOL_VERSION = 1
GENESIS_TAG = tag("genesis")
QUORUMS = ("bft", "majority")
MIB = 1024 * 1024
MAX_PAYLOAD_BYTES = 1024 * 1024 * MIB
MAX_WAIT_S = 86_400.0
MAX_ABS = 1e6  # of a payload's numbers, unless genesis sets another limit
LARGEST_FLOAT32 = float.fromhex("0x1.fffffep127")
ADAPTIVE_FACTOR = 64  # how far `pow.adaptive` lets difficulty move from where it begins, both ways


def compute_quorum(rule: str, n: int) -> int:
    """The number of members, of `n`, that decide: `bft` stands fewer than n/3 liars, `majority` crashes alone
    (PROTOCOL)."""
    return 2 * n // 3 + 1 if rule == "bft" else n // 2 + 1


@dataclass(frozen=True, slots=True)
class Member:
    """A key and the name people call it by. The address is a hint: neither hashed nor compared."""

    key: Id
    name: str
    address: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PowRules:
    """Proof of work: expected hashes per block at the start, their bounds, and how long mining should take."""

    difficulty: int
    min: int
    max: int
    target_ms: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Above these a contribution is refused: its weight, the bytes of any one payload, and how far from 0 a
    floating-point number of a payload is."""

    max_weight: int
    payload_bytes: int
    max_abs: float = MAX_ABS


@dataclass(frozen=True, eq=False)
class Genesis:
    """The definition of a chain. Valid once built, whichever way; not slotted, because what it derives is cached.

    `members` are sorted by key: their order gives the member index and the coordinator. Two are equal when their chain
    ids are.
    """

    protocol: int
    chain_name: str
    created_at_ms: int
    members: tuple[Member, ...]
    method: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: tuple[str, ...]
    input: Mapping[str, Any]
    initial_model: Digest
    rounds: int
    quorum: str
    waits: Waits
    profile: str
    pow: PowRules
    limits: Limits
    min_contributions: int
    keep_heights: int = 2
    evidence_heights: int = 100

    def __post_init__(self) -> None:
        check_range("protocol", self.protocol, PROTOCOL_VERSION, PROTOCOL_VERSION)
        check_name("chain_name", self.chain_name)
        check_range("created_at", self.created_at_ms, 0, MAX_TIME_MS)
        self._check_members()
        for path in ("method", "model"):
            value = getattr(self, path)
            if not isinstance(value.get("name"), str) or not value["name"]:
                raise GenesisError(f"{path}.name", f"expected a name, got {quote(value.get('name'))}")
        check_unique("classes", self.classes)
        if len(self.initial_model) != 32:
            raise GenesisError("initial_model", f"expected 32 bytes, got {len(self.initial_model)}")
        check_range("rounds", self.rounds, 0, MAX_HEIGHT)
        check_choice("quorum", self.quorum, QUORUMS)
        if 2 * self.q - self.n <= 0:  # two quorums must share a member, or two blocks could both be final
            raise GenesisError("quorum", f"expected 2q - n > 0, got q = {self.q} of n = {self.n}")
        check_choice("profile", self.profile, tuple(PROFILES))
        self._check_waits()
        check_range("pow.difficulty", self.pow.difficulty, 1, MAX_U64)
        check_range("pow.min", self.pow.min, 1, self.pow.difficulty)
        check_range("pow.max", self.pow.max, self.pow.difficulty, MAX_U64)
        check_range("pow.target_ms", self.pow.target_ms, 1, MAX_U32)
        check_range("limits.max_weight", self.limits.max_weight, 1, WEIGHT_LIMIT - 1)
        check_range("limits.payload_bytes", self.limits.payload_bytes, 1, MAX_PAYLOAD_BYTES)
        if not 0 < self.limits.max_abs <= LARGEST_FLOAT32:
            raise GenesisError(
                "limits.max_abs", f"expected more than 0 to {LARGEST_FLOAT32:g}, got {self.limits.max_abs:g}"
            )
        check_range("min_contributions", self.min_contributions, 1, self.q)
        check_range("keep_heights", self.keep_heights, 1, MAX_U32)
        check_range("evidence_heights", self.evidence_heights, 0, MAX_U32)

    def _check_members(self) -> None:
        check_range("number of members", len(self.members), 1, MAX_MEMBERS, path="members")
        for i, member in enumerate(self.members):
            try:
                validate_public_key(member.key)
            except InvalidKey as error:
                raise GenesisError(f"members[{i}].key", str(error)) from error
            check_name(f"members[{i}].name", member.name)
            if i and self.members[i - 1].key >= member.key:
                same = self.members[i - 1].key == member.key
                problem = "one entry per key, got it twice" if same else "members sorted by key"
                raise GenesisError(f"members[{i}].key", f"expected {problem}: {encode_id(member.key)}")
        check_unique("members", tuple(member.name for member in self.members), "name")

    def _check_waits(self) -> None:
        for name, value in asdict(self.waits).items():
            low_open = not name.endswith("_step_s")
            if not math.isfinite(value) or not 0 <= value <= MAX_WAIT_S or (low_open and value == 0):
                wanted = "more than 0" if low_open else "0"
                raise GenesisError(f"waits.{name}", f"expected {wanted} to {MAX_WAIT_S:g} seconds, got {value:g}")
        for name in ("propose_s", "vote_s"):
            if getattr(self.waits, name) > self.waits.cap_s:
                got = f"{self.waits.cap_s:g} with {name} {getattr(self.waits, name):g}"
                raise GenesisError("waits.cap_s", f"expected at least {name}, got {got}")

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def q(self) -> int:
        return compute_quorum(self.quorum, self.n)

    @cached_property
    def member_ids(self) -> tuple[Id, ...]:
        return tuple(member.key for member in self.members)

    @cached_property
    def _indices(self) -> dict[Id, int]:
        return {key: i for i, key in enumerate(self.member_ids)}

    def index_of(self, id: Id) -> int | None:  # noqa: A002 (the node id)
        """The member's place in key order; None for a stranger."""
        return self._indices.get(id)

    @cached_property
    def members_digest(self) -> Digest:
        """The digest that every header's `members_next` holds while membership is fixed."""
        return compute_members_digest(self.member_ids)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that are hashed. Read back as JSON they are a mapping `from_mapping` takes."""
        text = json.dumps(self._to_hashed(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    @cached_property
    def chain_id(self) -> Digest:
        return hashlib.sha256(GENESIS_TAG + self.canonical).digest()

    @cached_property
    def block0(self) -> Block:
        """Height 0: no proof of work, no miner, no certificate; its aggregate is the initial model."""
        header = Header(
            version=HEADER_VERSION,
            height=0,
            prev=ZERO,
            body=compute_body_digest(()),
            aggregate=self.initial_model,
            members_next=self.members_digest,
            miner=ZERO,
            start_ms=self.created_at_ms,
            time_ms=self.created_at_ms,
            difficulty=1,
        )
        return Block(header, 0, (), bytes(SIGNATURE_BYTES), compute_block_id(compute_seal(self.chain_id, header), 0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genesis) and self.chain_id == other.chain_id

    def __hash__(self) -> int:
        return hash(self.chain_id)

    @classmethod
    def from_mapping(cls, obj: Mapping[str, Any]) -> Genesis:
        """From the readable form (INTERFACES §3). Raises GenesisError naming the field, expected and got."""
        known = tuple(f.name for f in fields(cls) if f.name != "created_at_ms")
        top = Section("", obj, (*known, "created_at"))
        members = _read_members(top)
        n = len(members)
        quorum = top.text("quorum")
        check_choice("quorum", quorum, QUORUMS)
        profile = top.text("profile")
        check_choice("profile", profile, tuple(PROFILES))
        return cls(
            protocol=top.integer("protocol"),
            chain_name=top.text("chain_name"),
            created_at_ms=read_time("created_at", top.value("created_at")),
            members=members,
            method=top.tree("method"),
            model=top.tree("model"),
            classes=top.texts("classes"),
            input=_read_input(top),
            initial_model=read_digest("initial_model", top.text("initial_model")),
            rounds=top.integer("rounds"),
            quorum=quorum,
            waits=_read_waits(top, profile),
            profile=profile,
            pow=_read_pow(top),
            limits=_read_limits(top),
            min_contributions=top.integer("min_contributions", compute_quorum(quorum, n)),
            keep_heights=top.integer("keep_heights", 2),
            evidence_heights=top.integer("evidence_heights", 100),
        )

    def to_mapping(self) -> dict[str, Any]:
        """The readable form: JSON-able, with addresses, and whole MiB where they are whole."""
        mapping = self._to_hashed()
        for entry, member in zip(mapping["members"], self.members, strict=True):
            if member.address:
                entry["address"] = member.address
        if self.limits.payload_bytes % MIB == 0:
            del mapping["limits"]["payload_bytes"]
            mapping["limits"]["payload_mib"] = self.limits.payload_bytes // MIB
        return mapping

    def _to_hashed(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "chain_name": self.chain_name,
            "created_at": format_time(self.created_at_ms),
            "members": [{"key": encode_id(member.key), "name": member.name} for member in self.members],
            "method": copy_tree("method", self.method),
            "model": copy_tree("model", self.model),
            "classes": list(self.classes),
            "input": copy_tree("input", self.input),
            "initial_model": self.initial_model.hex(),
            "rounds": self.rounds,
            "quorum": self.quorum,
            "profile": self.profile,
            "waits": {name: float(value) for name, value in asdict(self.waits).items()},
            "pow": asdict(self.pow),
            "limits": asdict(self.limits) | {"max_abs": float(self.limits.max_abs)},
            "min_contributions": self.min_contributions,
            "keep_heights": self.keep_heights,
            "evidence_heights": self.evidence_heights,
        }


# Reading the readable form


def _read_members(top: Section) -> tuple[Member, ...]:
    members: list[Member] = []
    seen: dict[Id, int] = {}
    for i, item in enumerate(top.items("members")):
        path = f"members[{i}]"
        entry = Section(path, item, ("key", "name", "address"))
        try:
            key = decode_id(entry.text("key"))
        except InvalidKey as error:
            raise GenesisError(f"{path}.key", str(error)) from error
        if key in seen:
            raise GenesisError(f"{path}.key", f"expected one entry per key, got that of members[{seen[key]}] again")
        seen[key] = i
        members.append(Member(key, entry.text("name"), entry.text("address", "")))
    check_unique("members", [member.name for member in members], "name")  # by the file's order, for the message
    return tuple(sorted(members, key=lambda member: member.key))


def _read_waits(top: Section, profile: str) -> Waits:
    names = tuple(f.name for f in fields(Waits))
    section = top.section("waits", names, {})
    values = asdict(PROFILES[profile])
    return Waits(**{name: read_number(section.path(name), section.value(name, values[name])) for name in names})


def _read_pow(top: Section) -> PowRules:
    """Constant, unless `adaptive` or bounds of its own let difficulty move."""
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


def _read_input(top: Section) -> dict[str, Any]:
    """Shape [channels, height, width]; resize null or [height, width]; a mean and std for all channels or for each."""
    section = top.section("input", ("shape", "resize", "mean", "std"))
    shape = _read_sizes("input.shape", section.items("shape"), range(1, 5))
    resize = section.value("resize", None)
    if resize is not None:
        resize = _read_sizes("input.resize", section.items("resize"), range(2, 3))
    constants: dict[str, list[float]] = {}
    for key, default in (("mean", [0.0]), ("std", [1.0])):
        values = section.items(key, default)
        if len(values) not in (1, shape[0]):
            raise GenesisError(f"input.{key}", f"expected 1 value or {shape[0]}, got {len(values)}")
        constants[key] = [read_number(f"input.{key}[{i}]", value) for i, value in enumerate(values)]
    for i, value in enumerate(constants["std"]):
        if value <= 0:
            raise GenesisError(f"input.std[{i}]", f"expected more than 0, got {value:g}")
    return {"shape": shape, "resize": resize, **constants}


def _read_sizes(path: str, values: Sequence[object], counts: range) -> list[int]:
    if len(values) not in counts:
        wanted = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        raise GenesisError(path, f"expected {wanted} sizes, got {len(values)}")
    sizes: list[int] = []
    for i, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_536:
            raise GenesisError(f"{path}[{i}]", f"expected 1 to 65536, got {quote(value)}")
        sizes.append(value)
    return sizes
