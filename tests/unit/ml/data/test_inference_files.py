"""Files of samples that a model is asked about: which axis is which, labels where there are some, plain refusals."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data.base import Shape
from ml.data.inference_files import InferenceFile, read_inference_file, validate_kind, validate_samples
from ml.errors import DataError

GREY: Shape = (1, 4, 5)
COLOUR: Shape = (3, 4, 5)
FEATURES: Shape = (3, 1, 1)
CLASSES = ("cat", "dog")


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def read(path: Path, shape: Shape = GREY, label: str | None = None) -> InferenceFile:
    return read_inference_file(path, shape, CLASSES, label)


def count_up(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


@pytest.mark.parametrize(
    ("wanted", "shape", "made"),
    [
        (GREY, (2, 4, 5), (2, 1, 4, 5)),
        (GREY, (2, 4, 5, 1), (2, 1, 4, 5)),
        (GREY, (2, 1, 4, 5), (2, 1, 4, 5)),
        (GREY, (2, 9, 9), (2, 1, 9, 9)),
        (GREY, (4, 5), (1, 1, 4, 5)),
        (GREY, (4, 5, 1), (1, 1, 4, 5)),
        (GREY, (1, 4, 5), (1, 1, 4, 5)),
        (COLOUR, (2, 3, 4, 5), (2, 3, 4, 5)),
        (COLOUR, (2, 4, 5, 3), (2, 3, 4, 5)),
        (COLOUR, (3, 4, 5), (1, 3, 4, 5)),
        (COLOUR, (4, 5, 3), (1, 3, 4, 5)),
        (COLOUR, (3, 9, 9), (3, 1, 9, 9)),
        (FEATURES, (2, 3), (2, 3, 1, 1)),
        (FEATURES, (3,), (1, 3, 1, 1)),
        (FEATURES, (3, 1, 1), (1, 3, 1, 1)),
        (FEATURES, (2, 3, 1, 1), (2, 3, 1, 1)),
    ],
)
def test_an_archive_holds_samples_or_exactly_one(
    tmp_path: Path, wanted: Shape, shape: tuple[int, ...], made: tuple[int, ...]
) -> None:
    asked = read(save(tmp_path / "a.npz", x=count_up(*shape)), wanted)
    assert (asked.x.shape, asked.rows, asked.labels) == (made, tuple(range(made[0])), None)
    assert asked.x.dtype == (np.float32 if wanted == FEATURES else np.uint8)


def test_the_last_axis_is_brought_to_the_front(tmp_path: Path) -> None:
    x = count_up(2, 4, 5, 3)
    asked = read(save(tmp_path / "a.npz", x=x), COLOUR)
    assert np.array_equal(asked.x, x.transpose(0, 3, 1, 2))
    alone = read(save(tmp_path / "b.npz", x=x[1]), COLOUR)
    assert np.array_equal(alone.x[0], asked.x[1])


@pytest.mark.parametrize("y", [np.array(["dog", "cat"]), np.array([1, 0]), np.array([[1], [0]])])
def test_labels_of_an_archive_are_found_by_name_or_by_number(tmp_path: Path, y: np.ndarray) -> None:
    asked = read(save(tmp_path / "a.npz", x=count_up(2, 4, 5), y=y))
    assert asked.labels is not None
    assert asked.labels.tolist() == [1, 0]


def test_the_label_of_one_sample_may_stand_alone_too(tmp_path: Path) -> None:
    asked = read(save(tmp_path / "a.npz", x=count_up(4, 5), y=np.array(1)))
    assert asked.labels is not None
    assert asked.labels.tolist() == [1]


def test_labels_count_in_the_archives_own_classes(tmp_path: Path) -> None:
    asked = read(save(tmp_path / "a.npz", x=count_up(2, 4, 5), y=np.array([0, 1]), classes=np.array(["dog", "cat"])))
    assert asked.labels is not None
    assert asked.labels.tolist() == [1, 0]


def test_a_table_has_a_column_for_each_feature_and_maybe_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,label,c\n1,2,dog,3\n\n4,5,cat,6\n")
    asked = read(path, FEATURES)
    assert asked.x.reshape(2, 3).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert asked.labels is not None
    assert (asked.labels.tolist(), asked.rows) == ([1, 0], (2, 4))
    path.write_text("a,b,c\n1,2,3\n")
    assert read(path, FEATURES).labels is None
    path.write_text("a,b,c,kind\n1,2,3,dog\n")
    asked = read(path, FEATURES, "kind")
    assert asked.labels is not None
    assert asked.labels.tolist() == [1]


def test_labels_are_left_out_of_the_features_by_the_name_that_the_site_gave_them(tmp_path: Path) -> None:
    def read_diagnosed() -> InferenceFile:
        return read_inference_file(path, FEATURES, CLASSES, default_label="diagnosis")

    path = tmp_path / "a.csv"
    path.write_text("a,diagnosis,b,c\n1,dog,2,3\n")
    asked = read_diagnosed()
    assert asked.labels is not None
    assert (asked.labels.tolist(), asked.x.reshape(-1).tolist()) == ([1], [1, 2, 3])
    path.write_text("a,b,label\n1,2,3\n")  # here the label is a feature, as in training
    assert (read_diagnosed().labels, read_diagnosed().x.reshape(-1).tolist()) == (None, [1, 2, 3])
    path.write_text("a,diagnosis,b,c\n1,,2,3\n4,,5,6\n")  # what is to be found out
    assert (read_diagnosed().labels, read_diagnosed().rows) == (None, (2, 3))
    path.write_text("a,grade,b,c\n1,dog,2,3\n")
    with pytest.raises(DataError, match="a, grade, b, c; --label names the one that has labels"):
        read_diagnosed()


def test_an_image_is_a_sample_of_its_own_size(tmp_path: Path) -> None:
    Image.fromarray(count_up(8, 9)).save(tmp_path / "a.png")
    asked = read(tmp_path / "a.png")
    assert (asked.x.shape, str(asked.x.dtype), asked.rows, asked.labels) == ((1, 1, 8, 9), "uint8", None, None)


def test_images_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(count_up(8, 9)).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=re.escape("expected pillow to be installed: pip install 'fednode[data]'")):
        read(tmp_path / "a.png")


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    def refuse(path: Path, message: str, shape: Shape = GREY, label: str | None = None) -> None:
        with pytest.raises(DataError, match=re.escape(message)):
            read(path, shape, label)

    (tmp_path / "a.txt").write_text("x")
    refuse(tmp_path / "a.txt", "a.txt: expected an .npz, a .csv or an image file (.bmp, ")
    refuse(tmp_path / "b.npz", "b.npz: no such file")
    (tmp_path / "c.npz").mkdir()
    refuse(tmp_path / "c.npz", "c.npz: expected a file, got a directory")
    (tmp_path / "d.npz").write_bytes(b"not one")
    refuse(tmp_path / "d.npz", "d.npz: expected an .npz archive")
    refuse(save(tmp_path / "e.npz", z=count_up(2, 4, 5)), "e.npz: expected an array x (got z)")
    refuse(save(tmp_path / "f.npz", x=np.array([{}], dtype=object)), "pickles are never loaded")
    refuse(save(tmp_path / "g.npz", x=count_up(0, 4, 5)), "g.npz: expected at least one sample, got [0, 1, 4, 5]")
    refuse(
        save(tmp_path / "h.npz", x=count_up(2, 20)),
        "h.npz: expected images that can be made [1, 4, 5] (channels, height, width), got [20, 1, 1]",
    )
    refuse(
        save(tmp_path / "i.npz", x=count_up(2, 4)),
        "i.npz: expected float32 [N, 3, 1, 1], as the model takes 3 features, got float32 [2, 4, 1, 1]",
        FEATURES,
    )
    broken = np.zeros((2, 4, 5), np.float32)
    broken[1, 2, 3] = np.nan
    refuse(save(tmp_path / "j.npz", x=broken), "j.npz: sample 1: expected finite numbers, got nan")
    refuse(
        save(tmp_path / "k.npz", x=count_up(2, 4, 5), y=np.array([0, 2])), "k.npz: y[1]: expected a label from 0 to 1"
    )
    table = tmp_path / "l.csv"
    table.write_text("a,b,label\n1,2,dog\n")
    refuse(table, "l.csv: expected 3 columns of numbers, one for each feature, got 2: a, b", FEATURES)
    refuse(table, "l.csv: expected images, as the model takes [1, 4, 5]", GREY)
    refuse(table, "l.csv: expected a column 'kind' of labels, got a, b, label", FEATURES, "kind")
    table.write_text("a,b,c,label\n1,2,3,dog\n1,?,3,dog\n")
    refuse(table, "l.csv: line 3: column 'b': expected a finite number, got '?'", FEATURES)
    table.write_text("a,b,c,label\n1,2,3,eel\n")
    refuse(table, "l.csv: line 2: class 'eel' is not one of genesis' classes: cat, dog", FEATURES)


def test_a_kind_is_seen_without_reading(tmp_path: Path) -> None:
    (tmp_path / "A.NPZ").write_bytes(b"")
    validate_kind(tmp_path / "A.NPZ")
    with pytest.raises(DataError, match="no such file"):
        validate_kind(tmp_path / "b.jpeg")


@pytest.mark.parametrize(
    ("x", "shape", "message"),
    [
        (np.zeros((2, 4, 5), np.uint8), GREY, "expected uint8 or float32 [N, C, H, W], got uint8 [2, 4, 5]"),
        (np.zeros((2, 1, 4, 5)), GREY, "expected uint8 or float32 [N, C, H, W], got float64 [2, 1, 4, 5]"),
        (np.zeros((2, 1, 0, 5), np.uint8), GREY, "expected at least one sample"),
        (np.zeros((2, 2, 4, 5), np.uint8), COLOUR, "expected images that can be made [3, 4, 5]"),
        (np.zeros((2, 3, 1, 1), np.uint8), FEATURES, "expected float32 [N, 3, 1, 1]"),
        (np.full((1, 1, 4, 5), np.inf, np.float32), GREY, "samples: sample 0: expected finite numbers, got inf"),
    ],
)
def test_samples_that_are_none_are_refused(x: Any, shape: Shape, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        validate_samples(x, shape)
