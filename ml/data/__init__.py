"""A site's samples by the name of their format: opened, measured against genesis, and made into what its model takes.

One file for each format, all of which end in `ArrayDataset`; `ml.data.partition` deals one data set out to rehearse a
federation. Numpy only: torch, Pillow, pyarrow and scipy are imported where a format or a resize needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import ArrayDataset, InputFormat, Labels, Shape
from ml.data.fit import fit, validate_fit
from ml.data.labels import choose_held_out, number_labels
from ml.data.opened import forget_opened, open_once, open_part, open_parts
from ml.data.source import ALL, DataSource, Part, Parts, get_augment
from ml.errors import DataError, SpecError, suggest
from ml.specs.architectures import fit_input_shape

__all__ = [
    "FORMATS",
    "HELD_OUT",
    "LabelSplit",
    "Split",
    "forget_opened",
    "get_augment",
    "get_classes",
    "get_default_input",
    "get_split_names",
    "load_dataset",
    "open_dataset",
    "open_labels",
    "open_once",
]

Split = tuple[ArrayDataset, ArrayDataset]

HELD_OUT = "held out"  # the split of test samples that were taken from the training ones
_MODULES = {name: f"ml.data.{name}" for name in ("digits", "npz", "imagefolder", "parquet", "hf", "idx", "cifar")}
_MODULES |= {"csv": "ml.data.csv_table", "svhn": "ml.data.svhn", "medmnist": "ml.data.medmnist"}
FORMATS = tuple(_MODULES)


def open_dataset(data: Mapping[str, Any], *, shape: Shape | None = None, classes: Sequence[str] | None = None) -> Split:
    """The (training, test) samples that `data` of a configuration describes, as they lie there.

    `shape` is what they are to be fitted to: images that are decoded one by one become it at once; arrays, which may be
    memory-mapped, stay as they are, but must be fit for it. Labels are numbered by `classes`, genesis' list, by name,
    or else by the source's own. Without a test split a fifth of each class is held out, always the same one, and that
    split is called "held out".

    Raises DataError naming file and place for what is broken, not of a kind, not finite, or of no known class.
    """
    train, test, own_classes = _open(data)
    parts = [train] if test is None else [train, test]
    if shape is not None:
        for part in parts:
            validate_fit(part.shape, shape)
    labels, names = number_labels(parts, own_classes, classes)
    read = [_read(part, own, names, shape) for part, own in zip(parts, labels, strict=True)]
    if len(read) == 2:
        (train_x, train_y), (test_x, test_y) = read
    else:
        [(x, y)] = read
        is_test = choose_held_out(y)
        (train_x, train_y), (test_x, test_y) = (x[~is_test], y[~is_test]), (x[is_test], y[is_test])
    source = DataSource.from_mapping(data)
    train_name = ALL if test is None and source.train_split == "train" else source.train_split
    test_name = HELD_OUT if test is None else source.test_split or "test"
    return (
        ArrayDataset(train_x, train_y, names, train_name, train.place),
        ArrayDataset(test_x, test_y, names, test_name, (test or train).place),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LabelSplit:
    """What `open_dataset` gives but for the samples: enough to deal them out. `shape` is a training sample's own."""

    train_y: Labels
    test_y: Labels
    classes: tuple[str, ...]
    shape: Shape


def open_labels(data: Mapping[str, Any], *, classes: Sequence[str] | None = None) -> LabelSplit:
    """The labels that `open_dataset` gives, without a look at any sample. Raises DataError."""
    train, test, own_classes = _open(data)
    labels, names = number_labels([train] if test is None else [train, test], own_classes, classes)
    for part, own in zip((train, test), labels, strict=False):
        if part is not None and not len(own):
            raise DataError(f"{part.place}: expected samples, got none")
    if len(labels) == 1:
        is_test = choose_held_out(labels[0])
        labels = [labels[0][~is_test], labels[0][is_test]]
    return LabelSplit(labels[0], labels[1], names, train.shape)


def get_split_names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What `data.train_split` and `data.test_split` can be, sorted. Raises DataError."""
    return tuple(sorted(_open_source(DataSource.from_mapping(data)).splits))


def load_dataset(data: Mapping[str, Any], input_: Mapping[str, Any], classes: Sequence[str] | None = None) -> Split:
    """As `open_dataset`, fitted to genesis' `input`: its channels and size, float32, normalised. Raises DataError."""
    wanted = InputFormat.from_mapping(input_)
    train, test = (_fit(part, wanted) for part in open_dataset(data, shape=wanted.shape, classes=classes))
    return train, test


def get_classes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What genesis' `classes` would be for these data alone. Raises DataError."""
    train, test, own_classes = _open(data)
    return number_labels([train] if test is None else [train, test], own_classes, None)[1]


def get_default_input(data: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Genesis' `input` for data and a model: the data's own shape unless the model takes only another one.

    Raises DataError. A model that nobody knows is left for genesis to refuse.
    """
    own = _open(data, with_test=False)[0].shape
    shape: Sequence[int] = own
    if own[1:] != (1, 1):  # features are not to be scaled to what a model of images takes
        with suppress(SpecError):
            shape = fit_input_shape(model, own)
    resize = None if tuple(shape[1:]) == own[1:] else list(shape[1:])
    return {"shape": list(shape), "resize": resize, "mean": [0.0], "std": [1.0]}


def _open(data: Mapping[str, Any], *, with_test: bool = True) -> tuple[Part, Part | None, tuple[str, ...] | None]:
    """The training and the test part that `data` names, their labels read, and the source's names of classes."""
    source = DataSource.from_mapping(data)
    get_augment(data)
    parts = _open_source(source)
    train_name = source.train_split
    if train_name == "train" and list(parts.splits) == [ALL]:
        train_name = ALL
    test_name = source.test_split or ("test" if "test" in parts.splits and train_name != "test" else None)
    with _translated(source):
        train = open_part(source, parts, train_name, "train_split")
        test = open_part(source, parts, test_name, "test_split") if with_test and test_name is not None else None
    return train, test, parts.classes


def _open_source(source: DataSource) -> Parts:
    if source.format not in _MODULES:
        raise DataError(f"data.format: unknown format {source.format!r}: {suggest(source.format, _MODULES)}")
    with _translated(source):
        return open_parts(source, _MODULES[source.format])


@contextmanager
def _translated(source: DataSource) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or source.path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{source.path}: does not fit into memory") from error


def _read(part: Part, labels: Labels, classes: tuple[str, ...], shape: Shape | None) -> tuple[NDArray[Any], Labels]:
    """A part's samples, all of them finite, beside its labels."""
    try:
        x = part.read(shape)
    except OSError as error:
        raise DataError(f"{error.filename or part.place}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{part.place}: does not fit into memory") from error
    if not len(labels):
        raise DataError(f"{part.place}: expected samples, got none")
    if x.dtype == np.float32:
        for start in range(0, len(x), 4096):
            is_finite = np.isfinite(x[start : start + 4096])
            if not is_finite.all():
                i, channel, row, column = (int(n) for n in np.argwhere(~is_finite)[0])
                raise DataError(
                    f"{part.locate(start + i)}: expected finite numbers, got {x[start + i, channel, row, column]} "
                    f"in channel {channel}, row {row}, column {column}"
                )
    return x, labels


def _fit(dataset: ArrayDataset, wanted: InputFormat) -> ArrayDataset:
    x = wanted.normalise(fit(dataset.x, wanted.shape))
    return ArrayDataset(x, dataset.y, dataset.classes, dataset.split, dataset.origin)
