"""A member that dies at one of its durable steps, and comes back on what was durable.

doom = Doom(net, "node0", "approval.committed")
net.start("node0", faults=doom)
doom.arm()
...
await doom.wait()
doom.bring_back()
"""

from __future__ import annotations

import asyncio

from node.errors import NodeError
from support.federation.cluster import Cluster


class Killed(NodeError):
    """The process is gone, in the middle of a durable step."""


class Doom:
    """The `Faults` of one member: from `arm` on it dies when it comes to `step`. The dead write and send nothing."""

    def __init__(self, net: Cluster, name: str, step: str) -> None:
        self._died = asyncio.Event()
        self._net = net
        self._name = name
        self._step = step
        self._is_armed = False

    def __call__(self, reached: str) -> None:
        if self._is_armed and reached == self._step:
            self._died.set()
            self._net.network.set_down(self._net.id(self._name))
        if self.is_dead:
            raise Killed(f"{self._name} at {reached}")

    @property
    def is_dead(self) -> bool:
        return self._died.is_set()

    def arm(self) -> None:
        self._is_armed = True

    async def wait(self, timeout_s: float = 60.0) -> None:
        """Until it is dead. Others go on meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._died.wait()
        except TimeoutError:
            raise AssertionError(f"{self._name} never came to {self._step}:\n{self._net.describe()}") from None
        await self._net.crash(self._name)

    def bring_back(self) -> None:
        """Boots it on what is durable; it does not die of this any more."""
        self._net.network.set_up(self._net.id(self._name))
        self._net.start(self._name)
