"""Labels and targets as people keep them, in tables and archives, and the refusals where they are something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml.data import get_classes, measure_target, open_dataset, open_labels
from ml.data.checks import check_data
from ml.data.partition import make_partition
from ml.data.partition.strata import stratify
from ml.data.source import DataSource
from ml.errors import DataError

LABELLED = "f,even,big,g\n" + "".join(f"{i},{int(i % 2 == 0)},{int(i > 4)},{i * 10}\n" for i in range(10))
NAMED = "f,label\n1,even\n2, even ; big\n3,\n4,big\n5,even\n6,big\n"
MEASURED = "f,glucose,iron\n" + "".join(f"{i},{i * 1.5},{i / 100}\n" for i in range(10))


def write(directory: Path, text: str, **columns: Any) -> dict[str, Any]:
    path = directory / "table.csv"
    path.write_text(text)
    return {"format": "csv", "path": str(path)} | ({"columns": columns} if columns else {})


def test_columns_of_0_and_1_are_labels_by_their_names(tmp_path: Path) -> None:
    data = write(tmp_path, LABELLED, label=["even", "big"])
    assert get_classes(data, "multilabel") == ("even", "big")
    train, test = open_dataset(data, task="multilabel")
    assert (len(train), len(test), train.shape, train.features) == (8, 2, (2, 1, 1), ("f", "g"))
    for part in (train, test):
        f = part.x[:, 0, 0, 0]
        assert np.array_equal(part.y, np.stack([f % 2 == 0, f > 4], 1).astype(np.float64))


def test_labels_are_put_into_the_runs_order(tmp_path: Path) -> None:
    train, _ = open_dataset(write(tmp_path, LABELLED), classes=("big", "even"), task="multilabel")
    assert train.classes == ("big", "even")
    assert np.array_equal(train.y[:, 0], (train.x[:, 0, 0, 0] > 4).astype(np.float64))


def test_a_column_of_names_has_any_number_of_them(tmp_path: Path) -> None:
    data = write(tmp_path, NAMED)
    assert get_classes(data, "multilabel") == ("big", "even")
    labels = open_labels(data, classes=("even", "big"), task="multilabel")
    both = np.concatenate([labels.train_y, labels.test_y])
    assert sorted(map(tuple, both.tolist())) == [(0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1)]
    with pytest.raises(DataError, match="line 3: label 'even' is not one of the run's: big"):
        open_labels(write(tmp_path, "f,label\n1,big\n2,even\n"), classes=("big",), task="multilabel")


def test_numbers_are_targets(tmp_path: Path) -> None:
    data = write(tmp_path, MEASURED, label=["glucose", "iron"])
    train, test = open_dataset(data, task="regression")
    assert train.classes == ("glucose", "iron")
    assert np.allclose(train.y[:, 0], train.x[:, 0, 0, 0] * 1.5)
    assert measure_target(data)["mean"] == pytest.approx(train.y.mean(0).tolist())
    assert train.count_classes().tolist() == [8, 8]
    assert not check_data(train, test)


def test_a_single_target_may_be_called_differently_at_each_site(tmp_path: Path) -> None:
    train, _ = open_dataset(write(tmp_path, MEASURED, label="iron"), classes=("fe",), task="regression")
    assert train.classes == ("fe",)
    assert np.allclose(train.y[:, 0], train.x[:, 0, 0, 0] / 100)


@pytest.mark.parametrize(
    ("text", "columns", "task", "classes", "problem"),
    [
        (LABELLED, {"label": ["f", "big"]}, "multilabel", None, "column 'f': expected 0 or 1, got 2"),
        (LABELLED, {"label": ["even", "small"]}, "multilabel", None, "has no column 'small': f, even, big, g"),
        (LABELLED, {"label": ["even"]}, "multilabel", ("even", "big"), "expected 2 columns, even, big, got 1: even"),
        (LABELLED, {"label": ["even", "g"]}, "regression", ("even", "big"), "expected 2 columns, even, big, got 2"),
        (LABELLED, {}, "regression", None, "expected a column 'label', or the name of another"),
        (LABELLED, {"label": ["even", "big"]}, "classification", None, "expected one column of classes, got even, big"),
        (LABELLED, {"label": ["even", "even"]}, "regression", None, "expected different names, got 'even' twice"),
        ("f,label\n1,\n2,1\n", {}, "regression", None, "line 2: column 'label': expected a number, got ''"),
        ("f,label\n1,inf\n2,1\n", {}, "regression", None, "line 2: column 'label': expected a finite number, got inf"),
        ("f,label\n1,nan\n2,1\n", {}, "regression", None, "line 2: column 'label': expected a finite number, got nan"),
        ("f,label\n1,1e300\n2,1\n", {}, "regression", None, "column 'label': expected a finite number, got 1e\\+300"),
        ("f,label\n1,\n2, ;\n", {}, "multilabel", None, "expected labels separated by ';', and no sample has any"),
    ],
)
def test_what_is_neither_is_refused_by_its_place(
    tmp_path: Path, text: str, columns: dict[str, Any], task: str, classes: tuple[str, ...] | None, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        open_labels(write(tmp_path, text, **columns), classes=classes, task=task)


def test_archives_have_two_dimensions_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    y = np.arange(20).reshape(10, 2) % 3 == 0
    np.savez(path, x=np.zeros((10, 4), np.float32), y=y, classes=np.array(["a", "b"]))
    data = {"format": "npz", "path": str(path)}
    train, test = open_dataset(data, classes=("b", "a"), task="multilabel")
    assert sorted(map(tuple, np.concatenate([train.y, test.y]).tolist())) == sorted(map(tuple, y[:, ::-1].tolist()))
    np.savez(path, x=np.zeros((10, 4), np.float32), y=np.arange(10) / 4)
    train, test = open_dataset(data, classes=("dose",), task="regression")
    assert (train.classes, train.y.shape) == (("dose",), (8, 1))
    np.savez(path, x=np.zeros((10, 4), np.float32), y=np.arange(20).reshape(10, 2))
    with pytest.raises(DataError, match=r"y\[1, 0\]: expected 0 or 1, got 2"):
        open_dataset(data, task="multilabel")
    with pytest.raises(DataError, match="expected 1 columns, dose, got 2: 0, 1"):
        open_dataset(data, classes=("dose",), task="regression")


def test_parquet_has_columns_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = {"f": [float(i) for i in range(10)], "a": [i % 2 for i in range(10)], "b": [i > 5 for i in range(10)]}
    pq.write_table(pa.table(table), path)
    data = {"format": "parquet", "path": str(path), "columns": {"label": ["a", "b"]}}
    train, _ = open_dataset(data, task="multilabel")
    assert (train.classes, train.features) == (("a", "b"), ("f",))
    assert np.array_equal(train.y[:, 1], (train.x[:, 0, 0, 0] > 5).astype(np.float64))
    pq.write_table(pa.table({"f": [1.0, 2.0, 3.0], "label": ["a;b", "b", ""]}), path)
    assert get_classes({"format": "parquet", "path": str(path)}, "multilabel") == ("a", "b")


def test_formats_with_one_class_a_sample_say_so() -> None:
    with pytest.raises(DataError, match="expected one of csv, parquet, hf, npz, domains for task multilabel"):
        open_labels({"format": "digits"}, task="multilabel")
    with pytest.raises(DataError, match=r"data.classes: expected none for task regression, got a"):
        DataSource.from_mapping({"format": "csv", "classes": ["a"]}, "regression")


def test_checks_name_labels_that_teach_nothing(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2},0,1\n" for i in range(20))
    train, test = open_dataset(
        write(tmp_path, f"f,a,never,always\n{rows}"), classes=("a", "never", "always"), task="multilabel"
    )
    told = [finding.text for finding in check_data(train, test)]
    assert any("no sample has never" in text for text in told)
    assert any("all samples have always" in text for text in told)


def test_targets_are_dealt_by_their_size_and_labels_by_the_first() -> None:
    y = np.linspace(0, 1, 100)[:, None]
    train, test = stratify(y, np.array([[0.05], [0.95], [2.0]]))
    assert np.bincount(train).tolist() == [10] * 10
    assert test.tolist() == [0, 9, 9]
    labels = np.array([[0.0, 0], [0, 1], [1, 1], [1, 0]])
    assert stratify(labels, labels)[0].tolist() == [0, 2, 1, 1]
    splits = make_partition("shards:1", y, y, 5, seed=1)
    means = sorted(float(y[split.train].mean()) for split in splits)
    assert means[0] < 0.15 < 0.85 < means[-1]
