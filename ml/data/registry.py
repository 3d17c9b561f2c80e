"""The formats by name, and the two splits of a source that a configuration names. A format that is not built in belongs
to a plugin's reader (`ml.plugins`), if the source lists that plugin as allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

import numpy as np

from ml.data.keys import set_aside
from ml.data.labels import number_labels
from ml.data.part import Part, Parts, RawTable
from ml.data.source import ALL, HELD_OUT, DataSource
from ml.data.source_cache import open_part, open_parts
from ml.errors import DataError, suggest
from ml.plugins import PluginRefused, Plugins, list_offered
from ml.tasks import CLASSIFICATION

_NAMES = ("digits", "npz", "imagefolder", "parquet", "hf", "idx", "cifar", "svhn", "medmnist")
_MODULES = {name: f"ml.data.readers.{name}" for name in _NAMES}
_MODULES |= {"csv": "ml.data.readers.csv_table", "domains": "ml.data.readers.domain_folders"}
FORMATS = tuple(_MODULES)
TABLES = ("csv", "parquet", "hf")  # formats whose columns have names
WITH_OUTPUTS = (*TABLES, "npz", "domains")  # formats that can have several labels for a sample, or targets


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """The training part and, where the source has one, the test part; `classes` and `domains` as in `Parts`. `others`
    are the splits that the run does not use."""

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
    """Opens the parts of a source by its format. Raises DataError."""
    if source.format in _MODULES and source.task != CLASSIFICATION and source.format not in WITH_OUTPUTS:
        raise DataError(
            f"data.format: expected one of {', '.join(WITH_OUTPUTS)} for task {source.task}, got {source.format}, "
            "which has one class for each sample"
        )
    opener = partial(_open_own, source) if source.format in _MODULES else partial(_open_plugins, source)
    with translated(source.path):
        return open_parts(source, opener)


def open_table(source: DataSource) -> RawTable | None:
    """Returns the training rows of a table with all columns; None for other formats. Raises DataError."""
    if source.format not in TABLES:
        return None
    with translated(source.path):
        table: RawTable | None = import_module(_MODULES[source.format]).open_table(source)
        return table


def open_splits(source: DataSource, *, with_test: bool = True) -> Splits:
    """Opens the splits that `source` names, with their labels read; only the samples of `data.classes`, where it names
    some. Raises DataError, but not for a class that has no sample."""
    parts = open_source(source)
    train_name = source.train_split
    if train_name == "train" and list(parts.splits) == [ALL]:
        train_name = ALL
    found = next((name for name in ("test", HELD_OUT) if name in parts.splits and name != train_name), None)
    test_name = "test" if source.test is not None else source.test_split or found
    is_joined = source.format == "domains"  # each domain was opened by this function
    if source.split is not None and test_name is not None and not is_joined:
        raise DataError(f"data.split: expected none, as {source.path or source.format} has a split {test_name!r}")
    test, classes = None, parts.classes
    with translated(source.path):
        train = open_part(source, parts, train_name, "train_split")
        if with_test and test_name is not None and source.test is None:
            test = open_part(source, parts, test_name, "test_split")
    if with_test and source.test is not None:
        train, test, classes = _open_test(source, train, classes)
    if not is_joined:
        train, test = set_aside(train, source), None if test is None else set_aside(test, source)
    others = tuple(sorted(set(parts.splits) - {ALL, train_name, test_name}))
    if test is None and source.train_split == "train":
        train_name = ALL
    splits = Splits(train, test, classes, parts.domains, train_name, test_name or HELD_OUT, others)
    return splits if source.classes is None else _keep_classes(splits, source.classes)


def _open_test(
    source: DataSource, train: Part, classes: tuple[str, ...] | None
) -> tuple[Part, Part, tuple[str, ...] | None]:
    """Opens the samples at `data.test`, and returns the training part, the test part and the names of their classes.
    Raises DataError."""
    own = replace(source, path=source.test, test=None, train_split="test", test_split="train")
    parts = open_source(own)
    name = next((name for name in ("test", ALL, source.train_split) if name in parts.splits), "test")
    with translated(source.test):
        test = open_part(own, parts, name, "test")
    if classes == parts.classes:
        return train, test, classes
    names = tuple(sorted({*(classes or ()), *(parts.classes or ())}))  # the parts number classes differently
    return _name_labels(train, classes), _name_labels(test, parts.classes), names


def _name_labels(part: Part, classes: Sequence[str] | None) -> Part:
    return part if classes is None else replace(part, labels=np.array(classes, np.str_)[part.labels.astype(np.int64)])


def _open_own(source: DataSource) -> Parts:
    parts: Parts = import_module(_MODULES[source.format]).open_parts(source)
    return parts


def _open_plugins(source: DataSource) -> Parts:
    """Opens the source by a plugin's reader. Raises DataError, also for whatever its code raises."""
    plugins = Plugins.of(source.plugins)
    if not any(offered.name == source.format for offered in list_offered("data")):
        raise DataError(f"data.format: unknown format {source.format!r}: {suggest(source.format, _MODULES)}")
    try:
        parts = plugins.load(plugins.find("data", source.format))(source)
    except (DataError, OSError, MemoryError):
        raise
    except PluginRefused as error:
        raise DataError(f"data.format: {error}") from error
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise DataError(f"data.format {source.format}: {type(error).__name__}: {error}") from error
    if not isinstance(parts, Parts):
        raise DataError(f"data.format {source.format}: expected its reader to return Parts, got {type(parts).__name__}")
    return parts


@contextmanager
def translated(place: object) -> Iterator[None]:
    """Translates errors of the system into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or place}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{place}: does not fit into memory") from error


def _keep_classes(splits: Splits, kept: Sequence[str]) -> Splits:
    """Returns the samples of these classes, which are numbered in this order."""
    labels, names = number_labels(splits.parts, splits.classes, None)
    is_kept = np.isin(names, kept)
    parts = []
    for part, own in zip(splits.parts, labels, strict=True):
        rows = np.flatnonzero(is_kept[own])
        texts = np.array(names, np.str_)[own[rows]]
        parts.append(replace(part if len(rows) == len(own) else part.select(rows), labels=texts))
    classes = tuple(name for name in kept if name in names)
    return replace(splits, train=parts[0], test=parts[1] if len(parts) > 1 else None, classes=classes)
