"""Files of samples: those that are dropped on the page, and those that a node and its doctor read from disk."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fuzz.claims import Seeds, attempt_at
from ml.data import open_dataset
from ml.data.base import InputFormat
from ml.data.checks import check_data
from ml.errors import DataError
from ml.tasks import CLASSIFICATION, REGRESSION
from node.web.decoding_child import decode

CLASSES = ("cat", "dog")
PICTURES: Mapping[str, Any] = {"shape": [1, 2, 2]}
NUMBERS: Mapping[str, Any] = {"shape": [2, 1, 1]}
TABLE: Mapping[str, Any] = {
    "shape": [4, 1, 1],
    "columns": [{"name": "a"}, {"name": "c", "values": ["x", "y"]}],
    "missing": "zero",
    "unknown": "other",
}
PARQUET_WORDS = ("PAR1", "PARE", "\x15\x04\x19", "label", "huggingface", '"_type":"ClassLabel"', "index_columns")
HF_WORDS = ('{"_data_files":[{"filename":"data"}]}', '{"splits":["train"]}', '"..","', "\0", "null", "[[[[")
_FOOTER = b"\x15\x04\x19"  # the version, and then the list of columns
_DROPPED = {0: ".npz", 1: ".csv", 2: ".csv", 3: ".png", 4: ".jpg", 5: ".gif", 6: ".bmp", 7: ".webp", 8: ".tiff"}


# ---- dropped on the page


def make_dropped() -> Seeds:
    x = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    files = {
        "archive": (0, _write_archive(x=x)),
        "named": (0, _write_archive(x=x / np.float32(20), y=np.array(["cat", "dog", "cat", "dog"]))),
        "numbers": (1, b"a,b\n1,2\n-3e5,4\n"),
        "labelled": (1, b'b,label,a\n"1",cat,2\n3,dog,4\n'),
        "columns": (2, b"a,c\n1,x\n,z\n"),
    }
    for number, suffix in list(_DROPPED.items())[3:]:
        files[suffix[1:]] = (number, _write_picture(suffix))
    return {name: bytes([number]) + data for name, (number, data) in files.items()}


def check_dropped(data: bytes) -> bool:
    """The kind of the file, then the file, as the decoding child is given them."""
    kind = data[0] % len(_DROPPED) if data else 0
    wanted = TABLE if kind == 2 else NUMBERS if kind == 1 else PICTURES
    terms = {"input": wanted, "classes": list(CLASSES), "task": CLASSIFICATION}
    with tempfile.TemporaryDirectory(prefix="fednode-") as folder:
        path = Path(folder) / f"dropped{_DROPPED[kind]}"
        path.write_bytes(data[1:])
        try:
            return attempt_at(lambda: decode(path, terms), str(path), DataError) is not None
        except MemoryError:  # which the child says of itself
            return False


def _write_archive(**arrays: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # its last argument is a flag
    return file.getvalue()


def _write_picture(suffix: str) -> bytes:
    kinds = {".jpg": "JPEG", ".tiff": "TIFF"}
    file = io.BytesIO()
    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(file, kinds.get(suffix, suffix[1:]))
    return file.getvalue()


# ---- read from disk


def make_tables() -> dict[str, pa.Table]:
    """Tables of every kind of column that is read, and of some that are not."""
    labels = pa.array(["cat", "dog"] * 4)
    a, b = pa.array(np.arange(8, dtype=np.float32)), pa.array(range(8), pa.uint64())
    picture = _write_picture(".png")
    named = {"info": {"features": {"label": {"_type": "ClassLabel", "names": list(CLASSES)}}}}
    return {
        "numbers": pa.table({"a": a, "b": b, "label": labels}),
        "classes": pa.table({"a": a, "b": b, "label": pa.array([0, 1] * 4, pa.int8())}).replace_schema_metadata(
            {"huggingface": json.dumps(named)}
        ),
        "pictures": pa.table({"image": pa.array([{"bytes": picture, "path": None}] * 8), "label": labels}),
        "binary": pa.table({"img": pa.array([picture] * 8, pa.large_binary()), "label": pa.array([True, False] * 4)}),
        "categories": pa.table({"a": a, "c": pa.array(["x", None, "z", "y"] * 2), "label": labels.dictionary_encode()}),
        "index": pa.table({"a": a, "i": b, "label": labels}).replace_schema_metadata(
            {"pandas": json.dumps({"index_columns": ["i"]})}
        ),
        "others": pa.table(
            {
                "a": pa.array([None, 1.5] * 4),
                "b": pa.array([[1], [2, 3]] * 4),
                "label": pa.array([1, 2] * 4, pa.date64()),
            }
        ),
    }


def make_parquets() -> Seeds:
    packings = ("none", "snappy", "zstd", "gzip", "none", "lz4", "none")
    return {
        name: _write_parquet(table, packing)
        for (name, table), packing in zip(make_tables().items(), packings, strict=True)
    }


def _write_parquet(table: pa.Table, packing: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression=packing)
    return file.getvalue()


def check_parquet(data: bytes) -> bool:
    """As it is, and with the length of its footer where that begins."""
    taken = _check_parquet(data)
    begin, said = data.rfind(_FOOTER), len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if 0 <= begin <= len(data) - 8 and not data[max(0, said) :].startswith(_FOOTER):
        taken = _check_parquet(data[:-8] + (len(data) - 8 - begin).to_bytes(4, "little") + b"PAR1") or taken
    return taken


def _check_parquet(data: bytes) -> bool:
    with tempfile.TemporaryDirectory(prefix="fednode-") as folder:
        path = Path(folder) / "a.parquet"
        path.write_bytes(data)
        return _is_read("parquet", path)


def is_same_parquet(one: bytes, other: bytes) -> bool:
    return bool(pq.read_table(io.BytesIO(one)).equals(pq.read_table(io.BytesIO(other)), check_metadata=True))


def make_directories() -> Seeds:
    state = json.dumps({"_data_files": [{"filename": "data"}]}).encode()
    splits = json.dumps({"splits": ["train"]}).encode()
    whole = {name: b"\0".join((state, b"", _write_stream(table, None))) for name, table in make_tables().items()}
    packed = make_tables()["numbers"]
    return {**whole, "zstd": b"\0".join((state, splits, _write_stream(packed, "zstd")))}


def _write_stream(table: pa.Table, packing: str | None) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_table(table)
    return file.getvalue()


def check_directory(data: bytes) -> bool:
    """state.json, dataset_dict.json and the stream, with a zero byte between them; without the second the directory is
    of one data set."""
    state, splits, stream = (*data.split(b"\0", 2), b"", b"")[:3]
    with tempfile.TemporaryDirectory(prefix="fednode-") as folder:
        path = Path(folder)
        own = path / "train" if splits else path
        own.mkdir(exist_ok=True)
        (own / "state.json").write_bytes(state)
        (own / "data").write_bytes(stream)
        if splits:
            (path / "dataset_dict.json").write_bytes(splits)
        return _is_read("hf", path)


def is_same_directory(one: bytes, other: bytes) -> bool:
    *head, stream = one.split(b"\0", 2)
    *other_head, other_stream = other.split(b"\0", 2)
    tables = [pa.ipc.open_stream(each).read_all() for each in (stream, other_stream)]
    return head == other_head and bool(tables[0].equals(tables[1], check_metadata=True))


def _is_read(format_: str, path: Path) -> bool:
    """As it is inspected, and as a node and its doctor read it for runs of several inputs."""
    data = {"format": format_, "path": str(path)}
    targets = {**data, "columns": {"label": "a"}}
    asked = (
        partial(_read, data, None, None),
        *(partial(_read, data, input_, CLASSES) for input_ in (PICTURES, NUMBERS, TABLE)),
        partial(_read, targets, None, ("a",), REGRESSION),
    )
    taken = [attempt_at(read, str(path), DataError) is not None for read in asked]
    return any(taken)


def _read(
    data: Mapping[str, Any],
    input_: Mapping[str, Any] | None,
    classes: tuple[str, ...] | None,
    task: str = CLASSIFICATION,
) -> bool:
    wanted = None if input_ is None else InputFormat.from_mapping(input_)
    shape, table = (None, None) if wanted is None else (wanted.shape, wanted.table)
    train, test = open_dataset(data, shape=shape, classes=classes, task=task, table=table)
    check_data(train, test, input_=wanted)
    return True
