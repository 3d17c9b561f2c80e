"""Format detection: tells the format of a path by the names of the files in it, for users who give a path alone."""

from __future__ import annotations

from pathlib import Path

from ml.data.readers.images import SUFFIXES
from ml.data.readers.medmnist import CLASSES as MEDMNIST
from ml.data.readers.npz import find_archive
from ml.errors import DataError

_BY_SUFFIX = {".npz": "npz", ".csv": "csv", ".parquet": "parquet"}
_BY_PATTERN = (
    ("state.json", "hf"),
    ("dataset_dict.json", "hf"),
    ("data_batch_*", "cifar"),
    ("train.bin", "cifar"),
    ("meta", "cifar"),
    ("*_32x32.mat", "svhn"),
    ("*ubyte*", "idx"),
    ("*.csv", "csv"),
    ("*.parquet", "parquet"),
    ("*/*.parquet", "parquet"),
)


def guess_format(path: Path) -> str:
    """`npz` for `scans.npz`, `imagefolder` for a directory with images two or three levels down. Raises DataError.

    Several domains side by side are not guessed: their directories may as well be those of splits or of classes.
    """
    archive = find_archive(path)
    if archive != path:
        return guess_format(archive)
    if path.is_file():
        if path.suffix == ".npz" and path.stem.split("_", 1)[0] in MEDMNIST:
            return "medmnist"
        if path.suffix in _BY_SUFFIX:
            return _BY_SUFFIX[path.suffix]
    if path.is_dir() and not (path / "train.csv").is_file() and _holds_images(path, "train/*/*"):
        return "imagefolder"  # whatever list of them lies beside
    for pattern, name in _BY_PATTERN if path.is_dir() else ():
        if next(path.glob(pattern), None) is not None:
            return name
    if _holds_images(path, "*/*") or _holds_images(path, "*/*/*"):
        return "imagefolder"
    raise DataError(f"{path}: expected FORMAT:PATH, since it does not look like any format")


def _holds_images(path: Path, pattern: str) -> bool:
    return any(file.suffix.lower() in SUFFIXES for file in path.glob(pattern))
