"""Street View House Numbers, cropped digits (Netzer et al., 2011), as published: `train_32x32.mat`, `test_32x32.mat`
and `extra_32x32.mat`, MATLAB files with X uint8 [32, 32, 3, N] and y [N, 1] from 1 to 10, where 10 is the digit 0.
"""

from __future__ import annotations

import struct
import zlib
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples, Shape
from ml.data.memory import bounded, validate_fits
from ml.data.part import Part, Parts
from ml.data.source import DataSource
from ml.errors import DataError

CLASSES = tuple("0123456789")
SHAPE: Shape = (3, 32, 32)
_ENDING = "_32x32.mat"
_BROKEN = (
    *(ValueError, TypeError, NotImplementedError, KeyError, EOFError, IndexError, OSError, OverflowError),
    *(MemoryError, zlib.error, struct.error),
)


def open_parts(source: DataSource) -> Parts:
    """Opens the splits by the names of the files in the directory."""
    source.refuse_columns()
    path = source.get_path()
    files = sorted(path.glob(f"*{_ENDING}"))
    if not files:
        raise DataError(f"{path}: expected the directory of train{_ENDING} and test{_ENDING}")
    return Parts(str(path), {file.name.removesuffix(_ENDING): partial(_open_part, file) for file in files}, CLASSES)


def _open_part(file: Path) -> Part:
    shape = _get_shapes(file).get("X", ())
    if len(shape) != 4 or shape[:3] != (32, 32, 3):
        raise DataError(f"{file}: X: expected uint8 [32, 32, 3, N], got {list(shape) or 'nothing'}")
    validate_fits(prod(shape), f"{file}: X")
    labels = _load(file, "y")
    if labels.size != shape[3] or labels.dtype.kind not in "uif":
        raise DataError(f"{file}: y: expected {shape[3]} labels, got {labels.dtype} {list(labels.shape)}")
    y_N = labels.reshape(-1)
    is_wrong = ~((y_N >= 1) & (y_N <= 10) & (y_N == np.floor(y_N)))
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise DataError(f"{file}: y[{i}]: expected 1 to 10, where 10 is the digit 0, got {y_N[i]}")

    def read(_: Shape | None) -> Samples:
        x = _load(file, "X")
        if x.dtype != np.uint8 or x.shape != shape:
            raise DataError(f"{file}: X: expected uint8 {list(shape)}, got {x.dtype} {list(x.shape)}")
        return np.ascontiguousarray(x.transpose(3, 2, 0, 1))

    return Part(str(file), y_N.astype(np.int64) % 10, SHAPE, read, lambda i: f"{file}: y[{i}]")


def _get_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    from scipy.io import whosmat  # heavy, and only here
    from scipy.io.matlab import MatReadError

    try:
        with bounded(str(file)):  # scipy trusts the sizes in the file
            return {name: tuple(shape) for name, shape, _ in whosmat(file, appendmat=False)}
    except (*_BROKEN, MatReadError) as error:
        raise DataError(f"{file}: not a readable MATLAB file (up to version 7): {error}") from error


def _load(file: Path, name: str) -> NDArray[Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with bounded(f"{file}: {name}"):
            value = loadmat(file, appendmat=False, variable_names=[name])[name]
    except (*_BROKEN, MatReadError) as error:
        raise DataError(f"{file}: {name}: cannot be read: {error}") from error
    if not isinstance(value, np.ndarray):
        raise DataError(f"{file}: {name}: expected an array, got {type(value).__name__}")
    return value
