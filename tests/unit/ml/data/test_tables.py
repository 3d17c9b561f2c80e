"""CSV and Parquet: numbers in columns, paths of images, Hugging Face's image structs, and their broken kin."""

from __future__ import annotations

import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ml.data import get_classes, open_dataset
from ml.errors import MAX_LINE_CHARS, DataError


def refuse(data: dict[str, Any], message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data, **options)


def encode_png(value: int, size: tuple[int, int] = (4, 5)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full(size, value, np.uint8)).save(file, "PNG")
    return file.getvalue()


# ---- csv


def save_csv(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text, encoding="utf-8")
    return {"format": "csv", "path": str(path)}


ROWS = "age,label,weight\n" + "".join(f"{20 + i},{'ab'[i % 2]},{i / 2}\n" for i in range(10))


def test_columns_of_numbers_are_channels_of_one_pixel(tmp_path: Path) -> None:
    train, test = open_dataset(save_csv(tmp_path / "a.csv", ROWS))
    assert (train.shape, train.x.dtype, train.classes) == ((2, 1, 1), np.dtype(np.float32), ("a", "b"))
    assert (len(train), len(test)) == (8, 2)
    both = np.concatenate([train.x, test.x]).reshape(10, 2)
    assert sorted(both.tolist()) == [[20 + i, i / 2] for i in range(10)]


def test_a_directory_has_a_file_for_each_split(tmp_path: Path) -> None:
    save_csv(tmp_path / "train.csv", ROWS)
    save_csv(tmp_path / "test.csv", "age,label,weight\n1,b,2\n")
    train, test = open_dataset({"format": "csv", "path": str(tmp_path)})
    assert (len(train), test.x.reshape(-1).tolist(), test.y.tolist()) == (10, [1, 2], [1])
    (tmp_path / "train.csv").rename(tmp_path / "fold1.csv")
    refuse({"format": "csv", "path": str(tmp_path)}, "data.train_split: ")


def test_labels_that_are_numbers_are_sorted_as_such(tmp_path: Path) -> None:
    text = "f,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate([10, 2, 1, 10, 2, 1]))
    data = save_csv(tmp_path / "a.csv", text) | {"columns": {"label": "y"}}
    assert get_classes(data) == tuple(map(str, range(1, 11)))
    train, _ = open_dataset(data, classes=("1", "2", "10"))
    assert sorted(set(train.y.tolist())) == [0, 1, 2]


def test_paths_of_images_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for i in range(4):
        (tmp_path / f"scans/{i}.png").write_bytes(encode_png(i))
    text = "\ufeffimage,label,note\n" + "".join(f'scans/{i}.png,{"xy"[i % 2]},"a, b"\n' for i in range(4))
    data = save_csv(tmp_path / "a.csv", text)
    train, test = open_dataset(data)
    assert (train.shape, train.x.dtype, len(train), len(test)) == ((1, 4, 5), np.dtype(np.uint8), 2, 2)
    (tmp_path / "scans/2.png").unlink()
    refuse(data, f"{tmp_path}/a.csv: line 4: {tmp_path}/scans/2.png: no such file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected a header"),
        ("f,label\n", "expected rows after the header, got none"),
        ("f,f,label\n1,2,a\n", "line 1: column 'f' is there twice"),
        ("f,lable\n1,a\n", "expected a column 'label', or the name of another in data.columns.label: one of f, lable"),
        ("f;lable\n1;a\n", "expected a column 'label', or the name of another in data.columns.label: one of f, lable"),
        ("image_file,label\na/0.png,a\n", "line 2: column 'image_file': expected a finite number, got 'a/0.png' (the "),
        ("label\na\n", "line 1: expected a column besides the labels, got none"),
        ("f,label\n1,a\n\n2\n", "line 4: expected 2 columns, got 1"),
        ("f,label\n1,a\n2, \n", "line 3: column 'label': expected a label, got nothing"),
        ("f,g,label\n1,2,a\n3,x,b\n", "line 3: column 'g': expected a finite number, got 'x'"),
        ("f,g,label\n1,,a\n", "line 2: column 'g': expected a finite number, got ''"),
        ("f,g,label\n1,2,a\nnan,2,a\n", "line 3: column 'f': expected a finite number, got 'nan'"),
        ("f,label\n1,a\n1e39,b\n", "line 3: column 'f': expected a finite number, got '1e39'"),
        ('f,label\n1,a\n"2,b\n', "line 3: unexpected end of data"),
    ],
)
def test_a_broken_row_is_named_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    refuse(save_csv(tmp_path / "a.csv", text), f"{tmp_path}/a.csv: {message}")


def test_unknown_columns_are_said(tmp_path: Path) -> None:
    data = save_csv(tmp_path / "a.csv", ROWS)
    refuse(data | {"columns": {"label": "grade"}}, "data.columns.label: ")
    refuse(data | {"columns": {"image": "scan"}}, "has no column 'scan': age, label, weight")
    refuse(data | {"columns": {"lable": "x"}}, "data.columns.lable: unknown key: did you mean 'label'?")


