"""The published files of the data sets that the papers use, by digest: they show whether a file here is the same as
everywhere.

The SHA-256 of MNIST's, Fashion-MNIST's and SVHN's files are those in torchvision (`prototype/datasets`), of CIFAR's
archives those in Keras. The MD5 of CIFAR's unpacked files and of USPS are torchvision's, of PathMNIST medmnist's. Data
sets without a digest from a reliable source (Office-10, DomainNet, the other two of Digit-5) have none here. The
SHA-256 of the contents of Fashion-MNIST's archives are those of Debian's package dataset-fashion-mnist, which
compresses them again.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MNIST, FASHION, CIFAR_10, CIFAR_100 = "MNIST", "Fashion-MNIST", "CIFAR-10", "CIFAR-100"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of a published data set, by its name and its digest: MD5 if that has 32 digits, else SHA-256. `held` is
    the SHA-256 of the content of a .gz, however it was compressed. `unpacks_to` is the directory that an archive is to
    be unpacked to."""

    data_set: str
    name: str
    digest: str
    unpacks_to: str | None = None
    held: str | None = None

    @property
    def algorithm(self) -> str:
        return "MD5" if len(self.digest) == 32 else "SHA-256"


_DIGESTS = {
    MNIST: {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    FASHION: {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    CIFAR_10: {
        "cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    CIFAR_100: {
        "cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
    "SVHN": {
        "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    },
    "PathMNIST": {"pathmnist.npz": "a8b06965200029087d5bd730944a56c1"},
    "USPS": {"usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197", "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118"},
}
_HELD = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}  # of Fashion-MNIST's
_UNPACKED = {"cifar-10-python.tar.gz": "cifar-10-batches-py", "cifar-100-python.tar.gz": "cifar-100-python"}

PUBLISHED = tuple(
    PublishedFile(data_set, name, digest, _UNPACKED.get(name), _HELD[name] if data_set == FASHION else None)
    for data_set, digests in _DIGESTS.items()
    for name, digest in digests.items()
)

_SETS_BY_FORMAT = {
    "idx": (MNIST, FASHION),
    "cifar": (CIFAR_10, CIFAR_100),
    "svhn": ("SVHN",),
    "medmnist": ("PathMNIST",),
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """A file with the name of a published one. `data_set` is the data set that it has the bytes of, None for other
    bytes; a .gz that `is_repacked` has the published content, compressed again."""

    path: Path
    data_set: str | None
    expected: tuple[str, ...]
    is_repacked: bool = False


def recognise(format_: str, path: Path) -> list[Recognised]:
    """Returns the files of a data set in this format that have the names of published ones, in their order. Raises
    OSError."""
    known: dict[str, list[PublishedFile]] = {}
    for file in PUBLISHED:
        if file.data_set in _SETS_BY_FORMAT.get(format_, ()) and file.unpacks_to is None:
            known.setdefault(file.name, []).append(file)
    directory, names = (path.parent, [path.name]) if path.is_file() else (path, list(known))
    return [_compare(directory / name, known[name]) for name in names if name in known and (directory / name).is_file()]


def find_archive_named(name: str) -> PublishedFile | None:
    """Returns the published archive of that name, which is to be unpacked."""
    return next((file for file in PUBLISHED if file.name == name and file.unpacks_to is not None), None)


def _compare(path: Path, candidates: Iterable[PublishedFile]) -> Recognised:
    files = list(candidates)
    expected = tuple(file.data_set for file in files)
    for file in files:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "md5" if file.algorithm == "MD5" else "sha256").hexdigest()
        if digest == file.digest:
            return Recognised(path, file.data_set, expected)
    held = _digest_held(path) if any(file.held for file in files) else None
    found = next((file.data_set for file in files if held is not None and file.held == held), None)
    return Recognised(path, found, expected, found is not None)


def _digest_held(path: Path) -> str | None:
    """Returns the SHA-256 of a .gz's content; None where it is broken."""
    try:
        with gzip.open(path, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return None
