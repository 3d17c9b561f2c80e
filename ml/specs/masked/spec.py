"""Secure aggregation: a method whose common model is the mean of members' models that nobody sees (`masked_sum`).

A spec around the method's own, whose rounds take two heights each, after one in which members send their first keys:

    height 1        keys: each member sends the public half of a key for the next round
    height 2r       inputs of round r: masked vectors, of members whose keys the block before has; others send none
    height 2r + 1   openings of round r: the seeds that unmask the sum, and the keys for round r + 1

Some methods exchange something beside their model that is no sum, as MP-FedCL does its prototypes. That is `shown`: it
is sent unmasked with the inputs, and combined by its own rule, over the members in the sum. It belongs to the round: it
comes into force with the round's mean, and if the old mean stays, so does what was shown before.

The aggregate carries what each step needs of the step before, so that validators recompute all of it from one block and
its parent's aggregate, as in any run. After inputs it has the sum, the members whose vectors are in it, and their
commitments; after openings the mean, and the roster of members with their keys. If fewer than a quorum have sent
vectors, no seed is opened. If a member in the sum has not opened, or the sum is out of range, as a liar's random bytes
make it, the old mean stays (`ml.aggregation.masks`).

Nobody sees what single members send, so that one of weight 1 can set the mean to any model. `masked_radius` limits that
for each round: the mean is clipped to a box around the last one (`ml.aggregation.box`), and the aggregate says how many
of its numbers were outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from ml.aggregation import RULES
from ml.aggregation.contributed import PLAIN, Box, Contributed, RuleSettings
from ml.aggregation.fixed_point import LEAST_BITS, get_fraction_bits
from ml.aggregation.masks import SEED_BYTES, commit, list_opened, unmask
from ml.aggregation.robust import RUNNING_STATISTICS
from ml.errors import AggregationError, PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec, encode_arrays, from_rows, make_empty_arrays, to_rows
from ml.specs.base import AuthorPayloads, MethodSpec, RoundKinds
from ml.specs.masked.aggregate import (
    LEFT_OUT,
    MASKED,
    MaskRoster,
    Summed,
    count_spoiled,
    pick,
    read_roster,
    read_summed,
    write_summed,
)
from ml.specs.masked.vectors import Coding, ModelCoding, PrototypeCoding
from ml.specs.outer import OUTER

INPUTS, OPENINGS = "inputs", "openings"
LEAST_MEMBERS = 4  # with so many, two honest ones are in every sum
MOST_MEMBERS = 1024  # more than a federation may have
KEY_BYTES = 32
EMPTY_INPUT: Arrays = {"values": np.empty(0, np.int64), "commitments": np.empty((0, 32), np.uint8)}
EMPTY_INPUT_BYTES = len(encode_arrays(EMPTY_INPUT))
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


def mask(spec: MethodSpec) -> MethodSpec:
    """Returns `spec` with masks, if its settings ask for them; else `spec` itself. Raises SpecError."""
    return MaskedSpec(spec.task, spec.hyperparameters, spec) if spec.hyperparameters.is_masked else spec


def is_empty_input(payload_bytes: Mapping[str, int]) -> bool:
    """Says whether an input with so many bytes of each kind has no vector, whatever is shown beside it."""
    return payload_bytes.get(MASKED, 0) <= EMPTY_INPUT_BYTES


def get_unmasked_spec(spec: MethodSpec) -> MethodSpec:
    """Returns the method's own spec, whose rule computes the same mean from payloads that are not hidden."""
    return spec.inner if isinstance(spec, MaskedSpec) else spec


