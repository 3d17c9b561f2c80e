"""Checks of a table's columns beside those that genesis names, and of which columns should be no feature.

An identifier has another value in each row: nothing can be learned from it, and a site that has other patients has none
of its values. A column with one value tells no two rows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ml.data.base import ArrayDataset, InputFormat
from ml.data.findings import Finding
from ml.data.table_input import Cells, is_empty, parse_number, read_numbers, to_text

FEW_TEXTS, FEW_NUMBERS = 10, 30  # rows, in which each may have another value by chance
ONE_VALUE, EACH_ANOTHER = "one value", "another value in each row"  # reasons
_SHOWN = 20


def check_columns(train: ArrayDataset, input_: InputFormat | None) -> Iterable[Finding]:
    """The findings about the names of a table's columns, as genesis' input takes them."""
    if not train.is_table or not train.features or input_ is None:
        return
    if train.passed_over:
        yield Finding("note", describe_passed_over(train.passed_over))
    if input_.table is None or input_.table.columns is None:
        yield Finding(
            "warning",
            "genesis does not name the columns: features go by their place in the file, and a file with the same "
            "columns in another order is not noticed",
        )


def describe_passed_over(names: Sequence[str]) -> str:
    """The sentence about columns that become no feature."""
    shown = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    return f"{len(names)} column{'' if len(names) == 1 else 's'} passed over, which genesis does not name: {shown}"


def find_identifiers(cells: Cells) -> dict[str, str]:
    """The columns that should be no feature, each with the reason."""
    found = {name: _explain(column) for name, column in cells.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def _explain(column: Sequence[Any]) -> str | None:
    if (x_N := read_numbers(column)) is not None:
        distinct = np.unique(x_N)
        if len(distinct) == 1:
            return ONE_VALUE if len(column) > 1 else None
        is_numbered = len(distinct) == len(column) >= FEW_NUMBERS and bool((distinct == np.floor(distinct)).all())
        return EACH_ANOTHER if is_numbered else None
    filled = [cell for cell in column if not is_empty(cell)]
    if not filled:
        return "no value"
    numbers = [parse_number(cell) for cell in filled]
    values = {to_text(cell) if number is None else number for cell, number in zip(filled, numbers, strict=True)}
    if len(values) == 1:
        return ONE_VALUE if len(filled) > 1 else None
    are_texts = any(isinstance(value, str) for value in values)
    return EACH_ANOTHER if are_texts and len(values) == len(column) >= FEW_TEXTS else None
