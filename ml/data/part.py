"""The form in which every format opens a source's samples, before they are read.

A format module has `open_parts(source) -> Parts`. Labels are read when a part is opened; its samples are read later, by
`Part.read`, so that asking for classes or shape costs no images.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Labels, Samples, Shape
from ml.data.cells import Cells, ReadCells
from ml.data.findings import Finding
from ml.data.image_set import ImageSet
from ml.data.readers.images import AS_THEY_ARE, GetEncoded, ImageRules
from ml.data.table_input import TableInput
from ml.errors import DataError, suggest

RawLabels = NDArray[np.int64] | NDArray[np.str_] | NDArray[np.float64]
Read = Callable[[Shape | None], Samples]
ReadRows = Callable[[Shape | None, Labels], Samples]
Locate = Callable[[int], str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One split of a source, such as its training samples, opened but not read.

    `labels` are numbers or the names of classes. `shape` is a sample's shape, the first sample's where they differ.
    `read(shape)` reads all samples: images that are decoded one by one are fitted to `shape`, or must be alike if it is
    None; arrays keep their shape. `locate(i)` says where sample i is. `read_rows(shape, rows)` reads those samples
    alone, where that is less work than reading all. `domain_of` is the domain of each sample, where the source has
    several. `features` are the names of a table's columns, where it has names. `outputs` are the names of several
    labels or targets; the labels are then their values, float64 [N, T]. `cells()` returns a table's columns unchanged,
    in the order of `features`. `passed_over` are the columns of a table that a run does not name. `pieces` are the
    tables that this one was joined from; each of them needs all columns. `images` are the files, where samples are
    images that are decoded one by one. `notes` say what was passed over, left out, assumed, or looks odd before any
    sample was read. `is_val` marks the training samples that the pieces themselves hold out to compare rounds by.

    The other attributes identify samples, where the source has them: `whole()` returns all columns that may be
    features, where a run has chosen some of them; `beside()` the columns of a table that are no features; `paths` are
    the files of samples; `groups` the groups that the reader found; `get_digests()` returns the SHA-256 of each
    sample's stored bytes.
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
    passed_over: tuple[str, ...] = ()
    pieces: tuple[Part, ...] = ()
    images: ImageSet | None = None
    notes: tuple[Finding, ...] = ()
    is_val: NDArray[np.bool_] | None = None
    whole: Callable[[], Cells] | None = None
    beside: Callable[[], Cells] | None = None
    paths: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    get_digests: Callable[[], list[bytes]] | None = None

    @classmethod
    def of_array(cls, place: str, x: Samples, labels: RawLabels) -> Part:
        """Returns a part whose samples are already in memory, or mapped into it."""
        channels, height, width = x.shape[1:]
        return cls(place, labels, (channels, height, width), lambda _: x, lambda i: f"{place}: sample {i}")

    @classmethod
    def of_images(
        cls,
        place: str,
        labels: RawLabels,
        open_encoded: Callable[[], GetEncoded],
        locate: Locate,
        rules: ImageRules = AS_THEY_ARE,
        *,
        beside: Callable[[], Cells] | None = None,
        paths: Sequence[str] | None = None,
        notes: tuple[Finding, ...] = (),
    ) -> Part:
        """Returns a part of images that are decoded one by one; `open_encoded()` opens them, by their numbers. Reads
        the header of the first image for its shape."""
        images = ImageSet(place, open_encoded, np.arange(len(labels)), locate, rules)
        return cls(
            place,
            labels,
            images.get_first_shape(),
            lambda shape: _read_images(images, shape),
            locate,
            lambda shape, rows: _read_images(images.select(rows), shape),
            images=images,
            notes=notes,
            beside=beside,
            paths=paths,
            get_digests=images.get_digests,
        )

    def measure(self) -> Shape:
        """Returns the shape that samples get where nobody sets one: the first sample's, with three channels if any
        image is in colour. Raises DataError."""
        return self.shape if self.images is None or self.shape[0] == 3 else self.images.survey().shape

    def encode(self, table: TableInput) -> Part:
        """Returns the same rows with the features that a run has agreed on. Raises DataError where this is no table."""
        if self.cells is None:
            raise DataError(f"{self.place}: genesis' input has columns, missing or unknown, which only tables have")
        cells, locate = self.cells, self.locate
        for piece in self.pieces:
            table.choose(piece.features, piece.place)
        columns = table.choose(self.features, self.place)
        names = tuple(table.get_features(columns))

        def get_chosen() -> Cells:
            return choose_columns(cells(), [column.name for column in columns])

        return replace(
            self,
            shape=(len(names), 1, 1),
            read=lambda _: table.encode(get_chosen(), locate),
            read_rows=None,
            features=names,
            cells=get_chosen,
            whole=cells,
            passed_over=(*self.passed_over, *table.list_passed_over(self.features)),
        )

    def select(self, rows: Labels) -> Part:
        """Returns the part with these samples alone, in this order."""
        locate = self.locate  # a name of its own: a data set keeps it longer than the samples

        def read_rows(shape: Shape | None, own: Labels) -> Samples:
            return self.read(shape)[rows[own]] if self.read_rows is None else self.read_rows(shape, rows[own])

        def select_cells(cells: Callable[[], Cells] | None) -> Callable[[], Cells] | None:
            return None if cells is None else lambda: _select_rows(cells(), rows)

        get_digests = self.get_digests
        return replace(
            self,
            labels=self.labels[rows],
            read=lambda shape: read_rows(shape, np.arange(len(rows))),
            locate=lambda i: locate(int(rows[i])),
            read_rows=read_rows,
            domain_of=None if self.domain_of is None else self.domain_of[rows],
            cells=select_cells(self.cells),
            images=None if self.images is None else self.images.select(rows),
            is_val=None if self.is_val is None else self.is_val[rows],
            whole=select_cells(self.whole),
            beside=select_cells(self.beside),
            paths=None if self.paths is None else _select(self.paths, rows),
            groups=None if self.groups is None else _select(self.groups, rows),
            get_digests=None if get_digests is None else lambda: _select(get_digests(), rows),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RawTable:
    """A table as it was read, before its columns are made into features. `cells` has all columns by name; `labels` are
    the columns with labels or targets, empty where these are not known."""

    place: str
    cells: Cells
    locate: Locate
    labels: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """The splits of a source by name, each opened on demand. `classes` are the names of the classes where the source
    itself has them; labels that are numbers then count from 0 in them. `domains` are the names of its domains, if
    any."""

    place: str
    splits: Mapping[str, Part | Callable[[], Part]]
    classes: tuple[str, ...] | None = None
    domains: tuple[str, ...] = ()

    def open(self, name: str, key: str) -> Part:
        """Returns the split that `data.<key>` names. Raises DataError."""
        if name not in self.splits:
            raise DataError(f"data.{key}: {self.place} has no split {name!r}: {suggest(name, self.splits)}")
        part = self.splits[name]
        return part if isinstance(part, Part) else part()


def _select_rows(cells: Cells, rows: Labels) -> Cells:
    return ReadCells(tuple(cells), lambda name: _select(cells[name], rows))


def _select(values: Sequence[T], rows: Labels) -> list[T]:
    return [values[i] for i in rows.tolist()]


def choose_columns(cells: Cells, names: Sequence[str]) -> Cells:
    """Returns these columns of a table, each read on demand."""
    return ReadCells(tuple(names), cells.__getitem__)


def make_locate(pieces: Sequence[tuple[object, int]], describe: Callable[[int], str]) -> Locate:
    """Makes a function that says where a sample is among `pieces`, (file, number of samples) in order: the file, then
    `describe(number in it)`."""
    ends = list(accumulate(count for _, count in pieces))

    def locate(i: int) -> str:
        piece = bisect_right(ends, i)
        return f"{pieces[piece][0]}: {describe(i - (ends[piece - 1] if piece else 0))}"

    return locate


def _read_images(images: ImageSet, shape: Shape | None) -> Samples:
    return images.read(images.plan(shape))[0] if len(images) else np.empty((0, *(shape or (1, 1, 1))), np.uint8)