@dataclass(frozen=True)
class MaskedSpec(MethodSpec):
    """A method under masks, with one kind, `masked`. Inputs have `values` int64[d], the vector modulo 2^64, and
    `commitments` uint8[R, 32]; both are empty for a member that has no part in the sum. Openings have `key` uint8[32],
    of X25519, and `seeds` uint8[k, 32], as many as are to be opened, or none from a member that has lost them. Inputs
    have the kinds that are `shown` besides, which are empty if `values` are."""

    inner: MethodSpec

    def __post_init__(self) -> None:
        if self.inner.explain_not_masked() is not None:
            raise SpecError("method.aggregation", f"expected none of masked_sum: {self.inner.explain_not_masked()}")
        if self.task.num_members and self.fraction_bits < LEAST_BITS:
            raise SpecError(
                "limits.max_weight",
                f"expected limits that leave a sum of {self.task.num_members} members {LEAST_BITS} bits behind the "
                f"point with aggregation masked_sum; max_weight {self.task.max_weight} and max_abs "
                f"{self.task.max_abs:g} leave {self.fraction_bits}",
            )
        self._check_box()

    def _check_box(self) -> None:
        """Checks that running statistics of batch norm have a radius of their own, since their units are not those of
        weights."""
        box = self.box
        names = [name for name in self.coding.names if name.endswith(RUNNING_STATISTICS)]
        if box is not None and names and box.buffer_radius is None:
            raise SpecError(
                "method.masked_buffer_radius",
                f"expected a number beside masked_radius for {names[0]}, or bn_buffers: local, which sends none",
            )
        if box is not None and not names and box.buffer_radius is not None:
            raise SpecError(
                "method.masked_buffer_radius", "expected none: members send no running statistics of batch norm"
            )

    @property
    def name(self) -> str:  # type: ignore[override]  # of the method, whichever it is
        return self.inner.name

    @property
    def hides_samples(self) -> bool:  # type: ignore[override]  # likewise
        return self.inner.hides_samples

    @property
    def shown(self) -> Mapping[str, str]:  # type: ignore[override]  # likewise
        return self.inner.shown

    def explain_not_private(self) -> str | None:
        return self.inner.explain_not_private()

    def explain_not_hiding_updates(self) -> str | None:
        return self.inner.explain_not_hiding_updates()

    def to_mapping(self) -> dict[str, Any]:
        return self.inner.to_mapping()

    # ---- heights

    @staticmethod
    def has_inputs(height: int) -> bool:
        """Says whether contributions of this height are inputs; if not they are openings, or the first keys."""
        return height % 2 == 0

    @staticmethod
    def to_inner(height: int) -> int:
        """Returns the method's round to which a height belongs, 0 for that of the first keys."""
        return height // 2

    def compute_lr(self, round_number: int, num_steps: int = 0) -> float:
        return self.inner.compute_lr(round_number, num_steps)

    def get_round_number(self, height: int) -> int:
        return self.inner.get_round_number(self.to_inner(height))

    def get_local_work(self, height: int) -> int:
        return self.inner.get_local_work(self.to_inner(height)) if self.has_inputs(height) else 0

    # ---- payloads

    @cached_property
    def coding(self) -> Coding:
        """The encoding of the method's payload as a vector."""
        ((kind, rule),) = [(kind, rule) for kind, rule in self.inner.rules(1).items() if kind not in self.shown]
        schema = self.inner.schemas(1)[kind]
        return PrototypeCoding(self.inner) if rule.startswith("class_") else ModelCoding(kind, schema)

    @property
    def fraction_bits(self) -> int:
        """The number of bits after the point. Raises AggregationError if the number of members is unknown."""
        return get_fraction_bits(self.inner.rule_settings)

    @property
    def box(self) -> Box | None:
        """Returns the box to which the mean is clipped, None if it is not clipped."""
        return self.inner.hyperparameters.box

    @property
    def quorum(self) -> int:
        """The fewest vectors that a sum may have; at least two of them are those of honest members."""
        return 2 * self.task.num_members // 3 + 1

    @cached_property
    def _schemas(self) -> Mapping[str, Mapping[str, ArraySchema]]:
        inputs = {"values": ArraySpec("int64", ("d",)), "commitments": ArraySpec("uint8", ("n", 32))}
        openings = {"key": ArraySpec("uint8", (KEY_BYTES,)), "seeds": ArraySpec("uint8", ("n", SEED_BYTES))}
        members = (0, MOST_MEMBERS)
        return {
            INPUTS: {
                MASKED: ArraySchema(inputs, {"n": members, "d": (0, self.coding.size)}),
                **{kind: self.inner.schemas(1)[kind] for kind in self.shown},
            },
            OPENINGS: {MASKED: ArraySchema(openings, {"n": members})},
        }

    @property
    def max_aggregate_bytes(self) -> int:
        """A limit that no aggregate exceeds: after inputs it holds what was shown in two rounds."""
        n, schemas = self.task.num_members, self.inner.schemas(1)
        model = schemas[self.coding.kind].max_bytes + self._schemas[INPUTS][MASKED].max_bytes
        model += ArraySchema(self.inner.carried).max_bytes
        rows = {kind: max(high for _, high in schemas[kind].bounds.values()) for kind in self.shown}
        shown = sum(schemas[kind].max_bytes + 8 * rows[kind] for kind in self.shown)  # each row with its author
        return model + 2 * n * shown + n * (n + 4) * 32  # commitments, and lists of members and keys

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas[INPUTS if self.has_inputs(height) else OPENINGS]

    def rules(self, height: int) -> Mapping[str, str]:
        if not self.has_inputs(height):
            return {MASKED: "masked_openings"}
        return {MASKED: "masked_inputs", **{kind: self.inner.rules(1)[kind] for kind in self.shown}}

    def get_kept(self, height: int) -> Collection[str]:
        return (self.coding.kind, *self.shown)

    @cached_property
    def empty_input(self) -> Mapping[str, Arrays]:
        """The inputs of a member that has no part in the sum. It sends them so that the round need not wait for it."""
        schemas = self.inner.schemas(1)
        return {MASKED: EMPTY_INPUT, **{kind: make_empty_arrays(schemas[kind]) for kind in self.shown}}

    def reads_parent(self, height: int) -> bool:
        return True

    @property
    def closing(self) -> RoundKinds | None:
        return None

    @property
    def rule_settings(self) -> RuleSettings:
        return PLAIN

    @property
    def max_weight_is_one(self) -> bool:
        return self.inner.max_weight_is_one

    @property
    def is_judged_on_parent(self) -> bool:
        return True

    def validate_on_parent(
        self, author: bytes, payloads: Mapping[str, Arrays], parent: Arrays | None, height: int
    ) -> None:
        for kind in self.schemas(height):
            if kind not in payloads:
                raise PayloadError(f"expected a payload {kind!r}, got none")
        arrays = payloads[MASKED]
        if not self.has_inputs(height):
            _validate_opening(author, arrays, self.read_summed(parent, height))
            return
        _validate_input(author, arrays, read_roster(parent), self.coding.size)
        for kind in self.shown:
            if not len(arrays["values"]) and any(array.size for array in payloads[kind].values()):
                raise PayloadError(f"expected no {kind} of a member that has no part in the sum")

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        if kind in self.shown and self.has_inputs(height):
            self.inner.validate_payload(kind, arrays, self.to_inner(height))
        else:
            super().validate_payload(kind, arrays, height)

    # ---- the aggregate

    def read_summed(self, parent: Arrays | None, height: int) -> Summed | None:
        """Returns the sum that is to be opened at a height; None if there is none, as at a run's first height, whatever
        the run before has left."""
        return read_summed(parent) if height > 1 and not self.has_inputs(height) else None

    def combine(self, height: int, contributions: Sequence[AuthorPayloads], parent: Arrays | None) -> dict[str, Array]:
        """Computes the aggregate of a height. Raises AggregationError."""
        if parent is None:
            raise AggregationError("masked_sum: expected the parent's aggregate, got none")
        ordered = sorted(contributions, key=lambda c: c.author)
        if not ordered or any(one.author == other.author for one, other in pairwise(ordered)):
            raise AggregationError("masked_sum: expected contributions, one of each author")
        for c in ordered:
            try:
                self.validate_on_parent(c.author, c.payloads, parent, height)
            except PayloadError as error:
                raise AggregationError(f"masked_sum: {c.author.hex()[:8]}: {error}") from error
        kept = pick(f"{self.coding.kind}/", parent) | self._get_shown(parent, height)
        kept |= pick(f"{OUTER}/", parent) if height > 1 else {}
        if self.has_inputs(height):
            kept[f"{MASKED}/spoiled"] = np.array(count_spoiled(parent), np.int64)
            given = [c for c in ordered if len(c.payloads[MASKED]["values"])]
            enough = len(given) >= self.quorum
            if not enough:
                return kept
            return kept | write_summed(given, read_roster(parent), self.fraction_bits) | self._combine_shown(given)
        summed, mean, silent, num_clipped = self.read_summed(parent, height), None, list[bytes](), 0
        was_changed = height > 1 and read_roster(parent) is not None  # a change took the height of inputs
        spoiled = 0 if height == 1 or was_changed else count_spoiled(parent)
        if summed is not None:
            opened = {c.author for c in ordered if len(c.payloads[MASKED]["seeds"])}
            silent = [member for member in summed.members if member not in opened]
            if not silent:
                mean = self._compute_mean(ordered, summed)
                spoiled = spoiled + 1 if mean is None else 0
                if mean is not None:
                    mean, num_clipped = self._clip(mean, kept)
                    mean |= self.inner.carry(self.to_inner(height), summed.members, mean, parent)
                    mean |= self._take_shown(parent, summed)
        # A member that has not opened sits out the next round: a repetition of the sum with it could reveal its vector.
        rostered = [c for c in ordered if c.author not in silent]
        return (kept if mean is None else mean) | {
            f"{MASKED}/members": to_rows([c.author for c in rostered]),
            f"{MASKED}/keys": to_rows([c.payloads[MASKED]["key"].tobytes() for c in rostered]),
            f"{MASKED}/spoiled": np.array(spoiled, np.int64),
            f"{MASKED}/summed": np.array(_count_summed(summed, was_changed=was_changed), np.int64),
            f"{MASKED}/silent": to_rows(silent),
            **({} if self.box is None else {f"{MASKED}/clipped": np.array(num_clipped, np.int64)}),
        }

    def _clip(self, mean: dict[str, Array], before: Arrays) -> tuple[dict[str, Array], int]:
        """Returns the mean in its box, if the run has one, and how many of its numbers were outside. Names are those in
        an aggregate. Raises AggregationError."""
        if self.box is None:
            return mean, 0
        start = f"{self.coding.kind}/"
        own, middle = (
            {name.removeprefix(start): array for name, array in pick(start, of).items()} for of in (mean, before)
        )
        clipped, num_clipped = self.coding.clip(own, middle, self.box)
        return {f"{start}{name}": array for name, array in clipped.items()}, num_clipped

    def _compute_mean(self, ordered: Sequence[AuthorPayloads], summed: Summed) -> dict[str, Array] | None:
        """Computes the mean under the names it has in an aggregate; None if no members' numbers can have this sum."""
        seeds = {c.author: c.payloads[MASKED]["seeds"] for c in ordered}
        told = hashlib.sha256(summed.total.data)
        told.update(repr((summed.roster, summed.members, summed.weight, summed.fraction_bits)).encode())
        for member in summed.members:
            told.update(seeds[member].tobytes())
        digest, mean = self._last_opened.mean
        if digest != told.digest():  # else it is another candidate's: all have the same sum
            opened = [(member, from_rows(seeds[member])) for member in summed.members]
            total = unmask(summed.total, summed.roster, opened)
            num_authors, max_abs = len(summed.members), self.task.max_abs
            mean = self.coding.decode(total, summed.weight, summed.fraction_bits, num_authors, max_abs)
            self._last_opened.mean = told.digest(), mean
        return None if mean is None else {f"{self.coding.kind}/{name}": array for name, array in mean.items()}

    # ---- shown kinds

    def has_mean(self, aggregate: Arrays | None) -> bool:
        """Says whether an aggregate has the complete result of a round of the method."""
        return self.coding.is_held(aggregate) and all(pick(f"{kind}/", aggregate or {}) for kind in self.shown)

    def _combine_shown(self, given: Sequence[AuthorPayloads]) -> dict[str, Array]:
        """Combines what the members in the sum have shown, under names that the method does not know yet."""
        combined: dict[str, Array] = {}
        for kind in self.shown:
            sent = [Contributed(c.author, c.weight, c.payloads[kind]) for c in given]
            made = RULES[self.inner.rules(1)[kind]](sent, None, self.inner.rule_settings)
            combined |= {f"{MASKED}/{kind}/{name}": array for name, array in made.items()}
        return combined

    def _take_shown(self, parent: Arrays, summed: Summed) -> dict[str, Array]:
        """Returns what was shown with the inputs of a sum that is now opened, and by whom."""
        if not self.shown:
            return {}
        pending = {kind: pick(f"{MASKED}/{kind}/", parent) for kind in self.shown}
        taken = {name.removeprefix(f"{MASKED}/"): array for found in pending.values() for name, array in found.items()}
        return taken | {f"{MASKED}/shown": to_rows(summed.members)}

    def _get_shown(self, parent: Arrays, height: int) -> dict[str, Array]:
        """Returns what was shown before. At a run's first height that is nothing, since prototypes of the run before
        may be of another model."""
        if not self.shown:
            return {}
        if height > 1:
            kept = {name: array for kind in self.shown for name, array in pick(f"{kind}/", parent).items()}
            return kept | pick(f"{MASKED}/shown", parent)
        nobody = self._combine_shown([AuthorPayloads(bytes(KEY_BYTES), 1, self.empty_input)])
        none = {name.removeprefix(f"{MASKED}/"): array for name, array in nobody.items()}
        return none | {f"{MASKED}/shown": to_rows([])}

    @cached_property
    def _last_opened(self) -> _LastOpened:
        return _LastOpened()


