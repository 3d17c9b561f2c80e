"""The image cache: a site's decoded images in memory-mapped files, so that they may be larger than memory, and a
restart does not decode them again.

    <directory>/<key>.npy     the samples, uint8 or float32 [N, C, H, W], mode 0600
    <directory>/<key>.json    the highest value of 16 bits among them

The key is a digest of everything that the samples are made of: the bytes of every image file in order, the rules, the
shape and type, the decoder's version. So no file here is ever out of date. Files that the current data do not need are
deleted when these are read, and all files once the source is gone. A file is written under another name, whole and
durable, and then renamed. Missing files are made again, and none belongs in a backup.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from ml.data.base import Samples
from ml.data.image_set import ImageSet, Plan
from ml.data.memory import get_free_bytes, show_gb
from ml.data.readers.images import describe_decoder
from ml.errors import DataError

DIRECTORY = "images"  # in a node's data directory
MIN_BYTES = 64 << 20  # fewer are decoded into memory, in seconds
_VERSION = 1  # of the files, and of the fitting of images
_IN_TRAINING = 8  # bytes of memory that a value takes in training: float32, twice
_UNFINISHED = ".part"

_log = logging.getLogger(__name__)


class ImageCache:
    """A directory of decoded images, of at most `max_bytes`; images that take less than `min_bytes` are not kept. A
    cache that `prunes` deletes files that it has not read."""

    def __init__(self, directory: Path, max_bytes: int, *, min_bytes: int = MIN_BYTES, prunes: bool = False) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._prunes = prunes
        self._used: set[str] = set()

    @classmethod
    def of_node(
        cls, data: Mapping[str, Any], data_dir: Path | str | None, *, prunes: bool = False
    ) -> ImageCache | None:
        """Returns the cache of a node with this `data` of its configuration; None where the samples are a part of a
        shared data set, or the data directory does not exist yet, or belongs to another user."""
        path = None if data_dir is None else Path(data_dir)
        if data.get("partition") is not None or path is None or not path.is_dir():
            return None
        if path.stat().st_uid != os.geteuid():
            return None
        return cls(path / DIRECTORY, round(float(data.get("cache_gb", 0)) * 1e9), prunes=prunes)

    def read(self, images: ImageSet, plan: Plan) -> tuple[Samples, float]:
        """Returns the samples, mapped where they are kept, and the highest value of those with 16 bits. Raises
        DataError where there is room for them neither on disk nor in memory, before taking any."""
        if plan.num_bytes < self._min_bytes or not self._max_bytes:
            return images.read(plan)
        key = _compute_key(images, plan)
        self._used.add(key)
        found = self._find(key, plan)
        if found is None:
            self.prune()
            lacking = self._say_lacking(plan)
            if lacking is not None:
                self._validate_memory(images, plan, lacking)
                _log.warning("Decoded %s into memory: %s", images.place, lacking)
                return images.read(plan)
            _log.info("Decoding %d images of %s, which take %s", plan.count, images.place, show_gb(plan.num_bytes))
            self._write(key, images, plan)
            found = self._find(key, plan)
        if found is None:
            raise DataError(f"{self.directory / key}.npy: expected {plan.count} decoded images, got something else")
        return found

    def is_mapped(self, x_NCHW: Samples) -> bool:
        """Says whether samples are mapped from a file and so large that training reads them from there; samples of an
        uncompressed archive can be, too."""
        return isinstance(x_NCHW, np.memmap) and x_NCHW.nbytes >= self._min_bytes

    def forget_lost(self, source: str | Path | None) -> None:
        """Deletes all files, if this cache prunes and the images' source is gone."""
        if self._prunes and source is not None and not Path(source).exists():
            self.clear()

    def prune(self) -> None:
        """Deletes files that this cache has not read, and unfinished files of a writer that was killed, if this cache
        prunes."""
        if not self._prunes:
            return
        for path in self._list():
            if path.suffix == _UNFINISHED:
                _remove_unfinished(path)
            elif path.stem not in self._used:
                path.unlink(missing_ok=True)

    def clear(self) -> int:
        """Deletes all files, and returns the bytes that they took."""
        taken = 0
        for path in self._list():
            taken += path.stat().st_size
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.directory.rmdir()
        return taken

    def _list(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return [path for path in self.directory.iterdir() if path.suffix in (".npy", ".json", _UNFINISHED)]

    def _find(self, key: str, plan: Plan) -> tuple[Samples, float] | None:
        """Returns the samples that are kept under this key, None where there are none, or others than planned."""
        try:
            mapped = np.load(self.directory / f"{key}.npy", mmap_mode="r", allow_pickle=False)
            peak = json.loads((self.directory / f"{key}.json").read_text())["peak"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        is_whole = mapped.dtype == plan.dtype and mapped.shape == (plan.count, *plan.shape)
        return (mapped, float(peak)) if is_whole else None

    def _say_lacking(self, plan: Plan) -> str | None:
        """Returns the reason why there is no room on disk, None where there is room."""
        kept = sum(path.stat().st_size for path in self._list())
        if kept + plan.num_bytes > self._max_bytes:
            more = f", {show_gb(kept)} of which are taken" if kept else ""
            return f"data.cache_gb allows {show_gb(self._max_bytes)}{more}"
        above = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        free = shutil.disk_usage(above).free
        return None if plan.num_bytes <= free else f"{show_gb(free)} are free in {above}"

    def _validate_memory(self, images: ImageSet, plan: Plan, lacking: str) -> None:
        free, needed = get_free_bytes(), plan.num_bytes + _IN_TRAINING * plan.num_bytes // plan.dtype.itemsize
        if free is not None and needed > free:
            raise DataError(
                f"{images.place}: {plan.count:,} images made {list(plan.shape)} need {show_gb(plan.num_bytes)} on "
                f"disk, and {lacking}; in memory they need {show_gb(needed)}, and {show_gb(free)} are free"
            )

    def _write(self, key: str, images: ImageSet, plan: Plan) -> None:
        """Writes the samples. Raises DataError, and then leaves no file."""
        highest = 0.0
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._written(f"{key}.npy") as file:
                header = {"descr": npy.dtype_to_descr(plan.dtype), "fortran_order": False}
                npy.write_array_header_1_0(file, {**header, "shape": (plan.count, *plan.shape)})
                os.posix_fallocate(file.fileno(), 0, file.tell() + plan.num_bytes)
                for image, peak in images.decode(plan):
                    file.write(np.ascontiguousarray(np.broadcast_to(image, (1, *plan.shape))).data)
                    highest = max(highest, peak)
                with self._written(f"{key}.json") as beside:
                    beside.write(json.dumps({"peak": highest}).encode())
        except OSError as error:
            needed = show_gb(plan.num_bytes)
            raise DataError(
                f"{self.directory}: cannot be written ({error.strerror or error}); needs {needed}"
            ) from error

    @contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file that gets this name once the context ends without an error."""
        descriptor, text = tempfile.mkstemp(prefix=f"{name}.", suffix=_UNFINISHED, dir=self.directory)  # of mode 0600
        path = Path(text)
        try:
            with open(descriptor, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
                file.flush()
                os.fsync(file.fileno())
                path.replace(self.directory / name)
        finally:
            path.unlink(missing_ok=True)


def _compute_key(images: ImageSet, plan: Plan) -> str:
    rules = images.rules
    terms = [_VERSION, describe_decoder(), rules.page, rules.white, rules.is_rounded, plan.shape, str(plan.dtype)]
    digest = sha256(json.dumps(terms).encode())
    get_encoded = images.open_encoded()
    for i, row in enumerate(images.rows.tolist()):
        encoded = get_encoded(row)
        try:
            digest.update(sha256(encoded if isinstance(encoded, bytes) else encoded.read_bytes()).digest())
        except OSError as error:
            raise DataError(f"{images.locate(i)}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()


def _remove_unfinished(path: Path) -> None:
    """Deletes an unfinished file, unless a process is writing it."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
