"""Data sets of several domains: each read as if it stood alone, brought to one shape and one list of classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data import (
    get_classes,
    get_default_input,
    get_split_names,
    list_domains,
    load_dataset,
    open_dataset,
    open_labels,
    open_once,
)
from ml.data.base import ArrayDataset, SampleDomains
from ml.data.checks import check_data
from ml.data.detect_format import guess_format
from ml.data.readers import images
from ml.data.table_input import Column, TableInput
from ml.errors import DataError
from support.data.domain_folders import save_domains, save_idx, save_images, save_npz
from support.data.tables import detect_table

INPUT: dict[str, Any] = {"shape": [3, 6, 6], "mean": [0.5], "std": [0.25]}
NAMES = ("mnist", "mnistm", "usps")


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    return save_domains(tmp_path / "digits3")


def refuse(data: dict[str, Any], message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data, **options)


def count(part: ArrayDataset) -> list[int]:
    """The samples of each domain."""
    return [len(own) for own in part.list_domains()]


def save_named(folder: Path, names: str, n: int = 20) -> None:
    for i in range(n):
        path = folder / names[i % len(names)] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 10 * i).save(path)


def test_each_domain_has_the_samples_that_it_has_alone(data: dict[str, Any]) -> None:
    for whole, k in zip(load_dataset(data, INPUT), (0, 1), strict=True):
        assert whole.domains == NAMES
        assert whole.domain_of is not None
        for d, name in enumerate(NAMES):
            path = Path(data["path"]) / name
            alone = load_dataset({"format": guess_format(path), "path": str(path)}, INPUT)[k]
            rows = np.flatnonzero(whole.domain_of == d)
            assert np.array_equal(whole.x[rows], alone.x)
            assert np.array_equal(whole.y[rows], alone.y)


def test_one_without_a_test_split_has_a_fifth_of_each_class_held_out(data: dict[str, Any]) -> None:
    train, test = open_dataset(data)
    assert (train.split, test.split) == ("train", "test")
    assert [count(part) for part in (train, test)] == [[40, 20, 40], [10, 10, 10]]
    assert test.list_domains()[2].count_classes().tolist() == [2] * 5
    only = data | {"domains": ["usps"]}
    assert open_dataset(only)[1].split == "held out"
    assert get_split_names(only) == ("train",)
    assert [domain.is_held_out for domain in list_domains(data)] == [False, False, True]


def test_what_is_held_out_does_not_depend_on_the_other_domains(data: dict[str, Any]) -> None:
    _, among = open_dataset(data, shape=(1, 8, 8))
    _, alone = open_dataset(data | {"domains": ["usps"]}, shape=(1, 8, 8))
    assert np.array_equal(among.list_domains()[2].x, alone.x)


def test_domains_are_sorted_by_name_or_as_they_are_asked_for(data: dict[str, Any]) -> None:
    (Path(data["path"]) / ".cache").mkdir()
    (Path(data["path"]) / "README").write_text("no directory")
    assert open_dataset(data)[0].domains == NAMES
    train, test = open_dataset(data | {"domains": ["usps", "mnist"]})
    assert train.domains == test.domains == ("usps", "mnist")
    assert count(train) == [40, 40]
    assert train.shape == (1, 8, 6)


def test_the_shape_is_the_largest_and_in_colour_if_any_is(data: dict[str, Any]) -> None:
    assert get_default_input(data, {"name": "mlp"})["shape"] == [3, 8, 7]
    assert open_dataset(data)[0].shape == (3, 8, 7)
    assert open_dataset(data, shape=(1, 28, 28))[1].x.shape == (30, 1, 28, 28)
    assert get_default_input(data, {"name": "cnn_mnist"})["shape"][1:] == [28, 28]


def test_bytes_of_one_size_stay_bytes_and_grey_is_repeated(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 6), np.uint8)
    save_idx(tmp_path / "a")
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b/b.npz", x=np.stack([x, x, x[::-1]], -1), y=np.arange(20) % 5)
    data = {"format": "domains", "path": str(tmp_path)}
    train, _ = open_dataset(data)
    assert (str(train.x.dtype), train.shape) == ("uint8", (3, 6, 6))
    assert np.array_equal(train.x[0, 0], train.x[0, 2])
    assert open_dataset(data, shape=(1, 6, 6))[0].x.dtype == np.float32
    np.savez(tmp_path / "b/b.npz", x=x.astype(np.float32) / 255, y=np.arange(20) % 5)
    mixed, _ = open_dataset(data)
    assert mixed.x.dtype == np.float32
    assert np.array_equal(mixed.x[:40, 0], train.x[:40, 0] / np.float32(255))


def test_numbers_and_directories_called_like_them_are_the_same_classes(data: dict[str, Any]) -> None:
    assert get_classes(data) == tuple("01234")
    assert all(own.count_classes().all() for own in open_dataset(data)[0].list_domains())
    train, _ = open_dataset(data, classes=tuple("43210"))
    assert np.array_equal(train.y, 4 - open_dataset(data)[0].y)


def test_numbers_alone_are_numbered_as_those_of_any_other_source(tmp_path: Path) -> None:
    save_npz(tmp_path / "a")
    save_npz(tmp_path / "b")
    np.savez(tmp_path / "b/b.npz", x=np.ones((4, 8, 5)), y=[9, 9, 8, 8])
    data = {"format": "domains", "path": str(tmp_path)}
    assert get_classes(data) == tuple("0123456789")
    named = tuple("abcdefghij")
    assert set(open_dataset(data, classes=named)[0].list_domains()[1].y.tolist()) == {8, 9}


def test_classes_are_those_of_all_domains_by_name(tmp_path: Path) -> None:
    save_named(tmp_path / "a", "xz")
    save_named(tmp_path / "b", "zy")
    data = {"format": "domains", "path": str(tmp_path)}
    train, test = open_dataset(data)
    assert train.classes == get_classes(data) == ("x", "y", "z")
    assert [own.count_classes().tolist() for own in train.list_domains()] == [[8, 0, 8], [0, 8, 8]]
    assert [f.text for f in check_data(train, test, thorough=False) if f.text.startswith("domain")] == [
        "domain a has no training sample of y",
        "domain b has no training sample of x",
    ]
    assert np.array_equal(open_dataset(data, classes=("z", "w", "y", "x"))[0].y, np.array([3, 2, 0])[train.y])
    refuse(data, f"domain b: {tmp_path}/b/y/001.png: class 'y' is not one of genesis' classes: x, z", classes="xz")


def test_names_beside_bare_numbers_are_refused(tmp_path: Path) -> None:
    save_named(tmp_path / "amazon", "xz")
    save_npz(tmp_path / "dslr")
    refuse(
        {"format": "domains", "path": str(tmp_path)},
        f"domain dslr: {tmp_path}/dslr: expected labels with names, as domain amazon has them ('x'), "
        "got the numbers 0 to 4",
    )


def test_labels_can_be_had_without_samples(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = open_dataset(data)
    monkeypatch.setattr("ml.data.image_set.decode_image", None)
    known = open_labels(data)
    own = SampleDomains.of(train, test)
    assert known.domains is not None
    assert own is not None
    assert known.domains.names == NAMES
    assert (known.classes, known.shape) == (train.classes, train.shape)
    for mine, its in (
        (known.train_y, train.y),
        (known.test_y, test.y),
        (known.domains.train, own.train),
        (known.domains.test, own.test),
    ):
        assert np.array_equal(mine, its)


def test_each_image_is_decoded_once_and_held_out_ones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_named(tmp_path / "a", "xz")
    decoded: list[str] = []
    real = images.decode_image

    def decode(encoded: Any, place: str, **options: Any) -> Any:
        decoded.append(place)
        return real(encoded, place, **options)

    monkeypatch.setattr("ml.data.image_set.decode_image", decode)
    open_dataset({"format": "domains", "path": str(tmp_path)}, shape=(1, 4, 4))
    assert len(decoded) == 20


def test_a_digest_tells_domains_apart(data: dict[str, Any]) -> None:
    train, _ = open_dataset(data)
    plain = ArrayDataset(train.x, train.y, train.classes)
    assert train.domain_of is not None
    other = ArrayDataset(train.x, train.y, train.classes, domains=NAMES, domain_of=train.domain_of[::-1].copy())
    assert len({train.sha256, plain.sha256, other.sha256}) == 3


@pytest.mark.parametrize(
    ("domains", "domain_of", "message"),
    [
        (("a",), None, "expected names and the domain of each sample, or neither"),
        ((), np.zeros(2, np.int64), "expected names and the domain of each sample, or neither"),
        (("a",), np.zeros(3, np.int64), "domains: expected [2], got [3]"),
    ],
)
def test_domains_that_do_not_fit_the_samples_are_refused(domains: Any, domain_of: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        ArrayDataset(np.zeros((2, 1, 4, 4), np.uint8), np.zeros(2, np.int64), ("x",), "", "", domains, domain_of)


def test_a_domain_is_opened_once_within_open_once(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ml.data.readers import npz

    opened: list[Path] = []
    real = npz.open_parts

    def open_parts(source: Any) -> Any:
        opened.append(source.path)
        return real(source)

    monkeypatch.setattr(npz, "open_parts", open_parts)
    with open_once():
        get_default_input(data, {"name": "mlp"})
        open_dataset(data)
        assert len(list_domains(data)) == 3
    assert len(opened) == 1


# ---- what is wrong names the domain and the file


def test_a_broken_file_is_named_with_its_domain(data: dict[str, Any]) -> None:
    path = Path(data["path"])
    (path / "mnistm/train/3/003.png").write_bytes(b"no image")
    refuse(data, f"domain mnistm: {path}/mnistm/train/3/003.png: not a readable image")
    (path / "mnist/train-labels-idx1-ubyte").write_bytes(b"")
    refuse(data, f"domain mnist: {path}/mnist/train-labels-idx1-ubyte: byte 0: expected the magic number")


def test_a_number_that_is_none_is_named_where_it_lies(data: dict[str, Any]) -> None:
    x = np.ones((10, 8, 5), np.float32)
    x[9, 2, 3] = np.nan
    usps = Path(data["path"]) / "usps/usps.npz"
    np.savez(usps, x_train=x, y_train=np.arange(10) % 5, x_test=x[:5], y_test=np.arange(5))
    refuse(data, f"domain usps: {usps}: x_train[9], y_train[9]: expected finite numbers, got nan in channel 0, row 2")


def test_a_split_that_a_domain_has_not_is_named(data: dict[str, Any]) -> None:
    refuse(data | {"train_split": "val"}, f"domain mnist: data.train_split: {data['path']}/mnist has no split 'val'")
    refuse(data | {"test_split": "val"}, f"domain mnist: data.test_split: {data['path']}/mnist has no split 'val'")
    assert open_dataset(data | {"train_split": "test", "domains": ["mnist", "mnistm"]})[1].split == "held out"


def test_what_is_no_set_of_domains_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    path = Path(data["path"])
    refuse(data | {"domains": ["svhn"]}, f"data.domains: {path} has no directory 'svhn'")
    refuse(
        data | {"path": str(path / "usps/usps.npz")}, "expected a directory with one for each domain in it, got a file"
    )
    refuse(
        data | {"path": str(path / "usps")}, f"{path}/usps: expected a directory for each domain, or tables, got none"
    )
    refuse(data | {"path": str(path / "none")}, f"{path}/none: no such file or directory")
    refuse({"format": "domains"}, "data.path: expected a path, which data.format domains needs")
    (path / "notes").mkdir()
    refuse(data, f"domain notes: {path}/notes: expected data in one of the other formats, and it looks like none")
    assert len(open_dataset(data | {"domains": list(NAMES)})[0]) == 100


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("domains", "mnist", "data.domains: expected a list of names, as text, got 'mnist'"),
        ("domains", [], "data.domains: expected a list of names, as text, got []"),
        ("classes", [0, 1], "data.classes: expected a list of names, as text, got [0, 1]"),
        ("classes", ["a", "b", "a"], "data.classes: expected different names, got 'a' twice"),
    ],
)
def test_lists_of_names_are_read_strictly(data: dict[str, Any], key: str, value: Any, message: str) -> None:
    refuse(data | {key: value}, message)


def test_only_domains_have_domains() -> None:
    refuse({"format": "digits", "domains": ["a"]}, "data.domains: data.format digits has no domains, got a")
    assert list_domains({"format": "digits"}) == ()
    assert open_dataset({"format": "digits", "domains": None})[0].list_domains() == []


def test_samples_that_cannot_be_alike_are_refused(tmp_path: Path) -> None:
    for name, shape in (("a", (9, 4, 6, 6)), ("b", (9, 6, 6)), ("c", (9, 30)), ("d", (9, 30))):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / f"{name}/{name}.npz", x=np.ones(shape, np.float32), y=np.arange(9) % 3)
    data = {"format": "domains", "path": str(tmp_path)}
    refuse(
        data,
        f"domain b: {tmp_path}/b: expected samples like those of domain a, [4, 6, 6] (channels, height, width), "
        "got [1, 6, 6]",
    )
    refuse(
        data | {"domains": ["b", "c"]}, "like those of domain b, [1, 6, 6] (channels, height, width), got [30, 1, 1]"
    )
    assert open_dataset(data | {"domains": ["c", "d"]})[0].shape == (30, 1, 1)


# ---- some of the classes


def test_some_classes_are_kept_in_the_order_they_are_named_in(data: dict[str, Any]) -> None:
    kept = data | {"classes": ["3", "1"]}
    train, test = open_dataset(kept)
    assert train.classes == get_classes(kept) == ("3", "1")
    assert train.count_classes().tolist() == [20, 20]
    assert test.count_classes().tolist() == [6, 6]
    whole, _ = open_dataset(data)
    assert np.array_equal(train.x[train.y == 0][:8], whole.x[whole.y == 3][:8])  # of the first domain
    assert np.array_equal(open_dataset(kept, classes=("1", "2", "3"))[0].y, 2 - 2 * train.y)


def test_classes_that_are_left_out_are_not_even_listed(tmp_path: Path) -> None:
    save_images(tmp_path / "a", names="vwxyz")
    (tmp_path / "a/train/v/subdirectory").mkdir()
    refuse({"format": "imagefolder", "path": str(tmp_path / "a")}, "expected image files in the directory of class 'v'")
    for data in ({"format": "imagefolder", "path": str(tmp_path / "a")}, {"format": "domains", "path": str(tmp_path)}):
        train, test = open_dataset(data | {"classes": ["z", "w"]})
        assert (train.classes, train.count_classes().tolist()) == (("z", "w"), [4, 4])
        assert test.count_classes().tolist() == [2, 2]


@pytest.mark.parametrize("labels", [np.arange(30) % 3, np.array(list("abc"))[np.arange(30) % 3]])
def test_any_source_can_leave_classes_out(tmp_path: Path, labels: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (30, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=labels)
    first, last = str(labels[0]), str(labels[2])
    data = {"format": "npz", "path": str(tmp_path / "a.npz"), "classes": [last, first]}
    train, test = open_dataset(data)
    assert (train.classes, len(train), len(test)) == ((last, first), 16, 4)
    sources = {row.tobytes(): str(label) for row, label in zip(x, labels, strict=True)}
    assert all(sources[image.tobytes()] == train.classes[label] for image, label in zip(train.x, train.y, strict=True))
    refuse(data | {"classes": ["no"]}, f"data.classes: {tmp_path}/a.npz has no class 'no'")


def test_a_class_may_lack_in_a_domain_but_not_in_all(tmp_path: Path) -> None:
    save_named(tmp_path / "a", "xz")
    save_named(tmp_path / "b", "zy")
    data = {"format": "domains", "path": str(tmp_path)}
    assert open_dataset(data | {"classes": ["y", "z"]})[0].count_classes().tolist() == [8, 16]
    refuse(data | {"classes": ["y"]}, f"domain a: {tmp_path}/a: expected a directory for one of data.classes at least")
    refuse(data | {"classes": ["z", "q"]}, f"data.classes: {tmp_path} has no class 'q'")


def save_hospitals(directory: Path) -> dict[str, Any]:
    """Two tables of the same columns in another order, each with further ones."""
    directory.mkdir()
    (directory / "a.csv").write_text(
        "age,id,crp,label\n" + "".join(f"{i % 7},a{i},{i / 8},{i % 2}\n" for i in range(10))
    )
    (directory / "b.csv").write_text(
        "label,crp,age,ward\n" + "".join(f"{i % 2},{i / 4},{i % 5},n\n" for i in range(20))
    )
    return {"format": "domains", "path": str(directory)}


def test_domains_may_be_tables_whose_columns_are_matched_by_name(tmp_path: Path) -> None:
    data = save_hospitals(tmp_path / "hospitals")
    named = TableInput((Column("crp"), Column("age")))
    for table, order in ((None, [0, 1]), (named, [1, 0])):
        train, test = open_dataset(data, table=table)
        assert (train.domains, count(train), count(test)) == (("a.csv", "b.csv"), [8, 16], [2, 4])
        assert train.features == tuple(("age", "crp")[i] for i in order)
        assert sorted(train.passed_over) == ["id", "ward"]
        ages, crps = (train.x[:, i, 0, 0] for i in order)
        assert set((ages[:8] % 1).tolist()) == {0.0}
        assert set(((crps[8:] * 4) % 1).tolist()) == {0.0}
    assert detect_table(data) == [{"name": "age"}, {"name": "crp"}]
    lacking = TableInput((Column("age"), Column("id")))
    with pytest.raises(DataError, match=r"domain b.csv: .*b.csv: expected a column 'id' of genesis"):
        open_dataset(data, table=lacking)


def test_domains_lie_where_they_are_named(tmp_path: Path) -> None:
    data = save_hospitals(tmp_path / "hospitals")
    chosen = {**data, "path": str(tmp_path), "domains": ["hospitals/b.csv", "hospitals/a.csv"]}
    train, _ = open_dataset(chosen)
    assert (train.domains, count(train)) == (("hospitals/b.csv", "hospitals/a.csv"), [16, 8])
    assert train.features == ("crp", "age")
    refuse({**chosen, "domains": ["hospitals/c.csv"]}, "data.domains:")


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_tables_of_several_outputs_are_domains_too(task: str, tmp_path: Path) -> None:
    one = "u,v,f\n" + "".join(f"{i % 2},0,{i}\n" for i in range(10))
    other = "f,v,u\n" + "".join(f"{i},1,{i % 2}\n" for i in range(10))
    (tmp_path / "one.csv").write_text(one)
    (tmp_path / "other.csv").write_text(other)
    data = {"format": "domains", "path": str(tmp_path), "columns": {"label": ["u", "v"]}}
    train, test = open_dataset(data, task=task)
    assert (train.classes, train.domains) == (("u", "v"), ("one.csv", "other.csv"))
    assert (train.y.shape, test.y.shape) == ((16, 2), (4, 2))
    assert (train.y[:, 0] == train.x[:, 0, 0, 0] % 2).all()
    assert train.domain_of is not None
    assert train.y[:, 1].tolist() == train.domain_of.tolist()
    (tmp_path / "other.csv").write_text("f,u,w\n1,0,1\n2,1,1\n")
    with pytest.raises(DataError, match=r"domain other.csv: data.columns.label: .* has no column 'v'"):
        open_dataset(data, task=task)
