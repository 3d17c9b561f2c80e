"""Inference files: samples that a model is asked to classify. A label is welcome and not needed.

    .npz        `x`: [N, C, H, W], [N, H, W], [N, H, W, C] or [N, F], or one sample alone; labels in `y`, if it is there
    .csv        a header, and a column of numbers for each feature; labels in column `label`, or another
    images      .png, .jpg and what else `ml.data.readers.images` decodes: one sample each

Each file is one `InferenceFile`. What is in it must be fit for genesis' input; it is made into that by whoever has the
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.data.array_layout import to_labels, to_samples
from ml.data.base import AnyLabels, Labels, Outputs, Samples, Shape
from ml.data.fit_input import validate_finite, validate_fit
from ml.data.labels import number_labels, to_text
from ml.data.outputs import arrange, read_text_columns
from ml.data.readers.csv_table import Table, get_cells, read_features
from ml.data.readers.images import DECODED_BYTES, MAX_PIXELS, SUFFIXES, decode_image
from ml.data.readers.npz import NpzFile, read_classes, read_outputs
from ml.data.source import DataSource, Locate, Part, RawLabels, require_extra
from ml.data.table_input import TableInput
from ml.errors import DataError, suggest
from ml.tasks import CLASSIFICATION

TABLE, ARCHIVE = ".csv", ".npz"
DEFAULT_LABEL = "label"
Columns = str | tuple[str, ...]  # of labels: one, or of other tasks than classification several


@dataclass(frozen=True, slots=True, eq=False)
class InferenceFile:
    """The samples of one file as they lie there, uint8 or float32 [N, C, H, W].

    `rows`: where in the file each stands, by its place in the archive or its line of the table; None for an image.
    `labels`: what the file itself says they are, [N] or by the task [N, T], None where it says nothing.
    """

    path: Path
    x: Samples
    rows: tuple[int, ...] | None = None
    labels: AnyLabels | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class Most:
    """The most that is taken of one file: samples, and bytes of what they are unpacked to."""

    num_samples: int
    num_bytes: int

    def validate_count(self, count: int, place: str) -> None:
        """Raise DataError for more samples."""
        if count > self.num_samples:
            raise DataError(f"{place}: expected at most {self.num_samples} samples in one file, got {count}")


def validate_kind(path: Path) -> None:
    """Raise DataError unless `path` is a file, and of a kind that can hold samples."""
    if path.suffix.lower() not in (ARCHIVE, TABLE, *SUFFIXES):
        raise DataError(f"{path}: expected an .npz, a .csv or an image file ({', '.join(sorted(SUFFIXES))})")
    if not path.is_file():
        raise DataError(f"{path}: {'expected a file, got a directory' if path.is_dir() else 'no such file'}")


def list_labelled_files(
    path: Path, classes: tuple[str, ...], task: str = CLASSIFICATION
) -> list[tuple[Path, str | None]]:
    """`path` itself; or, of a directory that holds one for each class, all images in them, each with its class. Raises
    DataError for any other directory."""
    if not path.is_dir():
        return [(path, None)]
    if task != CLASSIFICATION:
        raise DataError(f"{path}: expected a file, as directories stand for classes and the task is {task}")
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    if not folders:
        raise DataError(f"{path}: expected a directory for each class in it ({', '.join(classes)}), got none")
    for folder in folders:
        if folder.name not in classes:
            raise DataError(f"{folder}: expected the name of a class: {suggest(folder.name, classes)}")
    return [
        (file, folder.name)
        for folder in folders
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]


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
    most: Most | None = None,
) -> InferenceFile:
    """The samples in `path`, for a model that takes `shape` and knows `classes`; of an image it may be known that it is
    of `class_name`.

    `label` names the column of a table's labels, which must be there; without it that is `default_label`, if it is
    there. `table` says what its columns become. By `task` there may be several columns of labels or targets, `classes`
    being their names. Of a file that comes from elsewhere there is a `most`, which holds before anything is unpacked.
    Raises DataError naming the place of what is broken or unfit.
    """
    validate_kind(path)
    try:
        match path.suffix.lower():
            case ".npz":
                file = _read_archive(path, shape, classes, task, most)
            case ".csv":
                file = _read_table(path, shape, classes, label, default_label, task, table, most)
            case _:
                require_extra("PIL", "pillow")
                known = None if class_name is None else np.array([classes.index(class_name)], np.int64)
                max_pixels = MAX_PIXELS if most is None else min(MAX_PIXELS, most.num_bytes // DECODED_BYTES)
                file = InferenceFile(path, decode_image(path, str(path), max_pixels)[None], None, known)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory") from error
    validate_samples(file.x, shape, str(path))
    return file


def validate_samples(x_NCHW: Samples, shape: Shape, place: str = "samples") -> None:
    """Raise DataError unless these are numbers that can be fitted to `shape`."""
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
    validate_finite(x_NCHW, lambda i: f"{place}: sample {i}")


def _read_archive(
    path: Path, shape: Shape, classes: tuple[str, ...], task: str, most: Most | None = None
) -> InferenceFile:
    file = NpzFile.open(path, None if most is None else most.num_bytes)
    if most is not None:
        unread = np.broadcast_to(np.uint8(0), file.get_shape("x"))  # of one byte, whatever its shape
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
        labels = _number(path, raw, read_classes(file), classes, lambda i: f"{place}[{i}]")
    return InferenceFile(path, x_NCHW, tuple(range(len(x_NCHW))), labels)


def lay_out(array: NDArray[np.generic], shape: Shape) -> NDArray[np.generic]:
    """With the samples along the first axis: what is exactly of a sample's shape is one, and stands alone."""
    channels, height, width = shape
    of_one: set[tuple[int, ...]] = {shape, (height, width, channels)} if shape[1:] != (1, 1) else {shape, (channels,)}
    if channels == 1:
        of_one.add((height, width))
    if array.shape in of_one:
        array = array[None]
    if shape[1:] == (1, 1) and array.shape[1:] == shape:
        return array.reshape(len(array), channels)  # or the features would be taken for the rows of images
    return array