# ---- parquet


def save_parquet(path: Path, columns: dict[str, Any], features: Any = None) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})
    pq.write_table(table, path, row_group_size=3)
    return {"format": "parquet", "path": str(path)}


NUMBERS: dict[str, Any] = {
    "a": [float(i) for i in range(10)],
    "label": [i % 2 for i in range(10)],
    "b": [i > 4 for i in range(10)],
}
HF_FEATURES = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}


def hf_columns(count: int) -> dict[str, Any]:
    images = [{"bytes": encode_png(i), "path": f"{i}.png"} for i in range(count)]
    type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return {"image": pa.array(images, type_), "label": pa.array([i % 2 for i in range(count)])}


def test_numeric_columns_are_features(tmp_path: Path) -> None:
    train, test = open_dataset(save_parquet(tmp_path / "a.parquet", NUMBERS))
    assert (train.shape, train.classes, len(train), len(test)) == ((2, 1, 1), ("0", "1"), 8, 2)
    both = np.concatenate([train.x, test.x]).reshape(10, 2)
    assert sorted(both.tolist()) == [[i, i > 4] for i in range(10)]


def test_whole_numbers_that_no_float_has_are_the_nearest(tmp_path: Path) -> None:
    large = pa.array([2**53 + 1, 2**63, *range(8)], pa.uint64())
    train, test = open_dataset(save_parquet(tmp_path / "a.parquet", {"a": large, "label": NUMBERS["label"]}))
    assert sorted(np.concatenate([train.x, test.x]).reshape(-1).tolist()) == [*range(8), 2.0**53, 2.0**63]


def test_many_files_are_split_by_what_their_names_begin_with(tmp_path: Path) -> None:
    for i in range(2):
        save_parquet(tmp_path / f"data/train-0000{i}-of-00002.parquet", hf_columns(4), HF_FEATURES)
    save_parquet(tmp_path / "data/test-00000-of-00001.parquet", hf_columns(3), HF_FEATURES)
    train, test = open_dataset({"format": "parquet", "path": str(tmp_path)})
    assert (train.classes, len(train), len(test), train.shape) == (("cat", "dog"), 8, 3, (1, 4, 5))
    assert train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_directories_are_splits_and_other_names_one_data_set(tmp_path: Path) -> None:
    for name in ("train/part-0", "test/part-0"):
        save_parquet(tmp_path / f"a/{name}.parquet", NUMBERS)
    assert len(open_dataset({"format": "parquet", "path": str(tmp_path / "a")})[1]) == 10
    for name in ("part-0", "part-1"):
        save_parquet(tmp_path / f"b/{name}.parquet", NUMBERS)
    train, test = open_dataset({"format": "parquet", "path": str(tmp_path / "b")})
    assert (len(train), len(test)) == (16, 4)


