"""The point of a round: the values of its record that are worth a curve, in one line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from chain.schema import format_time
from ml.measures.collapse import NOT_LEARNED
from ml.measures.kinds import AnyMeasures, get_kept, read_measures
from node.telemetry.sinks.base import Point

_COPIED = ("block", "miner", "view", "votes", "payload_bytes", "pulled_bytes", "bytes_sent", "seconds", "beta_s")


def make_point(record: Mapping[str, Any], node: str, at_ms: int) -> Point:
    """Makes the point of `record`, a `RoundRecord.to_mapping`, in which None stands for numbers that are not finite."""
    train, (measures, alone) = record.get("train", {}), read_both(record)
    return {
        "time": format_time(at_ms),
        "node": node,
        "run": record["run"],
        "round": record["round"],
        "height": record["height"],
        "loss": train.get("loss"),
        "accuracy": record.get("accuracy"),
        "local_accuracy": record.get("local_accuracy"),
        "contributions": len(record.get("contributors", ())),
        "rejected": len(record.get("rejected", ())),
        "left_out": len(record.get("left_out", ())),
        "spoiled": record.get("spoiled") is not None,
        **{key: record.get(key) for key in _COPIED},
        "train": train,
        "apply": record.get("apply", {}),
        "measures": _list_all(measures),
        "alone": _list_all(alone),
        "not_learned": sorted(name for name in record.get("signs", {}) if name in NOT_LEARNED),
    }


def read_both(record: Mapping[str, Any]) -> tuple[AnyMeasures | None, AnyMeasures | None]:
    """Returns the measures in a round's record: of this site's model, and of the one that was trained without the
    others."""
    told = record.get("measures"), (record.get("alone") or {}).get("measures")
    own, alone = (None if one is None else read_measures(one) for one in told)
    return own, alone


def list_by_class(measures: AnyMeasures) -> Iterator[tuple[str, str, float]]:
    """Yields the figures that are kept for each class, label or target: name, class and value."""
    for one in measures.by_class:
        for name, value in get_kept(one).items():
            yield name, one.name, value


def _list_all(measures: AnyMeasures | None) -> dict[str, float]:
    """Returns the figures for all classes together, and for each."""
    if measures is None:
        return {}
    return measures.summarise() | {f"{name}/{label}": value for name, label, value in list_by_class(measures)}


def list_scalars(point: Point, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields every number of a point with its place, as in `seconds/train`, for sinks that take only numbers."""
    for key, value in point.items():
        if isinstance(value, Mapping):
            yield from list_scalars(value, f"{prefix}{key}/")
        elif (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and prefix + key not in ("run", "round", "height")
        ):
            yield prefix + key, float(value)


def get_time_s(point: Point) -> float:
    """Returns the time when the round ended, in Unix seconds: a sink may write it much later."""
    return datetime.fromisoformat(point["time"]).timestamp()
