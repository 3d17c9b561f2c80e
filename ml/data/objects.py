"""Objects: data in a Python program, written as files that the readers of `ml.data.readers` open. So an object is
checked, cut and fitted like any other source, and real nodes, which are other processes, can read it.

    (x, y)              arrays of numpy or torch, or objects that numpy converts: npz
    {"x": x, "y": y}    by the names of an npz: x and y, or x_train, y_train, x_test, y_test; and classes
    frame               a table of pandas, polars or pyarrow with a column of labels: csv. (frame, "outcome") names that
                        column, (frame, ["a", "b"]) several, (frame, y) has the labels beside it
    Dataset             of torch, or any object that gives (x, y) by index or in turn: npz, written sample by sample
    Dataset             of Hugging Face, or a DatasetDict: hf; (dataset, "outcome") as of a frame
    {"train": one, "test": another}    two of one of these kinds
    [one, another]      one a site, also paths of files and directories: domains

Objects of torch, pandas, polars and datasets are recognised by their attributes, without importing these packages.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ml.data.frames import (
    Columns,
    find_images,
    find_label,
    is_frame,
    is_hub,
    is_table,
    read_columns,
    read_hub,
    write_columns,
)
from ml.errors import DataError

_log = logging.getLogger(__name__)

Array = NDArray[Any]
Sample = tuple[Array, Any]  # x, and y, which is None where there is no label

ARCHIVE, TABLE, LABEL = "data.npz", "train.csv", "label"
EXPECTED = "(x, y), a frame, a Dataset, the path of a file, or a list of these with one a site"
_NPZ = re.compile(r"[xy](_[a-z]+)?|classes")
_SPLITS = ("train", "test", "val", "validation")
_SHOWN_MODES = ("1", "L", "RGB", "I;16", "F")  # of Pillow: whose numbers are what is seen


@dataclass(frozen=True, slots=True)
class Written:
    """The files that were written for an object; `data` is the section of a configuration that reads them. `labels` are
    the columns of a table that were named as labels, `columns` all columns, where these are known."""

    format: str
    path: Path
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def count_sites(given: object) -> int | None:
    """Returns the number of sites that have data of their own; None where the data are to be dealt out."""
    return len(given) if isinstance(given, list) else None


def write_object(given: object, directory: Path, name: str = "data") -> Written:
    """Writes an object into an empty directory. Raises DataError, which refers to the object by `name`."""
    if not isinstance(given, list):
        return _write(given, directory, name)
    if len(given) < 2:
        raise DataError(f"{name}: expected at least 2 sites in a list, got {len(given)}")
    return _write_sites(given, directory, name)


def name_object(text: str, directory: Path, name: str = "data") -> str:
    """Rewrites a message about files in `directory` with the object's own places: `data[1]: row 7`."""
    here, option = re.escape(str(directory)), rf"(?:--data: |domain site\d+: |{re.escape(name)}: )*"
    text = re.sub(rf"{option}{here}/site0*(\d+)(?:/[\w.-]+)?", rf"{name}[\1]", text)
    text = re.sub(rf"{option}{here}(?:/[\w.-]+)?", name, text)
    place = rf"({re.escape(name)}(?:\[\d+\])?)"
    text = re.sub(rf"{place}: (?=\1)", "", text)
    return re.sub(rf"{place}: line (\d+)", lambda found: f"{found[1]}: row {int(found[2]) - 2}", text)


def is_array(given: object) -> bool:
    """Says whether this is an array of numpy or torch, or an object that numpy converts by itself."""
    return hasattr(given, "__array__") and hasattr(given, "shape") and not is_frame(given)


def is_pair(given: object) -> bool:
    """Says whether this is samples and their labels, and not two samples."""
    return isinstance(given, tuple) and len(given) == 2 and (is_array(given[0]) or is_table(given[0]))


def is_dataset(given: object) -> bool:
    """Says whether this returns samples one by one, as a Dataset of torch does."""
    if isinstance(given, str | bytes | list | tuple | Mapping) or is_array(given) or is_table(given):
        return False
    return _is_iterable(given) or (hasattr(given, "__getitem__") and hasattr(given, "__len__"))


# ---- one object


