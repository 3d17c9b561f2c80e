"""Comma-separated tables with a header: a column of labels, and either numbers or the paths of images beside it.

`data.path` is the file, or a directory with `train.csv` and `test.csv`. The label's column is `data.columns.label`
("label"), the paths' is `data.columns.image` ("image") if the file has it; without it every other column is a feature.
Paths are relative to the file. Labels are whole numbers or names; of other tasks, what `ml.data.outputs` reads.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ml.data.base import Images, Shape
from ml.data.labels import to_text
from ml.data.memory import validate_fits
from ml.data.outputs import find_columns, read_text_columns
from ml.data.readers.images import SUFFIXES
from ml.data.source import ALL, DataSource, Part, Parts, RawLabels, missing_label, require_extra
from ml.errors import DataError
from ml.tasks import CLASSIFICATION

MEASURED_ROWS = 256  # at the beginning, then by twice as many: what those before took says what the rest will take
CATEGORIES = "; categories and empty cells need input.columns and input.missing in genesis"


def open_parts(source: DataSource) -> Parts:
    """The file as one split, or each file of the directory by its name."""
    path = source.get_path()
    if path.is_file():
        return Parts(str(path), {ALL: partial(_open_part, path, source)})
    files = sorted(path.glob("*.csv"))
    if not files:
        raise DataError(f"{path}: expected a .csv file, or a directory with train.csv in it")
    return Parts(str(path), {file.stem: partial(_open_part, file, source) for file in files})


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header, and the line of the file that each stood on."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    @classmethod
    def read(cls, path: Path, max_rows: int | None = None) -> Table:
        """Raises DataError, also where there are more than `max_rows`."""
        rows: list[list[str]] = []
        lines: list[int] = []
        line, file_bytes = 1, path.stat().st_size
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                header = next(reader, [])
                for row in reader:
                    line = reader.line_num
                    if not row:
                        continue
                    if len(row) != len(header):
                        raise DataError(f"{path}: line {line}: expected {len(header)} columns, got {len(row)}")
                    rows.append(row)
                    lines.append(line)
                    if max_rows is None and len(rows) >= MEASURED_ROWS and len(rows).bit_count() == 1:
                        validate_fits(_estimate(rows, file_bytes), str(path))
                    if max_rows is not None and len(rows) > max_rows:
                        raise DataError(f"{path}: expected at most {max_rows} rows, got more")
        except csv.Error as error:
            raise DataError(f"{path}: line {line + 1}: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: after line {line}: expected text in UTF-8: {error.reason}") from error
        if not header:
            raise DataError(f"{path}: line 1: expected a header")
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise DataError(f"{path}: line 1: column {twice!r} is there twice")
        if not rows:
            raise DataError(f"{path}: expected rows after the header, got none")
        return cls(path, header, rows, lines)

    def find(self, name: str | None, default: str, key: str) -> int | None:
        """The column of this name; None if it is the default and not there."""
        if (name or default) in self.header:
            return self.header.index(name or default)
        if name is not None:
            raise DataError(f"data.columns.{key}: {self.path} has no column {name!r}: {', '.join(self.header)}")
        return None

    def locate(self, i: int) -> str:
        return f"{self.path}: line {self.lines[i]}"


def _estimate(rows: Sequence[Sequence[str]], file_bytes: int) -> int:
    """The memory for the rest of a file of this size, which begins with these rows and goes on like the last ones."""
    last = rows[-MEASURED_ROWS:]
    text_bytes = sum(len(cell) + 1 for row in last for cell in row)
    taken = sum(sys.getsizeof(row) + sum(sys.getsizeof(cell) for cell in row if len(cell) > 1) for row in last)
    return taken * max(0, file_bytes - text_bytes * len(rows) // len(last)) // text_bytes


def _open_part(path: Path, source: DataSource) -> Part:
    table = Table.read(path)
    if source.task == CLASSIFICATION:
        label = table.find(source.label, "label", "label")
        if label is None:
            raise DataError(missing_label(path, table.header))
        labels, taken, outputs = _read_classes(table, label), [label], tuple[str, ...]()
    else:
        labels, outputs, taken = read_outputs(table, source)
    image = table.find(source.image, "image", "image")
    if image is None:
        columns = [c for c in range(len(table.header)) if c not in taken]
        return replace(_open_features(table, labels, columns), outputs=outputs)
    require_extra("PIL", "pillow")
    files = [path.parent / row[image] for row in table.rows]

    def locate(i: int) -> str:
        return f"{table.locate(i)}: {files[i]}"

    part = Part.of_images(str(path), labels, lambda: files.__getitem__, locate, source.images)
    return replace(part, outputs=outputs)


def read_outputs(table: Table, source: DataSource) -> tuple[RawLabels, tuple[str, ...], list[int]]:
    """The labels or targets of each row, what they are called, and the columns they are in. Raises DataError."""
    taken = [table.header.index(name) for name in find_columns(source, table.header, table.path)]
    cells = {table.header[c]: [row[c].strip() for row in table.rows] for c in taken}
    y_NT, names = read_text_columns(cells, source.task, source.outputs, table.locate)
    return y_NT, names, taken


def _read_classes(table: Table, label: int) -> RawLabels:
    names = [row[label].strip() for row in table.rows]
    if "" in names:
        raise DataError(
            f"{table.locate(names.index(''))}: column {table.header[label]!r}: expected a label, got nothing"
        )
    return to_text(names, f"{table.path}: column {table.header[label]!r}")


def _open_features(table: Table, labels: RawLabels, columns: Sequence[int]) -> Part:
    if not columns:
        raise DataError(f"{table.path}: line 1: expected a column besides the labels, got none")
    names, shape = tuple(table.header[c] for c in columns), (len(columns), 1, 1)

    def read(_: Shape | None) -> Images:
        return read_features(table, columns)

    return Part(
        str(table.path), labels, shape, read, table.locate, features=names, cells=lambda: get_cells(table, columns)
    )


def get_cells(table: Table, columns: Sequence[int]) -> dict[str, list[str]]:
    """These columns as they stand there."""
    return {table.header[c]: [row[c].strip() for row in table.rows] for c in columns}


def read_features(table: Table, columns: Sequence[int]) -> Images:
    """These columns as numbers, [N, F, 1, 1]. Raises DataError for the first cell that is no finite number."""
    cells = [[row[c] for c in columns] for row in table.rows]
    try:
        with np.errstate(over="ignore"):
            x_NF = np.array(cells, np.float64).astype(np.float32)
    except ValueError:
        raise _find_wrong(table, columns) from None
    if not np.isfinite(x_NF).all():
        raise _find_wrong(table, columns)
    return x_NF.reshape(len(x_NF), len(columns), 1, 1)


def _find_wrong(table: Table, columns: Sequence[int]) -> DataError:
    """The first cell that is no finite number, as the error to raise."""
    for i, row in enumerate(table.rows):
        for c in columns:
            try:
                is_finite = abs(float(row[c])) <= float(np.finfo(np.float32).max)
            except ValueError:
                is_finite = False
            if not is_finite:
                is_image = Path(row[c]).suffix.lower() in SUFFIXES
                hint = f" (the path of an image? then data.columns.image={table.header[c]})" if is_image else CATEGORIES
                return DataError(
                    f"{table.locate(i)}: column {table.header[c]!r}: expected a finite number, got {row[c]!r}{hint}"
                )
    return DataError(f"{table.path}: expected numbers")
