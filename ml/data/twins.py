"""Near twins: held-out samples with a training sample of their class much nearer to them than chance explains, such as
two pictures of one patient. A figure measured on them shows only that the model remembers.

Samples are compared by their features, each divided by its deviation; samples with more than DIMENSIONS features by
random projections. Around a sample the number of others grows with some power D of the distance. If the k nearest are
within r_k, the nearest is expected at r_k (1/k)^(1/D); D is measured between r_(k/2) and r_k, as the median over
samples. A twin is nearer than a part NEAR of that. How many samples one patient may have is not known, so that k is
tried as several parts of a class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ml.data.base import ArrayDataset
from ml.data.findings import Finding
from ml.data.source import HELD_OUT
from ml.seeding import numpy_rng

NEAR = 0.25
SHARE = 0.5  # of the held-out samples: such a share is no chance
PARTS = (0.1, 0.25, 0.5)  # of a class's training samples
DIMENSIONS = 64
MAX_TEST, MAX_TRAIN = 500, 8000  # samples that are compared
CHUNK = 256  # samples in memory as numbers at a time
MIN_TEST, MIN_TRAIN = 10, 16  # fewer show nothing; the second is for each class


def check_twins(train: ArrayDataset, test: ArrayDataset) -> Iterable[Finding]:
    """Yields the warning about test samples, where at least SHARE of them have near twins."""
    num, compared = count_twins(train, test)
    if compared >= MIN_TEST and num >= SHARE * compared:
        which = "held-out samples" if test.split == HELD_OUT else f"samples of {test.split}"
        yield Finding(
            "warning",
            f"of {compared} {which} {num} have a near twin in training: one patient on both sides? data.group",
        )


def count_twins(train: ArrayDataset, test: ArrayDataset) -> tuple[int, int]:
    """Returns the number of test samples with near twins in training, and of test samples that were compared. Exact
    duplicates do not count: another check finds them."""
    rng = numpy_rng("near twins")
    of_train, of_test = (_choose(len(part), most, rng) for part, most in ((train, MAX_TRAIN), (test, MAX_TEST)))
    if not len(of_test) or len(of_train) < MIN_TRAIN:
        return 0, 0
    train_ND, test_ND = _describe(train, of_train, test, of_test, rng)
    train_y, test_y = (_get_classes(part)[rows] for part, rows in ((train, of_train), (test, of_test)))
    found, compared = np.zeros(len(PARTS), np.int64), 0
    for c in np.unique(test_y):
        own, others = test_ND[test_y == c], train_ND[train_y == c]
        if len(others) >= MIN_TRAIN:
            found += _count(own, others)
            compared += len(own)
    return int(found.max()), compared


def _choose(num: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.arange(num) if num <= most else np.sort(rng.choice(num, most, replace=False))


def _get_classes(part: ArrayDataset) -> NDArray[np.int64]:
    """Returns the class of each sample; labels and targets, which are no classes, count as one class."""
    return np.asarray(part.y, np.int64) if part.y.ndim == 1 else np.zeros(len(part), np.int64)


def _describe(
    train: ArrayDataset,
    of_train: NDArray[np.int64],
    test: ArrayDataset,
    of_test: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Describes both sides' samples by at most DIMENSIONS numbers, each feature scaled by its deviation over training
    samples."""
    total = squares = np.float64(0)
    shift_F = np.nan_to_num(
        _read(train, of_train[:1])[0].astype(np.float64)
    )  # near the mean, so that the squares lose no digits
    for x_NF in _iter_chunks(train, of_train):
        apart_NF = np.nan_to_num(x_NF - shift_F)  # an empty cell counts as 0
        total, squares = total + apart_NF.sum(0), squares + np.square(apart_NF).sum(0)
    mean_F = total / len(of_train)
    std_F = np.sqrt(np.maximum(squares / len(of_train) - np.square(mean_F), 0))
    scale_F = np.where(std_F > 0, 1 / np.where(std_F > 0, std_F, 1), 0).astype(np.float32)
    middle_F = (shift_F + mean_F).astype(np.float32)
    directions: NDArray[np.float32] | None = None
    if len(scale_F) > DIMENSIONS:
        directions = rng.standard_normal((len(scale_F), DIMENSIONS), np.float32)

    def project(x_NF: NDArray[np.float32]) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = (x_NF - middle_F) * scale_F
        scaled[np.isnan(scaled)] = 0.0  # an empty cell counts as the mean
        return scaled if directions is None else scaled @ directions

    own, others = (
        np.concatenate([project(x_NF) for x_NF in _iter_chunks(part, rows)])
        for part, rows in ((train, of_train), (test, of_test))
    )
    return own, others


def _iter_chunks(part: ArrayDataset, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(rows), CHUNK):
        yield _read(part, rows[start : start + CHUNK])


def _read(part: ArrayDataset, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    x_NF: NDArray[np.float32] = part.x[rows].reshape(len(rows), -1).astype(np.float32)
    return x_NF


def _count(test_ND: NDArray[np.float32], train_ND: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the number of test samples that have near twins, for each of PARTS."""
    squares = np.square(test_ND).sum(1)[:, None] + np.square(train_ND).sum(1) - 2 * (test_ND @ train_ND.T)
    nearest_N = train_ND[squares.argmin(1)]
    first_N = np.sqrt(np.square(test_ND.astype(np.float64) - nearest_N).sum(1))  # exact, where the squares cancel
    radii = np.sqrt(np.sort(np.maximum(squares, 0), axis=1)).astype(np.float64)
    found = []
    for part in PARTS:
        k = max(4, int(part * len(train_ND)))
        half, whole = radii[:, k // 2 - 1], radii[:, k - 1]
        is_apart = (first_N > 0) & (half > 0) & (whole > half)
        if not is_apart.any():
            found.append(0)
            continue
        inverse = np.median(np.log(whole[is_apart] / half[is_apart])) / np.log(k / (k // 2))  # 1 / D
        found.append(int((first_N[is_apart] < NEAR * whole[is_apart] * k**-inverse).sum()))
    return np.array(found, np.int64)
