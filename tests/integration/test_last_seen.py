"""The last sight of each member, on virtual time: it is known after the node has stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chain.store.interface import SEEN
from chain.store.sqlite import SqliteStore
from support.federation.cluster import cluster
from support.federation.virtual_time import run_virtual


def test_who_was_heard_of_and_when_is_noted_once_a_minute_and_outlives_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=("node0", "node1")) as net:
            began_ms = net["node0"].clock.now_ms()
            await asyncio.sleep(65)
            await net.crash("node1")
            await asyncio.sleep(120)
            await net.crash("node0")
            net.start("node0")
            await asyncio.sleep(65)
            now_ms = net["node0"].clock.now_ms()
            await net.crash("node0")
            with SqliteStore.open(net["node0"].path, net.genesis, readonly=True) as store:
                noted = store.get_meta(SEEN)
            assert now_ms - 60_000 <= noted["at"] <= now_ms
            assert list(noted["members"]) == [net.id("node1").hex()]
            assert began_ms + 55_000 <= noted["members"][net.id("node1").hex()] <= began_ms + 70_000

    run_virtual(story())