@pytest.mark.parametrize("index", [None, "patient"])
def test_what_a_data_frame_numbered_its_rows_by_is_no_feature(tmp_path: Path, index: str | None) -> None:
    table = pa.table({**NUMBERS, index or "__index_level_0__": list(range(10))})
    if index is not None:  # as pandas writes the name of an index
        table = table.replace_schema_metadata({b"pandas": json.dumps({"index_columns": [index]}).encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    train, _ = open_dataset({"format": "parquet", "path": str(tmp_path / "a.parquet")})
    assert train.shape == (len(NUMBERS) - 1, 1, 1)
    [note] = train.notes
    assert f"the column {index or '__index_level_0__'} has the row numbers of a data frame, left out" in note.text


@pytest.mark.parametrize("metadata", ["{", "[]", '{"index_columns": 3}', '{"index_columns": [{"kind": "range"}]}'])
def test_other_words_of_pandas_change_nothing(tmp_path: Path, metadata: str) -> None:
    pq.write_table(pa.table(NUMBERS).replace_schema_metadata({b"pandas": metadata.encode()}), tmp_path / "a.parquet")
    train, _ = open_dataset({"format": "parquet", "path": str(tmp_path / "a.parquet")})
    assert train.shape == (len(NUMBERS) - 1, 1, 1)


def test_labels_may_be_text_or_a_dictionary_of_text(tmp_path: Path) -> None:
    texts = pa.array(["x", "y"] * 5)
    for labels in (texts, texts.dictionary_encode()):
        train, _ = open_dataset(save_parquet(tmp_path / "a.parquet", {**NUMBERS, "label": labels}))
        assert train.classes == ("x", "y")


def test_numbers_of_every_kind_are_features(tmp_path: Path) -> None:
    large = 2**60 + 1
    columns: dict[str, Any] = {
        "decimal": pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(9, 2)),
        "dictionary": pa.array(["1", "2"]).dictionary_encode(),
        "text": ["0.5", " true "],
        "large": [large, 3],
        "half": pa.array(np.array([0.5, 1.5], np.float16)),
    }
    train, test = open_dataset(save_parquet(tmp_path / "a.parquet", {**columns, "label": ["x", "y"]}))
    rows = np.concatenate([train.x, test.x]).reshape(2, 5).tolist()
    assert rows == [[1.5, 1.0, 0.5, float(np.float32(large)), 0.5], [-2.25, 2.0, 1.0, 3.0, 1.5]]


def test_a_class_may_stand_for_several_labels(tmp_path: Path) -> None:
    data = save_csv(tmp_path / "a.csv", "f,label\n" + "".join(f"{i},{i % 5}\n" for i in range(20)))
    train, _ = open_dataset(data, classes=("no", "yes"), meaning={"no": ["0"], "yes": ["1", "2", "3", "4"]})
    assert train.y.tolist() == [int(x % 5 > 0) for x in train.x.reshape(-1)]


def test_truth_values_are_the_same_classes_in_every_file(tmp_path: Path) -> None:
    columns = {"f": [1, 2] * 4, "label": [True, False] * 4}
    of_parquet = save_parquet(tmp_path / "a.parquet", columns)
    of_text = save_csv(tmp_path / "a.csv", "f,label\n" + "1,True\n2,False\n" * 4)
    for data in (of_parquet, of_text):
        assert get_classes(data) == ("False", "True")
        train, _ = open_dataset(data, classes=("0", "1"))  # of a run whose founder had numbers
        assert train.y.tolist() == [int(x == 1) for x in train.x.reshape(-1)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**NUMBERS, "a": [None, *NUMBERS["a"][1:]]}, "row 0: column 'a': expected a value, got null"),
        ({**NUMBERS, "a": [*NUMBERS["a"][:9], float("inf")]}, "row 9: column 'a': expected a finite number, got inf"),
        ({**NUMBERS, "label": [*NUMBERS["label"][:9], None]}, "row 9: column 'label': expected a value, got null"),
        ({**NUMBERS, "label": [0.5] * 10}, "column 'label': expected whole numbers or text as labels, got double"),
        ({**NUMBERS, "label": [*NUMBERS["label"][:9], -3]}, "row 9: expected a label from 0 to 65535, got -3"),
        ({**NUMBERS, "label": pa.array([2**63] * 10, pa.uint64())}, "column 'label': cannot be read: Integer value"),
        ({**NUMBERS, "c": ["x"] * 10}, "row 0: column 'c': expected a finite number, got 'x'; categories and"),
        ({**NUMBERS, "b ": [1] * 10}, "column 'b' is there twice"),
        ({**NUMBERS, "c": [[1]] * 10}, "column 'c': expected numbers or images, got list<"),
        ({**NUMBERS, "label": [*"xyxyxyxyx", " "]}, "row 9: column 'label': expected a label, got nothing"),
        ({"a": NUMBERS["a"]}, "expected a column 'label', or the name of another in data.columns.label: one of a"),
        ({"label": NUMBERS["label"]}, "expected a column besides the labels, got none"),
        ({"a": pa.array([], pa.int64()), "label": pa.array([], pa.int64())}, "expected rows, got none"),
    ],
)
def test_a_broken_column_is_named_with_its_row(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    refuse(save_parquet(tmp_path / "a.parquet", columns), f"{tmp_path}/a.parquet: {message}")


def test_a_broken_image_names_file_row_and_column(tmp_path: Path) -> None:
    columns = hf_columns(5)
    for broken, message in (
        ({"bytes": encode_png(1)[:40], "path": None}, "not a readable image"),
        ({"bytes": None, "path": "/etc/passwd"}, "expected the bytes of an image, got none (path /etc/passwd)"),
    ):
        images = [*columns["image"].to_pylist()[:3], broken, *columns["image"].to_pylist()[4:]]
        own = {**columns, "image": pa.array(images, columns["image"].type)}
        data = save_parquet(tmp_path / "a.parquet", own, HF_FEATURES)
        refuse(data, f"{tmp_path}/a.parquet: row 3: column 'image': {message}")


def test_a_refusal_is_one_line_however_columns_are_called(tmp_path: Path) -> None:
    columns = {f"a\n\u202e{i}{'b' * 200}": [1.0] for i in range(20)}
    with pytest.raises(DataError) as refused:
        open_dataset(save_parquet(tmp_path / "a.parquet", columns))
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}/a.parquet: expected a column 'label'")
    assert text.isprintable()
    assert "\\u202e" in text
    assert len(text) == MAX_LINE_CHARS


def test_a_truncated_file_and_files_that_differ_name_themselves(tmp_path: Path) -> None:
    data = save_parquet(tmp_path / "a.parquet", NUMBERS)
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-20])
    refuse(data, f"{tmp_path}/a.parquet: not a readable Parquet file")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    refuse(data, f"{tmp_path}/a.parquet: not a readable Parquet file")
    save_parquet(tmp_path / "b/0.parquet", NUMBERS)
    save_parquet(tmp_path / "b/1.parquet", {"a": [1.0], "label": [0]})
    refuse({"format": "parquet", "path": str(tmp_path / "b")}, "b/1.parquet: expected the columns of 0.parquet")
    refuse({"format": "parquet", "path": str(tmp_path / "b/0.parquet"), "test_split": "test"}, "has no split 'test'")
