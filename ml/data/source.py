"""The source of a site's samples: its place, and the form in which every format gives it before samples are read.

A format module has `open_parts(source) -> Parts`. Labels are read when a part is opened; its samples are read later, by
`Part.read`, so that asking for classes or shape costs no images.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Labels, Samples, Shape
from ml.data.readers.images import GetEncoded, get_image_shape, stack_images
from ml.data.table_input import Cells, TableInput
from ml.errors import DataError, suggest
from ml.tasks import CLASSIFICATION

RawLabels = NDArray[np.int64] | NDArray[np.str_] | NDArray[np.float64]
Read = Callable[[Shape | None], Samples]
ReadRows = Callable[[Shape | None, Labels], Samples]
Locate = Callable[[int], str]

ALL = "all"  # the one split of a source that has none
HELD_OUT = "held out"  # the split of test samples that were taken from the training ones
AUGMENTS = ("none", "flip", "crop", "flip_crop")
_KEYS = (
    "format",
    "path",
    "train_split",
    "test_split",
    "columns",
    "domains",
    "classes",
    "transform",
    "partition",
    "plugins",
)
_COLUMNS = ("image", "label")


@dataclass(frozen=True, slots=True)
class DataSource:
    """`data` of a configuration. No `test_split` means the one called test, or else a fifth of each class held out.

    `domains` are those that are used of format domains, in this order; all of them, by name, if it is None. `classes`
    are those whose samples are used, in this order; all of them if it is None. `labels` are the columns of a table with
    the labels: one, or of other tasks several. `outputs` are the names of the run's labels or targets, if they are
    known, where its task has such. `plugins` are those that a format of another name may be of.
    """

    format: str = "digits"
    path: Path | None = None
    train_split: str = "train"
    test_split: str | None = None
    image: str | None = None  # the columns of a table
    labels: tuple[str, ...] | None = None
    domains: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    task: str = CLASSIFICATION
    outputs: tuple[str, ...] = ()

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, Any], task: str = CLASSIFICATION, outputs: Sequence[str] | None = None
    ) -> DataSource:
        """Read `{format: csv, path: a.csv, columns: {label: diagnosis}}`. Unknown keys are errors; `partition` and
        `transform` are for others to read. Raises DataError."""
        for key in data:
            if key not in _KEYS:
                raise DataError(f"data.{key}: unknown key: {suggest(key, _KEYS)}")
        columns = data.get("columns") or {}
        if not isinstance(columns, Mapping):
            raise DataError(f"data.columns: expected {{image: NAME, label: NAME}}, got {columns!r}")
        for key in columns:
            if key not in _COLUMNS:
                raise DataError(f"data.columns.{key}: unknown key: {suggest(key, _COLUMNS)}")
        path = _get_text(data, "data", "path")
        train_split = _get_text(data, "data", "train_split") or "train"
        test_split = _get_text(data, "data", "test_split")
        if train_split == test_split:
            raise DataError(f"data.test_split: expected another split than data.train_split, got {test_split!r}")
        format_ = _get_text(data, "data", "format") or "digits"
        domains = _get_names(data, "domains")
        if domains is not None and format_ != "domains":
            raise DataError(f"data.domains: data.format {format_} has no domains, got {', '.join(domains)}")
        kept = _get_names(data, "classes")
        if kept is not None and task != CLASSIFICATION:
            raise DataError(f"data.classes: expected none for task {task}, got {', '.join(kept)}")
        return cls(
            format=format_,
            path=None if path is None else Path(path),
            train_split=train_split,
            test_split=test_split,
            image=_get_text(columns, "data.columns", "image"),
            labels=_get_columns(columns),
            domains=domains,
            classes=kept,
            plugins=_get_names(data, "plugins") or (),
            task=task,
            outputs=() if task == CLASSIFICATION else tuple(outputs or ()),
        )

    @property
    def label(self) -> str | None:
        """The column of the classes. Raises DataError where several are named."""
        if self.labels is not None and len(self.labels) > 1:
            raise DataError(
                f"data.columns.label: expected one column of classes, got {', '.join(self.labels)}: several are for "
                "task: multilabel or regression"
            )
        return None if self.labels is None else self.labels[0]

    def get_path(self) -> Path:
        """`data.path`, which must be there. Raises DataError."""
        if self.path is None:
            raise DataError(f"data.path: expected a path, which data.format {self.format} needs")
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file or directory")
        return self.path

    def refuse_columns(self) -> None:
        """Raise DataError if columns are named for a format that has none."""
        named = None if self.labels is None else ", ".join(self.labels)
        for key, column in (("image", self.image), ("label", named)):
            if column is not None:
                raise DataError(f"data.columns.{key}: data.format {self.format} has no columns, got {column!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One split of a source.

    `labels`: numbers, or the names of classes. `shape`: of a sample, the first one's where they differ. `read(shape)`:
    all samples; images that are decoded one by one become `shape` at once, or must be alike if it is None; arrays stay
    as they are. `locate(i)`: where sample i is. `read_rows(shape, rows)`: those samples alone, if that is less work
    than reading all. `domain_of`: the domain of each sample, where the source has several. `features`: the names of a
    table's columns, where it has them. `outputs`: the names of several labels or targets, whose values are then the
    labels, float64 [N, T]. `cells()`: a table's columns as they stand there, in `features`' order.
    """

    place: str
    labels: RawLabels
    shape: Shape
    read: Read
    locate: Locate
    read_rows: ReadRows | None = None
    domain_of: Labels | None = None
    features: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cells: Callable[[], Cells] | None = None

    @classmethod
    def of_array(cls, place: str, x: Samples, labels: RawLabels) -> Part:
        """A part that is in memory, or mapped into it, already."""
        channels, height, width = x.shape[1:]
        return cls(place, labels, (channels, height, width), lambda _: x, lambda i: f"{place}: sample {i}")

    @classmethod
    def of_images(
        cls,
        place: str,
        labels: RawLabels,
        open_encoded: Callable[[], GetEncoded],
        locate: Locate,
        outputs: tuple[str, ...] = (),
    ) -> Part:
        """A part of images that are decoded one by one; `open_encoded()` gives each by its number. The first is
        decoded here, for its shape."""

        def read(shape: Shape | None) -> Samples:
            return stack_images(open_encoded(), len(labels), shape, locate)

        def read_rows(shape: Shape | None, rows: Labels) -> Samples:
            get_encoded, numbers = open_encoded(), rows.tolist()
            return stack_images(lambda i: get_encoded(numbers[i]), len(numbers), shape, lambda i: locate(numbers[i]))

        shape = get_image_shape(open_encoded()(0), locate(0))
        return cls(place, labels, shape, read, locate, read_rows, outputs=outputs)

    def encode(self, table: TableInput) -> Part:
        """The same rows with the features that a run has agreed on. Raises DataError where this is no table."""
        if self.cells is None:
            raise DataError(f"{self.place}: genesis' input has columns, missing or unknown, which only tables have")
        cells, locate, place = self.cells, self.locate, self.place
        names = tuple(table.get_features(table.choose(self.features, place)))
        shape = (len(names), 1, 1)
        return replace(
            self, shape=shape, read=lambda _: table.encode(cells(), locate, place), read_rows=None, features=names
        )

    def select(self, rows: Labels) -> Part:
        """These samples of it, in this order."""

        def read_rows(shape: Shape | None, own: Labels) -> Samples:
            return self.read(shape)[rows[own]] if self.read_rows is None else self.read_rows(shape, rows[own])

        return Part(
            place=self.place,
            labels=self.labels[rows],
            shape=self.shape,
            read=lambda shape: read_rows(shape, np.arange(len(rows))),
            locate=lambda i: self.locate(int(rows[i])),
            read_rows=read_rows,
            domain_of=None if self.domain_of is None else self.domain_of[rows],
            features=self.features,
            outputs=self.outputs,
            cells=None if self.cells is None else self._select_cells(self.cells, rows),
        )

    @staticmethod
    def _select_cells(cells: Callable[[], Cells], rows: Labels) -> Callable[[], Cells]:
        return lambda: {name: [column[i] for i in rows.tolist()] for name, column in cells().items()}