def _write(given: object, folder: Path, place: str) -> Written:
    """Writes the files of one site, or of all. Raises DataError."""
    if is_hub(given) or (is_pair(given) and is_hub(given[0])):  # type: ignore[index]
        return _write_hub(given, folder, place)
    if isinstance(given, Mapping):
        return _write_mapping(given, folder, place)
    if is_table(given) or (is_pair(given) and is_table(given[0])):  # type: ignore[index]
        columns, labels = read_table(given, place)
        write_columns(columns, folder / TABLE)
        return Written("csv", folder, labels, tuple(columns))
    _write_archive({"": given}, folder, place)
    return Written("npz", folder)


def _write_hub(given: Any, folder: Path, place: str) -> Written:
    dataset, names = given if isinstance(given, tuple) else (given, None)
    dataset.save_to_disk(str(folder))
    table = next(iter(dataset.values())) if isinstance(dataset, Mapping) else dataset
    labels = () if names is None else _read_names(names, place)
    if find_images(table) is not None:
        return Written("hf", folder, labels)
    found = find_label(table, None)
    return Written("hf", folder, labels or ((found,) if found is not None else ()), tuple(table.column_names))


def _write_mapping(given: Mapping[Any, Any], folder: Path, place: str) -> Written:
    """Writes arrays by an npz' own names, or splits."""
    names = [str(name) for name in given]
    if names and all(map(_NPZ.fullmatch, names)):
        with zipfile.ZipFile(folder / ARCHIVE, "w") as archive:
            for name in names:
                _write_member(archive, name, given[name], f"{place}[{name!r}]")
        return Written("npz", folder)
    if "train" not in names or not set(names) <= set(_SPLITS):
        raise DataError(
            f"{place}: expected the keys x and y, or x_train, y_train, x_test and y_test, or train and test, got "
            f"{', '.join(names) or 'none'}"
        )
    splits = {name: given[name] for name in names}
    if all(map(is_hub, splits.values())):
        written = [_write_hub(split, folder / name, f"{place}[{name!r}]") for name, split in splits.items()]
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}))
        return replace(written[0], path=folder)
    if not any(is_table(split) or (is_pair(split) and is_table(split[0])) for split in splits.values()):
        _write_archive({f"_{name}": split for name, split in splits.items()}, folder, place)
        return Written("npz", folder)
    first, labels = read_table(splits["train"], f"{place}['train']")
    for name, split in splits.items():
        columns, _ = read_table(split, f"{place}[{name!r}]")
        write_columns(_match(columns, first, f"{place}[{name!r}]", f"{place}['train']"), folder / f"{name}.csv")
    return Written("csv", folder, labels, tuple(first))


def read_table(given: Any, place: str) -> tuple[Columns, tuple[str, ...]]:
    """Returns the columns of a frame, with labels that were passed beside it, and the columns that are named as labels,
    if any. Raises DataError."""
    frame, y = given if isinstance(given, tuple) else (given, None)
    columns = read_columns(frame, place)
    if y is None:
        return columns, ()
    if isinstance(y, str) or (isinstance(y, list) and all(isinstance(name, str) and name in columns for name in y)):
        names = _read_names(y, place)
        for name in names:
            if name not in columns:
                raise DataError(f"{place}: expected a column {name!r} of labels, got {', '.join(columns)}")
        return columns, names
    return _add_labels(columns, frame, y, place)


def _add_labels(columns: Columns, frame: Any, y: Any, place: str) -> tuple[Columns, tuple[str, ...]]:
    if hasattr(y, "iloc") and hasattr(frame, "iloc") and not frame.index.equals(y.index):
        raise DataError(f"{place}: expected labels with the frame's own index, got others")
    if is_frame(y):
        added = read_columns(y, f"{place}: labels")
    else:
        name = getattr(y, "name", None)
        added = {name if isinstance(name, str) and name else LABEL: to_array(y, f"{place}: labels").tolist()}
    num_rows = len(next(iter(columns.values())))
    for name, cells in added.items():
        if name in columns:
            raise DataError(f"{place}: expected labels in the frame or beside it, got a column {name!r} in both")
        if len(cells) != num_rows:
            raise DataError(f"{place}: expected a label for each of {num_rows} rows, got {len(cells)}")
    return {**columns, **added}, tuple(added)


def _read_names(names: Any, place: str) -> tuple[str, ...]:
    """Returns the columns of labels, named by a text or a list of texts."""
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise DataError(f"{place}: expected the name of the column of labels beside a Dataset, got {names!r}")
    return tuple(listed)


