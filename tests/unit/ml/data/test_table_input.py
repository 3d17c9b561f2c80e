"""Categories and empty cells, by the rules that a run has: the same features at every site and at prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml.data import detect_table, open_dataset
from ml.data.base import InputFormat
from ml.data.inference_files import read_inference_file
from ml.data.table_input import TableInput
from ml.errors import DataError
from node.config.settings import make_input
from node.errors import ConfigError

TEXT = "age,sex,dose,label\n" + "".join(
    f"{20 + i},{'f' if i % 2 else 'm'},{i / 2 if i % 5 else ''},{'yes' if i > 9 else 'no'}\n" for i in range(20)
)
COLUMNS = [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}, {"name": "dose"}]


def write(directory: Path, text: str = TEXT) -> dict[str, Any]:
    path = directory / "table.csv"
    path.write_text(text)
    return {"format": "csv", "path": str(path)}


def read_table(**rules: Any) -> TableInput:
    table = TableInput.from_mapping({"columns": COLUMNS, **rules})
    assert table is not None
    return table


def locate(i: int) -> str:
    return f"row {i}"


def encode(table: TableInput, *, sex: str = "f", dose: object = "3") -> list[float]:
    x = table.encode({"dose": [dose], "age": ["50"], "sex": [sex], "more": ["x"]}, locate, "the table")
    return [float(value) for value in x.reshape(-1)]


def test_a_category_is_a_feature_for_each_of_its_values_wherever_the_column_stands() -> None:
    assert encode(read_table()) == [50, 1, 0, 3]
    assert encode(read_table(), sex="m") == [50, 0, 1, 3]
    assert read_table().get_features(read_table().choose(["age", "sex", "dose"], "a")) == [
        "age",
        "sex=f",
        "sex=m",
        "dose",
    ]


def test_what_is_unknown_is_refused_or_other() -> None:
    with pytest.raises(DataError, match="row 0: column 'sex': expected one of f, m, got 'x'"):
        encode(read_table(), sex="x")
    assert encode(read_table(unknown="other"), sex="x") == [50, 0, 0, 1, 3]


@pytest.mark.parametrize("empty", ["", "NA", "nan", None, float("nan")])
def test_what_is_missing_is_refused_the_mean_or_zero(empty: object) -> None:
    with pytest.raises(DataError, match="row 0: column 'dose': expected a value, got none"):
        encode(read_table(), dose=empty)
    assert encode(read_table(missing="zero"), dose=empty) == [50, 1, 0, 0]
    agreed = TableInput.from_mapping({"columns": COLUMNS, "missing": "mean"}, (40.0, 0.0, 0.0, 7.5))
    assert agreed is not None
    assert encode(agreed, dose=empty) == [50, 1, 0, 7.5]
    with pytest.raises(DataError, match="column 'sex': expected a value, got none"):
        encode(read_table(), sex="")
    assert encode(read_table(missing="zero"), sex="") == [50, 0, 0, 3]


@pytest.mark.parametrize("dose", ["three", "inf", "1e99", "-inf"])
def test_what_is_no_number_is_refused(dose: str) -> None:
    with pytest.raises(DataError, match=f"row 0: column 'dose': expected a finite number, got '{dose}'"):
        encode(read_table(missing="zero"), dose=dose)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"missing": "median"}, "input.missing: expected one of refuse, mean, zero, got 'median'"),
        ({"unknown": "drop"}, "input.unknown: expected one of refuse, other, got 'drop'"),
        ({"columns": []}, "input.columns: expected a list"),
        ({"columns": [{"names": "a"}]}, r"input.columns\[0\]: expected"),
        ({"columns": [{"name": "a"}, {"name": "a"}]}, "expected each name once"),
        ({"columns": [{"name": "a", "values": [1]}]}, "expected a list of texts"),
        ({"columns": [{"name": "a", "values": ["x", "x"]}]}, "expected each value once"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        TableInput.from_mapping(rules)


def test_text_is_found_to_be_a_category(tmp_path: Path) -> None:
    data = write(tmp_path)
    assert detect_table(data) == [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}, {"name": "dose"}]
    names = "name,label\n" + "".join(f"patient {i},{i % 2}\n" for i in range(150))
    with pytest.raises(DataError, match="column 'name' has 150 different texts"):
        detect_table(write(tmp_path, names))


def test_genesis_new_writes_the_vocabulary_and_measures_numbers_alone(tmp_path: Path) -> None:
    data = write(tmp_path)
    made = make_input(data, {"name": "mlp"}, None, {"columns": "auto", "missing": "mean", "normalize": "auto"})
    assert made["columns"] == COLUMNS
    assert (made["missing"], made["shape"]) == ("mean", [4, 1, 1])
    assert made["mean"][1:3] == [0.0, 0.0]
    assert made["std"][1:3] == [1.0, 1.0]
    wanted = InputFormat.from_mapping(made)
    train, test = open_dataset(data, shape=wanted.shape, table=wanted.table)
    assert train.features == ("age", "sex=f", "sex=m", "dose")
    x = wanted.normalise(np.concatenate([train.x, test.x]).astype(np.float32))
    assert np.count_nonzero(x[:, 3] == 0) == 4  # the rows without a dose, at the mean
    with pytest.raises(
        ConfigError, match="column 'sex': expected a finite number, got 'm'; categories and empty cells"
    ):
        make_input(data, {"name": "mlp"}, None, {"normalize": "auto"})


def test_prediction_takes_a_table_by_the_same_rules(tmp_path: Path) -> None:
    table = read_table(missing="zero")
    path = tmp_path / "new.csv"
    path.write_text("sex,id,dose,age\nm,7,,33\n")
    file = read_inference_file(path, (4, 1, 1), ("no", "yes"), table=table)
    assert file.x.reshape(-1).tolist() == [33, 0, 1, 0]
    assert file.labels is None
    path.write_text("sex,dose\nm,1\n")
    with pytest.raises(DataError, match="expected a column 'age' of genesis"):
        read_inference_file(path, (4, 1, 1), ("no", "yes"), table=table)


def test_parquet_has_categories_and_nulls_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"age": [1, 2, None, 4], "sex": ["f", None, "m", "m"], "dose": [0.5, 1.5, 2.5, None]}
    pq.write_table(pa.table({**columns, "label": ["a", "b", "a", "b"]}), path)
    data = {"format": "parquet", "path": str(path)}
    assert detect_table(data) == COLUMNS
    train, test = open_dataset(data, shape=(4, 1, 1), table=read_table(missing="zero"))
    rows = np.concatenate([train.x, test.x]).reshape(4, 4).tolist()
    assert sorted(rows) == [[0, 0, 1, 2.5], [1, 1, 0, 0.5], [2, 0, 0, 1.5], [4, 0, 1, 0]]
    with pytest.raises(DataError, match="expected numbers or images, got string"):
        open_dataset(data)


def test_images_have_no_columns() -> None:
    with pytest.raises(DataError, match="columns, missing or unknown, which only tables have"):
        open_dataset({"format": "digits"}, table=read_table())
