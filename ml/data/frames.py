"""Frames: tables of pandas, polars, pyarrow and Hugging Face, as columns by name. None of these is imported here.

A frame is written as a comma-separated file, and so has the same meaning as such a file in training, prediction and
evaluation. A missing cell is empty, yes and no are 1 and 0. A column of whole numbers that pandas stores as fractions,
because some are missing, is read as whole numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.errors import DataError

Columns = Mapping[str, Sequence[Any]]  # the cells by column; None, or no number, where there is none


def is_frame(given: Any) -> bool:
    """Says whether this is a table of pandas, polars or pyarrow."""
    is_pandas = hasattr(given, "iloc") and hasattr(given, "columns")
    return is_pandas or hasattr(given, "get_columns") or hasattr(given, "to_pydict")


def is_hub(given: Any) -> bool:
    """Says whether this is a Dataset of Hugging Face, or several in a DatasetDict."""
    return hasattr(given, "save_to_disk") and hasattr(given, "column_names")


def is_table(given: Any) -> bool:
    """Says whether this has columns by name."""
    return is_frame(given) or (is_hub(given) and not isinstance(given, Mapping))


def find_images(table: Any) -> str | None:
    """Returns the column of images in a Dataset of Hugging Face, None where it has none and for any other table."""
    features = table.features if is_hub(table) else {}
    return next((name for name, feature in features.items() if type(feature).__name__ == "Image"), None)


def find_label(table: Any, wanted: str | None) -> str | None:
    """Returns the column of labels in a Dataset of Hugging Face: `wanted`, the one called label, or the only one of
    classes."""
    classes = [name for name, feature in table.features.items() if hasattr(feature, "names")]
    candidates = [wanted] if wanted is not None else ["label", "labels", *(classes if len(classes) == 1 else ())]
    return next((name for name in candidates if name in table.column_names), None)


def read_columns(table: Any, place: str) -> dict[str, Sequence[Any]]:
    """Returns the columns of a table by name. Raises DataError where two have the same name, or there is no row."""
    if hasattr(table, "iloc"):
        series = [table.iloc[:, i] for i in range(len(table.columns))]
        names, cells = table.columns, [one.astype(object).where(one.notna(), None).tolist() for one in series]
    elif hasattr(table, "get_columns"):
        names, cells = table.columns, [one.to_list() for one in table.get_columns()]
    elif hasattr(table, "to_pydict"):
        names, cells = table.column_names, [one.to_pylist() for one in table.columns]
    else:
        names, cells = table.column_names, [read_hub(table, name) for name in table.column_names]
    columns: dict[str, Sequence[Any]] = {}
    for given, column in zip(names, cells, strict=True):
        name = given if isinstance(given, str) else f"x{given}"  # an array's columns get names from their numbers
        if name in columns:
            raise DataError(f"{place}: expected different columns, got {name!r} twice")
        columns[name] = column
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"{place}: expected rows, got none")
    return columns


def write_columns(columns: Columns, path: Path) -> None:
    """Writes a comma-separated file with row i in line i + 2."""
    written = [_write_cells(cells) for cells in columns.values()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*written, strict=True))


def read_hub(table: Any, name: str) -> list[Any]:
    """Returns a column of a Dataset of Hugging Face, with classes by their names."""
    cells = list(table.with_format(None)[name])
    classes = getattr(table.features[name], "names", None)
    return cells if classes is None else [None if cell is None or cell < 0 else classes[cell] for cell in cells]


def _write_cells(cells: Sequence[Any]) -> list[str]:
    texts = ["" if _is_missing(cell) else _write_cell(cell) for cell in cells]
    known = [cell for cell in cells if not _is_missing(cell)] if "" in texts else []
    if known and all(isinstance(cell, float) and cell.is_integer() for cell in known):
        return ["" if _is_missing(cell) else str(int(cell)) for cell in cells]
    return texts


def _write_cell(cell: Any) -> str:
    if isinstance(cell, bool):
        return str(int(cell))
    text = str(cell)
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