# ---- one a site


def _write_sites(given: Sequence[object], directory: Path, name: str) -> Written:
    """Writes a directory for each site. Tables get the columns of the first one, in its order."""
    first: Columns | None = None
    written: list[Written] = []
    for i, site in enumerate(given):
        folder, place = directory / f"site{i:0{len(str(len(given) - 1))}}", f"{name}[{i}]"
        if isinstance(site, str | PathLike):
            _link(Path(site), folder, place)
            continue
        folder.mkdir()
        if isinstance(site, list):
            raise DataError(f"{place}: expected {EXPECTED.partition(', or a list')[0]}, got a list")
        if is_frame(site) or (is_pair(site) and is_frame(site[0])):  # type: ignore[index]
            columns, labels = read_table(site, place)
            first = columns if first is None else first
            write_columns(_match(columns, first, place, f"{name}[0]"), folder / TABLE)
            written.append(Written("csv", folder, labels, tuple(columns)))
        else:
            written.append(_write(site, folder, place))
    if len(named := {", ".join(one.labels) or "none" for one in written}) > 1:
        shown = " and ".join(sorted(named))
        raise DataError(f"{name}: expected one name of the column of labels at all sites, got {shown}")
    if not written or len(written) < len(given) or not all(one.columns for one in written):
        return Written("domains", directory, written[0].labels if written else ())
    return replace(written[0], format="domains", path=directory)


def _link(path: Path, folder: Path, place: str) -> None:
    if not path.exists():
        raise DataError(f"{place}: {path}: no such file or directory")
    if path.is_dir():
        folder.symlink_to(path.absolute())
        return
    folder.mkdir()
    (folder / (TABLE if path.suffix == ".csv" else path.name)).symlink_to(path.absolute())


def _match(columns: Columns, first: Columns, place: str, first_place: str) -> Columns:
    """Returns another table's columns in the order of the first table's names. Raises DataError for names that it
    lacks."""
    if missing := [name for name in first if name not in columns]:
        raise DataError(f"{place}: expected the columns of {first_place}, got none called {', '.join(missing)}")
    if further := [name for name in columns if name not in first]:
        _log.warning("%s: passed over, as %s has no such columns: %s", place, first_place, ", ".join(further))
    return {name: columns[name] for name in first}


# ---- arrays and samples


def to_array(given: Any, place: str) -> Array:
    """Converts to an array of numpy; a tensor of torch may lie on a GPU, and need gradients. Raises DataError."""
    try:
        if callable(getattr(given, "detach", None)):
            tensor = given.detach().cpu()
            return np.asarray(tensor.float() if "bfloat16" in str(tensor.dtype) else tensor)
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{place}: expected an array ({error})") from error
    return array


def iterate_samples(given: Any, place: str, label: str | None = None) -> Iterator[Sample]:
    """Yields the samples of a Dataset, in its order; for Hugging Face's images with the labels in column `label`.
    Raises DataError for an item that is neither (x, y) nor x alone."""
    if image := find_images(given):
        yield from _iterate_images(given, image, label, place)
        return
    rows = given if _is_iterable(given) else (given[i] for i in range(len(given)))
    for i, row in enumerate(rows):
        x, y = row if isinstance(row, tuple | list) and len(row) == 2 else (row, None)
        if isinstance(x, Mapping | str | tuple):
            raise DataError(f"{place}: sample {i}: expected (x, y), got {_describe(row)}")
        if isinstance(mode := getattr(x, "mode", None), str) and mode not in _SHOWN_MODES:
            raise DataError(f"{place}: sample {i}: expected an image of mode L or RGB, got {mode}: convert it")
        yield to_array(x, f"{place}: sample {i}"), y if y is None or isinstance(y, str) else to_array(y, place)


def _iterate_images(dataset: Any, image: str, label: str | None, place: str) -> Iterator[Sample]:
    """Yields encoded images, decoded by the rules of `ml.data.readers.images`."""
    from ml.data.readers.images import decode_image

    column = find_label(dataset, label)
    if column is None and label is not None:
        raise DataError(f"{place}: expected a column {label!r} of labels, got {', '.join(dataset.column_names)}")
    labels = None if column is None else read_hub(dataset, column)
    encoded = dataset.with_format("arrow")
    for i in range(len(dataset)):
        (cell,) = encoded[i][image].to_pylist()
        x = decode_image(cell["bytes"] or Path(cell["path"]), f"{place}: sample {i}")
        yield x, None if labels is None else labels[i]


