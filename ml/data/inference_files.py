"""Inference files: samples for a model to classify. Labels are optional.

    .npz        `x`: [N, C, H, W], [N, H, W], [N, H, W, C] or [N, F], or one sample alone; labels, if any, in `y`
    .csv        or .tsv, also gzipped: a header, and a column for each feature; labels in column `label`, or another
    images      .png, .jpg and what else `ml.data.readers.images` decodes: one sample each

Each file is one `InferenceFile`. Its samples must be fit for genesis' input; whoever has the model fits and normalises
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.array_layout import to_labels, to_samples
from ml.data.base import AnyLabels, Labels, Outputs, Samples, Shape
from ml.data.cells import to_label
from ml.data.fit_input import validate_finite, validate_fit
from ml.data.labels import number_by_meaning, number_labels, to_text
from ml.data.outputs import arrange, read_text_columns
from ml.data.part import Locate, Part, RawLabels
from ml.data.readers.csv_dialect import ENDINGS
from ml.data.readers.csv_table import get_cells, read_features
from ml.data.readers.csv_text import Table
from ml.data.readers.folders import get_class, is_image, list_folders
from ml.data.readers.images import DECODED_BYTES, MAX_PIXELS, SUFFIXES, decode_image
from ml.data.readers.npz import NpzFile, read_classes, read_outputs
from ml.data.source import DataSource, require_extra
from ml.data.table_input import Column, TableInput
from ml.errors import DataError, suggest
from ml.tasks import CLASSIFICATION

ARCHIVE = ".npz"
DEFAULT_LABEL = "label"
Columns = str | tuple[str, ...]  # names of label columns: one, or several for tasks other than classification
AS_USUAL = DataSource()  # a source with default settings


@dataclass(frozen=True, slots=True, eq=False)
class InferenceFile:
    """The samples of one file, not normalised, uint8 or float32 [N, C, H, W].

    `rows` are the places of the samples in the file: in an archive by number, in a table by line; None for an image.
    `labels` are those in the file itself, [N] or by the task [N, T], None where it has none. `passed_over` are the
    columns of a table that the run does not name. `num_empty` counts the empty cells of each row, [N], among the
    `num_columns` that the run takes; None where the file is no table. `columns` are all columns of a table, and `by`
    has the cells of the one that the caller named, [N].
    """

    path: Path
    x: Samples
    rows: tuple[int, ...] | None = None
    labels: AnyLabels | None = None
    passed_over: tuple[str, ...] = ()
    num_empty: Labels | None = None
    num_columns: int = 0
    columns: tuple[str, ...] = ()
    by: Sequence[Any] | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class Most:
    """The limits of one file: its samples, and the bytes that they are unpacked to."""

    num_samples: int
    num_bytes: int

    def validate_count(self, count: int, place: str) -> None:
        """Raises DataError for more samples."""
        if count > self.num_samples:
            raise DataError(f"{place}: expected at most {self.num_samples} samples in one file, got {count}")


def is_table(path: Path) -> bool:
    """Says whether a file is a table of text, by its name."""
    return path.name.lower().endswith(ENDINGS)


def validate_kind(path: Path) -> None:
    """Raises DataError unless `path` is a file, and of a kind that can hold samples."""
    if path.suffix.lower() not in (ARCHIVE, *SUFFIXES) and not is_table(path):
        raise DataError(f"{path}: expected an .npz, a .csv or an image file ({', '.join(sorted(SUFFIXES))})")
    if not path.is_file():
        raise DataError(f"{path}: {'expected a file, got a directory' if path.is_dir() else 'no such file'}")


def list_labelled_files(
    path: Path, classes: tuple[str, ...], task: str = CLASSIFICATION
) -> list[tuple[Path, str | None]]:
    """Returns `path` itself or, for a directory with a directory for each class, all images in them, each with its
    class. Raises DataError for any other directory."""
    if not path.is_dir():
        return [(path, None)]
    if task != CLASSIFICATION:
        raise DataError(f"{path}: expected a file, as directories stand for classes and the task is {task}")
    folders = list_folders(path)
    if not folders:
        raise DataError(f"{path}: expected a directory for each class in it ({', '.join(classes)}), got none")
    named = {get_class(folder): folder for folder in folders if any(map(is_image, folder.iterdir()))}
    for name, folder in named.items():
        if name not in classes:
            raise DataError(f"{folder}: expected the name of a class: {suggest(name, classes)}")
    return [(file, name) for name, folder in named.items() for file in sorted(folder.iterdir()) if is_image(file)]


def read_inference_file(
    path: Path,
    shape: Shape,
    classes: tuple[str, ...],
    label: Columns | None = None,
    *,
    default_label: Columns = DEFAULT_LABEL,
    class_name: str | None = None,
    task: str = CLASSIFICATION,
    table: TableInput | None = None,
    meaning: Mapping[str, Sequence[str]] | None = None,
    source: DataSource = AS_USUAL,
    by: str | None = None,
    most: Most | None = None,
) -> InferenceFile:
    """Reads the samples in `path`, for a model that takes `shape` and has `classes`; the class of an image may be given
    as `class_name`.

    `label` names the column of a table's labels, which must exist; without it that is `default_label`, if it exists.
    `table` says what its columns become, and `meaning` which labels stand for each class. For other tasks there may be
    several columns of labels or targets, whose names are `classes`. `source` says how the site's own files are written,
    and `by` names a column of a table whose cells are returned too, used by the run or not. A file from elsewhere has
    the limits `most`, which are checked before anything is unpacked. Raises DataError naming the place of what is
    broken or unfit.
    """
    validate_kind(path)
    if by is not None and not is_table(path):
        raise DataError(f"{path}: expected a table, which has a column {by!r}")
    named = _Named(classes, label, default_label, task, meaning)
    try:
        match path.suffix.lower():
            case ".npz":
                file = _read_archive(path, shape, named, most)
            case _ if is_table(path):
                file = _read_table(path, shape, named, table, source, by, most)
            case _:
                require_extra("PIL", "pillow")
                known = None if class_name is None else np.array([classes.index(class_name)], np.int64)
                max_pixels = MAX_PIXELS if most is None else min(MAX_PIXELS, most.num_bytes // DECODED_BYTES)
                file = InferenceFile(path, decode_image(path, str(path), max_pixels, source.images)[None], None, known)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory") from error
    validate_samples(file.x, shape, str(path), takes_empty=table is not None and table.leaves_empty)
    return file


def validate_samples(x_NCHW: Samples, shape: Shape, place: str = "samples", *, takes_empty: bool = False) -> None:
    """Raises DataError unless these are numbers that can be fitted to `shape`, or not-a-number where that stands for an
    empty cell."""
    if x_NCHW.dtype not in (np.uint8, np.float32) or x_NCHW.ndim != 4:
        raise DataError(f"{place}: expected uint8 or float32 [N, C, H, W], got {x_NCHW.dtype} {list(x_NCHW.shape)}")
    if 0 in x_NCHW.shape:
        raise DataError(f"{place}: expected at least one sample, got {list(x_NCHW.shape)}")
    channels, height, width = x_NCHW.shape[1:]
    if shape[1:] == (1, 1) and ((channels, height, width) != shape or x_NCHW.dtype != np.float32):
        raise DataError(
            f"{place}: expected float32 [N, {shape[0]}, 1, 1], as the model takes {shape[0]} features, "
            f"got {x_NCHW.dtype} {list(x_NCHW.shape)}"
        )
    try:
        validate_fit((channels, height, width), shape)
    except DataError as error:
        raise DataError(
            f"{place}: expected images that can be made {list(shape)} (channels, height, width), "
            f"got {[channels, height, width]}"
        ) from error
    validate_finite(x_NCHW, lambda i: f"{place}: sample {i}", takes_empty=takes_empty)


def _read_archive(path: Path, shape: Shape, named: _Named, most: Most | None = None) -> InferenceFile:
    classes, task = named.classes, named.task
    file = NpzFile.open(path, None if most is None else most.num_bytes)
    if most is not None:
        unread = np.broadcast_to(np.uint8(0), file.get_shape("x"))  # takes one byte, whatever its shape
        most.validate_count(len(lay_out(unread, shape)) if unread.ndim else 0, file.get_place("x"))
    x_NCHW = to_samples(lay_out(file.read("x"), shape), file.get_place("x"))
    labels: AnyLabels | None = None
    if "y" in file.names and task != CLASSIFICATION:
        source = DataSource(format="npz", path=path, task=task, outputs=classes)
        y_NT, names = read_outputs(file, "y", len(x_NCHW), source)
        labels = _arrange(file.get_place("y"), y_NT, names, source)
    elif "y" in file.names:
        place, known = file.get_place("y"), file.read("y")
        raw = to_labels(known.reshape(1) if known.ndim == 0 else known, len(x_NCHW), place)
        labels = _number(path, raw, read_classes(file), named, lambda i: f"{place}[{i}]")
    return InferenceFile(path, x_NCHW, tuple(range(len(x_NCHW))), labels)


def lay_out(array: NDArray[np.generic], shape: Shape) -> NDArray[np.generic]:
    """Returns the array with the samples along the first axis: an array of exactly a sample's shape is one sample."""
    channels, height, width = shape
    of_one: set[tuple[int, ...]] = {shape, (height, width, channels)} if shape[1:] != (1, 1) else {shape, (channels,)}
    if channels == 1:
        of_one.add((height, width))
    if array.shape in of_one:
        array = array[None]
    if shape[1:] == (1, 1) and array.shape[1:] == shape:
        return array.reshape(len(array), channels)  # otherwise features would look like rows of an image
    return array


