"""The columns of a table, as they are found to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.data import open_train
from ml.data.table_input import detect_columns


def detect_table(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lists the run's `input.columns` that would suit these data alone. Raises DataError."""
    train = open_train(data)
    assert train.cells is not None
    return [column.to_mapping() for column in detect_columns(train.cells(), train.place)]
