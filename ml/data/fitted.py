"""Samples in a file that are fitted to a model's input while they are read, a few at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Images, Labels, Samples, Shape
from ml.data.fit_input import fit


class FittedImages:
    """Float32 [N, C, H, W]: the samples x at `rows`, each fitted to `shape` when it is read. A slice reads nothing;
    `numpy.asarray` reads all."""

    def __init__(self, x_NCHW: Samples, rows: Labels, shape: Shape) -> None:
        self._x, self._rows, self._shape = x_NCHW, rows, shape

    @classmethod
    def of(cls, x_NCHW: Samples, shape: Shape, rows: Labels | None = None) -> FittedImages:
        """Returns the samples of a mapped file, all or those at some rows."""
        return cls(x_NCHW, np.arange(len(x_NCHW)) if rows is None else rows, shape)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self._rows), *self._shape)

    def __getitem__(self, rows: slice | NDArray[Any]) -> FittedImages:
        return FittedImages(self._x, self._rows[rows], self._shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Images:
        fitted = fit(self._x[self._rows], self._shape)
        return fitted if dtype is None else fitted.astype(dtype, copy=False)
