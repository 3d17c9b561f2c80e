"""SVHN's MATLAB files: X [32, 32, 3, N], and labels from 1 to 10 of which 10 is the digit 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import open_dataset
from ml.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 10), np.uint8)
LABELS = np.arange(1, 11, dtype=np.uint8)[:, None]


def save(path: Path, **arrays: Any) -> dict[str, Any]:
    from scipy.io import savemat

    for split, count in (("train", 10), ("test", 3)):
        own = {"X": IMAGES[..., :count], "y": LABELS[:count], **(arrays if split == "train" else {})}
        savemat(path / f"{split}_32x32.mat", own, do_compression=True)
    return {"format": "svhn", "path": str(path)}


def refuse(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data)


def test_images_are_turned_the_usual_way_round_and_10_is_the_digit_0(tmp_path: Path) -> None:
    train, test = open_dataset(save(tmp_path))
    assert (train.shape, train.x.dtype, len(test)) == ((3, 32, 32), np.dtype(np.uint8), 3)
    assert train.x[4, 2, 5, 7] == IMAGES[5, 7, 2, 4]
    assert train.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert train.classes == tuple("0123456789")


def test_the_extra_images_train_when_they_are_named(tmp_path: Path) -> None:
    data = save(tmp_path)
    (tmp_path / "train_32x32.mat").rename(tmp_path / "extra_32x32.mat")
    assert len(open_dataset(data | {"train_split": "extra"})[0]) == 10


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.where(LABELS == 10, 0, LABELS)}, "y[9]: expected 1 to 10, where 10 is the digit 0, got 0"),
        ({"y": LABELS + 0.5}, "y[0]: expected 1 to 10, where 10 is the digit 0, got 1.5"),
        ({"y": LABELS[:9]}, "y: expected 10 labels, got uint8 [9, 1]"),
        ({"X": IMAGES[:28]}, "X: expected uint8 [32, 32, 3, N], got [28, 32, 3, 10]"),
        ({"X": IMAGES.astype(np.float64)}, "X: expected uint8 [32, 32, 3, 10], got float64 [32, 32, 3, 10]"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    refuse(save(tmp_path, **arrays), f"{tmp_path}/train_32x32.mat: {message}")


@pytest.mark.parametrize("kept", [0, 60, 140, 0.5, 0.99])
def test_a_truncated_file_names_itself(tmp_path: Path, kept: float) -> None:
    data = save(tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    refuse(data, f"{path}: ")


def test_another_kind_of_file_and_a_directory_without_any_are_said(tmp_path: Path) -> None:
    refuse({"format": "svhn", "path": str(tmp_path)}, "expected the directory of train_32x32.mat and test_32x32.mat")
    data = save(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    refuse(data, f"{tmp_path}/train_32x32.mat: not a readable MATLAB file")
