"""MNIST's idx files under their published names, plain and gzipped."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import get_default_input, load_dataset, open_dataset
from ml.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)
LABELS = np.arange(10, dtype=np.uint8)


def encode(array: Any) -> bytes:
    """Two zeros, 8 for unsigned bytes, the number of dimensions, the dimensions big-endian, the bytes."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + bytes(array.tobytes())


def save(directory: Path, prefix: str = "", test: str = "t10k", ending: str = "", dash: str = "-") -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    pack = gzip.compress if ending else bytes
    for name, count in (("train", 10), (test, 4)):
        images, labels = encode(IMAGES[:count]), encode(LABELS[:count])
        (directory / f"{prefix}{name}-images{dash}idx3-ubyte{ending}").write_bytes(pack(images))
        (directory / f"{prefix}{name}-labels{dash}idx1-ubyte{ending}").write_bytes(pack(labels))
    return {"format": "idx", "path": str(directory)}


def refuse(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_is_read_as_published(tmp_path: Path, ending: str) -> None:
    data = save(tmp_path / "mnist", ending=ending)
    train, test = open_dataset(data)
    assert (train.shape, len(train), len(test)) == ((1, 28, 28), 10, 4)
    assert np.array_equal(train.x[:, 0], IMAGES)
    assert (train.y.tolist(), train.classes) == (list(range(10)), tuple("0123456789"))
    assert get_default_input(data, {"name": "cnn_mnist"})["resize"] is None
    fitted, _ = load_dataset(data, {"shape": [1, 28, 28]})
    assert np.array_equal(fitted.x[:, 0], IMAGES.astype(np.float32) / np.float32(255))


def test_a_plain_file_is_mapped_and_a_gzipped_one_is_in_memory(tmp_path: Path) -> None:
    assert isinstance(open_dataset(save(tmp_path / "plain"))[0].x.base, np.memmap)
    assert not isinstance(open_dataset(save(tmp_path / "gz", ending=".gz"))[0].x.base, np.memmap)


def test_names_with_a_dot_are_found_too(tmp_path: Path) -> None:
    assert len(open_dataset(save(tmp_path / "mnist", dash="."))[0]) == 10


def test_one_of_several_sets_is_named_by_what_its_files_begin_with(tmp_path: Path) -> None:
    data = save(tmp_path / "emnist", "emnist-digits-", "test", ".gz")
    assert len(open_dataset(data)[1]) == 4
    save(tmp_path / "emnist", "emnist-letters-", "test", ".gz")
    refuse(data, "holds several data sets (emnist-digits-train-images-idx3-ubyte.gz, emnist-letters-train-images")
    assert len(open_dataset(data | {"path": f"{data['path']}/emnist-letters"})[0]) == 10


def test_labels_that_count_from_1_have_no_class_0(tmp_path: Path) -> None:
    data = save(tmp_path / "letters")
    (tmp_path / "letters/train-labels-idx1-ubyte").write_bytes(encode(LABELS + 1))
    (tmp_path / "letters/t10k-labels-idx1-ubyte").write_bytes(encode(LABELS[:4] + 1))
    train, _ = open_dataset(data)
    assert (train.classes[0], train.y[0], len(train.classes)) == ("1", 0, 10)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-images-idx3-ubyte", encode(IMAGES)[:-1], "expected 7856 bytes for [10, 28, 28], got 7855"),
        ("train-images-idx3-ubyte", encode(IMAGES) + b"\0", "expected 7856 bytes for [10, 28, 28], got 7857"),
        ("train-images-idx3-ubyte", encode(LABELS), "byte 0: expected the magic number 00 00 08 03 of 3-dimensional"),
        ("train-images-idx3-ubyte", b"\0\0\x0d\x03" + bytes(12), "unsigned bytes, got 00 00 0d 03"),
        ("train-images-idx3-ubyte", b"", "unsigned bytes, got nothing"),
        ("train-images-idx3-ubyte", encode(IMAGES)[:9], "expected 3 dimensions up to byte 16, got 9 bytes"),
        ("train-labels-idx1-ubyte", encode(LABELS[:9]), "expected 10 labels, one for each image of train-images"),
    ],
    ids=["truncated", "too long", "two dimensions", "floats", "empty", "half a header", "fewer labels"],
)
def test_a_broken_file_names_itself_and_the_place(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    data = save(tmp_path / "mnist")
    (tmp_path / "mnist" / file).write_bytes(content)
    refuse(data, f"{tmp_path}/mnist/{file}: ")
    refuse(data, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(encode(IMAGES))[:-900], "broken before byte 7856 of its contents: Compressed file ended"),
        (gzip.compress(encode(IMAGES)[:-5]), "expected 7856 bytes uncompressed for [10, 28, 28], got 7851"),
        (gzip.compress(encode(IMAGES) + b"\0"), "expected 7856 bytes uncompressed for [10, 28, 28], got more"),
        (b"\0\0\x08\x03" + bytes(12), "cannot be read: Not a gzipped file"),
    ],
    ids=["truncated", "too short", "too long", "not gzipped"],
)
def test_a_broken_gzip_names_itself_and_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    data = save(tmp_path / "mnist", ending=".gz")
    (tmp_path / "mnist/train-images-idx3-ubyte.gz").write_bytes(content)
    refuse(data, f"{tmp_path}/mnist/train-images-idx3-ubyte.gz: {message}")


def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    data = save(tmp_path / "mnist", ending=".gz")
    huge = bytes([0, 0, 8, 3]) + struct.pack(">3I", *[0xFFFF_FFFF] * 3)
    (tmp_path / "mnist/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(huge))
    refuse(data, "byte 4: [4294967295, 4294967295, 4294967295] is more than ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    data = save(tmp_path / "mnist")
    (tmp_path / "mnist/train-labels-idx1-ubyte").unlink()
    refuse(data, "train-labels*: no such file (the labels of train-images-idx3-ubyte)")
    refuse({"format": "idx", "path": str(tmp_path)}, f"{tmp_path}: expected files named like train-images-idx3-ubyte")
