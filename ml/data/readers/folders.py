"""Directories of samples: the junk that tools leave in them, and the class that each one stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from unicodedata import normalize

from ml.data.findings import Finding
from ml.data.readers.images import SUFFIXES
from ml.errors import DataError
from ml.text import escape_undecoded

# Directories that archives, file systems, storage devices and tools leave, by their names in lower case.
JUNK = frozenset(
    (
        *("__macosx", "lost+found", "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "recycler"),
        *("system volume information", "__pycache__"),
    )
)
_SHOWN = 5


def list_folders(path: Path) -> list[Path]:
    """Returns the directories in `path`, sorted, without hidden ones and junk; none where it is no directory."""
    return [folder for folder in _list_all(path) if not is_junk(folder)]


def list_junk(path: Path) -> list[Path]:
    """Returns the directories in `path` that tools left there, which hold no samples."""
    return [folder for folder in _list_all(path) if is_junk(folder)]


def is_junk(path: Path) -> bool:
    return path.name.lower() in JUNK


def is_image(path: Path) -> bool:
    """Says whether a file has the name of an image. AppleDouble files, `._scan.png`, are hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def get_class(folder: Path) -> str:
    """Returns the class that a directory stands for, in Unicode's composed form. Raises DataError for a name that
    cannot be spelled alike on other sites."""
    if escape_undecoded(folder.name) != folder.name:
        raise DataError(f"{folder}: expected the name of a class in UTF-8; rename the directory")
    return normalize("NFC", folder.name)


def describe_passed(path: Path, junk: Iterable[Path], empty: Iterable[Path], files: Sequence[Path]) -> list[Finding]:
    """Describes what was passed over below `path`: directories that are junk, or hold no image, and files that are no
    image."""
    found = []
    if names := sorted({folder.name for folder in junk}):
        found.append(Finding("note", f"{path}: passed over {_join(names)}, where no samples are"))
    if names := sorted({folder.name for folder in empty}):
        found.append(Finding("warning", f"{path}: passed over {_join(names)}, without an image"))
    if files:
        counts = Counter(file.suffix.lower() or "without an ending" for file in files)
        said = ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())
        of = ", ".join(sorted(SUFFIXES))
        s = "" if len(files) == 1 else "s"
        found.append(Finding("warning", f"{path}: {len(files)} file{s} passed over: {said}; images end in {of}"))
    return found


def _list_all(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