def _read_table(
    path: Path,
    shape: Shape,
    named: _Named,
    agreed: TableInput | None,
    source: DataSource | None,
    by: str | None,
    most: Most | None = None,
) -> InferenceFile:
    if shape[1:] != (1, 1):
        raise DataError(
            f"{path}: expected images, as the model takes {list(shape)} (channels, height, width), got a table"
        )
    table = Table.read(path, None if most is None else most.num_samples, source=source)
    cells = get_cells(table, range(len(table.header)))
    if by is not None and by not in cells:
        raise DataError(f"{path}: expected a column {by!r}: {suggest(by, table.header)}")
    grouped = None if by is None else _clear(cells[by], by, agreed or TableInput())
    if agreed is not None:
        file = _read_cells(path, cells, tuple(table.lines), shape, named, agreed, table.locate)
        return replace(file, columns=tuple(table.header), by=grouped)
    found = _find_labels(path, table.header, named)
    columns = [c for c, name in enumerate(table.header) if name not in found]
    _check_number(path, table.header, found, shape)
    labels = _read_labels(path, cells, found, named, table.locate)
    x = read_features(table, columns)
    return InferenceFile(path, x, tuple(table.lines), labels, columns=tuple(table.header), by=grouped)


def _clear(cells: Sequence[Any], name: str, table: TableInput) -> Sequence[Any]:
    """Returns a column, whether or not the run uses it, with None for each cell that the run treats as empty."""
    return table.clear(cells, next((own for own in table.columns or () if own.name == name), Column(name)))


