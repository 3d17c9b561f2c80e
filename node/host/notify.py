"""Notifications to systemd (sd_notify(3)): ready once the node listens, its height meanwhile, alive, stopping.

Each message is a datagram to the socket that systemd names in the environment. Without one nothing is sent, and a
message that cannot be sent is dropped: it must not stop a node.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

STATUS_S = 5.0  # between two notifications


class Notifier:
    """Notifies the socket at `address`, as in NOTIFY_SOCKET; `watchdog_s` is how long systemd waits for a sign of
    life."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        if address is not None and address.startswith("@"):  # a name in the abstract namespace
            self._address = "\0" + address[1:]
        self.pause_s = STATUS_S if watchdog_s is None else min(STATUS_S, watchdog_s / 2)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Notifier:
        micros = env.get("WATCHDOG_USEC", "")
        return cls(env.get("NOTIFY_SOCKET") or None, int(micros) / 1e6 if micros.isdecimal() and int(micros) else None)

    def send(self, *assignments: str) -> None:
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)  # never blocks the event loop
            sender.sendto("\n".join(assignments).encode(), self._address)

    @asynccontextmanager
    async def telling(self, ready: Callable[[], Awaitable[object]], describe: Callable[[], str]) -> AsyncIterator[None]:
        """Notifies systemd while the body runs: READY=1 after `ready`, then STATUS from `describe`, and WATCHDOG=1 for
        as long as the event loop runs; STOPPING=1 at the end."""
        task = asyncio.create_task(self._tell(ready, describe), name="notify")
        try:
            yield
        finally:
            task.cancel()
            self.send("STOPPING=1")

    async def _tell(self, ready: Callable[[], Awaitable[object]], describe: Callable[[], str]) -> None:
        if self._address is None:
            return
        await ready()
        self.send("READY=1", f"STATUS={describe()}")
        while True:
            await asyncio.sleep(self.pause_s)
            self.send("WATCHDOG=1", f"STATUS={describe()}")
