"""The rules that all members keep and a change can move: quorum, waits, proof of work, limits, how long things are
kept.

Genesis names the first, `set_rules` moves them (FEDERATION §2). Everything here is hashed as values.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from chain.errors import GenesisError
from chain.layout import MAX_U32, MAX_U64, WEIGHT_LIMIT
from chain.schema import Section, check_choice, check_range, read_number
from chain.waits import Waits

QUORUMS = ("bft", "majority")
MIB = 1024 * 1024
MAX_PAYLOAD_BYTES = 1024 * 1024 * MIB
MAX_WAIT_S = 86_400.0
MAX_ABS = 1e6  # of a payload's numbers, unless genesis sets another limit
LARGEST_FLOAT32 = float.fromhex("0x1.fffffep127")


def compute_quorum(rule: str, n: int) -> int:
    """Returns how many of `n` members decide: `bft` tolerates fewer than n/3 dishonest members, `majority` only crashed
    ones (PROTOCOL)."""
    return 2 * n // 3 + 1 if rule == "bft" else n // 2 + 1


@dataclass(frozen=True, slots=True)
class PowRules:
    """The rules of proof of work: expected hashes per block at the start, their bounds, and how long mining should
    take."""

    difficulty: int
    min: int
    max: int
    target_ms: int

    def check(self) -> None:
        check_range("pow.difficulty", self.difficulty, 1, MAX_U64)
        check_range("pow.min", self.min, 1, self.difficulty)
        check_range("pow.max", self.max, self.difficulty, MAX_U64)
        check_range("pow.target_ms", self.target_ms, 1, MAX_U32)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a contribution, which is refused above them: its weight, the bytes of any one payload, and the
    absolute value of a payload's floating-point numbers."""

    max_weight: int
    payload_bytes: int
    max_abs: float = MAX_ABS

    def bound_aggregate(self, num_members: int) -> int:
        """Returns a number of bytes above the size of any aggregate: one payload of each member, and as much again for
        means, other arrays and the names of members."""
        return 2 * self.payload_bytes * num_members

    def check(self) -> None:
        check_range("limits.max_weight", self.max_weight, 1, WEIGHT_LIMIT - 1)
        check_range("limits.payload_bytes", self.payload_bytes, 1, MAX_PAYLOAD_BYTES)
        if not 0 < self.max_abs <= LARGEST_FLOAT32:
            raise GenesisError("limits.max_abs", f"expected more than 0 to {LARGEST_FLOAT32:g}, got {self.max_abs:g}")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force. Valid once built: raises GenesisError naming the field.

    `min_contributions` is the least number of contributions in a round's block; None means a quorum, and so does a
    number above it.
    """

    quorum: str
    waits: Waits
    pow: PowRules
    limits: Limits
    min_contributions: int | None = None
    keep_heights: int = 2
    evidence_heights: int = 100

    def __post_init__(self) -> None:
        check_choice("quorum", self.quorum, QUORUMS)
        self._check_waits()
        self.pow.check()
        self.limits.check()
        if self.min_contributions is not None:
            check_range("min_contributions", self.min_contributions, 1, MAX_U32)
        check_range("keep_heights", self.keep_heights, 1, MAX_U32)
        check_range("evidence_heights", self.evidence_heights, 0, MAX_U32)

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

    def compute_quorum(self, n: int) -> int:
        """Returns how many of `n` members decide."""
        return compute_quorum(self.quorum, n)

    def to_mapping(self) -> dict[str, Any]:
        """Returns what is hashed: JSON-able, every value written out."""
        return {
            "quorum": self.quorum,
            "waits": {name: float(value) for name, value in asdict(self.waits).items()},
            "pow": asdict(self.pow),
            "limits": asdict(self.limits) | {"max_abs": float(self.limits.max_abs)},
            "min_contributions": self.min_contributions,
            "keep_heights": self.keep_heights,
            "evidence_heights": self.evidence_heights,
        }

    @classmethod
    def from_mapping(cls, obj: object) -> Self:
        """Returns the rules that `to_mapping` has written, with every value present. Raises GenesisError."""
        top = Section("", obj, tuple(f.name for f in fields(cls)))
        waits = top.section("waits", tuple(f.name for f in fields(Waits)))
        pow_ = top.section("pow", tuple(f.name for f in fields(PowRules)))
        limits = top.section("limits", tuple(f.name for f in fields(Limits)))
        return cls(
            quorum=top.text("quorum"),
            waits=Waits(**{f.name: read_number(waits.path(f.name), waits.value(f.name)) for f in fields(Waits)}),
            pow=PowRules(**{f.name: pow_.integer(f.name) for f in fields(PowRules)}),
            limits=Limits(
                limits.integer("max_weight"),
                limits.integer("payload_bytes"),
                read_number(limits.path("max_abs"), limits.value("max_abs")),
            ),
            min_contributions=top.optional_integer("min_contributions"),
            keep_heights=top.integer("keep_heights"),
            evidence_heights=top.integer("evidence_heights"),
        )
