"""The point of a round: those values of its record that are worth a curve, in one line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from chain.schema import format_time
from ml.measures.classification import Measures
from node.telemetry.sinks.base import Point

_COPIED = ("block", "miner", "view", "votes", "payload_bytes", "pulled_bytes", "bytes_sent", "seconds", "beta_s")


def make_point(record: Mapping[str, Any], node: str, at_ms: int) -> Point:
    """`record` is `RoundRecord.to_mapping`'s, in which None stands for numbers that are not finite."""
    train = record.get("train", {})
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
        "measures": _list_measures(record.get("measures")),
        "alone": _list_measures((record.get("alone") or {}).get("measures")),
        "not_learned": sorted(record.get("signs", {})),
    }


def _list_measures(measures: Mapping[str, Any] | None) -> dict[str, float]:
    """Of all classes, and sensitivity and specificity of each."""
    if measures is None:
        return {}
    read = Measures.from_mapping(measures)
    by_class = {
        f"{name}/{one.name}": value
        for one in read.by_class
        for name, value in (("sensitivity", one.sensitivity), ("specificity", one.specificity))
        if value is not None
    }
    return read.summarise() | by_class


def list_scalars(point: Point, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a point by its place, as in `seconds/train`, for what only takes numbers."""
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
    """The time when the round ended, in Unix seconds: a sink may come to write it much later."""
    return datetime.fromisoformat(point["time"]).timestamp()
