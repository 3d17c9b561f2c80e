"""Checks of tables: scales, units, constants, and labels that are no classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ml.data import get_classes, open_dataset, open_labels
from ml.data.base import ArrayDataset, InputFormat
from ml.data.checks import check_data
from ml.data.table_checks import check_agreed, check_features, compute_feature_stats
from ml.errors import DataError

RNG = np.random.default_rng(7)
NUM_ROWS = 40


def make_table(*columns: Any, y: Any = None, names: tuple[str, ...] = (), classes: int = 2) -> ArrayDataset:
    x_NF = np.stack([np.broadcast_to(np.asarray(column, np.float32), NUM_ROWS) for column in columns], axis=1)
    labels = np.arange(NUM_ROWS) % classes if y is None else np.asarray(y)
    return ArrayDataset(
        x_NF.reshape(NUM_ROWS, -1, 1, 1),
        labels.astype(np.int64),
        tuple(map(str, range(classes))),
        "train",
        "a.csv",
        features=names,
    )


def draw(low: float, high: float) -> Any:
    return np.linspace(low, high, NUM_ROWS)[RNG.permutation(NUM_ROWS)]


def say(table: ArrayDataset, input_: dict[str, Any] | None = None) -> list[str]:
    """The warnings about a table, but for those that a test set of the same rows brings."""
    wanted = None if input_ is None else InputFormat.from_mapping({"shape": list(table.shape), **input_})
    found = check_data(table, table, input_=wanted)
    return [finding.text for finding in found if finding.level == "warning" and " are in train too" not in finding.text]


def test_a_table_of_one_scale_is_good() -> None:
    assert say(make_table(draw(0, 1), draw(-3, 3))) == []
    assert say(make_table(draw(0, 1), draw(0, 90))) == []


def test_scales_are_nothing_to_warn_of_where_members_agree_on_constants() -> None:
    table = make_table(draw(0, 0.05), draw(0, 2398))
    assert any("scales are far apart" in text for text in say(table))
    agreed = InputFormat.from_mapping({"shape": [2, 1, 1], "normalize": "agreed"})
    assert not any("scales are far apart" in finding.text for finding in check_features(table, agreed))


def test_scales_that_are_far_apart_are_named_by_the_widest_and_the_narrowest_column() -> None:
    table = make_table(draw(0, 0.05), draw(0, 1), draw(0, 2398), names=("smoothness", "ratio", "area"))
    [text] = say(table)
    assert text.startswith("scales are far apart: 'area' from 0 to 2398 beside 'smoothness' from 0 to 0.05; ")
    assert "genesis new normalises unless told otherwise" in text
    assert "beside 'feature 0' from" in say(make_table(draw(0, 0.05), draw(0, 2398)))[0]


def test_what_counts_is_what_genesis_input_leaves() -> None:
    table = make_table(draw(0, 0.05), draw(0, 2398))
    stats = compute_feature_stats(table)
    mean, std = [own.mean for own in stats], [own.std for own in stats]
    assert say(table, {"mean": mean, "std": std}) == []
    [text] = say(table, {"mean": [0.0], "std": [1.0]})
    assert text.endswith(
        "genesis leaves them so, and the wide ones drown the others: it needs input.mean and input.std"
    )


def test_a_feature_in_another_unit_than_genesis_is_found() -> None:
    table = make_table(draw(0, 1), draw(1000, 3000), names=("age", "dose"))
    [unnamed, apart, unit] = say(table, {"mean": [0.5, 2.0], "std": [0.3, 0.6]})
    assert unnamed.startswith("genesis does not name the columns")
    assert "also after genesis' input.mean and input.std" in apart
    assert unit.startswith("1 of 2 features is far from genesis' mean and deviation")
    assert "first 'dose': 2000 ± " in unit
    assert "2 ± 0.6 in genesis; another unit?" in unit


def test_features_of_one_value_are_named() -> None:
    table = make_table(draw(0, 1), 0.1, 0.0, names=("age", "site", "flag"))
    assert say(table) == ["2 of 3 features have one value in all rows: 'site', 'flag'"]
    several = make_table(draw(0, 1), *([5.0] * 7))
    assert say(several)[0].endswith("'feature 1', 'feature 2', 'feature 3', 'feature 4', 'feature 5', …")


def test_images_of_one_pixel_per_channel_alone_are_tables() -> None:
    x = np.zeros((4, 2, 2, 2), np.float32)
    x[:, 0] = RNG.random((4, 2, 2)) / 1000
    x[:, 1] = RNG.random((4, 2, 2))
    images = ArrayDataset(x, np.arange(4) % 2, ("a", "b"), "train", "a.npz")
    assert not any("scales" in text or "feature" in text for text in say(images))


def test_many_numbers_with_few_rows_of_each_are_doubted() -> None:
    table = make_table(draw(0, 1), y=np.arange(NUM_ROWS) % 25, classes=25)
    [text] = say(table)
    assert text.startswith("the labels are 25 different numbers, with 1.6 rows of each: is this a regression? ")
    assert say(make_table(draw(0, 1), y=np.arange(NUM_ROWS) % 4, classes=4)) == []


# ---- labels that are refused


def save_csv(path: Path, labels: list[Any]) -> dict[str, Any]:
    path.write_text("f,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)))
    return {"format": "csv", "path": str(path)}


def test_labels_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    data = save_csv(tmp_path / "a.csv", [2.5, 1.25, -3e-1, 4])
    for read in (get_classes, open_dataset, open_labels):
        with pytest.raises(DataError, match=r"a\.csv: the labels are 4 numbers that are not whole, .* a regression\?"):
            read(data)


def test_hundreds_of_labels_are_refused_unless_they_are_listed_as_classes(tmp_path: Path) -> None:
    data = save_csv(tmp_path / "a.csv", [f"p{i % 101:03}" for i in range(303)])
    with pytest.raises(DataError, match=r"the labels have 101 different values, such as p000 and p100; is this a regr"):
        open_dataset(data)
    names = [f"p{i:03}" for i in range(101)]
    assert len(open_dataset(data, classes=names)[0].classes) == 101
    assert len(get_classes({**data, "classes": names})) == 101
    assert len(get_classes(save_csv(tmp_path / "b.csv", list(range(100)) * 2))) == 100


def test_numbers_that_are_written_as_floats_and_whole_are_classes(tmp_path: Path) -> None:
    assert get_classes(save_csv(tmp_path / "a.csv", ["1.0", "0.0"] * 4)) == ("0.0", "1.0")
    assert get_classes(save_csv(tmp_path / "b.csv", ["0.5", "high"] * 4)) == ("0.5", "high")
    assert get_classes(save_csv(tmp_path / "c.csv", ["nan", "inf"] * 4)) == ("inf", "nan")


def test_images_may_have_hundreds_of_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((300, 4, 4), np.uint8), y=np.arange(300) % 150)
    assert len(get_classes({"format": "npz", "path": str(path)})) == 150


def test_floats_as_labels_ask_whether_it_is_a_regression(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [1.0, 2.0], "label": [0.5, 1.5]}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), np.float32), y=np.array([0.5, 1.5]))
    for name in ("parquet", "npz"):
        with pytest.raises(DataError, match=re.escape("; is this a regression? task: regression learns numbers")):
            get_classes({"format": name, "path": str(tmp_path / f"a.{name}")})


def test_columns_keep_their_names(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"age": [1.0, 2.0] * 4, "label": ["a", "b"] * 4, "dose": [3, 4] * 4}), tmp_path / "a.parquet"
    )
    train, test = open_dataset({"format": "parquet", "path": str(tmp_path / "a.parquet"), "classes": ["b", "a"]})
    assert (train.features, test.features) == (("age", "dose"), ("age", "dose"))
    data = save_csv(tmp_path / "a.csv", ["a", "b", "c"] * 5)
    assert open_dataset({**data, "classes": ["a", "c"]})[0].features == ("f",)


def test_a_number_that_is_none_is_at_a_feature(tmp_path: Path) -> None:
    x_NF = np.zeros((6, 3), np.float32)
    x_NF[4, 2] = np.inf
    np.savez(tmp_path / "a.npz", x=x_NF, y=np.arange(6) % 2)
    with pytest.raises(DataError, match=r"x\[4\], y\[4\]: expected finite numbers, got inf in feature 2$"):
        open_dataset({"format": "npz", "path": str(tmp_path / "a.npz")})


def test_columns_in_another_order_are_seen_beside_what_members_agreed_on() -> None:
    """By the site that has them so, and by the others: their own columns are narrow beside what came of all."""
    rng = np.random.default_rng(1)
    area, smoothness = rng.normal(600, 100, 300), rng.normal(0.1, 0.01, 300)
    good = np.stack([area, smoothness], 1).astype(np.float32).reshape(-1, 2, 1, 1)
    sites = (good, good, good[:, ::-1])
    everything = np.concatenate(sites).astype(np.float64)[:, :, 0, 0]
    mean, std = everything.mean(0).tolist(), everything.std(0).tolist()
    for x in sites:
        (finding,) = check_agreed(x, ("area", "smoothness"), mean, std)
        assert finding.level == "warning"
        assert "1 of 2 features is far from what members agreed on" in finding.text
        assert "its columns in another order?" in finding.text
    mean, std = good.mean((0, 2, 3)).tolist(), good.std((0, 2, 3)).tolist()
    assert list(check_agreed(good, None, mean, std)) == []
    same = np.broadcast_to(np.array([600, 0.1], np.float32).reshape(1, 2, 1, 1), good.shape)
    assert list(check_agreed(same, None, mean, std)) == []  # one value in all rows is told of by another check
