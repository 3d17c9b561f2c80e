"""The aggregate of masked sums: what it carries from one height of a round to the next, and what it shows to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ml.aggregation.fixed_point import Integers
from ml.aggregation.masks import add_vectors
from ml.errors import AggregationError
from ml.payload import Array, Arrays, from_rows, to_rows
from ml.specs.base import AuthorPayloads

MASKED = "masked"  # the kind of payload, and the prefix in an aggregate of all that masks need
LEFT_OUT = -1  # in place of how many were in a sum: there was none, as a change took the height of its inputs


@dataclass(frozen=True, slots=True)
class MaskRoster:
    """Holds the members that can take part in a round, by key in sorted order, and the public key of each for it."""

    members: tuple[bytes, ...]
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Summed:
    """Holds a sum of masked vectors, the members in it (U), and their `commitments`: for each member in U and each of
    the roster, for itself to its own seed, for others to the seed that the two share. `keys` are those of the
    roster."""

    roster: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    members: tuple[bytes, ...]
    commitments: Array  # uint8[U, R, 32]
    total: Integers
    weight: int
    fraction_bits: int


def read_roster(aggregate: Arrays | None) -> MaskRoster | None:
    """Reads the roster in an aggregate after openings; None for any other."""
    arrays = aggregate or {}
    if f"{MASKED}/keys" not in arrays:
        return None
    return MaskRoster(tuple(from_rows(arrays[f"{MASKED}/members"])), tuple(from_rows(arrays[f"{MASKED}/keys"])))


def write_summed(ordered: Sequence[AuthorPayloads], roster: MaskRoster | None, bits: int) -> dict[str, Array]:
    """Returns what an aggregate carries of the sum of these inputs, in order. Raises AggregationError."""
    if roster is None:
        raise AggregationError("masked_sum: expected a roster in the parent's aggregate, got none")
    return {
        f"{MASKED}/roster": to_rows(roster.members),
        f"{MASKED}/roster_keys": to_rows(roster.keys),
        f"{MASKED}/members": to_rows([c.author for c in ordered]),
        f"{MASKED}/commitments": np.stack([c.payloads[MASKED]["commitments"] for c in ordered]),
        f"{MASKED}/total": add_vectors([c.payloads[MASKED]["values"] for c in ordered]),
        f"{MASKED}/weight": np.array(sum(c.weight for c in ordered), np.int64),
        f"{MASKED}/fraction_bits": np.array(bits, np.int64),
    }


def read_summed(aggregate: Arrays | None) -> Summed | None:
    """Reads the sum in an aggregate after inputs; None for any other."""
    arrays = aggregate or {}
    if f"{MASKED}/total" not in arrays:
        return None
    return Summed(
        tuple(from_rows(arrays[f"{MASKED}/roster"])),
        tuple(from_rows(arrays[f"{MASKED}/roster_keys"])),
        tuple(from_rows(arrays[f"{MASKED}/members"])),
        arrays[f"{MASKED}/commitments"],
        arrays[f"{MASKED}/total"],
        int(arrays[f"{MASKED}/weight"]),
        int(arrays[f"{MASKED}/fraction_bits"]),
    )


def has_shown(schema: Mapping[str, Any]) -> bool:
    """Says whether a run with this schema shows anything beside its sums."""
    return f"{MASKED}/shown" in schema.get("aggregate", {})


def read_shown(aggregate: Arrays | None) -> list[bytes]:
    """Lists the members whose shown kinds an aggregate has, in their order."""
    rows = (aggregate or {}).get(f"{MASKED}/shown")
    return [] if rows is None else from_rows(rows)


def count_spoiled(aggregate: Arrays | None) -> int:
    """Counts the sums in a row, up to this aggregate, that were opened and out of range: an unknown member has lied."""
    return int((aggregate or {}).get(f"{MASKED}/spoiled", np.array(0)))


def count_clipped(aggregate: Arrays | None) -> int | None:
    """Counts the numbers of a round's mean that were outside of its box. Returns None for an aggregate that is not
    after openings, and if the run has no box."""
    found = (aggregate or {}).get(f"{MASKED}/clipped")
    return None if found is None else int(found)


def explain_lost(aggregate: Arrays | None, get_name: Callable[[bytes], str]) -> str | None:
    """Explains why an aggregate after the openings of a round has the mean before it; None if it has the round's
    own."""
    arrays = aggregate or {}
    if f"{MASKED}/summed" not in arrays:
        return None
    if arrays[f"{MASKED}/summed"] == LEFT_OUT:
        return "a change took the height of its inputs"
    if not arrays[f"{MASKED}/summed"]:
        return "too few members had a part in its sum"
    if len(arrays[f"{MASKED}/silent"]):
        names = ", ".join(map(get_name, from_rows(arrays[f"{MASKED}/silent"])))
        return f"its sum was not opened by {names}"
    return "its sum is out of range, as somebody has lied" if count_spoiled(aggregate) else None


def drop_masked(aggregate: Arrays | None) -> Arrays | None:
    """Returns an aggregate as the method knows it; None if it has nothing of the method yet."""
    own = {name: array for name, array in (aggregate or {}).items() if not name.startswith(f"{MASKED}/")}
    return own or None


def pick(prefix: str, aggregate: Arrays) -> dict[str, Array]:
    return {name: array for name, array in aggregate.items() if name.startswith(prefix)}
