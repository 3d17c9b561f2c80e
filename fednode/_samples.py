"""Samples to be classified that are objects: read as files of inference are, a label being welcome and not needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ml.data.array_layout import to_samples
from ml.data.frames import find_images, is_hub, is_table, write_columns
from ml.data.inference_files import InferenceFile, lay_out, read_inference_file, validate_samples
from ml.data.objects import ARCHIVE, Sample, is_dataset, is_pair, iterate_samples, read_table, to_array, write_object
from ml.errors import DataError
from node.admin.asking import Labelled, Terms

ARRAY = Path("samples")  # the name of an object in messages, in place of a file's path
CHUNK = 1024  # samples of a Dataset that are read and sent together


def read_samples(given: Any, terms: Terms, labelled: Labelled, directory: Path) -> Iterator[InferenceFile]:
    """Yields the samples of an object as files of inference; a Dataset is read in parts, one after the other. Temporary
    files are in `directory`. Raises DataError."""
    table = given[0] if is_pair(given) else given
    if is_hub(table) and isinstance(table, Mapping):
        raise DataError(f"{ARRAY}: expected one Dataset, got {', '.join(table)}")
    if is_hub(table) and find_images(table) is not None:
        label = given[1] if is_pair(given) else labelled.column
        samples = iterate_samples(table, str(ARRAY), label[0] if isinstance(label, tuple) else label)
        yield from _read_in_parts(samples, terms, labelled, directory)
    elif is_table(table):
        columns, names = read_table(given, str(ARRAY))
        path = directory / "samples.csv"
        write_columns(columns, path)
        yield _read(path, terms, labelled._replace(column=names or labelled.column), 0)
    elif is_dataset(given):
        yield from _read_in_parts(iterate_samples(given, str(ARRAY)), terms, labelled, directory)
    elif is_pair(given) or isinstance(given, Mapping):
        yield _read(write_object(given, directory, str(ARRAY)).path / ARCHIVE, terms, labelled, 0)
    else:
        x = to_samples(lay_out(to_array(given, str(ARRAY)), terms.input.shape), str(ARRAY))
        validate_samples(x, terms.input.shape, str(ARRAY), takes_empty=terms.input.takes_empty)
        yield InferenceFile(ARRAY, x, tuple(range(len(x))))


def _read_in_parts(
    samples: Iterator[Sample], terms: Terms, labelled: Labelled, directory: Path
) -> Iterator[InferenceFile]:
    """Reads samples that arrive one by one, and joins those of one shape."""
    for start, part in _cut(samples):
        x = np.stack([x for x, _ in part])
        x = x[:, None] if x.ndim == 3 else x  # grey images, which must not be read as one image with several channels
        has_labels = all(y is not None for _, y in part)
        y = {"y": [y.tolist() if isinstance(y, np.ndarray) else y for _, y in part]} if has_labels else {}
        try:
            yield _read(write_object({"x": x, **y}, directory, str(ARRAY)).path / ARCHIVE, terms, labelled, start)
        except DataError as error:
            raise DataError(f"{error} (of samples {start} to {start + len(part) - 1})") from error


def _cut(samples: Iterator[Sample]) -> Iterator[tuple[int, list[Sample]]]:
    part: list[Sample] = []
    start = 0
    for x, y in samples:
        if part and (len(part) == CHUNK or (part[0][0].shape, part[0][0].dtype) != (x.shape, x.dtype)):
            yield start, part
            start, part = start + len(part), []
        part.append((x, y))
    if part:
        yield start, part


def _read(path: Path, terms: Terms, labelled: Labelled, start: int) -> InferenceFile:
    """Reads a file that was written for the samples from number `start` on."""
    file = read_inference_file(
        path,
        terms.input.shape,
        terms.classes,
        labelled.column,
        default_label=labelled.default,
        task=terms.task,
        table=terms.input.table,
        meaning=terms.labels,
        by=labelled.by,
    )
    return replace(file, path=ARRAY, rows=tuple(range(start, start + len(file))))
