"""The formats by name, and the two splits of a source that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ml.data.labels import number_labels
from ml.data.source import ALL, HELD_OUT, DataSource, Part, Parts
from ml.data.source_cache import open_part, open_parts
from ml.errors import DataError, suggest

_NAMES = ("digits", "npz", "imagefolder", "parquet", "hf", "idx", "cifar", "svhn", "medmnist")
_MODULES = {name: f"ml.data.readers.{name}" for name in _NAMES}
_MODULES |= {"csv": "ml.data.readers.csv_table", "domains": "ml.data.readers.domain_folders"}
FORMATS = tuple(_MODULES)
TABLES = ("csv", "parquet", "hf")  # whose columns have names


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """The training part and, where the source has one, the test part; `classes` and `domains` as in `Parts`. `others`
    are the splits that are not looked at."""

    train: Part
    test: Part | None
    classes: tuple[str, ...] | None
    domains: tuple[str, ...]
    train_name: str
    test_name: str
    others: tuple[str, ...]

    @property
    def parts(self) -> list[Part]:
        return [self.train] if self.test is None else [self.train, self.test]


def open_source(source: DataSource) -> Parts:
    """The parts of a source, as its format opens it. Raises DataError."""
    if source.format not in _MODULES:
        raise DataError(f"data.format: unknown format {source.format!r}: {suggest(source.format, _MODULES)}")
    with translated(source.path):
        return open_parts(source, _MODULES[source.format])


def open_splits(source: DataSource, *, with_test: bool = True) -> Splits:
    """The splits that `source` names, their labels read; of `data.classes` alone where it names some. Raises
    DataError, but not for a class that has no sample."""
    parts = open_source(source)
    train_name = source.train_split
    if train_name == "train" and list(parts.splits) == [ALL]:
        train_name = ALL
    found = next((name for name in ("test", HELD_OUT) if name in parts.splits and name != train_name), None)
    test_name = source.test_split or found
    with translated(source.path):
        train = open_part(source, parts, train_name, "train_split")
        test = open_part(source, parts, test_name, "test_split") if with_test and test_name is not None else None
    others = tuple(sorted(set(parts.splits) - {ALL, train_name, test_name}))
    if test is None and source.train_split == "train":
        train_name = ALL
    splits = Splits(train, test, parts.classes, parts.domains, train_name, test_name or HELD_OUT, others)
    return splits if source.classes is None else _keep_classes(splits, source.classes)


@contextmanager
def translated(place: object) -> Iterator[None]:
    """Translates what the system refuses into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or place}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{place}: does not fit into memory") from error


def _keep_classes(splits: Splits, kept: Sequence[str]) -> Splits:
    """The samples of these classes, which are numbered in this order."""
    labels, names = number_labels(splits.parts, splits.classes, None)
    is_kept = np.isin(names, kept)
    parts = []
    for part, own in zip(splits.parts, labels, strict=True):
        rows = np.flatnonzero(is_kept[own])
        texts = np.array(names, np.str_)[own[rows]]
        parts.append(replace(part if len(rows) == len(own) else part.select(rows), labels=texts))
    classes = tuple(name for name in kept if name in names)
    return replace(splits, train=parts[0], test=parts[1] if len(parts) > 1 else None, classes=classes)
