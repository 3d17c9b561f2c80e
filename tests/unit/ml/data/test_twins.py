"""Near twins of held-out samples in training are told, and data that have none are not doubted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import datasets

from ml.data.base import ArrayDataset
from ml.data.checks import check_data
from ml.data.labels import choose_held_out
from ml.data.source import HELD_OUT
from ml.data.twins import count_twins


def split(x: NDArray[np.float64], y: NDArray[np.int64]) -> tuple[ArrayDataset, ArrayDataset]:
    """As a site without groups holds samples out."""
    y, images = np.asarray(y, np.int64), np.asarray(x, np.float32).reshape(len(x), -1, 1, 1)
    is_test, classes = choose_held_out(y), tuple(map(str, range(int(y.max()) + 1)))
    return (
        ArrayDataset(images[~is_test], y[~is_test], classes),
        ArrayDataset(images[is_test], y[is_test], classes, HELD_OUT),
    )


def make_patients(num: int, each: int, features: int, within: float) -> tuple[ArrayDataset, ArrayDataset]:
    """Patients one deviation apart, with so many visits that differ by `within` of that. Their class says nothing."""
    rng, patient = np.random.default_rng(1), np.repeat(np.arange(num), each)
    x = rng.normal(size=(num, features))[patient] + within * rng.normal(size=(num * each, features))
    return split(x, patient % 2)


def list_twins(train: ArrayDataset, test: ArrayDataset) -> list[str]:
    return [finding.text for finding in check_data(train, test) if "near twin" in finding.text]


def test_slices_of_a_patient_on_both_sides_are_told() -> None:
    rng = np.random.default_rng(0)
    base = rng.random((30, 784))
    x = np.repeat(base, 10, 0) + rng.normal(0, 0.02, (300, 784))
    assert list_twins(*split(x, np.repeat(np.arange(30), 10) % 2)) == [
        "of 60 held-out samples 60 have a near twin in training: one patient on both sides? data.group"
    ]


@pytest.mark.parametrize(
    ("num", "each", "features", "within"), [(30, 10, 10, 0.05), (200, 2, 10, 0.1), (300, 3, 13, 0.1), (100, 4, 3, 0.05)]
)
def test_visits_of_a_patient_on_both_sides_are_told(num: int, each: int, features: int, within: float) -> None:
    assert len(list_twins(*make_patients(num, each, features, within))) == 1


def test_a_group_that_is_on_one_side_is_no_twin() -> None:
    rng, patient = np.random.default_rng(1), np.repeat(np.arange(30), 10)
    x = (
        (rng.normal(size=(30, 10))[patient] + 0.05 * rng.normal(size=(300, 10)))
        .astype(np.float32)
        .reshape(300, 10, 1, 1)
    )
    y, is_test = patient % 2, patient < 6
    train = ArrayDataset(x[~is_test], y[~is_test], ("a", "b"))
    test = ArrayDataset(x[is_test], y[is_test], ("a", "b"), HELD_OUT)
    assert count_twins(train, test) == (0, 60)


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine", "iris"])
def test_bundled_data_sets_are_not_doubted(name: str) -> None:
    loaded = getattr(datasets, f"load_{name}")()
    assert list_twins(*split(loaded.data, loaded.target)) == []


def test_neither_whole_numbers_nor_skewed_ones_nor_clusters_are_doubted() -> None:
    rng, y = np.random.default_rng(3), np.arange(500) % 2
    centre = rng.normal(size=(10, 20))[np.arange(500) % 10]
    for x in (
        rng.integers(0, 4, (500, 8)),
        np.exp(1.5 * rng.normal(size=(500, 8))),
        rng.normal(size=(500, 1)),
        np.concatenate([rng.integers(0, 2, (500, 6)), rng.normal(size=(500, 2))], 1),
        3 * centre + rng.normal(size=(500, 20)),
        rng.random((500, 300)),
    ):
        assert list_twins(*split(x.astype(np.float64), y)) == []


def test_of_many_samples_some_are_compared() -> None:
    rng = np.random.default_rng(2)
    num, compared = count_twins(*split(rng.normal(size=(12_000, 4)), np.arange(12_000) % 3))
    assert compared == 500
    assert num < 20


def test_a_few_samples_tell_nothing() -> None:
    train, test = make_patients(4, 4, 3, 0.01)
    assert list_twins(train, test) == []
