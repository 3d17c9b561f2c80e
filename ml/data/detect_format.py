"""Format detection: finds the format of a path by the names of the files in it, for users who name a path alone."""

from __future__ import annotations

from pathlib import Path

from ml.data.published import find_archive_named
from ml.data.readers.csv_dialect import ENDINGS, EXCEL
from ml.data.readers.folders import is_image
from ml.data.readers.medmnist import CLASSES as MEDMNIST
from ml.data.readers.npz import find_archive
from ml.errors import DataError

_BY_SUFFIX = {".npz": "npz", ".parquet": "parquet", ".data": "csv"}
_EXCEL = (".xlsx", ".xlsm", ".xls")
_BY_PATTERN = (
    ("state.json", "hf"),
    ("dataset_dict.json", "hf"),
    ("data_batch_*", "cifar"),
    ("train.bin", "cifar"),
    ("meta", "cifar"),
    ("*_32x32.mat", "svhn"),
    ("*ubyte*", "idx"),
    *((f"*{ending}", "csv") for ending in ENDINGS),
    ("*.parquet", "parquet"),
    ("*/*.parquet", "parquet"),
)

# Directories side by side are domains only if all have names of domains; otherwise they are splits or classes.
_DOMAINS = (
    frozenset({"mnist", "mnistm", "mnist_m", "svhn", "usps", "synth", "syn"}),
    frozenset({"amazon", "caltech", "dslr", "webcam"}),
    frozenset({"clipart", "infograph", "painting", "quickdraw", "real", "sketch"}),
)


def guess_format(path: Path) -> str:
    """Guesses the format: `npz` for `scans.npz`, `imagefolder` for a directory with images two or three levels down,
    `domains` for one with the domains of Digit-5, Office-10 or DomainNet. Raises DataError."""
    archive = find_archive(path)
    if archive != path:
        return guess_format(archive)
    if path.is_file():
        if path.suffix == ".npz" and path.stem.split("_", 1)[0] in MEDMNIST:
            return "medmnist"
        if path.name.lower().endswith(ENDINGS):
            return "csv"
        if path.suffix.lower() in _EXCEL:
            raise DataError(f"{path}: {EXCEL}")
        if path.suffix in _BY_SUFFIX:
            return _BY_SUFFIX[path.suffix]
        if (packed := find_archive_named(path.name)) is not None:
            raise DataError(f"{path}: expected {packed.data_set} unpacked, in a directory {packed.unpacks_to}")
    if path.is_dir() and _holds_domains(path):
        return "domains"
    if path.is_dir() and not (path / "train.csv").is_file() and _holds_images(path, "train/*/*"):
        return "imagefolder"  # even beside a list of the images
    for pattern, name in _BY_PATTERN if path.is_dir() else ():
        if next(path.glob(pattern), None) is not None:
            return name
    if _holds_images(path, "*/*") or _holds_images(path, "*/*/*"):
        return "imagefolder"
    raise DataError(f"{path}: expected FORMAT:PATH, since it does not look like any format")


def _holds_domains(path: Path) -> bool:
    names = {one.name for one in path.iterdir() if one.is_dir() and one.name[0] != "."}
    return len(names) > 1 and any(names <= known for known in _DOMAINS)


def _holds_images(path: Path, pattern: str) -> bool:
    return any(map(is_image, path.glob(pattern)))