def _read_table(
    path: Path,
    shape: Shape,
    classes: tuple[str, ...],
    label: Columns | None,
    default_label: Columns,
    task: str,
    agreed: TableInput | None,
    most: Most | None = None,
) -> InferenceFile:
    if shape[1:] != (1, 1):
        raise DataError(
            f"{path}: expected images, as the model takes {list(shape)} (channels, height, width), got a table"
        )
    table = Table.read(path, None if most is None else most.num_samples)
    found = _find_labels(table, classes, label, default_label, task)
    columns = [c for c in range(len(table.header)) if c not in found]
    if agreed is None and len(columns) != shape[0]:
        is_label = not found and len(columns) > shape[0]
        raise DataError(
            f"{path}: expected {shape[0]} columns of numbers, one for each feature, got {len(columns)}: "
            f"{', '.join(table.header[c] for c in columns)}"
            f"{'; --label names the one that has labels' if is_label else ''}"
        )
    labels: AnyLabels | None = None
    cells = {table.header[c]: [row[c].strip() for row in table.rows] for c in found}
    if any(any(texts) for texts in cells.values()):
        if task == CLASSIFICATION:
            labels = _number(path, to_text(cells[table.header[found[0]]], str(path)), None, classes, table.locate)
        else:
            y_NT, names = read_text_columns(cells, task, classes, table.locate)
            labels = _arrange(str(path), y_NT, names, DataSource(format="csv", path=path, task=task, outputs=classes))
    x = (
        read_features(table, columns)
        if agreed is None
        else agreed.encode(get_cells(table, columns), table.locate, path)
    )
    return InferenceFile(path, x, tuple(table.lines), labels)


def _find_labels(
    table: Table, classes: tuple[str, ...], label: Columns | None, default_label: Columns, task: str
) -> list[int]:
    """The columns of a table with labels or targets; none where it has none."""
    named = (label,) if isinstance(label, str) else label
    for name in named or ():
        if name not in table.header:
            raise DataError(f"{table.path}: expected a column {name!r} of labels, got {', '.join(table.header)}")
    default = (default_label,) if isinstance(default_label, str) else default_label
    usual = [default] if task == CLASSIFICATION else [default, classes]
    found = next((names for names in [named, *usual] if names and all(name in table.header for name in names)), ())
    if task == CLASSIFICATION and len(found) > 1:
        raise DataError(f"{table.path}: expected one column of classes, got {', '.join(found)}")
    return [table.header.index(name) for name in found]


def _arrange(place: str, y_NT: Outputs, names: tuple[str, ...], source: DataSource) -> AnyLabels:
    """The outputs of a file in the order of the model's."""
    nothing = np.empty((0, 1, 1, 1), np.float32)
    part = Part(place, y_NT, (1, 1, 1), lambda _: nothing, lambda i: place, outputs=names)
    return arrange([part], source)[0][0]


def _number(
    path: Path, raw: RawLabels, names: tuple[str, ...] | None, classes: tuple[str, ...], locate: Locate
) -> Labels:
    """The labels of a file as indices into the model's classes."""
    nothing = np.empty((0, 1, 1, 1), np.float32)
    part = Part(str(path), raw, (1, 1, 1), lambda _: nothing, locate)
    return number_labels([part], names, classes)[0][0]