@dataclass(frozen=True, slots=True)
class Parts:
    """The splits of a source by name, each opened when it is asked for, and the names of its classes where the source
    itself says them; then labels that are numbers count from 0 in them. `domains`: the names of its domains, if any."""

    place: str
    splits: Mapping[str, Part | Callable[[], Part]]
    classes: tuple[str, ...] | None = None
    domains: tuple[str, ...] = ()

    def open(self, name: str, key: str) -> Part:
        """The split that `data.<key>` names. Raises DataError."""
        if name not in self.splits:
            raise DataError(f"data.{key}: {self.place} has no split {name!r}: {suggest(name, self.splits)}")
        part = self.splits[name]
        return part if isinstance(part, Part) else part()


def get_augment(data: Mapping[str, Any]) -> str:
    """`data.transform.augment`: what training does to a batch. Raises DataError."""
    transform = data.get("transform") or {}
    if not isinstance(transform, Mapping):
        raise DataError(f"data.transform: expected {{augment: NAME, own: NAME}}, got {transform!r}")
    for key in transform:
        if key not in ("augment", "own"):
            raise DataError(f"data.transform.{key}: unknown key: {suggest(key, ('augment', 'own'))}")
    if not isinstance(transform.get("own") or "", str):
        raise DataError(f"data.transform.own: expected the name of a plugin's transform, got {transform['own']!r}")
    kind = transform.get("augment", "none")
    if kind not in AUGMENTS:
        raise DataError(f"data.transform.augment: expected one of {', '.join(AUGMENTS)}, got {kind!r}")
    return str(kind)


