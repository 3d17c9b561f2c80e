"""Tables of text as people have them: separators, decimal signs, encodings, headers, and what is no table."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import open_dataset
from ml.data.detect_format import guess_format
from ml.data.inference_files import read_inference_file
from ml.data.readers.csv_text import Table
from ml.data.source import DataSource
from ml.errors import DataError

HEADER = ("age", "crp", "label")
ROWS = [(20 + i, 0.5 + i * 1.25, "ab"[i % 2]) for i in range(10)]
FEATURES = sorted([age, crp] for age, crp, _ in ROWS)


def write(separator: str = ",", decimal: str = ".", end: str = "\n") -> str:
    rows = [separator.join([str(a), str(c).replace(".", decimal), y]) for a, c, y in ROWS]
    return end.join([separator.join(HEADER), *rows]) + end


def read(path: Path, content: str | bytes, **data: Any) -> list[list[float]]:
    """The features of all rows, sorted."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    train, test = open_dataset({"format": "csv", "path": str(path), **data})
    x = np.concatenate([train.x, test.x])
    return sorted(x.reshape(len(x), -1).tolist())


def refuse(path: Path, content: str | bytes, message: str, **data: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(path, content, **data)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("separator", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", "."), ("\t", ","), ("|", ".")]
)
def test_the_separator_and_the_decimal_sign_are_seen(tmp_path: Path, separator: str, decimal: str, end: str) -> None:
    assert read(tmp_path / "a.csv", write(separator, decimal, end)) == FEATURES


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
def test_the_encoding_is_seen(tmp_path: Path, encoding: str) -> None:
    text = write().replace("a\n", "ärztlich\n").replace("b\n", "übrige\n")
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    train, _ = open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})
    assert train.classes == ("ärztlich", "übrige")
    is_guess = encoding in ("latin-1", "cp1252")
    assert ["not in UTF-8" in note.text for note in train.notes] == [True] * is_guess


def test_numbers_with_a_decimal_comma_in_quotes_are_numbers(tmp_path: Path) -> None:
    text = "age,crp,label\n" + "".join(f'{a},"{str(c).replace(".", ",")}",{y}\n' for a, c, y in ROWS)
    assert read(tmp_path / "a.csv", text) == FEATURES


def test_a_comma_that_may_be_either_sign_is_asked_for(tmp_path: Path) -> None:
    text = "age;cells;label\n" + "".join(
        f"{20 + i};{1 + i},{'250' if i % 2 else '125'};{'ab'[i % 2]}\n" for i in range(10)
    )
    path = tmp_path / "a.csv"
    refuse(
        path, text, "line 2: column 'cells': expected a finite number, got '1,125'; a decimal comma? data.csv.decimal"
    )
    assert read(path, text, csv={"decimal": ","})[1] == [21, 2.25]
    assert read(path, text, csv={"thousands": ","})[1] == [21, 2250]
    assert read(path, text.replace(";1,125", ";0,125"))[1] == [21, 2.25]


def test_signs_that_differ_from_what_is_seen_are_settings(tmp_path: Path) -> None:
    text = "age,crp,label\n" + "".join(f"{a}#{c}#{y}\n" for a, c, y in ROWS).replace(",", "#")
    assert read(tmp_path / "a.csv", text.replace("age,crp,", "age#crp#"), csv={"separator": "#"}) == FEATURES
    refuse(tmp_path / "a.csv", write(), "data.csv.separator: expected one sign", csv={"separator": ", "})
    refuse(tmp_path / "a.csv", write(), "data.csv.decimal: expected . or ,", csv={"decimal": ";"})
    refuse(tmp_path / "a.csv", write(), "data.csv.encoding: unknown encoding 'utf-9'", csv={"encoding": "utf-9"})
    refuse(tmp_path / "a.csv", write(), "data.csv.sep: unknown key", csv={"sep": ";"})
    refuse(
        tmp_path / "a.csv",
        "f,label\n1,ä\n".encode("latin-1"),
        "a.csv: line 2: expected text in utf-8",
        csv={"encoding": "utf-8"},
    )


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.tsv.gz"])
def test_a_gzipped_table_is_read(tmp_path: Path, name: str) -> None:
    content = gzip.compress(write("\t" if "tsv" in name else ",").encode())
    assert read(tmp_path / name, content) == FEATURES
    if name.endswith("gz"):
        assert guess_format(tmp_path / name) == "csv"


def test_a_split_has_one_file(tmp_path: Path) -> None:
    for name in ("train.csv", "train.csv.gz", "test.tsv"):
        (tmp_path / name).write_text(write())
    with pytest.raises(DataError, match=r"expected one file for each split, got train\.csv and train\.csv\.gz"):
        open_dataset({"format": "csv", "path": str(tmp_path)})
    (tmp_path / "train.csv.gz").unlink()
    assert [len(part) for part in open_dataset({"format": "csv", "path": str(tmp_path)})] == [10, 10]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 26 + b"[Content_Types].xml" + b"xl/workbook.xml", "this is an Excel file"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 500, "this is an Excel file"),
        (b"PK\x03\x04" + b"\0" * 26 + b"patients.csv", "this is a zip archive"),
        (b"PAR1" + b"\0" * 60, "this is a Parquet file"),
        (b"%PDF-1.4\n", "this is a PDF file"),
        (b"a,label\n1,\x002\n", "line 2: expected text, got a byte of zero"),
    ],
)
def test_what_is_no_text_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    refuse(tmp_path / "a.csv", content, message)
    (tmp_path / "a.xlsx").write_bytes(content)
    if "Excel" in message:
        with pytest.raises(DataError, match="this is an Excel file: save the sheet as CSV"):
            guess_format(tmp_path / "a.xlsx")


