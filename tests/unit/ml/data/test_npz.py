"""npz archives and MedMNIST's: every layout they may have, and how a broken one names itself and the place."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import HELD_OUT, get_classes, get_default_input, load_dataset, open_dataset
from ml.errors import DataError

GREY = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, **arrays: Any) -> dict[str, Any]:
    np.savez_compressed(path, **arrays)
    return {"format": "npz", "path": str(path)}


def both(x: Any, y: Any) -> dict[str, Any]:
    return {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3]}


def refuse(data: dict[str, Any], message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data, **options)


def test_two_splits_are_read_as_they_are(tmp_path: Path) -> None:
    train, test = open_dataset(save(tmp_path / "a.npz", **both(GREY, LABELS)))
    assert (train.x.dtype, train.x.shape) == (np.dtype(np.uint8), (6, 1, 4, 4))
    assert np.array_equal(train.x[:, 0], GREY)
    assert train.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert train.classes == ("0", "1", "2")
    assert (train.split, test.split, len(test)) == ("train", "test", 3)
    assert train.origin == f"{tmp_path}/a.npz: x_train"


def test_another_split_tests_when_it_is_named(tmp_path: Path) -> None:
    data = save(tmp_path / "a.npz", **both(GREY, LABELS), x_val=GREY[:2], y_val=LABELS[:2])
    assert len(open_dataset(data | {"test_split": "val"})[1]) == 2
    refuse(data | {"test_split": "vall"}, "a.npz has no split 'vall': did you mean 'val'?")
    refuse(data | {"test_split": "train"}, "data.test_split: expected another split than data.train_split")


def test_one_split_has_a_fifth_of_each_class_held_out_always_the_same(tmp_path: Path) -> None:
    x, y = np.arange(30, dtype=np.uint8).reshape(30, 1, 1).repeat(4, 1).repeat(4, 2), np.repeat([0, 1], [20, 10])
    data = save(tmp_path / "a.npz", x=x, y=y)
    (train, test), (again, _) = open_dataset(data), open_dataset(data)
    assert test.split == HELD_OUT
    assert (train.count_classes().tolist(), test.count_classes().tolist()) == ([16, 8], [4, 2])
    assert np.array_equal(train.x, again.x)
    assert sorted([*train.x[:, 0, 0, 0], *test.x[:, 0, 0, 0]]) == list(range(30))


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.zeros((6, 4, 5), np.uint8), (1, 4, 5)),
        (np.zeros((6, 4, 5, 3), np.uint8), (3, 4, 5)),
        (np.zeros((6, 3, 4, 5), np.uint8), (3, 4, 5)),
        (np.zeros((6, 7, 4, 5), np.float32), (7, 4, 5)),
        (np.zeros((6, 9), np.int32), (9, 1, 1)),
    ],
)
def test_which_axis_is_which(tmp_path: Path, x: Any, shape: tuple[int, int, int]) -> None:
    assert open_dataset(save(tmp_path / "a.npz", **both(x, LABELS)))[0].shape == shape


def test_channels_last_are_moved_first(tmp_path: Path) -> None:
    x = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)
    train, _ = open_dataset(save(tmp_path / "a.npz", **both(x, LABELS)))
    assert train.x[1, 2, 0, 1] == x[1, 0, 1, 2]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (np.uint8, 51, 0.2),
        (np.int64, 51, 0.2),
        (np.uint16, 13107, 0.2),
        (np.bool_, True, 1.0),
        (np.float64, 0.2, 0.2),
    ],
)
def test_pixels_become_0_to_1(tmp_path: Path, dtype: Any, value: Any, expected: float) -> None:
    data = save(tmp_path / "a.npz", **both(np.full((6, 4, 4), value, dtype), LABELS))
    train, _ = load_dataset(data, {"shape": [1, 4, 4]})
    assert train.x == pytest.approx(np.full((6, 1, 4, 4), expected, np.float32))


def test_features_keep_their_numbers_and_have_a_mean_each(tmp_path: Path) -> None:
    x = np.array([[1, 100], [3, 300], [1, 100], [3, 300], [1, 100], [3, 300]], np.uint16)
    data = save(tmp_path / "a.npz", **both(x, LABELS))
    assert get_default_input(data, {"name": "mlp"})["shape"] == [2, 1, 1]
    train, _ = load_dataset(data, {"shape": [2, 1, 1], "mean": [2, 200], "std": [1, 100]})
    assert train.x[:2].reshape(2, 2).tolist() == [[-1, -1], [1, 1]]
    with pytest.raises(DataError, match=r"input.shape: expected \[2, 1, 1\], the data's own features"):
        load_dataset(data, {"shape": [1, 2, 1]})


def test_labels_may_stand_in_a_column_and_have_names(tmp_path: Path) -> None:
    data = save(tmp_path / "a.npz", **both(GREY, LABELS[:, None]), classes=np.array(["cat", "dog", "eel"]))
    assert get_classes(data) == ("cat", "dog", "eel")
    texts = save(tmp_path / "b.npz", **both(GREY, np.array(["dog", "cat", "eel", "dog", "cat", "eel"])))
    train, _ = open_dataset(texts)
    assert (train.classes, train.y.tolist()) == (("cat", "dog", "eel"), [1, 0, 2, 1, 0, 2])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": GREY}, "a.npz: expected arrays x and y, or x_train, y_train, x_test and y_test (got a)"),
        ({"x_train": GREY}, "a.npz: expected an array y_train (got x_train)"),
        ({"x": GREY, "y": LABELS[:5]}, "a.npz: y: expected shape [6], a label for each sample, got [5]"),
        ({"x": GREY, "y": np.eye(6, 3)}, "a.npz: y: expected one label for each sample, got 3 (shape [6, 3])"),
        ({"x": GREY, "y": LABELS / 2}, "a.npz: y: expected whole numbers or text, got float64"),
        ({"x": GREY, "y": LABELS - 1}, "a.npz: x[0], y[0]: expected a label from 0 to 65535, got -1"),
        ({"x": GREY.astype(complex), "y": LABELS}, "a.npz: x: expected numbers, got complex128"),
        ({"x": GREY.astype(np.int16) * 9, "y": LABELS}, "a.npz: x: expected pixels from 0 to 255, or uint16 or float"),
        ({"x": GREY[0, 0], "y": LABELS[:4]}, "a.npz: x: expected shape [N, H, W], [N, H, W, C]"),
        ({"x": np.array([{}] * 6), "y": LABELS}, "a.npz: x: expected numbers or text, got object: pickles are never"),
        ({"x": np.zeros((6, 8, 8, 4), np.uint8), "y": LABELS}, "a.npz: x: expected 1 or 3 channels as the last axis"),
        ({"x": GREY[:0], "y": LABELS[:0]}, "expected samples, got none"),
        ({"x": GREY, "y": LABELS, "classes": LABELS}, "a.npz: classes: expected a list of names, got int64 [6]"),
    ],
)
def test_what_does_not_fit_is_named_with_its_array(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    refuse(save(tmp_path / "a.npz", **arrays), message)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_is_named_with_its_place(tmp_path: Path, value: float) -> None:
    x = GREY.astype(np.float64)
    x[4, 2, 3] = value
    refuse(save(tmp_path / "a.npz", x=x, y=LABELS), "a.npz: x[4], y[4]: expected finite numbers, got ")
    refuse(save(tmp_path / "a.npz", x=x, y=LABELS), "in channel 0, row 2, column 3")


def test_a_truncated_archive_and_another_kind_of_file_name_themselves(tmp_path: Path) -> None:
    data = save(tmp_path / "a.npz", x=GREY, y=LABELS)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[:-30])
    refuse(data, f"{tmp_path}/a.npz: expected an .npz archive: ")
    (tmp_path / "a.npz").write_text("x,y\n")
    refuse(data, f"{tmp_path}/a.npz: expected an .npz archive: ")
    refuse({"format": "npz", "path": str(tmp_path)}, f"{tmp_path}/a.npz: expected an .npz archive: ")
    (tmp_path / "b.npz").write_text("x,y\n")
    refuse({"format": "npz", "path": str(tmp_path)}, f"{tmp_path}: expected an .npz file, got a directory")
    (tmp_path / "b.npz").unlink()
    refuse({"format": "npz", "path": str(tmp_path / "b.npz")}, f"{tmp_path}/b.npz: no such file or directory")
    refuse({"format": "npz"}, "data.path: expected a path, which data.format npz needs")


def test_a_damaged_member_names_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=GREY, y=LABELS)
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[whole.index(GREY.tobytes()[:32]) + 5] ^= 1
    (tmp_path / "a.npz").write_bytes(whole)
    refuse({"format": "npz", "path": str(tmp_path / "a.npz")}, "a.npz: x: broken: Bad CRC-32")


def test_a_header_that_claims_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 32, 32)})
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", labels.getvalue())
    refuse({"format": "npz", "path": str(tmp_path / "a.npz")}, "a.npz: x: expected 1125899906842752 bytes for uint8")


def save_medmnist(path: Path, shape: tuple[int, ...], num_labels: int = 1) -> dict[str, Any]:
    """As the project publishes them: three splits, labels as a column."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 8), ("val", 2), ("test", 4)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"{split}_labels"] = np.arange(count * num_labels, dtype=np.uint8).reshape(count, num_labels) % 2
    np.savez_compressed(path, **arrays)
    return {"format": "medmnist", "path": str(path)}


