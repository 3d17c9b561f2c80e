"""Folders of images, and what an image file may be: any size, any depth, turned, broken, or a bomb."""

from __future__ import annotations

import io
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ml.data import get_classes, get_default_input, get_split_names, load_dataset, open_dataset
from ml.data.readers.images import MAX_PIXELS, decode_image
from ml.errors import DataError


def save(path: Path, array: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array)).save(path, **options)


def grey(value: int, size: tuple[int, int] = (6, 4)) -> Any:
    return np.full(size, value, np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, Any]:
    """Three classes, of which the training split lacks one."""
    for split, counts in (("train", {"cat": 3, "dog": 2}), ("test", {"cat": 1, "eel": 1})):
        for name, count in counts.items():
            for i in range(count):
                save(tmp_path / split / name / f"{i}.png", grey(10 * i + len(name)))
    return {"format": "imagefolder", "path": str(tmp_path)}


def refuse(data: dict[str, Any], message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data, **options)


def test_classes_are_the_directories_sorted_and_images_by_name(folder: dict[str, Any]) -> None:
    train, test = open_dataset(folder)
    assert train.classes == get_classes(folder) == ("cat", "dog", "eel")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 0, 0, 1, 1], [0, 2])
    assert (train.shape, train.x[:, 0, 0, 0].tolist()) == ((1, 6, 4), [3, 13, 23, 3, 13])


def test_classes_alone_are_one_split_of_which_some_is_held_out(tmp_path: Path) -> None:
    for name in ("b", "a"):
        for i in range(5):
            save(tmp_path / name / f"{i}.png", grey(i))
    train, test = open_dataset({"format": "imagefolder", "path": str(tmp_path)})
    assert (train.classes, len(train), test.count_classes().tolist()) == (("a", "b"), 8, [1, 1])


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        for i in range(5):
            save(tmp_path / name / f"{i}.png", grey(i))
    assert get_classes({"format": "imagefolder", "path": str(tmp_path)}) == ("bus", "car", "train")


def test_what_is_hidden_or_no_image_is_passed_over(folder: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train/cat/.DS_Store").write_bytes(b"x")
    (tmp_path / "train/cat/readme.txt").write_bytes(b"x")
    (tmp_path / "train/.cache").mkdir()
    assert len(open_dataset(folder)[0]) == 5


def test_genesis_decides_the_order_of_classes_and_a_site_may_lack_some(folder: dict[str, Any]) -> None:
    train, _ = open_dataset(folder, classes=("eel", "dog", "cow", "cat"))
    assert (train.classes, train.y.tolist()) == (("eel", "dog", "cow", "cat"), [3, 3, 3, 1, 1])
    refuse(folder, "/test/eel/0.png: class 'eel' is not one of genesis' classes: dog, cat", classes=("dog", "cat"))


def test_one_image_in_colour_makes_all_of_them_so(folder: dict[str, Any], tmp_path: Path) -> None:
    rgb = np.zeros((6, 4, 3), np.uint8)
    rgb[..., 1] = 7
    save(tmp_path / "train/dog/1.png", rgb)
    train, _ = open_dataset(folder)
    assert (train.shape, train.x.dtype) == ((3, 6, 4), np.dtype(np.uint8))
    assert train.x[:, :, 0, 0].tolist() == [[3] * 3, [13] * 3, [23] * 3, [3] * 3, [0, 7, 0]]


def test_sizes_must_be_one_unless_one_is_asked_for(folder: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path / "train/cat/1.png", grey(51, (3, 2)))
    refuse(folder, "/train/cat/1.png: 2x3 pixels, where ")
    train, _ = load_dataset(folder, {"shape": [1, 6, 4]})
    assert train.x[1] == pytest.approx(np.full((1, 6, 4), 0.2))
    assert np.array_equal(train.x[2, 0], np.full((6, 4), np.float32(23) / np.float32(255)))


def test_an_image_resized_as_it_is_read_is_the_same_as_one_resized_later(
    folder: dict[str, Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for i, name in enumerate(("cat/0", "cat/1", "cat/2", "dog/0", "dog/1")):
        save(tmp_path / f"train/{name}.png", rng.integers(0, 256, (6, 4), np.uint8) // (i + 1))
    one_by_one, _ = open_dataset(folder, shape=(3, 9, 3))
    at_once, _ = load_dataset(folder, {"shape": [3, 9, 3]})
    assert one_by_one.x == pytest.approx(at_once.x, abs=1e-6)


def test_the_first_image_suggests_the_input(folder: dict[str, Any]) -> None:
    assert get_default_input(folder, {"name": "mlp"})["shape"] == [1, 6, 4]
    assert get_default_input(folder, {"name": "cnn_mnist"}) | {"mean": 0, "std": 1} == {
        "shape": [1, 28, 28],
        "resize": [28, 28],
        "mean": 0,
        "std": 1,
    }


# ---- one image


def test_an_image_is_turned_as_its_exif_tag_says(tmp_path: Path) -> None:
    upright = np.arange(24, dtype=np.uint8).reshape(6, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise
    save(tmp_path / "a.png", np.rot90(upright), exif=exif)
    assert np.array_equal(decode_image(tmp_path / "a.png", "a")[0], upright)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_modes_are_grey_or_colour(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (3, 2), (255, 255, 255)).convert(mode).save(path)
    image = decode_image(path, "a")
    assert (image.shape, image.dtype) == ((1 if mode in ("1", "L", "LA") else 3, 2, 3), np.dtype(np.uint8))
    assert (image == 255).all()


def test_16_bits_of_grey_keep_their_depth(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 257, 65535]], np.uint16)).save(tmp_path / "a.png")
    image = decode_image(tmp_path / "a.png", "a")
    assert image.dtype == np.float32
    assert image[0, 0] * 65535 == pytest.approx([0, 257, 65535])


def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.new("F", (2, 2), 0.5).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="a: expected 8- or 16-bit pixels, got Pillow's mode F"):
        decode_image(tmp_path / "a.tif", "a")


def make_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(8193, 8192), (20_000, 20_000), (60_000, 60_000)])
def test_a_bomb_is_refused_by_its_header(folder: dict[str, Any], tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "train/dog/0.png"
    path.write_bytes(make_bomb(width, height))
    refuse(folder, f"{path}: expected at most {MAX_PIXELS} pixels")


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"not an image",
        lambda whole: whole.replace(b"IDAT", b"IDOT"),
        lambda whole: whole[:20] + b"\xff" * 8 + whole[28:],
        lambda whole: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",  # would start a program to be drawn
    ],
)
def test_a_broken_image_names_itself(folder: dict[str, Any], tmp_path: Path, change: Any) -> None:
    path = tmp_path / "train/dog/1.png"
    path.write_bytes(change(path.read_bytes()))
    refuse(folder, f"{path}: ")


