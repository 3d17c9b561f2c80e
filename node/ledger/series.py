"""Series: rounds as rows of named numbers. `fednode metrics` shows them, and charts are drawn from them. Light to
import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from node.errors import InvalidRequest

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

DEFAULT_SERIES = ("accuracy", "local_accuracy", "loss", "seconds.wall", "bytes_sent")
DEFAULT_MEASURE = "accuracy"  # of those that members publish
KEYS = ("height", "run", "round", "time")  # of a row, which are no series
COUNTS = ("contributors", "votes", "payload_bytes", "bytes_sent")  # whole numbers


def flatten(record: pb.Round) -> dict[str, Any]:
    """One measured round: `height`, `run`, `round`, `time` and its numbers by series; what it has not is not there."""
    row: dict[str, Any] = {"height": record.height, "run": record.run, "round": record.round, "time": record.time}
    for name in ("accuracy", "local_accuracy", "beta_s"):
        if record.HasField(name):
            row[name] = getattr(record, name)
    if "loss" in record.train:
        row["loss"] = record.train["loss"]
    row |= {"contributors": len(record.contributors), "votes": record.votes, "payload_bytes": record.payload_bytes}
    row["bytes_sent"] = sum(record.bytes_sent.values())
    for group in ("seconds", "train", "apply"):
        row |= {f"{group}.{name}": value for name, value in sorted(getattr(record, group).items())}
    row |= {f"measures.{name}": value for name, value in sorted(record.measures.summary.items())}
    row |= {f"alone.{name}": value for name, value in sorted(record.alone.measures.summary.items())}
    for one in record.measures.classes:
        row |= {f"measures.{name}.{one.class_name}": value for name, value in sorted(one.values.items())}
    return row


def flatten_members(record: pb.Round, measure: str) -> dict[str, Any]:
    """One round: `height`, `run`, `round`, `time`, and as `members` what each has published of one measure, by name."""
    row: dict[str, Any] = {"height": record.height, "run": record.run, "round": record.round, "time": record.time}
    return row | {"members": {one.name: one.values[measure] for one in record.published if measure in one.values}}


def choose_measure(name: str | None) -> str:
    """One of those that members publish. Raises InvalidRequest for another name."""
    from chain.published import MEASURES

    if name is not None and name not in MEASURES:
        raise InvalidRequest(f"measure: expected one of {', '.join(MEASURES)} (got {name[:40]!r})")
    return name or DEFAULT_MEASURE


def get_names(row: Iterable[str]) -> Iterable[str]:
    """The series of a row."""
    return (name for name in row if name not in KEYS)