def _write_archive(parts: Mapping[str, Any], folder: Path, place: str) -> None:
    """Writes an npz whose members x and y have these endings in their names."""
    classes: list[str] | None = None
    with zipfile.ZipFile(folder / ARCHIVE, "w") as archive:
        for ending, given in parts.items():
            own = f"{place}[{ending[1:]!r}]" if ending else place
            if isinstance(given, tuple) and len(given) == 2 and not is_dataset(given[0]):
                x, y = given
                _write_member(archive, f"x{ending}", x, f"{own}: x")
            elif is_dataset(given):
                y = _write_samples(archive, f"x{ending}", iterate_samples(given, own), folder, own)
                classes = classes or _find_classes(given)
            else:
                raise DataError(f"{own}: expected {EXPECTED}, got {_describe(given)}")
            _write_member(archive, f"y{ending}", y, f"{own}: y")
        if classes is not None:
            _write_member(archive, "classes", classes, f"{place}: classes")


def _write_samples(
    archive: zipfile.ZipFile, name: str, samples: Iterator[Sample], folder: Path, place: str
) -> list[Any]:
    """Writes samples one by one, keeping none in memory, and returns their labels. A member begins with the number of
    samples, which is known only at the end: so they are written to a separate file first."""
    labels: list[Any] = []
    first: Array | None = None
    with tempfile.TemporaryFile(dir=folder) as raw:
        for i, (x, y) in enumerate(samples):
            first = x if first is None else first
            if (x.shape, x.dtype) != (first.shape, first.dtype):
                raise DataError(
                    f"{place}: sample {i}: expected {first.dtype} {list(first.shape)} as sample 0 is, got {x.dtype} "
                    f"{list(x.shape)}"
                )
            if y is None:
                raise DataError(f"{place}: sample {i}: expected (x, y), got no label")
            raw.write(np.ascontiguousarray(x).data)
            labels.append(y.tolist() if isinstance(y, np.ndarray) else y)
        if first is None or first.dtype == object:
            raise DataError(f"{place}: expected samples of numbers, got {'none' if first is None else first.dtype}")
        raw.seek(0)
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            header = {"descr": npy.dtype_to_descr(first.dtype), "fortran_order": False}
            npy.write_array_header_1_0(member, header | {"shape": (len(labels), *first.shape)})
            shutil.copyfileobj(raw, member, 1 << 20)
    return labels


def _write_member(archive: zipfile.ZipFile, name: str, given: Any, place: str) -> None:
    """Writes an array as a member of an archive; texts, which frames keep as objects, as texts. Raises DataError."""
    array = to_array(given, place)
    if array.dtype == object:
        items = array.ravel().tolist()
        if not all(isinstance(one, str) for one in items):
            wrong = min(
                (one for one in items if not isinstance(one, str)), key=lambda one: isinstance(one, int | float)
            )
            raise DataError(f"{place}: expected numbers or texts, got {_describe(wrong)}")
        array = array.astype(np.str_)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        npy.write_array(member, array, allow_pickle=False)


def _find_classes(dataset: Any) -> list[str] | None:
    """Returns the names of a Dataset's classes, or of the Dataset that it is a part of."""
    whole = dataset if hasattr(dataset, "classes") else getattr(dataset, "dataset", None)
    names = getattr(whole, "classes", None)
    is_named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return list(names) if is_named and names else None


def _is_iterable(given: Any) -> bool:
    """Says whether this is a Dataset without an index, as torch's IterableDataset is."""
    return any(kind.__name__ == "IterableDataset" for kind in type(given).__mro__)


def _describe(given: Any) -> str:
    if is_array(given):
        return "an array without labels"
    if hasattr(given, "batch_sampler"):
        return f"a {type(given).__name__}, whose dataset it takes"
    if isinstance(given, tuple) and any(map(is_dataset, given)):
        return "a tuple of Datasets, which are to be called train and test"
    if isinstance(given, str | PathLike | bool | int | float | None):
        return repr(given)
    return f"{'an' if type(given).__name__[0] in 'AEIOUaeiou' else 'a'} {type(given).__name__}"