@settings(max_examples=300)
@given(
    st.sampled_from(("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=6),
    st.integers(1, 1000),
)
def test_a_damaged_image_is_read_or_refused_and_nothing_else(
    kind: str, changes: list[tuple[int, int]], kept: int
) -> None:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, kind)
    damaged = bytearray(file.getvalue())
    for at, value in changes:
        damaged[at % len(damaged)] = value
    try:
        pixels = decode_image(bytes(damaged[:kept]), "a")
    except DataError:
        return
    assert pixels.dtype in (np.uint8, np.float32)
    assert 0 < pixels[..., 0].size <= MAX_PIXELS


def test_a_missing_library_is_one_line_with_what_installs_it(
    folder: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    refuse(folder, "expected pillow to be installed: pip install 'fednode[data]'")


def test_splits_of_other_names_are_no_classes(tmp_path: Path) -> None:
    for name in ("Train/cat/0.png", "Train/dog/0.png", "val/cat/0.png"):
        save(tmp_path / name, grey(1))
    data = {"format": "imagefolder", "path": str(tmp_path)}
    refuse(data, f"data.train_split: {tmp_path} has no split 'train': did you mean 'Train'?")
    train, test = open_dataset(data | {"train_split": "Train", "test_split": "val"})
    assert (train.classes, len(train), len(test)) == (("cat", "dog"), 2, 1)
    assert get_split_names(data) == ("Train", "val")


def test_directories_that_are_not_as_expected_are_said(tmp_path: Path) -> None:
    data = {"format": "imagefolder", "path": str(tmp_path)}
    refuse(data, f"{tmp_path}: expected a directory for each class, got none")
    (tmp_path / "cat").mkdir()
    refuse(data, f"{tmp_path}: expected images in its directories (cat), got none")
    save(tmp_path / "cat/a/b/0.png", grey(1))
    refuse(data, f"{tmp_path}/cat/a: expected image files in the directory of class 'cat', got a directory")
    refuse(data | {"columns": {"label": "x"}}, "data.columns.label: data.format imagefolder has no columns, got 'x'")
