"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009) as published.

    python   cifar-10-batches-py   data_batch_1 … data_batch_5, test_batch, batches.meta
             cifar-100-python      train, test, meta
    binary   cifar-10-batches-bin  data_batch_1.bin … data_batch_5.bin, test_batch.bin, batches.meta.txt
             cifar-100-binary      train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt

An image is 3,072 bytes: 32x32 of red, then of green, then of blue. A binary record is the label (CIFAR-100: the coarse
label, then the fine one) and the image. `data.columns.label` is `fine_labels` or `coarse_labels` for CIFAR-100, the
fine ones by default. The python batches are pickles, which `ml.data.readers.pickles` reads without running them. A
single binary file is memory-mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Labels, Shape
from ml.data.part import Part, Parts, make_locate
from ml.data.readers.pickles import load_pickle
from ml.data.source import DataSource
from ml.errors import DataError

SHAPE: Shape = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_LABELS_100 = ("fine_labels", "coarse_labels")


def open_parts(source: DataSource) -> Parts:
    """Opens the splits train and test, in whichever of the four forms the directory has."""
    path = source.get_path()
    if not path.is_dir():
        raise DataError(f"{path}: expected the directory of the CIFAR files, got a file")
    if source.image is not None:
        raise DataError(f"data.columns.image: CIFAR has no such column, got {source.image!r}")
    label = source.label or _LABELS_100[0]
    if label not in _LABELS_100:
        raise DataError(f"data.columns.label: expected one of {', '.join(_LABELS_100)}, got {source.label!r}")
    for form in (_find_python_10, _find_binary_10, _find_python_100, _find_binary_100):
        parts = form(path, label)
        if parts is None:
            continue
        if source.label is not None and form in (_find_python_10, _find_binary_10):
            raise DataError(f"data.columns.label: CIFAR-10 has one kind of labels, got {source.label!r}")
        return parts
    raise DataError(
        f"{path}: expected data_batch_1 or data_batch_1.bin (CIFAR-10), or train and meta or train.bin (CIFAR-100)"
    )


def _find_python_10(path: Path, _: str) -> Parts | None:
    batches = _list_batches(path, "")
    if not batches:
        return None
    names = _get_names(path / "batches.meta", "label_names")
    splits = {"train": batches, "test": [path / "test_batch"]}
    return Parts(str(path), {split: partial(_open_python, files, "labels") for split, files in splits.items()}, names)


def _find_python_100(path: Path, label: str) -> Parts | None:
    if not (path / "train").is_file():
        return None
    names = _get_names(path / "meta", label.replace("labels", "label_names"))
    return Parts(str(path), {split: partial(_open_python, [path / split], label) for split in ("train", "test")}, names)


def _find_binary_10(path: Path, _: str) -> Parts | None:
    batches = _list_batches(path, ".bin")
    if not batches:
        return None
    splits = {"train": batches, "test": [path / "test_batch.bin"]}
    names = _read_lines(path / "batches.meta.txt")
    return Parts(str(path), {split: partial(_open_binary, files, 1, 0) for split, files in splits.items()}, names)


def _find_binary_100(path: Path, label: str) -> Parts | None:
    if not (path / "train.bin").is_file():
        return None
    names = _read_lines(path / f"{label.replace('labels', 'label_names')}.txt")
    column = 1 if label == "fine_labels" else 0
    splits = {split: partial(_open_binary, [path / f"{split}.bin"], 2, column) for split in ("train", "test")}
    return Parts(str(path), splits, names)


def _list_batches(path: Path, ending: str) -> list[Path]:
    """Returns the files data_batch_1 to data_batch_N, where N files have such names."""
    count = len([file for file in path.glob(f"data_batch_*{ending}") if file.suffix == ending])
    return [path / f"data_batch_{i}{ending}" for i in range(1, count + 1)]


def _open_python(files: Sequence[Path], key: str) -> Part:
    images: list[NDArray[np.uint8]] = []
    labels: list[Labels] = []
    for file in files:
        batch = _load_batch(file)
        data, own = batch.get("data"), batch.get(key)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_IMAGE_BYTES,):
            got = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
            raise DataError(f"{file}: data: expected uint8 [N, {_IMAGE_BYTES}], got {got}")
        if not isinstance(own, list) or len(own) != len(data) or not all(type(label) is int for label in own):
            raise DataError(f"{file}: {key}: expected a list of {len(data)} whole numbers")
        if not all(0 <= label < 100 for label in own):
            i = next(i for i, label in enumerate(own) if not 0 <= label < 100)
            raise DataError(f"{file}: {key}[{i}]: expected a label from 0 to 99, got {own[i]}")
        images.append(data)
        labels.append(np.array(own, np.int64))
    x = images[0] if len(images) == 1 else np.concatenate(images)
    pieces = [(file, len(own)) for file, own in zip(files, labels, strict=True)]
    locate = make_locate(pieces, lambda i: f"{key}[{i}]")
    x_NCHW = np.ascontiguousarray(x).reshape(-1, *SHAPE)
    return Part(str(files[0].parent), np.concatenate(labels), SHAPE, lambda _: x_NCHW, locate)


def _open_binary(files: Sequence[Path], num_labels: int, column: int) -> Part:
    size = num_labels + _IMAGE_BYTES
    records: list[NDArray[np.uint8]] = []
    for file in files:
        held = file.stat().st_size if file.is_file() else 0
        if not held:
            raise DataError(f"{file}: no such file, or an empty one")
        if held % size:
            raise DataError(
                f"{file}: expected records of {size} bytes, got {held} bytes: record {held // size} at byte "
                f"{held - held % size} has {held % size}"
            )
        records.append(np.memmap(file, np.uint8, "r", 0, (held // size, size)))
    all_records = records[0] if len(records) == 1 else np.concatenate(records)
    x = all_records[:, num_labels:].reshape(-1, *SHAPE) if len(records) > 1 else _view_images(all_records, num_labels)
    pieces = [(file, len(own)) for file, own in zip(files, records, strict=True)]
    locate = make_locate(pieces, lambda i: f"record {i} at byte {i * size}")
    return Part(str(files[0].parent), all_records[:, column].astype(np.int64), SHAPE, lambda _: x, locate)


def _view_images(records: NDArray[np.uint8], num_labels: int) -> NDArray[np.uint8]:
    """Returns a view of the images in mapped records: nothing is read before it is used."""
    count, size = records.shape
    return np.lib.stride_tricks.as_strided(
        records[:, num_labels:], (count, *SHAPE), (size, 32 * 32, 32, 1), writeable=False
    )


def _load_batch(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    loaded = load_pickle(file)
    if not isinstance(loaded, dict):
        raise DataError(f"{file}: expected a pickled dict, got {type(loaded).__name__}")
    return {_decode(key): value for key, value in loaded.items()}


def _get_names(file: Path, key: str) -> tuple[str, ...]:
    names = _load_batch(file).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{file}: {key}: expected a list of names")
    return tuple(_decode(name) for name in names)


def _read_lines(file: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in file.read_text("ascii").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start}: expected names in ASCII, a line each") from error


def _decode(text: object) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else str(text)
