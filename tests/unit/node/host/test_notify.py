"""Notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node.host import notify
from node.host.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The end that systemd would listen at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        yield listener


def receive(systemd: socket.socket) -> list[str]:
    return systemd.recv(4096).decode().split("\n")


async def hear(systemd: socket.socket) -> list[str]:
    return await asyncio.to_thread(receive, systemd)


async def test_ready_is_said_once_the_node_listens_then_its_height_and_that_it_stops(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "STATUS_S", 0.01)
    listening, heights = asyncio.Event(), iter(range(1000))
    notifier = Notifier.from_env({"NOTIFY_SOCKET": systemd.getsockname()})
    async with notifier.telling(listening.wait, lambda: f"height {next(heights)}"):
        await asyncio.sleep(0.05)
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)
        systemd.settimeout(10)
        listening.set()
        assert await hear(systemd) == ["READY=1", "STATUS=height 0"]
        assert await hear(systemd) == ["WATCHDOG=1", "STATUS=height 1"]
    while (said := receive(systemd)) != ["STOPPING=1"]:
        assert said[0] == "WATCHDOG=1"


async def test_a_name_in_the_abstract_namespace_is_one(tmp_path: Path) -> None:
    name = f"fednode-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(10)
        Notifier(f"@{name}").send("READY=1")
        assert receive(listener) == ["READY=1"]


@pytest.mark.parametrize(
    ("env", "pause_s"),
    [({}, 5), ({"WATCHDOG_USEC": "4000000"}, 2), ({"WATCHDOG_USEC": "60000000"}, 5), ({"WATCHDOG_USEC": "soon"}, 5)],
)
def test_a_sign_of_life_comes_at_least_twice_within_the_watchdogs_time(env: dict[str, str], pause_s: float) -> None:
    assert Notifier.from_env(env).pause_s == pause_s


async def test_nobody_to_tell_and_nobody_who_listens_are_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready, heights = asyncio.Event(), iter(range(1000))
    ready.set()
    for env in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        async with Notifier.from_env(env).telling(ready.wait, lambda: f"height {next(heights)}"):
            await asyncio.sleep(0.01)
    assert next(heights) == 1  # it was said once, into the socket that is gone
    assert caplog.messages == []


@pytest.mark.timeout(30)
def test_a_full_socket_does_not_hold_the_node_up(systemd: socket.socket) -> None:
    notifier = Notifier(systemd.getsockname())
    for _ in range(1000):  # nobody reads; a socket holds at most 512
        notifier.send("WATCHDOG=1")
    systemd.setblocking(False)
    kept = 0
    with suppress(BlockingIOError):
        while systemd.recv(4096) == b"WATCHDOG=1":
            kept += 1
    assert 0 < kept < 1000  # the others were dropped, and nothing waited