@dataclass(slots=True)
class _LastOpened:
    """Holds the mean that was opened last, None if its sum was spoiled, after the digest of its sum and seeds. Both are
    one value, since several threads read and write them."""

    mean: tuple[bytes, Mapping[str, Array] | None] = (b"", None)


def describe_shown(spec: MethodSpec) -> str | None:
    """Describes what masks do not hide of a method; None if they hide everything."""
    if not isinstance(spec, MaskedSpec) or not spec.shown:
        return None
    told = "; ".join(f"everybody sees {kind}, and {tells}" for kind, tells in spec.shown.items())
    return f"masks hide the {spec.coding.kind} alone: {told}"


def _count_summed(summed: Summed | None, *, was_changed: bool) -> int:
    if was_changed:
        return LEFT_OUT
    return 0 if summed is None else len(summed.members)


def _validate_input(author: bytes, arrays: Arrays, roster: MaskRoster | None, size: int) -> None:
    if not len(arrays["values"]) and not len(arrays["commitments"]):
        return
    if len(arrays["values"]) != size:
        raise PayloadError(f"expected {size} values, or none, got {len(arrays['values'])}")
    if roster is None or author not in roster.members:
        raise PayloadError("expected an input of a member that has shown its key in time, and this one has not")
    if len(arrays["commitments"]) != len(roster.members):
        raise PayloadError(f"expected {len(roster.members)} commitments, got {len(arrays['commitments'])}")


def _validate_opening(author: bytes, arrays: Arrays, summed: Summed | None) -> None:
    try:
        _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(arrays["key"].tobytes()))
    except ValueError as error:
        raise PayloadError("expected a key of X25519, got a point of small order") from error
    seeds = from_rows(arrays["seeds"])
    if summed is None or author not in summed.members:
        if seeds:
            raise PayloadError(f"expected no seeds of a member that is in no sum, got {len(seeds)}")
        return
    if not seeds:
        return
    wanted = list_opened(author, summed.roster, summed.members)
    if len(seeds) != len(wanted):
        raise PayloadError(f"expected {len(wanted)} seeds, got {len(seeds)}")
    committed = summed.commitments[summed.members.index(author)]
    for other, seed in zip(wanted, seeds, strict=True):
        if commit(seed) != committed[summed.roster.index(other)].tobytes():
            raise PayloadError(f"expected the seed that it has committed to for {other.hex()[:8]}, got another")
