"""Points by their axes: choosing them, grouping them, and what an axis and its values are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from node.experiments.plan import Point, show_fact

Key = tuple[str, ...]  # the values of some axes as shown, for a row, a column or a line


def select(points: Iterable[Point], where: Mapping[str, Any]) -> list[Point]:
    """Returns the points whose facts match `where`: one value, or any of a list."""
    return [point for point in points if all(_has(point, axis, value) for axis, value in where.items())]


def _has(point: Point, axis: str, wanted: Any) -> bool:
    fact = show_fact(point.facts.get(axis))
    return fact == show_fact(wanted) or (isinstance(wanted, list) and fact in map(show_fact, wanted))


def get_key(point: Point, axes: Sequence[str]) -> Key:
    return tuple(show_fact(point.facts.get(axis)) for axis in axes)


def list_keys(points: Sequence[Point], axes: Sequence[str]) -> tuple[Key, ...]:
    """Lists the different keys in the order of the axes' values, the first axis outermost."""
    orders = [list(dict.fromkeys(show_fact(point.facts.get(axis)) for point in points)) for axis in axes]
    keys = dict.fromkeys(get_key(point, axes) for point in points)
    return tuple(sorted(keys, key=lambda key: [order.index(part) for order, part in zip(orders, key, strict=True)]))


_AXIS_NAMES = {
    "rounds": "R",
    "partition.avg": "Avg",
    "partition.std": "Std",
    "partition.alpha": "Dirichlet α",
    "budget.t_sum": "t_sum",
    "budget.alpha": "α",
    "budget.beta": "β",
}


def name_axis(axis: str) -> str:
    """Returns the name of the axis for a heading."""
    return _AXIS_NAMES.get(axis, axis.removeprefix("method.").removeprefix("model."))


def name_fact(axis: str, text: str) -> str:
    """Returns a value as text where nothing beside it names the axis: `R 10`, but `dfpl`."""
    return (
        text if axis in ("", "method", "task", "data", "model", "partition", "network") else f"{name_axis(axis)} {text}"
    )


def name_key(axes: Sequence[str], key: Key) -> str:
    """Returns the values of a key as text where nothing beside them names the axes; empty for a key without values."""
    return ", ".join(name_fact(axis, text) for axis, text in zip(axes, key, strict=True))


def name_figure(title: str, axes: Sequence[str], key: Key) -> str:
    """Returns the name of one figure, for a title that has a figure for each key."""
    return ", ".join(filter(None, (title, name_key(axes, key))))


def split(points: Sequence[Point], axes: Sequence[str]) -> Iterator[tuple[Key, list[Point]]]:
    """Yields the points by their key, in the order of `list_keys`."""
    by_key: dict[Key, list[Point]] = {}
    for point in points:
        by_key.setdefault(get_key(point, axes), []).append(point)
    for key in list_keys(points, axes):
        yield key, by_key[key]


def show_where(value: Any) -> str:
    return " or ".join(map(show_fact, value)) if isinstance(value, list) else show_fact(value)


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
