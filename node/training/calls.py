"""A worker's end of the conversation with its daemon: one call at a time, and the messages that end a call early."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ml.errors import Abandoned
from node.training.frames import Frame, FrameError, receive_frame, send_frame
from node.training.progress import Progress

IDLE_MS = 20  # calls often follow each other at once: after this pause there is time for other work


class Calls:
    """Receives the calls of a daemon over `sock`, and answers them."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._has_ended = False
        self._waiting = select.poll()
        self._waiting.register(sock, select.POLLIN)

    def receive(self, use_time: Callable[[], bool] = lambda: False) -> Frame | None:
        """Returns the next call, None at the end. A message to end a call that is already answered is dropped. While no
        call comes, `use_time` is called as long as it has something to do, a little at a time."""
        while not self._has_ended:
            wait_ms = IDLE_MS
            while not self._waiting.poll(wait_ms) and use_time():
                wait_ms = 0
            frame = receive_frame(self._socket)
            if frame is None or frame.header["call"] not in ("cancel", "abandon"):
                return frame
        return None

    def is_cancelled(self, number: int) -> bool:
        """Says whether call `number` was cancelled, or the daemon has gone. Takes a microsecond.

        Raises Abandoned if the call is to stop and keep what it has done.
        """
        while self._waiting.poll(0):
            frame = receive_frame(self._socket)
            if frame is None:
                self._has_ended = True
                return True
            call = frame.header["call"]
            if call not in ("cancel", "abandon"):
                raise FrameError(f"expected calls one at a time, got {call} during call {number}")
            if frame.header["number"] == number:
                if call == "abandon":
                    raise Abandoned(f"call {number} was abandoned")
                return True
        return False

    def report(self, number: int, progress: Progress) -> None:
        """Reports the progress of call `number`."""
        self._send(Frame({"number": number, "progress": asdict(progress)}))

    def answer(self, number: int, header: Mapping[str, Any], attachments: Mapping[str, bytes] | None = None) -> None:
        self._send(Frame({"number": number, **header}, attachments or {}))

    def _send(self, frame: Frame) -> None:
        try:
            send_frame(self._socket, frame)
        except (BrokenPipeError, ConnectionResetError):
            self._has_ended = True
