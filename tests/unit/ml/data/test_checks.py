"""Checks of data: their findings before anything trains."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_client, make_initial_aggregate
from ml.data.base import ArrayDataset
from ml.data.checks import check_data, compute_stats
from ml.data.readers.digits import load_digits
from ml.errors import DataError

CLASSES = ("cat", "dog", "eel")


def make(count: int, seed: int, y: Any = None, dtype: Any = np.uint8) -> ArrayDataset:
    x = np.random.default_rng(seed).integers(0, 256, (count, 1, 4, 4)).astype(dtype)
    labels = np.arange(count) % 3 if y is None else np.array(y)
    return ArrayDataset(x, labels.astype(np.int64), CLASSES, "train" if seed == 1 else "test", "a.npz")


def say(train: ArrayDataset, test: ArrayDataset) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in check_data(train, test)]


def test_nothing_is_said_of_good_data() -> None:
    assert say(make(9, 1), make(6, 2)) == []
    assert say(*load_digits()) == []


def test_a_test_sample_that_was_trained_on_is_found() -> None:
    train, test = make(9, 1), make(6, 2)
    test.x[4] = train.x[7]
    assert say(train, test) == ["warning: 1 of 6 samples of test are in train too: 4 is 7"]


def test_a_sample_that_is_there_twice_is_found_and_its_second_label() -> None:
    train = make(9, 1)
    train.x[3], train.x[4], train.x[8] = train.x[0], train.x[0], train.x[0]
    assert say(train, make(6, 2)) == [
        "warning: 3 of train are there twice, as 3 and 0 are",
        "warning: 2 of train have two labels: 0 is 'cat', and again as 4 'dog'",
    ]


def test_classes_without_samples_are_named() -> None:
    assert say(make(4, 1, [0, 0, 1, 1]), make(2, 2, [0, 1])) == ["note: no sample at all of eel"]
    assert say(make(4, 1, [0, 0, 1, 1]), make(2, 2, [0, 2])) == [
        "warning: tested, but without a sample in train: eel",
        "warning: trained on, but without a sample in test: dog",
    ]
    assert "warning: train has samples of one class alone: dog" in say(make(2, 1, [1, 1]), make(2, 2, [1, 1]))


def test_images_of_one_value_are_found() -> None:
    train = make(9, 1)
    train.x[5] = 7
    assert say(train, make(6, 2)) == ["warning: 1 of train are one value all over, the first is 5"]
    train.x[5, 0, 2, 1] = 8
    assert say(train, make(6, 2)) == []


def test_floats_that_nobody_divided_are_found() -> None:
    found = say(make(9, 1, dtype=np.float32), make(6, 2, dtype=np.float32))
    assert len(found) == 1
    assert found[0].startswith("warning: a.npz: floats from ")


def test_without_looking_at_samples_only_classes_are_checked() -> None:
    train, test = make(9, 1), make(6, 2)
    test.x[4] = train.x[7]
    [finding] = check_data(train, test, thorough=False)
    assert (finding.level, "fednode data inspect" in finding.text) == ("note", True)


def test_a_digest_is_of_the_contents() -> None:
    train, again = make(9, 1), make(9, 1)
    assert train.sha256 == again.sha256
    again.x[8, 0, 3, 3] ^= 1
    assert train.sha256 != again.sha256
    strided = ArrayDataset(
        train.x[:, :, ::-1][:, :, ::-1].transpose(0, 1, 3, 2).transpose(0, 1, 3, 2), train.y, CLASSES
    )
    assert strided.sha256 == train.sha256


def test_mean_and_deviation_are_those_of_each_channel() -> None:
    x = np.array([0, 255, 51, 51], np.uint8).reshape(2, 2, 1, 1).transpose(1, 0, 2, 3).repeat(2, 3)
    mean, std = compute_stats(ArrayDataset(x, np.zeros(2, np.int64), ("a",)), (2, 1, 2))
    assert mean == pytest.approx([0.5, 0.2])
    assert std == pytest.approx([0.5, 1.0])  # one without any spread is left as it is


def test_a_deviation_keeps_its_digits_however_small_or_far_from_zero() -> None:
    columns = [[1e-7, 3e-7], [1e6, 1e6 + 2], [0.1, 0.1], [1000, 3000]]
    x_NCHW = np.array(columns, np.float32).T.reshape(2, 4, 1, 1)
    mean, std = compute_stats(ArrayDataset(x_NCHW, np.zeros(2, np.int64), ("a",)), (4, 1, 1))
    assert mean == pytest.approx([2e-7, 1e6 + 1, 0.1, 2000], rel=1e-9, abs=1e-9)
    assert std == pytest.approx([1e-7, 1, 1, 1000], rel=1e-5)  # 0.1 in float32 is no spread, but noise


def make_node(data: dict[str, Any]) -> Any:
    model = {"name": "mlp", "hidden": [4]}
    return make_client(
        Federation(method={"name": "local"}, model=model, classes=CLASSES, input={"shape": [1, 4, 4]}),
        data=data,
        seed=1,
        initial=make_initial_aggregate(model, [1, 4, 4], 3, 1),
    )


def test_a_client_logs_warnings_as_it_is_made_and_refuses_what_cannot_be_trained_on(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    train = make(9, 1)
    path = tmp_path / "a.npz"
    data = {"format": "npz", "path": str(path)}
    np.savez(path, x_train=train.x, y_train=train.y, x_test=train.x[:3], y_test=train.y[:3])
    with caplog.at_level(logging.WARNING, "ml.data"):
        assert make_node(data).num_train == 9
    assert [record.message for record in caplog.records] == [
        "data: 3 of 3 samples of test are in train too: x_test[0], y_test[0] is x_train[0], y_train[0]"
    ]
    np.savez(path, x=train.x, y=train.y + 1)
    with pytest.raises(DataError, match=r"a.npz: x\[2\], y\[2\]: expected a label from 0 to 2, got 3"):
        make_node(data)
    np.savez(path, x=train.x[:, :, :3], y=train.y)
    assert make_node(data).num_train == 6


def test_augmentation_is_asked_for_in_data_and_refused_for_tables(tmp_path: Any) -> None:
    train = make(9, 1)
    np.savez(tmp_path / "a.npz", x=train.x, y=train.y)
    data = {"format": "npz", "path": str(tmp_path / "a.npz"), "transform": {"augment": "flip_crop"}}
    assert make_node(data).engine.augment == "flip_crop"
    with pytest.raises(
        DataError, match=r"data.transform.augment: expected one of none, flip, crop, flip_crop, got 'cut'"
    ):
        make_node(data | {"transform": {"augment": "cut"}})
    with pytest.raises(DataError, match=r"data.transform.size: unknown key"):
        make_node(data | {"transform": {"size": [28, 28]}})
