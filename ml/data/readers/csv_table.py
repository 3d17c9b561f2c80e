"""Tables of text: a column of labels, and numbers or the paths of images beside it, under a header.

`data.path` is the file, plain or gzipped, or a directory with `train.csv` and `test.csv`. The label's column is
`data.columns.label` ("label"), the paths' is `data.columns.image` ("image") if the file has it; without it every other
column is a feature. Paths are relative to the file. Labels are whole numbers or names; for other tasks
`ml.data.outputs` reads them. `data.columns.names` replace a missing header. `data.csv` and
`ml.data.readers.csv_dialect` describe the format of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from ml.data.base import Images, Shape
from ml.data.cells import TextColumn, parse_numbers, tidy
from ml.data.labels import to_text
from ml.data.memory import validate_fits
from ml.data.outputs import find_columns, read_text_columns
from ml.data.part import Part, Parts, RawLabels, RawTable
from ml.data.readers.csv_dialect import ENDINGS
from ml.data.readers.csv_text import Table
from ml.data.readers.images import SUFFIXES
from ml.data.source import ALL, DataSource, missing_label, require_extra
from ml.data.table_input import CATEGORIES, describe_wrong
from ml.errors import DataError
from ml.tasks import CLASSIFICATION


def open_parts(source: DataSource) -> Parts:
    """Opens the file as one split, or each file of the directory by its name."""
    path, files = source.get_path(), _list_files(source)
    if path.is_file():
        return Parts(str(path), {ALL: partial(_open_part, path, source)})
    return Parts(str(path), {_get_split(file): partial(_open_part, file, source) for file in files})


def open_table(source: DataSource) -> RawTable | None:
    """Opens the file, or that of the training split, with all columns; None where samples are images. Raises
    DataError."""
    files = _list_files(source)
    table = Table.read(
        next((file for file in files if _get_split(file) == source.train_split), files[0]), source=source
    )
    if table.find(source.image, "image", "image") is not None:
        return None
    labels = tuple(name for name in source.labels or ("label",) if name in table.header)
    return RawTable(str(table.path), get_cells(table, range(len(table.header))), table.locate, labels, table.notes)


def _list_files(source: DataSource) -> list[Path]:
    path = source.get_path()
    if path.is_file():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS) and not file.name.startswith("."))
    if not files:
        raise DataError(f"{path}: expected a .csv file, or a directory with train.csv in it")
    for file, other in pairwise(files):
        if _get_split(file) == _get_split(other):
            raise DataError(f"{path}: expected one file for each split, got {file.name} and {other.name}")
    return files


def _get_split(file: Path) -> str:
    return file.name.removesuffix(".gz").rsplit(".", 1)[0]


def _open_part(path: Path, source: DataSource) -> Part:
    table = Table.read(path, source=source)
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
        return replace(_open_features(table, labels, columns), outputs=outputs, notes=table.notes)
    require_extra("PIL", "pillow")
    files = [path.parent / name for name in table.columns[image]]

    locate_row = table.locate

    def locate(i: int) -> str:
        return f"{locate_row(i)}: {files[i]}"

    part = Part.of_images(
        str(path),
        labels,
        lambda: files.__getitem__,
        locate,
        source.images,
        beside=lambda: get_cells(table, [c for c in range(len(table.header)) if c not in (*taken, image)]),
        paths=list(table.columns[image]),
    )
    return replace(part, outputs=outputs, notes=table.notes)


def read_outputs(table: Table, source: DataSource) -> tuple[RawLabels, tuple[str, ...], list[int]]:
    """Returns the labels or targets of each row, their names, and the places of their columns. Raises DataError."""
    taken = [table.header.index(name) for name in find_columns(source, table.header, table.path)]
    cells = {table.header[c]: list(table.columns[c]) for c in taken}
    y_NT, names = read_text_columns(cells, source.task, source.outputs, table.locate)
    return y_NT, names, taken


def _read_classes(table: Table, label: int) -> RawLabels:
    names = [tidy(name) for name in table.columns[label]]
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


def get_cells(table: Table, columns: Sequence[int]) -> dict[str, TextColumn]:
    """Returns these columns unchanged."""
    return {table.header[c]: table.columns[c] for c in columns}


def read_features(table: Table, columns: Sequence[int]) -> Images:
    """Returns these columns as numbers, [N, F, 1, 1]. Raises DataError for the first cell that is no finite number."""
    validate_fits(
        4 * len(table.lines) * len(columns), f"{table.path}: {len(table.lines)} rows of {len(columns)} numbers"
    )
    x_NF = np.empty((len(table.lines), len(columns)), np.float32)
    wrong: list[tuple[int, int]] = []
    for f, c in enumerate(columns):
        values_N, is_wrong = parse_numbers(table.columns[c])
        is_bad = is_wrong | np.isnan(values_N)
        if is_bad.any():
            wrong.append((int(is_bad.argmax()), c))
        if not wrong:
            x_NF[:, f] = values_N
    if wrong:
        i, c = min(wrong)
        raise DataError(f"{table.locate(i)}: {_describe_wrong(table.header[c], table.columns[c][i])}")
    return x_NF.reshape(*x_NF.shape, 1, 1)


def _describe_wrong(name: str, cell: str) -> str:
    if Path(cell).suffix.lower() in SUFFIXES:
        return f"{describe_wrong(name, cell)} (the path of an image? then data.columns.image={name})"
    return f"{describe_wrong(name, cell)}{CATEGORIES}"
