"""The run of statistics that a file of columns asks for, as `fednode propose statistics` proposes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.tasks import CLASSIFICATION
from node.errors import NodeError

_ENDS = ("low", "high")


def read_columns(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the columns in a file, and the texts that stand for an empty cell, if any. Raises NodeError."""
    read = given.get("input", given)
    if not isinstance(read, Mapping) or not set(read) <= {"columns", "empty"} or "columns" not in read:
        raise NodeError(f"{file}: expected columns, and perhaps empty, and nothing else")
    columns = read["columns"]
    if not isinstance(columns, list) or not all(map(_is_column, columns)) or not columns:
        raise NodeError(f"{file}: expected a list of columns, as {{name: age, edges: [40, 60]}}, got {columns!r}")
    return dict(read)


def _is_column(given: Any) -> bool:
    return isinstance(given, Mapping) and isinstance(given.get("values") or [], list)


def draft_statistics(
    file: Path,
    read: Mapping[str, Any],
    *,
    task: str,
    min_count: int,
    correlations: bool = False,
    masked: bool = False,
    noise: float | None = None,
) -> dict[str, Any]:
    """Drafts the terms of a run of one round from the result of `read_columns`, in a federation of this task. Raises
    NodeError."""
    columns: Sequence[Mapping[str, Any]] = read["columns"]
    ends = [pair for column in columns for pair in _list_ends(file, column, noise)]
    bounds = {} if noise is None else dict(zip(_ENDS, map(list, zip(*ends, strict=True)), strict=True))
    method: dict[str, Any] = {"name": "local"}
    if masked:
        method["aggregation"] = "masked_sum"
    if noise is not None:
        method |= {"dp_noise": noise, "dp_statistics_noise": noise}
    return {
        "run": {
            "method": method,
            "model": {"name": "linear"},
            "input": {
                "shape": [len(ends), 1, 1],
                "normalize": "agreed",
                "min_count": min_count,
                **({"class_counts": True} if task == CLASSIFICATION else {}),
                **({"correlations": True} if correlations else {}),
                "missing": "mean",
                "unknown": "other",
                **bounds,
                **read,
                "columns": [{key: value for key, value in one.items() if key not in _ENDS} for one in columns],
            },
        },
        "set": ["input.normalize=agreed"],  # set, so that nothing is copied from the run before
        "rounds": 1,
        "initial": "zeros",
    }


def _list_ends(file: Path, column: Mapping[str, Any], noise: float | None) -> list[tuple[Any, Any]]:
    """Lists the bounds of each feature's values, where noise needs them. A category has one feature for each value and
    one for all others, each between 0 and 1. Raises NodeError."""
    if column.get("values"):
        return [(0.0, 1.0)] * (len(column["values"]) + 1)
    given = [key for key in _ENDS if key in column]
    if noise is None and given:
        raise NodeError(f"{file}: column {column.get('name')}: expected no {given[0]} without --noise")
    if noise is not None and len(given) < len(_ENDS):
        raise NodeError(
            f"{file}: column {column.get('name')}: expected low and high with --noise: what its values can lie between"
        )
    return [(column.get("low"), column.get("high"))]
