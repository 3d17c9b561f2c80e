"""A network on loopback that can be cut: each node dials each other by a relay of its own, beside the test's thread.

    with CutNetwork(nodes) as network:  # before the nodes are started: it writes their configurations anew
        network.cut(["alice", "bob"], ["carol"])
        network.heal()

Cut links drop data silently, as where a cable was pulled; data that was on its way arrives once they are mended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from itertools import permutations
from typing import Self

import yaml

from chain.signing import encode_id
from node.addresses import parse_address
from node.testnet.layout import TestnetNode
from support.faults.relay import Relay, relaying


class CutNetwork:
    """The links between `nodes`, each in both directions."""

    def __init__(self, nodes: Sequence[TestnetNode]) -> None:
        self._nodes = nodes
        self._relays: dict[tuple[str, str], Relay] = {}  # by the dialling node and the dialled one
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays")

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        for node in self._nodes:
            config = yaml.safe_load(node.config_file.read_text())
            ways = ((other, self._relays[node.name, other.name]) for other in self._nodes if other is not node)
            config["network"]["peers"] = [f"{encode_id(other.key)}@{relay.address}" for other, relay in ways]
            del config["network"]["advertise"]  # so that no node learns of another route
            node.config_file.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        for one, other in permutations(self._nodes, 2):
            place = parse_address(other.address)
            (self._relays[one.name, other.name],) = await self._stack.enter_async_context(relaying([place]))

    def cut(self, some: Collection[str], others: Collection[str]) -> None:
        for (one, other), relay in self._relays.items():
            if (one in some and other in others) or (one in others and other in some):
                self._loop.call_soon_threadsafe(relay.way.clear)

    def heal(self) -> None:
        for relay in self._relays.values():
            self._loop.call_soon_threadsafe(relay.way.set)