# ---- headers and lines


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_the_index_of_a_data_frame_is_left_out_and_said(tmp_path: Path, index: str) -> None:
    text = f"{index},age,crp,label\n" + "".join(f"{i},{a},{c},{y}\n" for i, (a, c, y) in enumerate(ROWS))
    assert read(tmp_path / "a.csv", text) == FEATURES
    train, _ = open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})
    assert any("first column has no name of its own: the row numbers" in note.text for note in train.notes)
    assert train.features == ("age", "crp")


HEART = [f"{40 + i}.0,{i % 2}.0,{'?' if i % 5 == 0 else f'{200 + i}.0'},{i % 3 and 1}" for i in range(20)]


def test_a_missing_header_is_asked_for_and_given(tmp_path: Path) -> None:
    path, text = tmp_path / "a.data", "\n".join(HEART) + "\n"
    refuse(
        path,
        text,
        "line 1: expected the names of columns, got 40.0, 0.0, ?, 0: is the header missing? data.columns.names",
    )
    names = {"names": ["age", "sex", "chol", "num"], "label": "num"}
    refuse(
        path,
        text,
        "line 1: column 'chol': expected a finite number, got '?'; an empty cell? input.empty",
        columns=names,
    )
    refuse(
        path,
        text,
        f"data.columns.names: expected 4 names, as line 1 of {path} has cells, got 3",
        columns={**names, "names": ["age", "sex", "num"]},
    )
    assert guess_format(path) == "csv"
    refuse(path, "5.1,3.5,setosa\n4.9,3.0,setosa\n", "is the header missing?")


def test_names_may_be_given_to_a_file_that_has_them(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", write(), columns={"names": list(HEADER)}) == FEATURES


def test_a_file_to_predict_is_written_as_the_nodes_own(tmp_path: Path) -> None:
    path = tmp_path / "new.tsv.gz"
    path.write_bytes(gzip.compress(b"20\t1,125\n21\t2,250\n"))
    source = DataSource.from_mapping({"csv": {"decimal": ","}, "columns": {"names": ["age", "crp"]}})
    file = read_inference_file(path, (2, 1, 1), ("a", "b"), source=source)
    assert file.x.reshape(2, 2).tolist() == [[20, 1.125], [21, 2.25]]
    assert file.rows == (1, 2)


def test_headers_of_numbers_that_count_are_names(tmp_path: Path) -> None:
    text = "0,1,label\n" + "".join(f"{a},{c},{y}\n" for a, c, y in ROWS)
    assert read(tmp_path / "a.csv", text) == FEATURES
    years = text.replace("0,1,label", "2019,2020,label", 1)
    assert read(tmp_path / "a.csv", years) == FEATURES


def test_names_have_no_blanks_around_them_and_are_composed(tmp_path: Path) -> None:
    text = "age, cafe\u0301 ,label\n1,2,x\n3,4,y\n"
    (tmp_path / "a.csv").write_text(text)
    assert open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})[0].features == ("age", "caf\u00e9")
    refuse(tmp_path / "a.csv", "caf\u00e9,cafe\u0301,label\n1,2,x\n", "line 1: column 'café' is there twice")
    refuse(tmp_path / "a.csv", "a,,label\n1,2,x\n", "column 2 has no name, and cells such as '2'")
    assert read(tmp_path / "a.csv", "a,label,\n1,x,\n3,y,\n") == [[1], [3]]


def test_labels_have_no_blanks_around_them_and_are_composed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,label\n" + "1,caf\u00e9\n2,cafe\u0301 \n" * 4)
    assert open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})[0].classes == ("caf\u00e9",)


def test_comments_are_passed_over_and_said(tmp_path: Path) -> None:
    text = "# exported by the laboratory, 2024\n# x\n" + write().replace("\n25,", "\n# half of it\n25,")
    assert read(tmp_path / "a.csv", text) == FEATURES
    train, _ = open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})
    assert any(note.text.endswith("3 lines that begin with # are passed over") for note in train.notes)
    assert read(tmp_path / "a.csv", "# " + write()) == FEATURES
    assert open_dataset({"format": "csv", "path": str(tmp_path / "a.csv")})[0].features == ("age", "crp")


def test_a_line_is_that_of_the_file(tmp_path: Path) -> None:
    text = '# x\n\nage,note,label\n1,"two\nlines",a\n\n2,x\n'
    refuse(tmp_path / "a.csv", text, "line 7: expected 3 columns, got 2")


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "a.csv", gzip.compress(b"a" * (5 << 20)), "line 1: expected at most 4194304 letters")


def test_a_quote_that_does_not_end_is_at_its_line(tmp_path: Path) -> None:
    text = 'note;label\nx;a\n"y;b\n' + "z;c\n" * 40_000
    refuse(tmp_path / "a.csv", text, "line 3: field larger than field limit")


def test_long_cells_do_not_widen_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("note,label\n" + "\n".join(["x,a"] * 2000 + ["y" * 100_000 + ",b"]) + "\n")
    table = Table.read(path, source=DataSource())
    assert table.columns[0][2000] == "y" * 100_000
    assert table.columns[0][-2] == "x"
    assert len(table.columns[0]) == 2001
    assert table.columns[0].num_bytes < 1 << 20
