"""One table in each of the forms that people write it in: the same features and labels, or an error that says where.

The grammar leaves out what a file of text cannot say: text that is a number once a comma is its decimal sign, and names
of columns that are numbers, or that begin with #.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml.data import open_dataset, open_once
from ml.data.table_input import TableInput
from ml.errors import DataError
from support.data.tables import detect_table

LABELS = ("yes", "no", "Ja ", "caf\u00e9", "cafe\u0301")
NAMES = (
    "age",
    " crp",
    "sex ",
    "d\u00f4se",
    "do\u0302se 2",
    "a b",
    "x;y",
    "x,y",
    'the "third"',
    "ca|cl",
    "Yes",
    "tab\tbed",
)
TEXTS = (
    *("f", "m", "F ", "caf\u00e9", "cafe\u0301", "a,b", "a;b", 'say "x"', "x\ty", "two\nlines", "p|q", "\u00df", "#3"),
    *("1.0", "0", "true", "True", "", "NA", "None", "\u20ac", "01", "-", "n/a", "\u65e5\u672c"),
)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.5, -0.25, 1.125, 1e-20, 3.0])
NUMBERS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "float64": (FLOATS, pa.float64()),
    "float32": (FLOATS, pa.float32()),
    "int64": (st.integers(-(2**60), 2**60) | st.integers(0, 3), pa.int64()),
    "uint8": (st.integers(0, 255), pa.uint8()),
    "bool": (st.booleans(), pa.bool_()),
    "decimal": (st.decimals(-1000, 1000, places=2), pa.decimal128(12, 2)),
    "text": (st.sampled_from(TEXTS), pa.string()),
    "dictionary": (st.sampled_from(TEXTS), pa.dictionary(pa.int8(), pa.string())),
    "date": (st.dates(date(1900, 1, 1), date(2100, 1, 1)), pa.date32()),
}


@dataclass(frozen=True, slots=True)
class Frame:
    columns: dict[str, pa.Array]
    labels: list[str]


@dataclass(frozen=True, slots=True)
class Dialect:
    separator: str
    decimal: str
    encoding: str
    end: str
    quoting: int
    has_index: bool
    is_gzipped: bool
    is_said: bool
    lead: str


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    num_rows = draw(st.integers(3, 8))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    kinds = st.sampled_from([*NUMBERS] * 3 + ["float64", "int64", "text"] * 5)
    columns = {}
    for name in names:
        kind = draw(kinds if name == names[0] else kinds.filter(lambda kind: kind != "date"))
        cells, type_ = NUMBERS[kind]
        gaps = draw(st.sampled_from([0, 0, 0, 1, 4]))
        own = draw(st.lists(st.none() | cells if gaps else cells, min_size=num_rows, max_size=num_rows))
        columns[name] = pa.array(own, pa.string()).dictionary_encode() if kind == "dictionary" else pa.array(own, type_)
    return Frame(columns, draw(st.lists(st.sampled_from(LABELS), min_size=num_rows, max_size=num_rows)))


DIALECTS = st.builds(
    Dialect,
    separator=st.sampled_from(",;\t|"),
    decimal=st.sampled_from(".,"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    has_index=st.booleans(),
    is_gzipped=st.booleans(),
    is_said=st.booleans(),
    lead=st.sampled_from(["", "\n", "# made in 2024, by hand\n", "#\n\n# two\n"]),
)


def show(cell: Any, decimal: str) -> Any:
    if cell is None:
        return ""
    return str(cell).replace(".", decimal) if isinstance(cell, float | Decimal) else cell


def write_csv(frame: Frame, dialect: Dialect, path: Path) -> dict[str, Any]:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=dialect.separator, lineterminator=dialect.end, quoting=dialect.quoting)  # type: ignore[arg-type]
    index = [""] if dialect.has_index else []
    writer.writerow([*index, *frame.columns, "label"])
    for i, row in enumerate(zip(*(own.to_pylist() for own in frame.columns.values()), frame.labels, strict=True)):
        writer.writerow([*([i] if dialect.has_index else []), *(show(cell, dialect.decimal) for cell in row)])
    content = (dialect.lead + file.getvalue()).encode(dialect.encoding, "replace")
    path.write_bytes(gzip.compress(content, 1) if dialect.is_gzipped else content)
    said = {"separator": dialect.separator, "decimal": dialect.decimal, "encoding": dialect.encoding}
    return {"format": "csv", "path": str(path), **({"csv": said} if dialect.is_said else {})}


def write_parquet(frame: Frame, path: Path) -> dict[str, Any]:
    pq.write_table(pa.table({**frame.columns, "label": frame.labels}), path)
    return {"format": "parquet", "path": str(path)}


def write_hf(frame: Frame, path: Path) -> dict[str, Any]:
    path.mkdir(exist_ok=True)
    table = pa.table({**frame.columns, "label": frame.labels})
    with pa.ipc.new_stream(path / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return {"format": "hf", "path": str(path)}


def read(data: dict[str, Any]) -> tuple[Any, ...]:
    """What the columns were found to be, the features of each row, the labels, or the error's words."""
    try:
        with open_once():
            columns = detect_table(data)
            table = TableInput.from_mapping({"columns": columns, "missing": "zero"})
            train, test = open_dataset(data, table=table)
    except DataError as error:
        return (str(error),)
    return columns, np.concatenate([train.x, test.x]).tolist(), train.y.tolist(), train.classes


def check(frame: Frame, dialect: Dialect, folder: Path) -> str:
    """Raises AssertionError where two forms differ without a word."""
    expected = read(write_parquet(frame, folder / "a.parquet"))
    assert read(write_hf(frame, folder / "a")) == expected or len(expected) == 1
    found = read(write_csv(frame, dialect, folder / "a.csv"))
    for answer in (expected, found):
        if len(answer) == 1:
            assert re.search(r"column '|line \d", answer[0]), answer
    if len(expected) == 1 or len(found) == 1:
        return "error" if len(expected) == 1 else "error of text"
    assert found == expected
    return "same"


def is_encodable(frame: Frame, encoding: str) -> bool:
    texts = [*frame.columns, *frame.labels]
    texts += [cell for own in frame.columns.values() for cell in own.to_pylist() if isinstance(cell, str)]
    try:
        "".join(texts).encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def try_frames(folder: Path, num: int) -> Counter[str]:
    said: Counter[str] = Counter()

    @settings(max_examples=num, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(frames(), DIALECTS)
    def try_one(frame: Frame, dialect: Dialect) -> None:
        if is_encodable(frame, dialect.encoding):
            said[check(frame, dialect, folder)] += 1

    try_one()
    return said


def test_some_frames_are_the_same_in_every_form(folder: Path) -> None:
    assert try_frames(folder, 15)["same"] > 3


@pytest.mark.slow
def test_two_thousand_frames_are_the_same_in_every_form(folder: Path) -> None:
    said = try_frames(folder, 2500)
    assert said.total() >= 2000
    assert said["same"] > said.total() / 2