def missing_label(place: object, columns: Iterable[str]) -> str:
    """The message about a table in which no column is called as labels are."""
    names = list(columns)
    hint = "; columns are separated by commas" if len(names) == 1 and any(sign in names[0] for sign in ";\t|") else ""
    return (
        f"{place}: expected a column 'label', or the name of another in data.columns.label: one of "
        f"{', '.join(names)}{hint}"
    )


def make_locate(pieces: Sequence[tuple[object, int]], describe: Callable[[int], str]) -> Locate:
    """Makes a function that says where a sample is among `pieces`, (file, number of samples) in order: the file, then
    `describe(number in it)`."""
    ends = list(accumulate(count for _, count in pieces))

    def locate(i: int) -> str:
        piece = bisect_right(ends, i)
        return f"{pieces[piece][0]}: {describe(i - (ends[piece - 1] if piece else 0))}"

    return locate


def _get_text(mapping: Mapping[str, Any], section: str, key: str) -> str | None:
    value = mapping.get(key)
    if isinstance(value, Path):
        return str(value)
    if value is not None and not (isinstance(value, str) and value):
        raise DataError(f"{section}.{key}: expected text, got {value!r}")
    return value


def _get_columns(columns: Mapping[str, Any]) -> tuple[str, ...] | None:
    """`data.columns.label`: one name, or a list of them."""
    value = columns.get("label")
    if value is None or isinstance(value, str):
        name = _get_text(columns, "data.columns", "label")
        return None if name is None else (name,)
    return _get_names(columns, "label", "data.columns")


def _get_names(data: Mapping[str, Any], key: str, section: str = "data") -> tuple[str, ...] | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) and name for name in value):
        raise DataError(f"{section}.{key}: expected a list of names, as text, got {value!r}")
    if len(set(value)) != len(value):
        twice = next(name for name in value if value.count(name) > 1)
        raise DataError(f"{section}.{key}: expected different names, got {twice!r} twice")
    return tuple(value)


def require_extra(module: str, distribution: str) -> None:
    """Import `module`, or raise DataError with the line that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"expected {distribution} to be installed: pip install 'fednode[data]'") from error
