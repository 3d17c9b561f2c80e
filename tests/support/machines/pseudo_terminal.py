"""A command on a pseudo-terminal of its own: it is typed to, resized and signalled, and what it draws is read as text.

    async with PseudoTerminal("status", "--watch", "--config", file) as terminal:
        await terminal.wait_for("height")
        terminal.type("\x03")

What it draws lies in frames, each begun by the cursor's way home; `frame` is the newest.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

WAIT_S = 240.0  # generous, as a loaded machine may be ten times slower than an idle one
POLL_S = 0.05
HOME = "\x1b[H"
ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class PseudoTerminal:
    """Runs `fednode` with these arguments on a terminal of some size."""

    def __init__(
        self, *arguments: object, rows: int = 30, columns: int = 100, environment: Mapping[str, str] | None = None
    ) -> None:
        self._arguments = [sys.executable, "-m", "node.cli", *map(str, arguments)]
        self._size = rows, columns
        self._environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):  # readline sets sizes in pytest-xdist's workers
            self._environment.pop(name, None)
        self._raw = bytearray()

    async def __aenter__(self) -> Self:
        self._master, self._slave = pty.openpty()
        os.set_blocking(self._master, False)
        self._set_size(*self._size)
        self.before: list[Any] = termios.tcgetattr(self._slave)
        self.process = self._start()
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts the command as the first of a session whose terminal it is, so that Ctrl-C and Ctrl-Z reach it."""
        return subprocess.Popen(
            self._arguments,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env=self._environment,
        )

    async def __aexit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        self._set_size(rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    @property
    def written(self) -> str:
        """All that it has written, control sequences included."""
        try:
            while chunk := os.read(self._master, 65536):
                self._raw += chunk
        except (BlockingIOError, OSError):
            pass
        return self._raw.decode(errors="replace")

    @property
    def frame(self) -> str:
        """The newest screen as lines of text."""
        return _CONTROL.sub("", self.written.rpartition(HOME)[2]).replace("\r", "")

    @property
    def after(self) -> list[Any]:
        """The terminal's present settings."""
        return list(termios.tcgetattr(self._slave))

    async def wait_for(self, text: str, *, absent: bool = False) -> str:
        """Waits until the newest screen has this text, or no longer has it. Returns that screen."""
        what = f"{text!r} {'gone' if absent else 'there'}"
        await self.wait_until(lambda: bool(self.frame.strip()) and (text in self.frame) is not absent, what)
        return self.frame

    async def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until `holds` returns true. AssertionError when the command has ended before."""
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline_s, f"not {what}:\n{self.frame}"
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}:\n{self.written}"
            await asyncio.sleep(POLL_S)

    async def wait_for_end(self) -> int:
        """Waits for the end of the command. Returns its exit code."""
        deadline_s = time.monotonic() + WAIT_S
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline_s, f"it has not ended:\n{self.frame}"
            assert self.written is not None  # read on, or a full terminal would block it
            await asyncio.sleep(POLL_S)
        return code


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
