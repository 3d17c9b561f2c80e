"""Members that die at a durable step of one of them, and come back on what was durable.

doom = Doom(net, ["node0"], "approval.committed")
net.start("node0", faults=doom)
doom.arm()
...
await doom.wait()
doom.bring_back()
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from node.errors import NodeError
from support.federation.cluster import Cluster


class Killed(NodeError):
    """The process has ended in the middle of a durable step."""


class Doom:
    """The `Faults` of members: after `arm` all of them die when one reaches `step`. Dead members write and send
    nothing."""

    def __init__(self, net: Cluster, names: Sequence[str], step: str) -> None:
        self._died = asyncio.Event()
        self._net = net
        self._names = tuple(names)
        self._step = step
        self._is_armed = False

    def __call__(self, reached: str) -> None:
        if self._is_armed and reached == self._step:
            self._died.set()
            for name in self._names:
                self._net.network.set_down(self._net.id(name))
        if self.is_dead:
            raise Killed(f"{self._names} at {reached}")

    @property
    def is_dead(self) -> bool:
        return self._died.is_set()

    def arm(self) -> None:
        self._is_armed = True

    async def wait(self, timeout_s: float = 60.0) -> None:
        """Waits until they are dead. Others go on meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._died.wait()
        except TimeoutError:
            raise AssertionError(f"{self._names} never came to {self._step}:\n{self._net.describe()}") from None
        for name in self._names:
            await self._net.crash(name)

    def bring_back(self) -> None:
        """Boots them from what is durable; the step does not kill them again."""
        for name in self._names:
            self._net.network.set_up(self._net.id(name))
            self._net.start(name)
