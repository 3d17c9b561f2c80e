"""The digits of scikit-learn, as fednode reads, splits, resizes and normalises them."""

from __future__ import annotations

import numpy as np
import pytest

from ml.data import get_classes, get_default_input, load_dataset
from ml.data.base import ArrayDataset, InputFormat
from ml.data.readers.digits import load_digits
from ml.errors import DataError


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits as load_reference

    reference = load_reference()
    train, test = load_digits()
    ours = np.concatenate([train.x, test.x]).reshape(-1, 64) * 16
    labels = np.concatenate([train.y, test.y])
    expected = np.column_stack([reference.data, reference.target])
    got = np.column_stack([ours, labels])
    assert np.array_equal(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)])


def test_split_is_stratified_and_fixed() -> None:
    train, test = load_digits()
    assert (len(train), len(test)) == (1438, 359)
    assert np.bincount(test.y).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert test.y[:12].tolist() == [3, 5, 7, 9, 0, 0, 8, 7, 2, 2, 1, 6]


@pytest.mark.parametrize("size", [(28, 28), (32, 32)])
def test_resized_digits_stay_in_range_and_keep_their_mean(size: tuple[int, int]) -> None:
    native, _ = load_digits()
    resized, _ = load_dataset({"format": "digits"}, {"shape": [1, *size]})
    assert resized.x.shape == (1438, 1, *size)
    assert resized.x.dtype == np.float32
    assert 0 <= resized.x.min() <= resized.x.max() <= 1
    assert resized.x.mean() == pytest.approx(native.x.mean(), abs=0.01)
    assert np.array_equal(resized.y, native.y)


def test_colour_is_three_equal_channels() -> None:
    train, _ = load_dataset({"format": "digits"}, {"shape": [3, 32, 32]})
    assert train.x.shape == (1438, 3, 32, 32)
    assert np.array_equal(train.x[:, 0], train.x[:, 2])


def test_digits_are_read_once_and_cannot_be_written_to() -> None:
    train, _ = load_digits()
    assert load_digits()[0] is train
    with pytest.raises(ValueError, match="read-only"):
        train.x[0] = 0


def test_input_normalises_each_channel() -> None:
    input_ = {"shape": [3, 8, 8], "resize": None, "mean": [0.0, 0.5, 0.0], "std": [1.0, 0.5, 2.0]}
    train, _ = load_dataset({"format": "digits"}, input_)
    native, _ = load_digits()
    assert np.array_equal(train.x[:, 0], native.x[:, 0])
    assert np.array_equal(train.x[:, 1], (native.x[:, 0] - np.float32(0.5)) / np.float32(0.5))
    assert np.array_equal(train.x[:, 2], native.x[:, 0] / np.float32(2))


def test_default_input_suits_the_model() -> None:
    digits = {"format": "digits"}
    assert get_default_input(digits, {"name": "mlp"})["shape"] == [1, 8, 8]
    assert get_default_input(digits, {"name": "cnn_mnist"})["shape"] == [1, 28, 28]
    assert get_classes(digits) == tuple("0123456789")


@pytest.mark.parametrize(
    ("input_", "message"),
    [
        ({"shape": [8, 8]}, r"input.shape: expected \[channels, height, width\], got \[8, 8\]"),
        ({"shape": [1, 28, 28], "resize": [32, 32]}, r"input.resize: expected \[28, 28\]"),
        ({"shape": [1, 8, 8], "mean": [0.0, 0.0]}, "input.mean: expected 1 numbers"),
        ({"shape": [1, 8, 8], "std": [0.0]}, "input.std: expected positive"),
        ({"shape": [1, 8, 8], "sdt": [1.0]}, "input.sdt: unknown key: did you mean 'std'"),
        ({"shape": [2, 8, 8]}, "1 or 3 channels, got 2"),
    ],
)
def test_wrong_input_is_named(input_: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset({"format": "digits"}, input_)


def test_unknown_format_is_named() -> None:
    with pytest.raises(DataError, match=r"data.format: unknown format 'digit': did you mean 'digits'"):
        load_dataset({"format": "digit"}, {"shape": [1, 8, 8]})


def test_samples_and_labels_must_fit() -> None:
    x = np.zeros((2, 1, 8, 8), np.float32)
    with pytest.raises(DataError, match=r"labels: expected int64 \[2\]"):
        ArrayDataset(x, np.zeros(3, np.int64), ("a",))
    with pytest.raises(DataError, match="labels: expected 0 to 0, got 0 to 1"):
        ArrayDataset(x, np.array([0, 1]), ("a",))
    with pytest.raises(DataError, match=r"expected shape \[1, 9, 9\], got \[1, 8, 8\]"):
        InputFormat((1, 9, 9), (0.0,), (1.0,)).normalise(x)
