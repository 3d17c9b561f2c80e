"""The columns that a run of statistics counts, as a file for `fednode propose statistics` has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.errors import NodeError


def take_bounds(
    file: Path, columns: Any, noise: float | None
) -> tuple[list[Mapping[str, Any]], dict[str, list[float]]]:
    """The columns without what their values lie between, and that by feature: of a category 0 and 1. Raises
    NodeError."""
    count_features(file, columns)
    ends: list[tuple[Any, Any]] = []
    for column in columns:
        if column.get("values"):
            ends += [(0.0, 1.0)] * (len(column["values"]) + 1)
        elif ("low" in column, "high" in column) != (noise is not None,) * 2:
            wanted = (
                "expected no low and high without --noise" if noise is None else "expected low and high with --noise"
            )
            raise NodeError(f"{file}: column {column.get('name')}: {wanted}: what its values lie between")
        else:
            ends.append((column.get("low"), column.get("high")))
    left = [{key: value for key, value in column.items() if key not in ("low", "high")} for column in columns]
    if noise is None:
        return left, {}
    return left, {"low": [low for low, _ in ends], "high": [high for _, high in ends]}


def count_features(file: Path, columns: Any) -> int:
    """Counts a number as one, a category as one for each value and one for all others. Raises NodeError."""
    if not isinstance(columns, list) or not all(map(_is_column, columns)) or not columns:
        raise NodeError(f"{file}: expected a list of columns, as {{name: age, edges: [40, 60]}}, got {columns!r}")
    return sum(len(column["values"]) + 1 if column.get("values") else 1 for column in columns)


def _is_column(given: Any) -> bool:
    return isinstance(given, Mapping) and isinstance(given.get("values") or [], list)
