"""One rule for image files, whatever their mode, depth, orientation and pages; each written by Pillow itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data import get_default_input, open_dataset
from ml.data.base import ArrayDataset
from ml.data.checks import check_data
from ml.data.readers.images import AS_THEY_ARE, ImageRules, decode_image, read_header
from ml.errors import DataError

ORIENTATION = 0x0112
UPRIGHT = np.arange(24, dtype=np.uint8).reshape(6, 4) * 10
AS_STORED = {  # by the tag: what has to lie in the file for it to be upright once turned
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.T,
    6: np.rot90(UPRIGHT),
    7: np.rot90(UPRIGHT, 2).T,
    8: np.rot90(UPRIGHT, -1),
}


def read(image: Any, tmp_path: Path, name: str = "a.png", rules: ImageRules = AS_THEY_ARE, **options: Any) -> Any:
    """The pixels of an image that Pillow wrote, whose header has their shape."""
    path = tmp_path / name
    image.save(path, **options)
    pixels = decode_image(path, "a", rules=rules)
    assert read_header(path, "a", rules).shape == pixels.shape
    return pixels


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp", "a.jpg"])
@pytest.mark.parametrize("tag", AS_STORED)
def test_every_orientation_is_turned_upright_in_every_format(tmp_path: Path, tag: int, name: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = tag
    options: dict[str, Any] = {"exif": exif} | ({"lossless": True} if name == "a.webp" else {})
    pixels = read(Image.fromarray(np.ascontiguousarray(AS_STORED[tag])), tmp_path, name, **options)
    assert np.abs(pixels[0].astype(int) - UPRIGHT).max() <= (12 if name == "a.jpg" else 0)  # which loses some


def test_a_tag_behind_the_pixels_of_a_png_is_heeded(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(np.ascontiguousarray(AS_STORED[6])).save(tmp_path / "a.png", exif=exif)
    whole = (tmp_path / "a.png").read_bytes()
    at = whole.index(b"eXIf") - 4
    length = 12 + int.from_bytes(whole[at : at + 4], "big")
    chunk, rest = whole[at : at + length], whole[:at] + whole[at + length :]
    (tmp_path / "a.png").write_bytes(rest[:-12] + chunk + rest[-12:])
    assert np.array_equal(decode_image(tmp_path / "a.png", "a")[0], UPRIGHT)
    assert read_header(tmp_path / "a.png", "a").shape == (1, 6, 4)


@pytest.mark.parametrize(
    ("mode", "colour", "name", "expected"),
    [
        ("1", 1, "a.png", [255]),
        ("L", 200, "a.png", [200]),
        ("LA", (200, 0), "a.png", [200]),
        ("RGB", (200, 100, 50), "a.png", [200, 100, 50]),
        ("RGBA", (200, 100, 50, 0), "a.png", [200, 100, 50]),  # what is transparent is not
        ("RGBA", (200, 100, 50, 128), "a.tif", [200, 100, 50]),
        ("CMYK", (255, 0, 0, 0), "a.tif", [0, 255, 255]),
        ("CMYK", (0, 0, 0, 255), "a.jpg", [0, 0, 0]),
        ("YCbCr", (76, 85, 255), "a.jpg", [254, 0, 0]),
        ("LAB", (255, 128, 128), "a.tif", None),
    ],
)
def test_every_mode_is_grey_or_colour(tmp_path: Path, mode: str, colour: Any, name: str, expected: Any) -> None:
    pixels = read(Image.new(mode, (8, 8), colour), tmp_path, name)
    assert pixels.dtype == np.uint8
    if expected is not None:
        assert np.abs(pixels[:, 4, 4].astype(int) - expected).max() <= 1


def test_a_palette_is_looked_up_also_where_it_has_transparent_entries(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert read(image, tmp_path, transparency=1)[:, 0, 0].tolist() == [10, 20, 30]
    assert read(image, tmp_path, "a.gif")[:, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_grey_of_16_bits_keeps_them_and_white_is_what_the_site_says(tmp_path: Path, name: str) -> None:
    image = Image.fromarray(np.array([[0, 1000, 4095]], np.uint16))
    assert read(image, tmp_path, name)[0, 0] * 65_535 == pytest.approx([0, 1000, 4095])
    assert read(image, tmp_path, name, ImageRules(white=4095))[0, 0] * 4095 == pytest.approx([0, 1000, 4095])
    with pytest.raises(DataError, match=re.escape("a: expected at most 4000 (data.images.white), got 4095")):
        read(image, tmp_path, name, ImageRules(white=4000))


def test_a_jfif_is_a_jpeg(tmp_path: Path) -> None:
    for kind in "ab":
        for i in range(5):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.new("L", (4, 4), 20 * i).save(tmp_path / kind / f"{i}.jfif", "JPEG")
    assert len(open_folder(tmp_path)[0]) == 8


# ---- pages


def write_pages(tmp_path: Path, name: str = "0.tif", kinds: str = "ab") -> None:
    for kind in kinds:
        (tmp_path / kind).mkdir(parents=True, exist_ok=True)
        for i in range(5):
            pages = [Image.new("L", (4, 4), value) for value in (0, 10 + i, 20 + i)]
            pages[0].save(tmp_path / kind / f"{i}{name[1:]}", save_all=True, append_images=pages[1:])


def open_folder(path: Path, shape: Any = None, **images: Any) -> tuple[ArrayDataset, ArrayDataset]:
    return open_dataset({"format": "imagefolder", "path": str(path), "images": images}, shape=shape)


def list_warnings(split: tuple[ArrayDataset, ArrayDataset]) -> list[str]:
    return [finding.text for finding in check_data(*split) if finding.level == "warning"]


@pytest.mark.parametrize("name", ["0.tif", "0.gif", "0.webp"])
def test_the_first_of_several_pages_is_read_and_that_is_said(tmp_path: Path, name: str) -> None:
    write_pages(tmp_path, name)
    said = list_warnings(open_folder(tmp_path))
    assert said[0] == (
        f"10 of 10 images of {tmp_path} have several pages or frames, up to 3: the first is read. "
        "data.images.page names another, from 1"
    )


def test_the_page_that_a_site_names_is_read(tmp_path: Path) -> None:
    write_pages(tmp_path)
    train, _ = split = open_folder(tmp_path, page=2)
    assert not any("pages" in text for text in list_warnings(split))
    assert train.x[:, 0, 0, 0].min() >= 10
    with pytest.raises(DataError, match=re.escape("0.tif: expected a page 4 (data.images.page), got 3")):
        open_folder(tmp_path, page=4)


def test_a_cameras_preview_is_no_page(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for i in range(5):
            shown = [Image.new("RGB", (4, 4), (i, 0, 0)), Image.new("RGB", (2, 2), (i, 0, 0))]
            shown[0].save(tmp_path / kind / f"{i}.jpg", "MPO", save_all=True, append_images=shown[1:])
    assert not any("pages" in text for text in list_warnings(open_folder(tmp_path)))


# ---- images of several kinds


def test_12_bits_in_16_are_told_with_what_makes_them_white(tmp_path: Path) -> None:
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for i in range(5):
            Image.fromarray(np.array([[i, 4000]], np.uint16)).save(tmp_path / kind / f"{i}.png")
    said = list_warnings(open_folder(tmp_path))
    assert said[0] == (
        f"10 of 10 images of {tmp_path} have 16 bits, and no value above 4,000 of 65,535: nearly black. "
        "data.images.white=4095 makes that white"
    )
    train, _ = split = open_folder(tmp_path, white=4095)
    assert not any("black" in text for text in list_warnings(split))
    assert float(train.x.max()) == pytest.approx(4000 / 4095)


def write_mixed(tmp_path: Path) -> None:
    """The first is grey, one is in colour, one is of 16 bits."""
    for kind in "ab":
        (tmp_path / kind).mkdir()
        for i in range(5):
            Image.new("L", (4, 4), 51).save(tmp_path / kind / f"{i}.png")
    Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "b/0.png")


def test_grey_among_colour_is_in_colour_unless_the_run_takes_grey(tmp_path: Path) -> None:
    write_mixed(tmp_path)
    assert open_folder(tmp_path)[0].shape == (3, 4, 4)
    data = {"format": "imagefolder", "path": str(tmp_path)}
    assert get_default_input(data, {"name": "mlp"})["shape"] == [3, 4, 4]
    train, test = open_folder(tmp_path, (1, 4, 4))
    values = {round(float(value), 3) for part in (train, test) for value in np.unique(part.x)}
    assert values == {0.2, 0.299}  # grey as it is, red by its luma


def test_what_changes_is_rounded_to_8_bits_where_the_site_says_so(tmp_path: Path) -> None:
    write_mixed(tmp_path)
    Image.fromarray(np.full((4, 4), 65_535, np.uint16)).save(tmp_path / "a/1.png")
    exact, rounded = open_folder(tmp_path, (1, 2, 2)), open_folder(tmp_path, (1, 2, 2), pixels="uint8")
    for floats, whole in zip(exact, rounded, strict=True):
        assert (floats.x.dtype, whole.x.dtype) == (np.dtype(np.float32), np.dtype(np.uint8))
        assert np.abs(floats.x - whole.x / 255).max() <= 0.5 / 255 + 1e-6


def test_both_sides_of_a_split_are_made_alike(tmp_path: Path) -> None:
    write_mixed(tmp_path)
    train, test = open_folder(tmp_path)
    assert (train.shape, train.x.dtype) == (test.shape, test.x.dtype) == ((3, 4, 4), np.dtype(np.uint8))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("page", "data.images: expected {page: N, white: VALUE, pixels: uint8}, got 'page'"),
        ({"pages": 1}, "data.images.pages: unknown key: did you mean 'page'?"),
        ({"page": 0}, "data.images.page: expected 1 to 65536, got 0"),
        ({"page": True}, "data.images.page: expected 1 to 65536, got True"),
        ({"white": 65_536}, "data.images.white: expected 1 to 65535, got 65536"),
        ({"pixels": "int8"}, "data.images.pixels: expected float32 or uint8, got 'int8'"),
    ],
)
def test_rules_that_are_none_are_refused(images: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        ImageRules.from_mapping(images)
