"""Directories of images as people have them: what is no image is passed over and said, and any name can be shown."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from ml.data import get_classes, open_dataset
from ml.data.checks import check_data
from ml.data.detect_format import guess_format
from ml.data.inference_files import list_labelled_files
from ml.errors import DataError
from node.finite import to_finite
from node.log import JsonFormatter, TextFormatter

UNDECODED = os.fsdecode(b"caf\xe9")  # latin-1, as an old archive has it


def write(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((4, 4), value, np.uint8)
    pixels[0, 0] = 255 - value
    Image.fromarray(pixels).save(path, "PNG")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for c, name in enumerate(("cat", "dog")):
        for i in range(5):
            write(tmp_path / f"{name}/{i}.png", 10 * c + i)
    return tmp_path


def inspect(path: Path, **data: Any) -> tuple[tuple[str, ...], list[str]]:
    """The classes, and what was passed over."""
    split = open_dataset({"format": "imagefolder", "path": str(path), **data})
    said = [f"{finding.level}: {finding.text}" for finding in check_data(*split)]
    return split[0].classes, [text for text in said if "passed over" in text]


@pytest.mark.parametrize("name", ["__MACOSX", "lost+found", "@eaDir", "$RECYCLE.BIN", "System Volume Information"])
def test_what_systems_leave_is_no_class(folder: Path, name: str) -> None:
    write(folder / name / "cat/0.png")
    write(folder / name / "0.png")
    write(folder / "cat" / name / "0.png")
    (folder / name / "._1.png").write_bytes(b"\0\5\x16\7")
    classes, said = inspect(folder)
    assert classes == ("cat", "dog")
    assert said == [f"note: {folder}: passed over {name!r}, where no samples are"]
    assert guess_format(folder) == "imagefolder"
    assert [kind for _, kind in list_labelled_files(folder, classes)] == ["cat"] * 5 + ["dog"] * 5


def test_an_empty_directory_is_no_class(folder: Path) -> None:
    (folder / "new folder").mkdir()
    classes, said = inspect(folder)
    assert (classes, get_classes({"format": "imagefolder", "path": str(folder)})) == (("cat", "dog"),) * 2
    assert said == [f"warning: {folder}: passed over 'new folder', without an image"]


def test_a_class_without_an_image_in_one_split_stays_one(tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "test/cat"):
        write(tmp_path / name / "0.png")
    (tmp_path / "test/dog").mkdir()
    assert inspect(tmp_path) == (("cat", "dog"), [])


def test_files_that_are_no_images_are_counted_by_their_endings(folder: Path) -> None:
    for i in range(40):
        (folder / f"cat/{i}.dcm").write_bytes(b"DICM")
    for i in range(30):
        (folder / f"dog/{i}.HEIC").write_bytes(b"x")
    (folder / "dog/notes").write_bytes(b"x")
    (folder / "dog/.DS_Store").write_bytes(b"x")
    _, [said] = inspect(folder)
    assert said.startswith(
        f"warning: {folder}: 71 files passed over: 40 .dcm, 30 .heic, 1 without an ending; images end in .bmp, .gif, "
    )


def test_files_in_a_directory_without_an_image_are_counted_too(folder: Path) -> None:
    (folder / "eel").mkdir()
    (folder / "eel/0.dcm").write_bytes(b"x")
    assert [text.partition("; images")[0] for text in inspect(folder)[1]] == [
        f"warning: {folder}: passed over 'eel', without an image",
        f"warning: {folder}: 1 file passed over: 1 .dcm",
    ]
    assert inspect(folder, classes=["cat", "dog"])[1] == []  # who names the classes asks about no other


def test_a_directory_in_a_class_is_still_a_mistake(folder: Path) -> None:
    write(folder / "cat/deep/0.png")
    with pytest.raises(DataError, match="cat/deep: expected image files in the directory of class 'cat'"):
        inspect(folder)


# ---- names


def test_a_class_has_one_name_however_it_is_composed(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path / normalize("NFD", "café") / f"{i}.png")
        write(tmp_path / f"dog/{i}.png")
    assert inspect(tmp_path)[0] == (normalize("NFC", "café"), "dog")
    write(tmp_path / normalize("NFC", "café") / "0.png")
    with pytest.raises(DataError, match="expected one directory of class 'café', whose name looks the same"):
        inspect(tmp_path)


def test_a_class_whose_name_is_no_utf8_is_refused(folder: Path) -> None:
    write(folder / UNDECODED / "0.png")
    with pytest.raises(DataError, match=re.escape(r"/caf\xe9: expected the name of a class in UTF-8; rename")):
        inspect(folder)


def test_a_file_of_any_name_is_read_or_named_in_words_that_can_be_shown(folder: Path) -> None:
    write(folder / f"cat/{UNDECODED}.png")
    assert len(open_dataset({"format": "imagefolder", "path": str(folder)})[0]) == 9
    (folder / f"cat/{UNDECODED}.png").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        inspect(folder)
    assert f"{folder}/cat/caf\\xe9.png: not a readable image" in str(caught.value)


def test_a_directory_of_any_name_gives_findings_and_origins_that_can_be_shown(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path / UNDECODED / f"cat/{i}.png", i)
        write(tmp_path / UNDECODED / f"dog/{i}.png", 10 + i)
    (tmp_path / UNDECODED / f"cat/{UNDECODED}.dcm").write_bytes(b"x")
    train, test = open_dataset({"format": "imagefolder", "path": str(tmp_path / UNDECODED)})
    assert train.origin == f"{tmp_path}/caf\\xe9"
    assert all(finding.text.encode() for finding in check_data(train, test))


def test_logs_and_json_escape_what_no_encoding_has() -> None:
    record = logging.makeLogRecord({"msg": "read %s", "args": (f"{UNDECODED}.png",), "levelname": "INFO"})
    record.file = Path(f"{UNDECODED}.png")
    text, line = TextFormatter().format(record), JsonFormatter().format(record)
    assert text.encode().endswith(rb"read caf\xe9.png")
    said = json.loads(line.encode())
    assert (said["message"], said["file"]) == ("read caf\\xe9.png", "caf\\xe9.png")
    assert to_finite({"files": [UNDECODED, "café"]}) == {"files": ["caf\\xe9", "café"]}
