"""1,797 real handwritten digits of 8x8 pixels, bundled with scikit-learn, so that they need no network.

The split into training and test samples is fixed, whatever a run's seed: of every class the first fifth, rounded to the
nearest, of a permutation seeded by `SPLIT_SEED` is test data. That makes 1,438 training samples (139 to 146 of a class)
and 359 test samples (35 to 37). A run's seed decides only which client gets which of them.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np

from ml.data.base import ArrayDataset, Images, Labels
from ml.data.part import Part, Parts
from ml.data.source import DataSource
from ml.errors import DataError
from ml.seeding import numpy_rng

CLASSES = tuple("0123456789")
NATIVE_SIZE = (8, 8)
TEST_SHARE = 0.2
SPLIT_SEED = 0


def open_parts(source: DataSource) -> Parts:
    """Opens the digits as the parts of a source."""
    if source.path is not None:
        raise DataError(f"data.path: digits come with fednode and have none, got {source.path}")
    parts = {split.split: Part.of_array("digits", split.x, split.y) for split in load_digits()}
    return Parts("digits", parts, CLASSES)


@lru_cache(maxsize=1)
def load_digits() -> tuple[ArrayDataset, ArrayDataset]:
    """Returns the (training, test) samples, float32 in 0..1. They are shared between callers and read-only.

    Raises DataError.
    """
    x_NHW, y_N = _read_digits()
    is_test = _choose_test(y_N)
    return _select(x_NHW[:, None], y_N, ~is_test, "train"), _select(x_NHW[:, None], y_N, is_test, "test")


def _read_digits() -> tuple[Images, Labels]:
    """Reads scikit-learn's own file: 64 pixels in 0..16 and the label per line. Importing scikit-learn, with all of
    scipy, for `sklearn.datasets.load_digits` would cost 1.3 s and some 80 MB for the same numbers."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("digits: scikit-learn, which carries them, is not installed")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"digits: cannot read {path}: {error}") from error
    if table.ndim != 2 or table.shape[1] != 65:
        raise DataError(f"digits: expected 65 columns in {path}, got shape {list(table.shape)}")
    x_NHW = table[:, :-1].reshape(-1, *NATIVE_SIZE).astype(np.float32) / np.float32(16)
    return x_NHW, table[:, -1].astype(np.int64)


def _choose_test(y_N: Labels) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    is_test = np.zeros(len(y_N), np.bool_)
    rng = numpy_rng("digits", SPLIT_SEED)
    for label in range(len(CLASSES)):
        of_class = rng.permutation(np.flatnonzero(y_N == label))
        is_test[of_class[: round(TEST_SHARE * len(of_class))]] = True
    return is_test


def _select(
    x_NCHW: Images, y_N: Labels, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], split: str
) -> ArrayDataset:
    x, y = np.ascontiguousarray(x_NCHW[chosen]), y_N[chosen]
    x.flags.writeable = y.flags.writeable = False
    return ArrayDataset(x, y, CLASSES, split, "digits")
