"""Directories of images, one for each class: `train/<class>/*.png` and `test/<class>/*.png`, or `<class>/*.png` alone.

Classes are sorted by name, images by file name. What is hidden or is no image file by its ending is passed over.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ml.data.readers.images import SUFFIXES
from ml.data.source import ALL, PARENT, DataSource, Part, Parts, require_extra
from ml.errors import DataError


def open_parts(source: DataSource) -> Parts:
    """The splits by the names of their directories; classes are those of any split that is used."""
    source.refuse_columns()
    path = source.get_path()
    if not path.is_dir():
        raise DataError(f"{path}: expected a directory with one for each class in it, got a file")
    require_extra("PIL", "pillow")
    folders = _list_folders(path)
    if not folders:
        raise DataError(f"{path}: expected a directory for each class, got none")
    may_be_splits = source.group is None  # else what lies in a class's directory may be one for each group
    if _list_folders(path / source.train_split) or (may_be_splits and all(map(_is_split, folders))):
        splits = {folder.name: folder for folder in folders if _list_folders(folder)}
    else:
        splits = {ALL: path}
    used = [splits[name] for name in (source.train_split, source.test_split or "test") if name in splits] or [path]
    classes = tuple(sorted({folder.name for split in used for folder in _list_folders(split)}))
    if source.classes is not None:  # of others not even the names of files are read
        classes = tuple(name for name in classes if name in source.classes)
        if not classes:
            raise DataError(f"{path}: expected a directory for one of data.classes at least, got none")
    opened = {name: partial(_open_part, split, classes, source.group) for name, split in splits.items()}
    return Parts(str(path), opened, classes)


def _open_part(path: Path, classes: tuple[str, ...], group: tuple[str, ...] | None) -> Part:
    """Where samples are grouped, a class may have folders of its own."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        own = _list_images(path / name, is_grouped=group is not None) if (path / name).is_dir() else []
        if group == (PARENT,) and any(file.parent == path / name for file in own):
            raise DataError(f"data.group: {PARENT}: expected a folder for each group in {path / name}, got images")
        files += own
        labels += [label] * len(own)
    if not files:
        raise DataError(f"{path}: expected images in its directories ({', '.join(classes)}), got none")

    return Part.of_images(
        str(path),
        np.array(labels, np.int64),
        lambda: files.__getitem__,
        lambda i: str(files[i]),
        paths=[file.relative_to(path).as_posix() for file in files],
    )


def _list_images(folder: Path, *, is_grouped: bool) -> list[Path]:
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            if not is_grouped:
                raise DataError(
                    f"{path}: expected image files in the directory of class {folder.name!r}, got a directory"
                    " (of one patient each? data.group: parent)"
                )
            files += _list_images(path, is_grouped=True)
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            files.append(path)
    return files


def _is_split(path: Path) -> bool:
    """Whether it is the directory of a split, as `Train` or `val`, and of no class: with images one level further down
    alone."""
    return not _holds_images(path) and any(_holds_images(folder) for folder in _list_folders(path))


def _holds_images(path: Path) -> bool:
    return any(file.suffix.lower() in SUFFIXES for file in path.iterdir())


def _list_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
