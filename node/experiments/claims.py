"""Claims on the runs of an experiment, for processes that share a folder and nothing else, as a Slurm array's do.

A claim is a file: NAME.0 of the first who wants a run, and whoever makes it first has it. The owner writes a new count
into it again and again. Another that has seen the same count for long, by its own steady clock, takes the run over by
making NAME.1, which again only one can. So no two clocks are compared, and an owner that was only slow loses nothing
but the work: a run may be done twice, and is then kept once. A process writes and removes its own files alone. Those
of a dead one stay until somebody has the folder to itself.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.errors import NodeError
from node.experiments.pool import Elsewhere

_log = logging.getLogger(__name__)

CLAIMS = "claims"
RENEW_S = 10.0
TAKE_OVER_S = 120.0  # without a new count
LOOK_S = 2.0  # between two looks at what others are at


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest claim on a run when it was last found changed."""

    generation: int
    text: str
    since_s: float


class Claims:
    """Those of one process, in `directory`."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._owner = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        self._held: dict[str, int] = {}  # generations by name
        self._seen: dict[str, _Seen] = {}
        self._count = 0
        self._renewed_s = clock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NodeError(f"{directory}: cannot be written ({error.strerror})") from error

    def __repr__(self) -> str:
        return f"Claims({str(self._directory)!r}, held={sorted(self._held)})"

    def list_newest(self) -> dict[str, int]:
        """The newest generation of each claim that there is, by name. Raises OSError."""
        newest: dict[str, int] = {}
        for path in self._directory.iterdir():
            name, _, generation = path.name.rpartition(".")
            if generation.isdecimal():
                newest[name] = max(newest.get(name, 0), int(generation))
        return newest

    def take(self, name: str, newest: int | None) -> bool:
        """Whether the run is this process's from now on. `newest` is its newest claim as listed, None where there is
        none. Raises OSError."""
        if newest is not None and not self._is_abandoned(name, newest):
            return False
        generation = 0 if newest is None else newest + 1
        try:
            with self._get_path(name, generation).open("x", encoding="utf-8") as file:
                file.write(self._make_text())
        except FileExistsError:
            return False
        if generation:
            _log.warning("%s: took over from %s, silent for %g s", name, self._seen[name].text, TAKE_OVER_S)
        self._held[name] = generation
        return True

    def renew(self) -> None:
        """Says that this process is still there, where it is time to. Without the disk others will think it is not."""
        if self._clock() - self._renewed_s < RENEW_S:
            return
        self._renewed_s, self._count = self._clock(), self._count + 1
        for name in list(self._held):
            try:
                if self._is_own(name):
                    with self._get_path(name, self._held[name]).open("r+", encoding="utf-8") as file:
                        file.write(self._make_text())
                else:
                    del self._held[name]
            except OSError as error:
                _log.warning("claim on %s: cannot be renewed (%s)", name, error.strerror)

    def release(self, name: str) -> None:
        """Gives a run up, done or not."""
        if name not in self._held:
            return
        try:
            if self._is_own(name):
                self._get_path(name, self._held[name]).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("claim on %s: cannot be given up (%s)", name, error.strerror)
        del self._held[name]

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)

    def _is_own(self, name: str) -> bool:
        """Whether the file of a held claim is still this process's. Raises OSError."""
        try:
            text = self._get_path(name, self._held[name]).read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return text.startswith(self._owner)

    def _is_abandoned(self, name: str, generation: int) -> bool:
        try:
            text = self._get_path(name, generation).read_text(encoding="utf-8")
        except OSError:  # given up a moment ago
            return False
        seen = self._seen.get(name)
        if seen is None or (seen.generation, seen.text) != (generation, text):
            self._seen[name] = _Seen(generation, text, self._clock())
            return False
        return self._clock() - seen.since_s >= TAKE_OVER_S

    def _get_path(self, name: str, generation: int) -> Path:
        return self._directory / f"{name}.{generation}"

    def _make_text(self) -> str:
        return f"{self._owner} {self._count:012d}"


def remove_claims(directory: Path) -> None:
    """Removes those that dead processes have left, where nobody else is at work."""
    for path in directory.glob("*"):
        path.unlink(missing_ok=True)


class SharedPieces:
    """Pieces that other processes take from, too, by the names they are claimed under. `is_done` says of a name whether
    somebody has done it; `start` is where to begin looking, so that not all want the same."""

    def __init__(
        self,
        pieces: Sequence[Any],
        names: Sequence[str],
        claims: Claims,
        is_done: Callable[[str], bool],
        start: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pieces = pieces
        self._names = names
        self._claims = claims
        self._is_done = is_done
        self._left = [*range(start, len(pieces)), *range(start)]
        self._elsewhere: list[int] = []
        self._clock = clock
        self._next_look_s = -float("inf")

    def __len__(self) -> int:
        return len(self._pieces)

    def take(self) -> tuple[int, Any] | None:
        if self._clock() < self._next_look_s:
            return None
        found = None
        try:
            found = self._look()
        except OSError as error:  # a shared folder that fails for a moment
            _log.warning("claims: none can be made now (%s)", error.strerror)
        if found is None:
            self._next_look_s = self._clock() + LOOK_S
        return found

    def _look(self) -> tuple[int, Any] | None:
        newest = self._claims.list_newest()
        for index in list(self._left):
            name = self._names[index]
            if self._is_done(name):
                self._left.remove(index)
                self._elsewhere.append(index)
            elif self._claims.take(name, newest.get(name)):
                self._left.remove(index)
                if not self._is_done(name):
                    return index, self._pieces[index]
                self._claims.release(name)  # done between the two looks
                self._elsewhere.append(index)
        return None

    def may_come(self) -> bool:
        return bool(self._left)

    def list_news(self) -> Iterable[Elsewhere]:
        found, self._elsewhere = self._elsewhere, []
        return map(Elsewhere, found)
