"""CIFAR in its four published forms, and pickles that want to be more than data."""

from __future__ import annotations

import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml.data import open_dataset
from ml.data.readers.pickles import load_pickle
from ml.errors import DataError

NAMES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = tuple(f"coarse{i}" for i in range(20))
FINE = tuple(f"fine{i}" for i in range(100))
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 3072), np.uint8)


def python_2(value: Any) -> bytes:
    """A pickle as Python 2's cPickle wrote the published batches: protocol 2, text as SHORT_BINSTRING or BINSTRING."""
    return b"\x80\x02" + _push(value) + b"."


def _push(value: Any) -> bytes:
    if isinstance(value, bytes):
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"]" + (b"(" + b"".join(map(_push, value)) + b"e" if value else b"")
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_push, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_push(key) + _push(own) for key, own in value.items()) + b"u"
    assert value.dtype == np.uint8
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _push((0,)) + _push(b"b") + b"tR"
    dtype = (
        b"cnumpy\ndtype\n" + _push((b"u1", 0, 1)) + b"R" + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    return made + b"(K\x01" + _push(value.shape) + dtype + b"\x89" + _push(value.tobytes()) + b"tb"


def save_python_10(path: Path, dump: Any = python_2) -> dict[str, Any]:
    path.mkdir()
    for i in range(1, 6):
        own = slice(2 * i - 2, 2 * i)
        batch = {
            b"batch_label": f"training batch {i} of 5".encode(),
            b"labels": [(2 * i - 2) % 10, (2 * i - 1) % 10],
            b"data": IMAGES[own],
            b"filenames": [b"a.png", b"b.png"],
        }
        (path / f"data_batch_{i}").write_bytes(dump(batch))
    (path / "test_batch").write_bytes(dump({b"labels": [3, 7], b"data": IMAGES[10:], b"filenames": [b"c", b"d"]}))
    names = {b"num_cases_per_batch": 2, b"label_names": [name.encode() for name in NAMES_10], b"num_vis": 3072}
    (path / "batches.meta").write_bytes(dump(names))
    return {"format": "cifar", "path": str(path)}


def save_python_100(path: Path) -> dict[str, Any]:
    path.mkdir()
    for split, own in (("train", slice(0, 10)), ("test", slice(10, 12))):
        count = len(IMAGES[own])
        batch = {b"fine_labels": [9 * i for i in range(count)], b"coarse_labels": list(range(count))}
        (path / split).write_bytes(python_2(batch | {b"data": IMAGES[own]}))
    names = {b"fine_label_names": [name.encode() for name in FINE]}
    (path / "meta").write_bytes(python_2(names | {b"coarse_label_names": [name.encode() for name in COARSE]}))
    return {"format": "cifar", "path": str(path)}


def save_binary_10(path: Path) -> dict[str, Any]:
    path.mkdir()
    for i in range(1, 6):
        records = [bytes([label]) + IMAGES[label].tobytes() for label in (2 * i - 2, 2 * i - 1)]
        (path / f"data_batch_{i}.bin").write_bytes(b"".join(records))
    (path / "test_batch.bin").write_bytes(b"\x03" + IMAGES[10].tobytes() + b"\x07" + IMAGES[11].tobytes())
    (path / "batches.meta.txt").write_text("\n".join(NAMES_10) + "\n\n")
    return {"format": "cifar", "path": str(path)}


def save_binary_100(path: Path) -> dict[str, Any]:
    path.mkdir()
    (path / "train.bin").write_bytes(b"".join(bytes([i, 9 * i]) + IMAGES[i].tobytes() for i in range(10)))
    (path / "test.bin").write_bytes(b"".join(bytes([i - 10, 9 * (i - 10)]) + IMAGES[i].tobytes() for i in (10, 11)))
    (path / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (path / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    return {"format": "cifar", "path": str(path)}


def refuse(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        open_dataset(data)


@pytest.mark.parametrize(
    ("save", "classes", "last"),
    [
        (save_python_10, NAMES_10, 9),
        (save_binary_10, NAMES_10, 9),
        (save_python_100, FINE, 81),
        (save_binary_100, FINE, 81),
    ],
)
def test_every_published_form_gives_the_same_images(
    tmp_path: Path, save: Any, classes: tuple[str, ...], last: int
) -> None:
    train, test = open_dataset(save(tmp_path / "cifar"))
    assert np.array_equal(train.x, IMAGES[:10].reshape(10, 3, 32, 32))
    assert np.array_equal(test.x, IMAGES[10:].reshape(2, 3, 32, 32))
    assert (train.classes, train.y[9], len(test)) == (classes, last, 2)


@pytest.mark.parametrize("save", [save_python_100, save_binary_100])
def test_coarse_labels_are_there_when_asked_for(tmp_path: Path, save: Any) -> None:
    data = save(tmp_path / "cifar")
    train, _ = open_dataset(data | {"columns": {"label": "coarse_labels"}})
    assert (train.classes, train.y.tolist()) == (COARSE, list(range(10)))
    refuse(data | {"columns": {"label": "coarse"}}, "data.columns.label: expected one of fine_labels, coarse_labels")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3])
def test_batches_written_again_by_python_3_are_read(tmp_path: Path, protocol: int) -> None:
    data = save_python_10(tmp_path / "cifar", lambda value: pickle.dumps(value, protocol))
    assert np.array_equal(open_dataset(data)[0].x.reshape(10, 3072), IMAGES[:10])


def test_one_binary_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    train, _ = open_dataset(save_binary_100(tmp_path / "cifar"))
    assert not train.x.flags.owndata
    assert not train.x.flags.writeable
    assert train.x.strides[0] == 3074


@pytest.mark.parametrize(
    ("save", "file", "change", "message"),
    [
        (save_binary_10, "data_batch_2.bin", lambda own: own[:-1], "expected records of 3073 bytes, got 6145 bytes: "),
        (save_binary_10, "data_batch_2.bin", lambda own: own[:-1], "record 1 at byte 3073 has 3072"),
        (save_binary_10, "data_batch_2.bin", lambda own: b"", "no such file, or an empty one"),
        (
            save_binary_10,
            "data_batch_4.bin",
            lambda own: b"\x0a" + own[1:],
            "record 0 at byte 0: expected a label from",
        ),
        (
            save_binary_100,
            "train.bin",
            lambda own: own[:1] + b"\x64" + own[2:],
            "expected a label from 0 to 99, got 100",
        ),
        (save_python_10, "data_batch_3", lambda own: own[: len(own) // 2], "broken after byte "),
        (save_python_10, "test_batch", lambda own: b"\x1f\x8b" + own, "broken after byte 0"),
        (save_python_10, "data_batch_3", lambda own: python_2([1]), "expected a pickled dict, got list"),
        (
            save_python_10,
            "data_batch_3",
            lambda own: python_2({b"labels": [1], b"data": IMAGES[:1, :100]}),
            "data: expected uint8 [N, 3072], got uint8 [1, 100]",
        ),
        (
            save_python_10,
            "data_batch_3",
            lambda own: python_2({b"labels": [1], b"data": IMAGES[:2]}),
            "labels: expected a list of 2 whole numbers",
        ),
        (
            save_python_10,
            "data_batch_3",
            lambda own: python_2({b"labels": [1, 10], b"data": IMAGES[:2]}),
            "labels[1]: expected a label from 0 to 9, got 10",
        ),
        (save_python_10, "batches.meta", lambda own: python_2({b"names": []}), "label_names: expected a list of names"),
    ],
)
def test_a_broken_file_names_itself_and_the_place(
    tmp_path: Path, save: Any, file: str, change: Any, message: str
) -> None:
    data = save(tmp_path / "cifar")
    path = tmp_path / "cifar" / file
    path.write_bytes(change(path.read_bytes()))
    refuse(data, f"{path}: ")
    refuse(data, message)


def test_a_directory_of_something_else_is_said(tmp_path: Path) -> None:
    refuse({"format": "cifar", "path": str(tmp_path)}, f"{tmp_path}: expected data_batch_1 or data_batch_1.bin")


# ---- pickles


class Evil:
    """What every exploit does: have unpickling call something."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def touch(path: str) -> None:
    Path(path).touch()


def hostile(mark: Path) -> dict[str, bytes]:
    """Pickles that would make `mark`, or worse, if anything in them ran."""
    shell = f"touch {mark}"
    array = pickle.dumps(np.zeros(3, np.uint8), 2)
    return {
        "system": pickle.dumps({b"data": Evil(os.system, shell)}, 2),
        "system in protocol 4": pickle.dumps(Evil(os.system, shell), 4),
        "eval": pickle.dumps(Evil(eval, "1"), 0),
        "a function of the test": pickle.dumps(Evil(touch, str(mark)), 2),
        "INST": b"(S'" + shell.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + shell.encode() + b"'\no.",
        "NEWOBJ": b"\x80\x02cnumpy\nndarray\nK\x03\x85\x81.",
        "a persistent reference": b"Psomething\n.",
        "an extension": b"\x80\x02\x82\x01.",
        "an attribute of an allowed module": b"\x80\x02cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        "numpy's own loader": b"\x80\x02cnumpy\nload\nU\x01a\x85R.",
        "an array of objects": array.replace(b"u1", b"O8"),
        "an array of objects by name": pickle.dumps(np.array([{}]), 2),
        "an array larger than its bytes": array.replace(b"K\x03\x85", b"K\x04\x85"),
        "a direct call of ndarray": b"\x80\x02cnumpy\nndarray\nK\x03\x85R.",
        "state for a function": b"\x80\x02cnumpy\ndtype\n}U\x05_makeU\x01asb.",
        "another encoding": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00base64\x86R.",
        "a call of text": b"\x80\x02U\x01aK\x01\x85R.",
        "a memory index without end": b"\x80\x02]r\xff\xff\xff\x7f.",
        "a bytearray without end": b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f.",
        "text longer than the file": b"\x80\x02T\xff\xff\xff\x7fabc.",
        "nothing": b"",
        "no end": b"\x80\x02]",
        "a stack that is empty": b"\x80\x02a.",
        "a number without end": b"L" + b"9" * 5000 + b"L\n.",
    }


@pytest.mark.parametrize("name", hostile(Path("x")))
def test_nothing_in_a_pickle_runs(tmp_path: Path, name: str) -> None:
    mark, path = tmp_path / "mark", tmp_path / "batch"
    path.write_bytes(hostile(mark)[name])
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: "):
        load_pickle(path)
    assert not mark.exists()


def test_what_is_refused_is_named_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}cos\nsystem\nU\x02lsR.")
    with pytest.raises(
        DataError, match=r"byte 3: expected a pickle of arrays, lists and text alone, got a call of 'os.s"
    ):
        load_pickle(path)


def test_a_pickle_cannot_change_what_the_next_one_gets(tmp_path: Path) -> None:
    """BUILD sets attributes of whatever lies on the stack: here of what `dtype` made, and of the maker itself."""
    path = tmp_path / "batch"
    for body in (
        b"cnumpy\ndtype\nN}U\x08__init__U\x01xs\x86b.",
        b"cnumpy\ndtype\nU\x02u1\x85RN}U\x05valueU\x01xs\x86b.",
    ):
        path.write_bytes(b"\x80\x02" + body)
        with pytest.raises(DataError):
            load_pickle(path)
    path.write_bytes(python_2(IMAGES[:2]))
    assert np.array_equal(load_pickle(path), IMAGES[:2])


def is_plain(value: object) -> bool:
    """Numbers, text, bytes and arrays of numbers, also in lists, tuples and dicts; nothing that can act."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case list() | tuple():
            return all(map(is_plain, value))
        case dict():
            return all(map(is_plain, [*value.keys(), *value.values()]))
        case _:
            return type(value) is np.ndarray and value.dtype.kind in "biuf"


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(0, 400))
@example([(287, 44)], 176)  # an array of ",1", which numpy would parse
@example([(340, 134)], 176)  # an array and its state as a pair, where the state should have been set
def test_a_damaged_pickle_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], kept: int
) -> None:
    damaged = bytearray(python_2({b"labels": [1, 2], b"data": IMAGES[:2, :9], b"name": b"a"}))
    for at, value in changes:
        damaged[at % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(damaged[: max(kept, 9)])
    try:
        loaded = load_pickle(path)
    except DataError:
        return
    assert is_plain(loaded)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "<f8", "?"])
def test_arrays_of_numbers_come_back_as_they_were(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(6).reshape(2, 3), np.dtype(dtype), order=order)
    (tmp_path / "a").write_bytes(pickle.dumps({"a": array, "b": [1, "x", b"y", None, True, 2.5]}, 2))
    loaded = load_pickle(tmp_path / "a")
    assert loaded["a"].dtype == array.dtype
    assert np.array_equal(loaded["a"], array)
    assert loaded["b"] == [1, "x", b"y", None, True, 2.5]
