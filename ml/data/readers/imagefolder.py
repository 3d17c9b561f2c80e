"""Directories of images, one for each class: `train/<class>/*.png` and `test/<class>/*.png`, or `<class>/*.png` alone.

Classes are sorted by name, images by file name. A directory without an image is no class. Hidden files, junk and files
without an image's ending are passed over, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ml.data.part import Part, Parts
from ml.data.readers.folders import describe_passed, get_class, is_image, is_junk, list_folders, list_junk
from ml.data.source import ALL, PARENT, DataSource, require_extra
from ml.errors import DataError


def open_parts(source: DataSource) -> Parts:
    """Opens the splits by the names of their directories; classes are those of any split that is used."""
    source.refuse_columns()
    path = source.get_path()
    if not path.is_dir():
        raise DataError(f"{path}: expected a directory with one for each class in it, got a file")
    require_extra("PIL", "pillow")
    folders = list_folders(path)
    if not folders:
        raise DataError(f"{path}: expected a directory for each class, got none")
    may_be_splits = source.group is None  # otherwise a class's directory may contain one for each group
    if list_folders(path / source.train_split) or (may_be_splits and all(map(_is_split, folders))):
        splits = {folder.name: folder for folder in folders if list_folders(folder)}
    else:
        splits = {ALL: path}
    used = [splits[name] for name in (source.train_split, source.test_split or "test") if name in splits] or [path]
    found = {get_class(folder): folder for split in used for folder in list_folders(split)}
    if source.classes is not None:  # other classes' file names are not even read
        classes = tuple(sorted(name for name in found if name in source.classes))
        if not classes:
            raise DataError(f"{path}: expected a directory for one of data.classes at least, got none")
    else:
        classes = tuple(sorted({get_class(folder) for split in used for folder in _list_classes(split)}))
        if not classes:
            raise DataError(f"{used[0]}: expected images in its directories ({', '.join(sorted(found))}), got none")
    open_split = partial(_open_part, classes=classes, source=source)
    return Parts(str(path), {name: partial(open_split, split) for name, split in splits.items()}, classes)


def _open_part(path: Path, classes: tuple[str, ...], source: DataSource) -> Part:
    folders = _name_folders(list_folders(path))
    files: list[Path] = []
    others: list[Path] = []
    labels: list[int] = []
    junk = list_junk(path)
    for label, name in enumerate(classes):
        if name in folders:
            images, passed, own_junk = _list_images(folders[name], is_grouped=source.group is not None)
            if source.group == (PARENT,) and any(file.parent == folders[name] for file in images):
                raise DataError(
                    f"data.group: {PARENT}: expected a folder for each group in {folders[name]}, got images"
                )
            files += images
            others += passed
            junk += own_junk
            labels += [label] * len(images)
    if not files:
        raise DataError(f"{path}: expected images in its directories ({', '.join(classes)}), got none")
    empty = [folder for name, folder in folders.items() if source.classes is None and name not in classes]
    for folder in empty:
        others += [file for file in folder.iterdir() if not file.name.startswith(".")]
    return Part.of_images(
        str(path),
        np.array(labels, np.int64),
        lambda: files.__getitem__,
        lambda i: str(files[i]),
        source.images,
        paths=[file.relative_to(path).as_posix() for file in files],
        notes=tuple(describe_passed(path, junk, empty, others)),
    )


def _name_folders(folders: Sequence[Path]) -> Mapping[str, Path]:
    """Returns the directories by the classes they stand for. Raises DataError for two of one class."""
    named: dict[str, Path] = {}
    for folder in folders:
        name = get_class(folder)
        if name in named:
            raise DataError(
                f"{folder}: expected one directory of class {name!r}, whose name looks the same as another's"
            )
        named[name] = folder
    return named


def _list_images(folder: Path, *, is_grouped: bool) -> tuple[list[Path], list[Path], list[Path]]:
    """Returns the images of a class, other files, and directories that are junk. Where samples are grouped, a class may
    have folders of its own; any other directory raises DataError."""
    images, others, junk = list[Path](), list[Path](), list[Path]()
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            (images if is_image(path) else others).append(path)
        elif is_junk(path):
            junk.append(path)
        elif is_grouped:
            for found, own in zip((images, others, junk), _list_images(path, is_grouped=True), strict=True):
                found += own
        else:
            raise DataError(
                f"{path}: expected image files in the directory of class {folder.name!r}, got a directory"
                " (of one patient each? data.group: parent)"
            )
    return images, others, junk


def _list_classes(split: Path) -> list[Path]:
    return [folder for folder in list_folders(split) if _holds_samples(folder)]


def _holds_samples(folder: Path) -> bool:
    """Says whether the directory contains an image, or a directory, which is a group's or a mistake."""
    return _holds_images(folder) or bool(list_folders(folder))


def _is_split(path: Path) -> bool:
    """Says whether this is the directory of a split, as `Train` or `val`, and of no class: it has images only one level
    further down."""
    return not _holds_images(path) and any(_holds_images(folder) for folder in list_folders(path))


def _holds_images(path: Path) -> bool:
    return any(map(is_image, path.iterdir()))
