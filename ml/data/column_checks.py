"""Checks of a table's columns against those that genesis names, and of columns that should be no feature.

An identifier has a different value in each row: nothing can be learned from it, and a site with other patients has none
of its values. A column with one value distinguishes no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ml.data.base import ArrayDataset, InputFormat
from ml.data.cells import Cells, hint_at_like
from ml.data.columns import summarise_columns
from ml.data.findings import Finding

_SHOWN = 20


def check_columns(train: ArrayDataset, input_: InputFormat | None) -> Iterable[Finding]:
    """Yields the findings about the names of a table's columns, as genesis' input uses them."""
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
        return
    if input_.table.unknown == "other":
        values = {column.name: column.values for column in input_.table.columns if column.values}
        for own in train.columns:
            known = values.get(own.name, ())
            for text in (text for text, _ in own.values if known and text not in known):
                if like := hint_at_like(text, known):
                    yield Finding("warning", f"column {own.name!r}: {text!r} counts as another value{like}")


def describe_passed_over(names: Sequence[str]) -> str:
    """Returns the sentence about columns that become no feature."""
    shown = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
    return f"{len(names)} column{'' if len(names) == 1 else 's'} passed over, which genesis does not name: {shown}"


def find_identifiers(cells: Cells) -> dict[str, str]:
    """Returns the columns that should be no feature, each with the reason."""
    doubtful = (own for own in summarise_columns(cells) if own.is_constant or own.is_identifier or own.kind == "empty")
    return {own.name: own.doubt for own in doubtful if own.doubt is not None}
