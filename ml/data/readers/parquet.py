"""Parquet: one file, or a directory of them, with numeric columns or Hugging Face's images.

In a directory, a file belongs to the split that its name begins with (`train-00000-of-00002.parquet`, as on the Hugging
Face hub) or to the split named by its directory (`train/part-0.parquet`). Files without the name of a split are one
data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ml.data.memory import bounded, validate_fits
from ml.data.part import Part, Parts, RawTable, make_locate
from ml.data.readers.arrow import Columns, translated
from ml.data.source import ALL, DataSource, require_extra
from ml.errors import DataError


def open_parts(source: DataSource) -> Parts:
    """Opens the splits by the names of files or directories."""
    path, splits = source.get_path(), _list_splits(source)
    first = _open_columns(next(iter(splits.values()))[:1])
    classes = first.find_classes(source)
    return Parts(str(path), {name: partial(_open_part, own, source) for name, own in splits.items()}, classes)


def open_table(source: DataSource) -> RawTable | None:
    """Opens the files of the training split, with all columns; None where samples are images. Raises DataError."""
    splits = _list_splits(source)
    return _open_columns(splits.get(source.train_split) or next(iter(splits.values()))).open_table(source)


def _list_splits(source: DataSource) -> dict[str, list[Path]]:
    path = source.get_path()
    require_extra("pyarrow.parquet", "pyarrow")
    if path.is_file():
        splits = {ALL: [path]}
    else:
        files = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith("."))
        if not files:
            raise DataError(f"{path}: expected .parquet files, got none")
        splits = _group(files, path)
        if source.train_split not in splits:
            splits = {ALL: files}
    return splits


def _group(files: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for file in files:
        folder = "" if file.parent in (root, root / "data") else file.parent.name
        name = folder or file.stem.split("-", 1)[0].split("_", 1)[0].split(".", 1)[0]
        groups.setdefault(name, []).append(file)
    return groups


def _open_part(files: Sequence[Path], source: DataSource) -> Part:
    return _open_columns(files).make_part(source)


def _measure(opened: Any, name: str) -> int:
    """Returns the bytes that a column of a file takes, by the file's own metadata. For text and images, whose rows
    differ in size, it is the size of all columns."""
    try:
        return int(opened.metadata.num_rows * opened.schema_arrow.field(name).type.bit_width // 8)
    except ValueError:
        groups = range(opened.metadata.num_row_groups)  # not of columns: broken ones end the process
        return int(sum(opened.metadata.row_group(g).total_byte_size for g in groups))


def _open_columns(files: Sequence[Path]) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def open_file(file: Path) -> Any:
        with translated(file, "not a readable Parquet file"):
            return pq.ParquetFile(file)

    schema = None
    pieces: list[tuple[object, int]] = []
    for file in files:
        with open_file(file) as opened, translated(file, "not a readable Parquet file"):
            own = opened.schema_arrow
            if schema is not None and not own.equals(schema):
                raise DataError(f"{file}: expected the columns of {files[0].name}, got others")
            schema = schema or own
            pieces.append((file, opened.metadata.num_rows))
    assert schema is not None  # noqa: S101 - there is at least one file

    def read(name: str) -> Any:
        chunks: list[Any] = []
        for file in files:
            place = f"{file}: column {name!r}"
            with translated(place), open_file(file) as opened, bounded(place):
                validate_fits(_measure(opened, name), place)
                column = opened.read(columns=[name], use_threads=False).column(name)
                if len(column) != opened.metadata.num_rows:
                    raise DataError(f"{place}: expected {opened.metadata.num_rows} rows, got {len(column)}")
                chunks += column.chunks
        return pa.chunked_array(chunks, type=schema.field(name).type)

    place = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    return Columns.of_schema(place, schema, files[0], read, make_locate(pieces, lambda i: f"row {i}"))