@pytest.mark.parametrize(
    ("name", "shape", "sample", "classes"),
    [
        ("pneumoniamnist.npz", (28, 28), (1, 28, 28), ("normal", "pneumonia")),
        ("breastmnist_64.npz", (64, 64), (1, 64, 64), ("malignant", "normal, benign")),
        ("retinamnist.npz", (28, 28, 3), (3, 28, 28), ("0", "1", "2", "3", "4")),
    ],
)
def test_medmnist_is_known_by_its_name(
    tmp_path: Path, name: str, shape: tuple[int, ...], sample: tuple[int, int, int], classes: tuple[str, ...]
) -> None:
    data = save_medmnist(tmp_path / name, shape)
    train, test = open_dataset(data)
    assert (train.shape, train.classes, len(train), len(test)) == (sample, classes, 8, 4)
    assert len(open_dataset(data | {"test_split": "val"})[1]) == 2
    images = np.load(tmp_path / name)["train_images"]
    assert train.x[3, 0, 5, 7] == images.reshape(*images.shape[:3], -1)[3, 5, 7, 0]


def test_what_medmnist_has_no_class_for_is_said(tmp_path: Path) -> None:
    refuse(save_medmnist(tmp_path / "chestmnist.npz", (28, 28), 14), "expected a file named for its data set")
    refuse(save_medmnist(tmp_path / "pathmnst.npz", (28, 28, 3)), "did you mean 'pathmnist'?")
    volumes = save_medmnist(tmp_path / "organamnist.npz", (28, 28, 28))
    refuse(volumes, "organamnist.npz: train_images: expected shape [N, S, S] or [N, S, S, 3], got [8, 28, 28, 28]")
    labelled = save_medmnist(tmp_path / "dermamnist.npz", (28, 28, 3), 2)
    refuse(labelled, "dermamnist.npz: train_labels: expected one label for each sample, got 2 (shape [8, 2])")


def test_a_medmnist_label_without_a_class_is_named(tmp_path: Path) -> None:
    save_medmnist(tmp_path / "octmnist.npz", (28, 28))
    arrays = dict(np.load(tmp_path / "octmnist.npz"))
    arrays["test_labels"][2, 0] = 4
    np.savez(tmp_path / "octmnist.npz", **arrays)
    refuse(
        {"format": "medmnist", "path": str(tmp_path / "octmnist.npz")},
        "octmnist.npz: test_images[2], test_labels[2]: expected a label from 0 to 3, got 4",
    )
