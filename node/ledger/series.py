"""Series: rounds as rows of named numbers. `fednode metrics` shows them, and charts are drawn from them. It loads no
arrays unless they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from node.errors import InvalidRequest

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

DEFAULT_SERIES = ("accuracy", "local_accuracy", "loss", "seconds.wall", "bytes_sent")
DEFAULT_MEASURE = "accuracy"  # of the measures that members publish
KEYS = ("height", "run", "round", "time")  # the keys of a row that are no series
DEEP = ("measures.", "alone.")  # series to be computed from a record
FIGURES = ("accuracy", "local_accuracy", "beta_s")  # the single numbers of a record
PARTS = ("seconds", "train", "apply")  # the parts of a record that hold numbers by name
COUNTS = ("contributors", "votes", "payload_bytes", "bytes_sent")  # whole numbers


def flatten(record: pb.Round) -> dict[str, Any]:
    """Returns one measured round as a row: `height`, `run`, `round`, `time`, and its numbers by series, without those
    that it lacks."""
    row: dict[str, Any] = {"height": record.height, "run": record.run, "round": record.round, "time": record.time}
    for name in FIGURES:
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


class Picker:
    """Reads the values of `series` from rounds' stored records, as `flatten` returns them, without reading the rest.
    `known` are the names of all series that these records have."""

    def __init__(self, series: Iterable[str]) -> None:
        self._series = tuple(series)
        self._getters = {name: _make_getter(name) for name in self._series}
        self._has_deep = any(name.startswith(DEEP) for name in self._series)
        self._shapes: set[Hashable] = set()
        self.known: dict[str, None] = {}

    def is_new(self, record: Mapping[str, Any]) -> bool:
        """Returns whether no earlier record had the same run and the same series; then `learn` must be called with this
        one's series."""
        shape = _get_shape(record)
        if shape in self._shapes:
            return False
        self._shapes.add(shape)
        return True

    def learn(self, row: Iterable[str]) -> None:
        self.known |= dict.fromkeys(get_names(row))

    def pick(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Returns the values of the series that the record has."""
        found = {name: value for name, get in self._getters.items() if (value := get(record)) is not None}
        return found | _pick_measures(record, self._series) if self._has_deep else found


def _get_shape(record: Mapping[str, Any]) -> Hashable:
    """Returns a key that is equal for records with the same run and the same series."""
    alone = record.get("alone") or {}
    return (
        record.get("run"),
        *[record.get(name) is None for name in FIGURES],
        *[_get_names_given(record.get(part)) for part in PARTS],
        _get_shape_of_measures(record.get("measures")),
        _get_shape_of_measures(alone.get("measures")),
    )


def _get_names_given(part: Mapping[str, Any] | None) -> Hashable:
    return None if part is None else tuple([name for name, value in part.items() if value is not None])


def _get_shape_of_measures(told: Mapping[str, Any] | None) -> Hashable:
    """Returns a key for the figures that measures have, overall and for each class: it depends on names, nulls, and
    counts of 0."""
    if told is None:
        return None
    shape: list[Hashable] = [_get_names_given(told), told.get("kind")]
    for name, value in told.items():
        if not isinstance(value, list):
            continue
        if name == "classes":
            shape.append(tuple(value))
        elif name == "confusion":
            shape += [tuple(map(any, value)), tuple(map(any, zip(*value, strict=True)))]
        elif name == "counts":
            shape.append(tuple([number > 0 for row in value for number in row]))
        else:
            shape.append(tuple([each and True for each in value]))  # None, 0, or another number
    return tuple(shape)


_Getter = Callable[[Mapping[str, Any]], Any]


def _make_getter(name: str) -> _Getter:
    """Returns a function that reads a series from a record, or returns None where the record lacks it."""
    match name.split(".", 1):
        case ["loss"]:
            return _make_part_getter("train", "loss")
        case ["contributors"]:
            return lambda record: len(record.get("contributors") or ())
        case ["bytes_sent"]:
            return lambda record: sum((record.get("bytes_sent") or {}).values())
        case ["accuracy" | "local_accuracy" | "beta_s" | "votes" | "payload_bytes"]:
            return lambda record: record.get(name)
        case ["seconds" | "train" | "apply" as part, one]:
            return _make_part_getter(part, one)
    return lambda record: None


def _make_part_getter(part: str, name: str) -> _Getter:
    return lambda record: (record.get(part) or {}).get(name)


def _pick_measures(record: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, float]:
    """Computes the series that follow from counted answers."""
    from ml.measures.alone import TrainedAlone
    from ml.measures.kinds import read_measures

    found: dict[str, float] = {}
    if (told := record.get("measures")) is not None:
        measures = read_measures(told)
        found |= {f"measures.{name}": value for name, value in measures.summarise().items()}
        for one in measures.by_class if any(name.count(".") > 1 for name in wanted) else ():
            found |= {f"measures.{name}.{one.name}": value for name, value in one.get_values().items()}
    if (told := record.get("alone")) is not None and (alone := TrainedAlone.from_mapping(told)).measures is not None:
        found |= {f"alone.{name}": value for name, value in alone.measures.summarise().items()}
    return {name: found[name] for name in wanted if name in found}


def flatten_members(record: pb.Round, measure: str) -> dict[str, Any]:
    """Returns one round as a row: `height`, `run`, `round`, `time`, and in `members` the value that each member has
    published of one measure, by name."""
    row: dict[str, Any] = {"height": record.height, "run": record.run, "round": record.round, "time": record.time}
    return row | {"members": {one.name: one.values[measure] for one in record.published if measure in one.values}}


def choose_measure(name: str | None) -> str:
    """Returns the measure to show, one that members publish. Raises InvalidRequest for another name."""
    from chain.published import MEASURES

    if name is not None and name not in MEASURES:
        raise InvalidRequest(f"measure: expected one of {', '.join(MEASURES)} (got {name[:40]!r})")
    return name or DEFAULT_MEASURE


def get_names(row: Iterable[str]) -> Iterable[str]:
    """Returns the names of the series in a row."""
    return (name for name in row if name not in KEYS)


def choose_series(asked: Iterable[str] | str | None, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns the series to show of these rows; "all" asks for all there are. Raises InvalidRequest for one that no row
    has."""
    known = tuple(dict.fromkeys(name for row in rows for name in get_names(row)))
    if asked is None:
        return DEFAULT_SERIES
    if asked == "all":
        return known
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    unknown = [name for name in names if name not in known]
    if unknown and rows:
        raise InvalidRequest(f"series: no round has {unknown[0]!r}; there are {', '.join(known)}")
    return names
