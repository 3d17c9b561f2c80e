"""The terminal of `fednode top`: keys as they are pressed, a screen of its own, and everything as it was afterwards.

Signals only wake the loop; what they ask for is done there, after the terminal is restored.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

ENDING = (signal.SIGTERM, signal.SIGHUP)
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[Z": "back",
}


def decode_keys(data: bytes) -> list[str]:
    """The keys in what a terminal sent: a character, or the name of one that is none. Unknown ones are left out."""
    keys: list[str] = []
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"\x1b":
            sequence = _take_sequence(data[at:])
            if (name := _SEQUENCES.get(sequence)) is not None:
                keys.append(name)
            at += len(sequence)
            continue
        if 32 <= data[at] < 127:
            keys.append(chr(data[at]))
        elif data[at] == 9:
            keys.append("tab")
        at += 1
    return keys


def _take_sequence(data: bytes) -> bytes:
    """An escape sequence from its beginning to its final byte; the escape alone where there is none."""
    if data[1:2] == b"O":
        return data[:3]
    if data[1:2] != b"[":
        return data[:1]
    for end in range(2, len(data)):
        if 0x40 <= data[end] <= 0x7E:
            return data[: end + 1]
    return data


class Ended(Exception):
    """A signal asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """The terminal on stdin and stdout. `wake` may be called from any thread."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._signal: int | None = None

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def wake(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: it is over
            os.write(self._write_end, b".")

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Signals are heard until it is left: a changed size, Ctrl-Z, and the wish that it end."""
        heard = (*ENDING, signal.SIGWINCH, signal.SIGTSTP)
        before = {number: signal.signal(number, self._on_signal) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGWINCH and self._signal not in ENDING:
            self._signal = number
        self.wake()

    def run(self, draw: Callable[[int, int], Sequence[Text]], on_key: Callable[[str], bool], wait_s: float) -> None:
        """Draws again when it is woken, when a key was pressed, and every `wait_s`; until `on_key` says False.

        Raises Ended for a signal that asks for it, with the terminal restored.
        """
        while self._run_once(draw, on_key, wait_s):
            self._suspend()

    def _run_once(
        self, draw: Callable[[int, int], Sequence[Text]], on_key: Callable[[str], bool], wait_s: float
    ) -> bool:
        """Whether it was Ctrl-Z that ended it."""
        shown: tuple[int, int, Sequence[Text]] | None = None
        with _keys_unbuffered(), Live(console=self.console, screen=True, auto_refresh=False) as live:
            while True:
                if self._signal is not None:
                    break
                width, height = self.console.size
                if (wanted := (width, height, draw(width, height))) != shown:  # over a slow line nothing is sent twice
                    live.update(Group(*wanted[2]), refresh=True)
                    shown = wanted
                ready, _, _ = select.select([sys.stdin, self._read_end], [], [], wait_s)
                if self._read_end in ready:
                    with suppress(BlockingIOError):
                        os.read(self._read_end, 4096)
                if sys.stdin in ready:
                    data = os.read(sys.stdin.fileno(), 256)
                    if not data or not all(map(on_key, decode_keys(data))):
                        return False
        number, self._signal = self._signal, None
        if number in ENDING:
            assert number is not None  # noqa: S101 (it is one of these)
            raise Ended(number)
        return True

    def _suspend(self) -> None:
        """As Ctrl-Z does with every other program; goes on once the shell says so."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)


@contextmanager
def _keys_unbuffered() -> Iterator[None]:
    """Keys come at once and are not shown. Ctrl-C and Ctrl-Z go on to be signals."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
