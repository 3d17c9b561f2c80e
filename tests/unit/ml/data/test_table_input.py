"""Categories and empty cells, by the rules that a run has: the same features at every site and at prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml.data import open_dataset
from ml.data.base import InputFormat
from ml.data.checks import check_data
from ml.data.column_checks import check_columns, find_identifiers
from ml.data.findings import Finding
from ml.data.inference_files import read_inference_file
from ml.data.table_input import TableInput
from ml.errors import DataError
from node.config.settings import make_input
from node.errors import ConfigError
from support.data.tables import detect_table

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
    x = table.encode({"dose": [dose], "age": ["50"], "sex": [sex], "more": ["x"]}, locate)
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
        ({"missing": "median"}, r"input.missing: expected one of refuse, mean, mean\+flag, zero, got 'median'"),
        ({"empty": "?"}, "input.empty: expected a list of texts"),
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


def test_genesis_new_refuses_what_no_site_can_train_on_and_names_the_settings(tmp_path: Path) -> None:
    data = write(tmp_path)
    both = "'sex' has words, 'f', 'm'; 'dose' is empty in 4. .* add .*input.columns=auto, .* and .*input.missing=mean"
    with pytest.raises(ConfigError, match=both):
        make_input(data, {"name": "mlp"}, None, {"normalize": "auto"})
    with pytest.raises(ConfigError, match=r"of 20 rows 'dose' is empty in 4. .* add --set input.missing=mean, or zero"):
        make_input(data, {"name": "mlp"}, None, {"columns": "auto"})
    with pytest.raises(ConfigError, match="'dose' is empty in 4"):
        make_input(data, {"name": "mlp"}, None, {"columns": COLUMNS})
    typo = write(tmp_path, TEXT.replace("27,f,3.5,", "27,f,3.S,"))
    with pytest.raises(ConfigError, match=r"'dose' has numbers and words, first at .*line 9: '3.S'"):
        make_input(typo, {"name": "mlp"}, None, None)


def test_every_table_has_its_columns_by_name_in_genesis(tmp_path: Path) -> None:
    data = write(tmp_path, "a,b,label\n1,2,x\n3,1,y\n1.5,2.5,x\n")
    made = make_input(data, {"name": "mlp"}, None, None)
    assert made["columns"] == [{"name": "a"}, {"name": "b"}]
    reversed_ = write(tmp_path, "more,label,b,a\n9,x,2,1\n8,y,1,3\n7,x,2.5,1.5\n")
    wanted = InputFormat.from_mapping(made)
    train, test = open_dataset(reversed_, shape=wanted.shape, table=wanted.table)
    assert sorted(np.concatenate([train.x, test.x]).reshape(3, 2).tolist()) == [[1, 2], [1.5, 2.5], [3, 1]]
    assert train.passed_over == ("more",)
    [note] = check_columns(train, wanted)
    assert note == Finding("note", "1 column passed over, which genesis does not name: 'more'")
    unnamed = InputFormat.from_mapping({"shape": [2, 1, 1]})
    assert [found.level for found in check_columns(train, unnamed)] == ["note", "warning"]


def test_what_a_table_lacks_is_named_in_full(tmp_path: Path) -> None:
    lacking = write(tmp_path, "sex,more,label\nf,1,x\nm,2,y\n")
    with pytest.raises(DataError, match="the 3 columns of genesis, and 2 are not there: 'age', 'dose'; it has"):
        open_dataset(lacking, table=read_table())


def test_identifiers_and_constants_become_features_by_a_yes_alone(tmp_path: Path) -> None:
    rows = "".join(f"{7 * i},s1,{i % 9 + 0.5},,{i % 2}\n" for i in range(40))
    data = write(tmp_path, f"id,dataset,age,blank,label\n{rows}")
    asked = {"columns": "auto", "missing": "zero"}
    refused = (
        "id: another value in each row; dataset: one value; blank: no value. .* --drop id,dataset,blank leaves them"
    )
    with pytest.raises(ConfigError, match=refused):
        make_input(data, {"name": "mlp"}, None, asked)
    with pytest.raises(ConfigError, match="--drop id,dataset,blank"):
        make_input(data, {"name": "mlp"}, None, {**asked, "drop": ["id"]})
    made = make_input(data, {"name": "mlp"}, None, {**asked, "drop": ["id", "dataset", "blank"]})
    assert made["columns"] == [{"name": "age"}]
    assert "drop" not in made
    taken = make_input(data, {"name": "mlp"}, None, {**asked, "columns": "all"})
    assert [column["name"] for column in taken["columns"]] == ["id", "dataset", "age", "blank"]
    listed = make_input(data, {"name": "mlp"}, None, {"columns": [{"name": "id"}, {"name": "age"}]})
    assert listed["shape"] == [2, 1, 1]
    with pytest.raises(ConfigError, match=r"--drop: .* has no column 'ids': did you mean 'id'"):
        make_input(data, {"name": "mlp"}, None, {**asked, "drop": "ids"})


def test_few_rows_may_have_another_value_each() -> None:
    assert find_identifiers({"age": [str(i) for i in range(20)], "x": [i / 7 for i in range(20)]}) == {}
    assert find_identifiers({"age": list(range(30))}) == {"age": "another value in each row"}
    assert find_identifiers({"x": [i / 7 + 0.01 for i in range(90)]}) == {}
    assert find_identifiers({"name": [f"p{i}" for i in range(10)]}) == {"name": "another value in each row"}


def test_too_many_names_for_a_change_are_left_out(tmp_path: Path) -> None:
    names = [f"gene {i:05d}" for i in range(1200)]
    rows = "\n".join(",".join([*(str(i + row) for i in range(1200)), "xy"[row % 2]]) for row in range(4))
    made = make_input(write(tmp_path, f"{','.join(names)},label\n{rows}\n"), {"name": "mlp"}, None, None)
    assert "columns" not in made
    assert made["shape"] == [1200, 1, 1]


def test_rows_of_numbers_are_read_alike_at_once_and_one_by_one() -> None:
    table = read_table(missing="zero")
    cells = {"age": ["1e3", " 2", "0.1"], "sex": ["f"] * 3, "dose": ["1", "2", "3"]}
    at_once = table.encode(cells, locate)
    assert at_once.tolist() == table.encode({**cells, "dose": ["1", "2", 3.0]}, locate).tolist()
    assert at_once.reshape(3, 4)[:, 0].tolist() == [1000, 2, np.float32(0.1)]


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
    with pytest.raises(DataError, match="row 2: column 'age': expected a value, got null"):
        open_dataset(data)


def test_images_have_no_columns() -> None:
    with pytest.raises(DataError, match="columns, missing or unknown, which only tables have"):
        open_dataset({"format": "digits"}, table=read_table())


def test_a_flag_says_where_a_cell_was_empty() -> None:
    table = TableInput.from_mapping({"columns": COLUMNS, "missing": "mean+flag"}, (9.0, 0.0, 0.5, 0.5, 0.0, 7.0, 0.0))
    assert table is not None
    assert table.get_features(table.choose(["age", "sex", "dose"], "a")) == [
        *("age", "age (empty)", "sex=f", "sex=m", "sex (empty)"),
        *("dose", "dose (empty)"),
    ]
    assert encode(table) == [50, 0, 1, 0, 0, 3, 0]
    assert encode(table, sex="", dose="NA") == [50, 0, 0, 0, 1, 7, 1]
    assert table.get_numbers(7).tolist() == [True, False, False, False, False, True, False]
    other = read_table(missing="mean+flag", unknown="other")
    assert encode(other, sex="x") == [50, 0, 0, 0, 1, 0, 3, 0]
    assert TableInput(missing="mean+flag").get_numbers(4).tolist() == [True, False, True, False]


def test_texts_may_stand_for_an_empty_cell() -> None:
    table = read_table(missing="zero", empty=["?", "-999", "unknown"])
    assert encode(table, dose="?", sex="unknown") == [50, 0, 0, 0]
    for code in ("-999", "-999.0", -999, -999.0):
        assert encode(table, dose=code) == [50, 1, 0, 0]
    cells = {"age": ["?", "1"], "sex": ["f", "unknown"], "dose": ["", "-999.00"]}
    assert table.count_empty(cells).tolist() == [2, 2]
    assert table.to_mapping()["empty"] == ["?", "-999", "unknown"]
    with pytest.raises(DataError, match="column 'dose': expected a value, got none"):
        encode(read_table(empty=["?"]), dose="?")


def test_a_text_may_stand_for_an_empty_cell_of_one_column_alone() -> None:
    columns = [{"name": "age"}, {"name": "sex", "values": ["f", "m"]}, {"name": "dose", "empty": ["0"]}]
    table = read_table(columns=columns, missing="mean+flag", empty=["?"])
    cells = {"age": ["0", "0", "?"], "sex": ["f", "m", "f"], "dose": ["0", "0.0", "3"]}
    assert table.encode(cells, locate).reshape(3, -1).tolist() == [
        [0, 0, 1, 0, 0, 3, 1],
        [0, 0, 0, 1, 0, 3, 1],
        [0, 1, 1, 0, 0, 3, 0],
    ]
    assert table.count_empty(cells).tolist() == [1, 1, 1]
    assert table.to_mapping()["columns"] == columns
    with pytest.raises(DataError, match=r"input.columns\[0\].empty: expected a list of texts, got '0'"):
        read_table(columns=[{"name": "age", "empty": "0"}])


def test_an_empty_cell_of_one_column_alone_needs_a_rule_in_genesis(tmp_path: Path) -> None:
    data = write(tmp_path, TEXT.replace(",,", ",0,"))
    asked = {"columns": [*COLUMNS[:2], {"name": "dose", "empty": ["0"]}]}
    with pytest.raises(ConfigError, match="'dose' is empty in 4"):
        make_input(data, {"name": "mlp"}, None, asked)
    assert make_input(data, {"name": "mlp"}, None, {**asked, "missing": "zero"})["columns"] == asked["columns"]


def test_an_empty_cell_stays_one_until_members_have_agreed_on_the_mean() -> None:
    input_ = {"shape": [4, 1, 1], "columns": COLUMNS, "missing": "mean", "normalize": "agreed"}
    wanted = InputFormat.from_mapping(input_)
    assert wanted.table is not None
    x = wanted.table.encode({"age": ["50", ""], "sex": ["f", "f"], "dose": ["", "4"]}, locate)
    assert np.isnan(x.reshape(2, 4)).tolist() == [[False, False, False, True], [True, False, False, False]]
    agreed = wanted.with_constants((40.0, 0.5, 0.5, 3.0), (5.0, 0.5, 0.5, 0.5))
    assert agreed.normalise(x).reshape(2, 4).tolist() == [[2, 1, -1, 0], [0, 1, -1, 2]]
    identity = wanted.with_constants((0.0,) * 4, (1.0,) * 4)
    assert identity.normalise(x).reshape(2, 4).tolist() == [[50, 1, 0, 0], [0, 1, 0, 4]]


def test_a_table_with_empty_cells_is_opened_and_asked_about_where_the_mean_is_agreed(tmp_path: Path) -> None:
    data = write(tmp_path)
    made = make_input(data, {"name": "mlp"}, None, {"columns": "auto", "missing": "mean", "normalize": "agreed"})
    assert not {"mean", "std"} & set(made)
    wanted = InputFormat.from_mapping(made)
    train, test = open_dataset(data, shape=wanted.shape, table=wanted.table)
    assert np.isnan(train.x).sum() + np.isnan(test.x).sum() == 4
    assert all("nan" not in finding.text for finding in check_data(train, test, input_=wanted))
    file = read_inference_file(Path(data["path"]), wanted.shape, ("no", "yes"), table=wanted.table)
    assert np.isnan(file.x).sum() == 4
    with pytest.raises(ConfigError, match=r"input.missing=mean: expected a mean: input.normalize=agreed or auto"):
        make_input(data, {"name": "mlp"}, None, {"columns": "auto", "missing": "mean"})


def test_codes_for_empty_cells_are_taken_for_such_when_columns_are_found(tmp_path: Path) -> None:
    data = write(tmp_path, TEXT.replace(",,", ",?,"))
    for columns in (None, "auto", "all"):
        with pytest.raises(
            ConfigError, match=r"'dose' has '\?'. Where .* empty cell, add --set 'input.empty=\[\"\?\"\]'"
        ):
            make_input(data, {"name": "mlp"}, None, {"columns": columns})
    made = make_input(data, {"name": "mlp"}, None, {"columns": "auto", "missing": "zero", "empty": ["?"]})
    assert (made["columns"], made["empty"]) == (COLUMNS, ["?"])


def test_a_word_among_many_numbers_is_told_with_its_place(tmp_path: Path) -> None:
    rows = "".join(f"{i % 130 + 0.5},{'n.a.' if i == 7 else i % 149},{i % 2}\n" for i in range(300))
    data = write(tmp_path, f"a,b,label\n{rows}")
    with pytest.raises(ConfigError, match=r"'b' has numbers and words, first at .*line 9: 'n.a.'"):
        make_input(data, {"name": "mlp"}, None, {"columns": "auto"})
    made = make_input(data, {"name": "mlp"}, None, {"columns": "auto", "empty": ["n.a."], "missing": "zero"})
    assert made["shape"] == [2, 1, 1]


def test_an_identifier_of_many_texts_is_told_as_one(tmp_path: Path) -> None:
    data = write(tmp_path, "name,a,label\n" + "".join(f"patient {i},{i % 9},{i % 2}\n" for i in range(150)))
    with pytest.raises(ConfigError, match="name: another value in each row"):
        make_input(data, {"name": "mlp"}, None, {"columns": "auto"})


def test_the_name_of_the_site_is_told_as_one_value_at_each(tmp_path: Path) -> None:
    for name in ("x", "y"):
        rows = "".join(f"{i % 7},{name},{i % 2}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"age,hospital,label\n{rows}")
    data = {"format": "domains", "path": str(tmp_path)}
    with pytest.raises(ConfigError, match="hospital: one value at each site"):
        make_input(data, {"name": "mlp"}, None, {"columns": "auto"})
    assert make_input(data, {"name": "mlp"}, None, {"drop": ["hospital"]})["columns"] == [{"name": "age"}]
