"""Objects as files: the same samples and labels whatever an object was, rows and sites named as the object has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ml.data import open_dataset
from ml.data.base import ArrayDataset
from ml.data.objects import name_object, write_object
from ml.errors import DataError

X = np.arange(40 * 6, dtype=np.uint8).reshape(40, 2, 3)
Y = np.arange(40) % 2


class Pairs(Dataset[Any]):
    """Samples made when they are asked for. `classes` are the names of the labels."""

    classes = ("cat", "dog")

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.features = X  # what others would call columns

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        self.asked.append(i)
        return torch.tensor(X[i]), int(Y[i])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(zip(X, Y, strict=True))


def read(given: object, directory: Path) -> tuple[ArrayDataset, ArrayDataset]:
    written = write_object(given, directory)
    return open_dataset({"format": written.format, "path": str(written.path)})


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        (torch.tensor(X), torch.tensor(Y)),
        {"x": X, "y": torch.tensor(Y)},
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        Subset(TensorDataset(torch.tensor(X), torch.tensor(Y)), range(40)),
        Stream(),
    ],
    ids=lambda given: type(given).__name__,
)
def test_arrays_tensors_and_datasets_are_the_same_samples(given: object, tmp_path: Path) -> None:
    train, test = read(given, tmp_path)
    assert train.classes == ("0", "1")
    assert (len(train), len(test), train.shape) == (32, 8, (1, 2, 3))
    rows = sorted(zip(np.concatenate([train.x, test.x]).tolist(), [*train.y, *test.y], strict=True))
    assert rows == sorted(zip(X[:, None].tolist(), Y, strict=True))


def test_a_datasets_samples_are_asked_for_once_each_in_order_and_its_classes_have_names(tmp_path: Path) -> None:
    pairs = Pairs()
    train, _ = read(pairs, tmp_path)
    assert pairs.asked == list(range(40))
    assert train.classes == ("cat", "dog")
    (tmp_path / "part").mkdir()
    part, _ = read(Subset(pairs, [0, 1, 3]), tmp_path / "part")
    assert (part.classes, len(part)) == (("cat", "dog"), 2)


class Pictures(Pairs):
    """Of Pillow, as torchvision gives them without a transform."""

    mode = "RGB"

    def __getitem__(self, i: int) -> tuple[Any, int]:
        image = Image.new("RGB", (3, 2), (i, 0, 1))
        return image.convert(self.mode), int(Y[i])


class Palettes(Pictures):
    mode = "P"


def test_pictures_of_pillow_are_pixels_and_never_places_in_a_palette(tmp_path: Path) -> None:
    train, _ = read(Pictures(), tmp_path)
    assert train.shape == (3, 2, 3)
    assert train.x.dtype == np.uint8
    assert set(train.x[:, 0].ravel()) <= set(range(40))
    with pytest.raises(DataError, match="data: sample 0: expected an image of mode L or RGB, got P: convert it"):
        read(Palettes(), tmp_path)


def test_splits_of_their_own_are_kept(tmp_path: Path) -> None:
    tensors = TensorDataset(torch.tensor(X[:30]), torch.tensor(Y[:30]))
    train, test = read({"train": tensors, "test": (X[30:], Y[30:])}, tmp_path)
    assert (len(train), len(test), test.split) == (30, 10, "test")
    (tmp_path / "by_name").mkdir()
    named = {"x_train": X[:30], "y_train": Y[:30], "x_test": X[30:], "y_test": Y[30:], "classes": ["no", "yes"]}
    train, test = read(named, tmp_path / "by_name")
    assert (len(train), len(test), train.classes) == (30, 10, ("no", "yes"))


def test_tensors_of_bfloat16_that_need_gradients_are_numbers(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 40, requires_grad=True).bfloat16().reshape(10, 2, 2)
    train, _ = read((x, Y[:10]), tmp_path)
    assert train.x.dtype == np.float32


def test_a_sites_file_stays_where_it_is(tmp_path: Path) -> None:
    table, archive, folder = tmp_path / "a.csv", tmp_path / "b.npz", tmp_path / "out"
    folder.mkdir()
    table.write_text("f,g,label\n" + "".join(f"{i},{i},{i % 2}\n" for i in range(10)))
    np.savez(archive, x=np.zeros((10, 2), np.float32), y=Y[:10])
    train, _ = read([table, str(archive), (np.zeros((10, 2)), Y[:10])], folder)
    assert train.domains == ("site0", "site1", "site2")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "b.npz", "out"]


class Ragged(Pairs):
    def __getitem__(self, i: int) -> tuple[Any, int]:
        return X[i, : 1 + (i < 5)], 0


class Unlabelled(Pairs):
    def __getitem__(self, i: int) -> Any:
        return X[i]


class Named(Pairs):
    def __getitem__(self, i: int) -> Any:
        return {"image": X[i], "label": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "data: expected (x, y), a frame, a Dataset, the path of a file, or a list of these with one a site, got 3"),
        (X, "got an array without labels"),
        (DataLoader(TensorDataset(torch.tensor(X))), "got a DataLoader, whose dataset it takes"),
        ((Pairs(), Pairs()), "got a tuple of Datasets, which are to be called train and test"),
        ({}, "data: expected the keys x and y, or x_train, y_train, x_test and y_test, or train and test, got none"),
        ({"test": (X, Y)}, "or train and test, got test"),
        (([[1], [2, 3]], [0, 1]), "data: x: expected an array"),
        ((X, [1, None]), "data: y: expected numbers or texts, got None"),
        ([(X, Y)], "data: expected at least 2 sites in a list, got 1"),
        ([(X, Y), X], "data[1]: expected (x, y)"),
        ([(X, Y), []], "data[1]: expected (x, y), a frame, a Dataset, the path of a file, got a list"),
        (["/no/such", (X, Y)], "data[0]: /no/such: no such file or directory"),
        (Ragged(), "data: sample 5: expected uint8 [2, 3] as sample 0 is, got uint8 [1, 3]"),
        (Unlabelled(), "data: sample 0: expected (x, y), got no label"),
        (Named(), "data: sample 0: expected (x, y), got a dict"),
        ({"train": Pairs(), "test": Ragged()}, "data['test']: sample 5: expected uint8"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_data_is_refused_by_its_place(given: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        write_object(given, tmp_path)
    assert message in str(refused.value)


def test_messages_name_the_object_and_its_rows() -> None:
    place = Path("/tmp/x")
    assert name_object("--data: /tmp/x/train.csv: line 7: no", place) == "data: row 5: no"
    assert name_object("/tmp/x/data.npz: y: no", place) == "data: y: no"
    text = "domain site01: /tmp/x/site01: /tmp/x/site01/train.csv: line 2: no"
    assert name_object(text, place) == "data[1]: row 0: no"
    assert name_object("/tmp/x/samples.csv: line 3: no", place, "samples") == "samples: row 1: no"
