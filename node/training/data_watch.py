"""The watch on a site's data: reports where they differ from those of the last rounds, and where their files have
changed since they were read.

`data.json` in the data directory is the fingerprint of the data that was last trained on. It is rewritten when a round
trains on other data.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from ml.data.base import ArrayDataset
from ml.data.fingerprint import Fingerprint, describe_change
from node.errors import NodeError
from node.host.private_file import write_private

DATA_FILE = "data.json"
FORMAT = 1
MAX_LOOKED_AT = 10_000  # files and directories
LONG_S = 0.05  # a look that takes longer is a long one
RESTS = 100.0  # pause after a long look, as a multiple of the time it took

_log = logging.getLogger(__name__)

Stamps = tuple[tuple[str, int, int], ...]  # paths, times of change in ns, sizes


class DataWatch:
    """Watches the data of one worker, which reads them once. `terms` are the run's settings that determine what samples
    become."""

    def __init__(self, data_dir: Path, data: Mapping[str, Any], terms: Mapping[str, Any]) -> None:
        self._path = data_dir / DATA_FILE
        self._terms = sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()
        self._places = [Path(data[key]) for key in ("path", "test") if data.get(key)]
        self._stamps = _look(self._places)
        self._rests_until_s = float("-inf")
        self._read: Fingerprint | None = None
        self._kept = self._load()

    def on_read(self, train: ArrayDataset, test: ArrayDataset) -> None:
        self._read = Fingerprint.of(train, test, self._terms)

    def describe(self, trained_round: int) -> str | None:
        """Describes how the data differ from those that were trained on, up to this round; None where they do not, or
        it is unknown."""
        if self._kept is None or self._read is None:
            return None
        told = describe_change(self._kept, self._read)
        since = f"round {trained_round}" if trained_round else "those trained on before"
        return None if told is None else f"your data differ from {since}: {told}"

    def keep(self) -> None:
        """Notes that a round trains on the data that was read. If that cannot be written, the next start reports no
        change."""
        if self._read is None or self._read == self._kept:
            return
        try:
            told = {"format": FORMAT, **self._read.to_mapping()}
            write_private(self._path, json.dumps(told, sort_keys=True).encode() + b"\n")
        except NodeError as error:
            _log.warning("What was trained on cannot be noted: %s", error)
        self._kept = self._read

    def look_again(self) -> str | None:
        """Reports once that files have changed since they were read. If a look takes long, the next one comes later."""
        began_s = time.monotonic()
        if began_s < self._rests_until_s:
            return None
        stamps = _look(self._places)
        if (took_s := time.monotonic() - began_s) > LONG_S:
            self._rests_until_s = began_s + RESTS * took_s
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        return "the files of your data have changed; training goes on with what was read, until the next start"

    def _load(self) -> Fingerprint | None:
        try:
            told = json.loads(self._path.read_bytes())
            return Fingerprint.from_mapping(told) if told["format"] == FORMAT else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("%s: what was trained on before is not known: %s", self._path, error)
            return None


def _look(places: list[Path]) -> Stamps:
    """Returns the times and sizes of the files, and of a directory's own files and directories."""
    found = []
    for place in places:
        for path in islice(_walk(place), MAX_LOOKED_AT):
            try:
                seen = path.stat()
            except OSError:
                continue
            found.append((str(path), seen.st_mtime_ns, 0 if path.is_dir() else seen.st_size))
    return tuple(found)


def _walk(place: Path) -> Iterator[Path]:
    """Yields the place itself, and for a directory its own files and all directories below it."""
    yield place
    pending = [place] if place.is_dir() else []
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
                yield pending[-1]
            elif folder == place:
                yield Path(entry.path)
