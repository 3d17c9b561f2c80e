"""The form of the samples of every source of data, and the input that genesis asks them to be fitted to.

Shapes: x_NCHW uint8 or float32, y_N int64 or y_NT float64; C is channels here, classes elsewhere. Tabular features are
channels of one pixel, [N, F, 1, 1], so that each has its own mean and deviation.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.columns import ColumnSummary
from ml.data.findings import Finding
from ml.data.table_input import TableInput
from ml.errors import DataError, suggest
from ml.specs.architectures.layout import MAX_WIDTH
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from ml.text import escape_undecoded

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Outputs = NDArray[np.float64]  # [N, T], the labels of a multilabel task, 0 or 1 each, or the targets of a regression
AnyLabels = Labels | Outputs
Samples = NDArray[np.uint8] | NDArray[np.float32]
Shape = tuple[int, int, int]  # channels, height, width

# the keys of terms by which members agree on constants in the first round
_AGREED_KEYS = ("normalize", "min_count", "class_counts", "correlations", "low", "high")
_INPUT_KEYS = ("shape", "resize", "mean", "std", *_AGREED_KEYS, "columns", "missing", "unknown", "empty")
_DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class ArrayDataset:
    """Samples x, in memory or memory-mapped, with labels y in 0..len(classes)-1 and the names of the classes. For a
    `task` other than classification y has the labels or the targets of each sample instead, float64 [N, T], and
    `classes` are their names.

    x is uint8, where 255 stands for 1.0, or float32. `split` is the name of this part, `origin` the file that it was
    read from. `domain_of` is the domain of each sample, by its place in `domains`, where the data set has several.
    `features` are the names of a table's columns, where it has names; `passed_over` are the columns that a run does not
    name, `columns` are summaries of the others, and `notes` say what was left out or assumed when it was read. `locate`
    says where a sample is. Among training samples `is_val` marks those that are held out to compare rounds by, and not
    trained on; None where there are none. Raises DataError when the parts do not fit each other.
    """

    x: Samples
    y: AnyLabels
    classes: tuple[str, ...]
    split: str = "train"
    origin: str = ""
    domains: tuple[str, ...] = ()
    domain_of: Labels | None = None
    features: tuple[str, ...] = ()
    task: str = CLASSIFICATION
    passed_over: tuple[str, ...] = ()
    columns: tuple[ColumnSummary, ...] = ()
    notes: tuple[Finding, ...] = ()
    locate: Callable[[int], str] | None = None
    is_val: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", escape_undecoded(self.origin))
        place = f"{self.origin}: " if self.origin else ""
        if self.x.dtype not in _DTYPES or self.x.ndim != 4:
            raise DataError(
                f"{place}samples: expected uint8 or float32 [N, C, H, W], got {self.x.dtype} {list(self.x.shape)}"
            )
        if self.task == CLASSIFICATION:
            self._check_classes(place)
        elif self.y.dtype != np.float64 or self.y.shape != (len(self.x), len(self.classes)):
            raise DataError(
                f"{place}labels: expected float64 [{len(self.x)}, {len(self.classes)}], "
                f"got {self.y.dtype} {list(self.y.shape)}"
            )
        if (self.domain_of is None) != (not self.domains):
            raise DataError(
                f"{place}domains: expected names and the domain of each sample, or neither, got one of them"
            )
        if self.domain_of is not None and self.domain_of.shape != self.y.shape[:1]:
            raise DataError(f"{place}domains: expected [{len(self.y)}], got {list(self.domain_of.shape)}")

    def _check_classes(self, place: str) -> None:
        if self.y.dtype != np.int64 or self.y.shape != self.x.shape[:1]:
            raise DataError(f"{place}labels: expected int64 [{len(self.x)}], got {self.y.dtype} {list(self.y.shape)}")
        if len(self.y) and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            raise DataError(
                f"{place}labels: expected 0 to {len(self.classes) - 1}, got {int(self.y.min())} to {int(self.y.max())}"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_val(self) -> int:
        return 0 if self.is_val is None else int(self.is_val.sum())

    @property
    def shape(self) -> Shape:
        """The shape of a sample: channels, height, width."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def is_table(self) -> bool:
        """Says whether a sample is a row of features, not an image."""
        return self.shape[1:] == (1, 1)

    @property
    def sha256(self) -> str:
        """The SHA-256 of dtype, shape, classes, samples and labels, in hexadecimal, with the domains where
        there are any. It is equal for equal data, whatever file they were in.

        Reads everything: about a second for a gigabyte.
        """
        digest = hashlib.sha256(repr((str(self.x.dtype), self.x.shape, self.classes)).encode())
        for start in range(0, len(self), 4096):
            digest.update(np.ascontiguousarray(self.x[start : start + 4096]).data)
        digest.update(np.ascontiguousarray(self.y).data)
        if self.domain_of is not None:
            digest.update(repr(self.domains).encode() + np.ascontiguousarray(self.domain_of).data)
        return digest.hexdigest()

    def count_classes(self) -> NDArray[np.int64]:
        """Returns the number of samples of each class, or with each label. Every sample has all targets, so each target
        counts all samples."""
        if self.task == REGRESSION:
            return np.full(len(self.classes), len(self), np.int64)
        if self.task == MULTILABEL:
            return np.asarray(self.y.sum(0), np.int64)
        return np.bincount(np.asarray(self.y, np.int64), minlength=len(self.classes))

    def list_domains(self) -> list[ArrayDataset]:
        """Returns one data set for each domain, with its samples and its name; empty without domains."""
        if self.domain_of is None:
            return []
        rows = [np.flatnonzero(self.domain_of == d) for d in range(len(self.domains))]
        return [
            ArrayDataset(self.x[own], self.y[own], self.classes, name, self.origin, task=self.task)
            for name, own in zip(self.domains, rows, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class SampleDomains:
    """The domains of a data set, and the domain of each training and each test sample, by its place in `names`."""

    names: tuple[str, ...]
    train: Labels
    test: Labels

    @classmethod
    def of(cls, train: ArrayDataset, test: ArrayDataset) -> SampleDomains | None:
        """Returns the domains of two splits, None if they have none."""
        if train.domain_of is None or test.domain_of is None:
            return None
        return cls(train.domains, train.domain_of, test.domain_of)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """Genesis's `input`: the shape a model takes, the constants that normalise each channel and, where it has any, the
    rules by which a table's columns become features."""

    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_agreed: bool = False  # members agree on the constants, which are 0 and 1 until then
    table: TableInput | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> InputFormat:
        """Reads `{shape: [1, 28, 28], resize: [28, 28] | null, mean: [0.0], std: [1.0]}`. Raises DataError.

        `shape` alone decides the size. `resize` repeats it for readers, and must not contradict it. One mean or
        deviation stands for all channels. In place of constants there may be the terms by which members agree on them.
        """
        for key in mapping:
            if key not in _INPUT_KEYS:
                raise DataError(f"input.{key}: unknown key: {suggest(key, _INPUT_KEYS)}")
        shape = mapping.get("shape")
        if not isinstance(shape, list | tuple) or len(shape) != 3 or not all(type(n) is int and n > 0 for n in shape):
            raise DataError(f"input.shape: expected [channels, height, width], got {shape!r}")
        if max(shape) > MAX_WIDTH:
            raise DataError(f"input.shape: expected at most {MAX_WIDTH} of each, got {list(shape)}")
        channels, height, width = shape
        resize = mapping.get("resize")
        if resize is not None and resize not in ([height, width], (height, width)):
            raise DataError(f"input.resize: expected {[height, width]} as in input.shape, or null, got {resize!r}")
        mean = _read_channels(mapping, "mean", channels, 0.0)
        std = _read_channels(mapping, "std", channels, 1.0)
        if not all(s > 0 for s in std):
            raise DataError(f"input.std: expected positive numbers, got {list(std)}")
        table = TableInput.from_mapping(mapping, mean)
        return cls((channels, height, width), mean, std, mapping.get("normalize") is not None, table)

    def with_constants(self, mean: tuple[float, ...], std: tuple[float, ...]) -> InputFormat:
        """Returns the same input with these constants, one for each channel."""
        return InputFormat(self.shape, mean, std, table=self.table)

    @property
    def fills_empty(self) -> bool:
        """Says whether the mean replaces an empty cell."""
        return self.table is not None and self.table.missing.startswith("mean")

    @property
    def takes_empty(self) -> bool:
        """Says whether an empty cell arrives as not-a-number (NaN) and is filled by the mean that members agree on."""
        return self.table is not None and self.table.leaves_empty

    def normalise(self, x_NCHW: Images) -> Images:
        """Returns (x - mean) / std by channel, 0 for an empty cell; the same array when there is nothing to do."""
        if x_NCHW.shape[1:] != self.shape:
            raise DataError(f"samples: expected shape {list(self.shape)}, got {list(x_NCHW.shape[1:])}")
        if self.takes_empty:
            x_NCHW = np.where(np.isnan(x_NCHW), np.array(self.mean, np.float32).reshape(1, -1, 1, 1), x_NCHW)
        if not any(self.mean) and all(s == 1.0 for s in self.std):
            return x_NCHW
        mean = np.asarray(self.mean, np.float32).reshape(1, -1, 1, 1)
        std = np.asarray(self.std, np.float32).reshape(1, -1, 1, 1)
        normalised = x_NCHW - mean
        normalised /= std
        return normalised


def _read_channels(mapping: Mapping[str, Any], key: str, channels: int, default: float) -> tuple[float, ...]:
    values = mapping.get(key)
    if values is None:
        return (default,) * channels
    if not isinstance(values, list | tuple) or len(values) not in (1, channels):
        raise DataError(f"input.{key}: expected {channels} numbers, one for each channel, got {values!r}")
    if not all(_is_finite(v) for v in values):
        raise DataError(f"input.{key}: expected finite numbers, got {values!r}")
    numbers = tuple(float(v) for v in values)
    return numbers if len(numbers) == channels else numbers * channels


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
