"""A directory that Hugging Face's `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, read by pyarrow alone.

dataset_dict.json        {"splits": ["train", "test"]}, of a DatasetDict, whose splits are directories
state.json               {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], …}
data-*.arrow             Arrow streams, memory-mapped; the schema's metadata name the classes
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from ml.data.memory import bounded
from ml.data.part import Part, Parts, RawTable, make_locate
from ml.data.readers.arrow import Columns, translated
from ml.data.source import ALL, DataSource, require_extra
from ml.errors import DataError


def open_parts(source: DataSource) -> Parts:
    """Opens the splits of a DatasetDict by name, or a Dataset as one."""
    path, folders = source.get_path(), _list_folders(source)
    first = _open_columns(folders.get(source.train_split) or next(iter(folders.values())))
    classes = first.find_classes(source)
    return Parts(str(path), {name: partial(_open_part, folder, source) for name, folder in folders.items()}, classes)


def open_table(source: DataSource) -> RawTable | None:
    """Opens the training split, with all columns; None where samples are images. Raises DataError."""
    folders = _list_folders(source)
    return _open_columns(folders.get(source.train_split) or next(iter(folders.values()))).open_table(source)


def _list_folders(source: DataSource) -> dict[str, Path]:
    path = source.get_path()
    require_extra("pyarrow", "pyarrow")
    if (path / "dataset_dict.json").is_file():
        names = _read_json(path / "dataset_dict.json").get("splits")
        if not isinstance(names, list) or not names or not all(_is_plain(name) for name in names):
            raise DataError(f"{path / 'dataset_dict.json'}: splits: expected a list of names, got {names!r}")
        return {name: path / name for name in names}
    if (path / "state.json").is_file():
        return {ALL: path}
    raise DataError(f"{path}: expected a directory of save_to_disk, with state.json or dataset_dict.json in it")


def _open_part(folder: Path, source: DataSource) -> Part:
    return _open_columns(folder).make_part(source)


def _open_columns(folder: Path) -> Columns:
    import pyarrow as pa

    state = _read_json(folder / "state.json")
    files = state.get("_data_files")
    if not isinstance(files, list) or not all(
        isinstance(file, dict) and _is_plain(file.get("filename")) for file in files
    ):
        raise DataError(f"{folder / 'state.json'}: _data_files: expected a list of file names, got {files!r}")
    if not files:
        raise DataError(f"{folder / 'state.json'}: _data_files: expected at least one file, got none")
    tables: list[Any] = []
    pieces: list[tuple[object, int]] = []
    for name in (file["filename"] for file in files):
        table = _read_stream(folder / name)
        if tables and not table.schema.equals(tables[0].schema):
            raise DataError(f"{folder / name}: expected the columns of {files[0]['filename']}, got others")
        tables.append(table)
        pieces.append((folder / name, table.num_rows))
    whole = pa.concat_tables(tables)
    return Columns.of_schema(str(folder), whole.schema, folder, whole.column, make_locate(pieces, lambda i: f"row {i}"))


def _read_stream(file: Path) -> Any:
    import pyarrow as pa

    alone = pa.ipc.IpcReadOptions(use_threads=False)  # threads without memory would end this process
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    with (
        translated(file, "not a readable Arrow stream"),
        pa.memory_map(str(file)) as source,
        bounded(str(file)),
        pa.ipc.open_stream(source, options=alone) as reader,
    ):
        table = reader.read_all()  # compressed buffers are unpacked here
        table.validate(full=True)  # offsets in a file may point anywhere
    return table


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: expected JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{file}: expected a JSON object, got {type(value).__name__}")
    return value


def _is_plain(name: object) -> bool:
    """Says whether a name refers to a file in the directory itself, so that a data set cannot reach outside."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\\" not in name
