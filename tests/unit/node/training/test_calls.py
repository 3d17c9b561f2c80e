"""A worker's end of the conversation: when it has time for something else."""

from __future__ import annotations

import socket
import threading

import pytest

from node.training import calls
from node.training.calls import Calls
from node.training.frames import Frame, send_frame


def receive_late(late_s: float, used: list[int]) -> Frame | None:
    """A call that comes so late, to a worker that counts what it does meanwhile."""
    ours, theirs = socket.socketpair()

    def use_time() -> bool:
        used.append(1)
        return True

    with ours, theirs:
        timer = threading.Timer(late_s, send_frame, (theirs, Frame({"call": "apply", "number": 1})))
        timer.start()
        frame = Calls(ours).receive(use_time)
        timer.join()
    return frame


def test_between_calls_that_follow_each_other_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "IDLE_MS", 60_000)
    used: list[int] = []
    frame = receive_late(0.05, used)
    assert frame is not None
    assert (frame.header["call"], used) == ("apply", [])


def test_a_longer_wait_is_made_use_of() -> None:
    used: list[int] = []
    assert receive_late(0.5, used) is not None
    assert used