@dataclass(frozen=True, slots=True)
class _Named:
    """The names by which the labels of a table are found, and the names of the classes; `meaning` has the labels that
    stand for each class, where these are not its name."""

    classes: tuple[str, ...]
    label: Columns | None
    default_label: Columns
    task: str
    meaning: Mapping[str, Sequence[str]] | None = None


def _read_cells(
    path: Path,
    cells: Mapping[str, Sequence[Any]],
    rows: tuple[int, ...],
    shape: Shape,
    named: _Named,
    table: TableInput,
    locate: Locate,
) -> InferenceFile:
    """Reads the samples of a table whose columns are matched by name."""
    found = _find_labels(path, list(cells), named)
    own = {name: column for name, column in cells.items() if name not in found}
    chosen = table.choose(list(own), path)
    return InferenceFile(
        path,
        table.encode(own, locate),
        rows,
        _read_labels(path, cells, found, named, locate),
        table.list_passed_over(list(own)),
        table.count_empty(own),
        len(chosen),
    )


def _check_number(path: Path, header: Sequence[str], found: Sequence[str], shape: Shape) -> None:
    """Raises DataError unless there is a column for each feature, matched by their places."""
    own = [name for name in header if name not in found]
    if len(own) != shape[0]:
        is_label = not found and len(own) > shape[0]
        raise DataError(
            f"{path}: expected {shape[0]} columns of numbers, one for each feature, got {len(own)}: {', '.join(own)}"
            f"{'; --label names the one that has labels' if is_label else ''}"
        )


def _read_labels(
    path: Path, cells: Mapping[str, Sequence[Any]], found: Sequence[str], named: _Named, locate: Locate
) -> AnyLabels | None:
    """Reads the labels in the columns `found`; None where all are empty."""
    texts = {name: [to_label(cell) for cell in cells[name]] for name in found}
    if not any(any(column) for column in texts.values()):
        return None
    if named.task == CLASSIFICATION:
        return _number(path, to_text(texts[found[0]], str(path)), None, named, locate)
    y_NT, names = read_text_columns(texts, named.task, named.classes, locate)
    source = DataSource(format="csv", path=path, task=named.task, outputs=named.classes)
    return _arrange(str(path), y_NT, names, source)


def _find_labels(path: Path, header: Sequence[str], named: _Named) -> tuple[str, ...]:
    """Returns the columns of a table with labels or targets; empty where it has none."""
    asked = (named.label,) if isinstance(named.label, str) else named.label
    for name in asked or ():
        if name not in header:
            raise DataError(f"{path}: expected a column {name!r} of labels, got {', '.join(header)}")
    default = (named.default_label,) if isinstance(named.default_label, str) else named.default_label
    usual = [default] if named.task == CLASSIFICATION else [default, named.classes]
    found = next((names for names in [asked, *usual] if names and all(name in header for name in names)), ())
    if named.task == CLASSIFICATION and len(found) > 1:
        raise DataError(f"{path}: expected one column of classes, got {', '.join(found)}")
    return tuple(found)


def _arrange(place: str, y_NT: Outputs, names: tuple[str, ...], source: DataSource) -> AnyLabels:
    """Returns the outputs of a file in the order of the model's."""
    nothing = np.empty((0, 1, 1, 1), np.float32)
    part = Part(place, y_NT, (1, 1, 1), lambda _: nothing, lambda i: place, outputs=names)
    return arrange([part], source)[0][0]


def _number(path: Path, raw: RawLabels, names: tuple[str, ...] | None, named: _Named, locate: Locate) -> Labels:
    """Returns the labels of a file as indices into the model's classes."""
    nothing = np.empty((0, 1, 1, 1), np.float32)
    part = Part(str(path), raw, (1, 1, 1), lambda _: nothing, locate)
    if named.meaning is not None:
        return number_by_meaning([part], names, named.meaning)[0][0]
    return number_labels([part], names, named.classes)[0][0]
