"""A connection that stands and over which nothing comes: it is said at once when the peer counts as silent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual

LONG_S = 120.0


def list_said(net: Cluster, name: str, about: str) -> list[tuple[int, bool, bool | None]]:
    """What `name` has said of its connection with `about`: when, whether it is up, and whether it is silent."""
    service = net[name].service
    assert service is not None
    told = [event for event in service.events.kept if event.kind == "peer"]
    told = [event for event in told if event.data["peer"] == net[about].key.id.hex() and "awaited" not in event.data]
    return [(event.at_ms, event.data["up"], event.data.get("silent")) for event in told]


def test_a_peer_that_falls_silent_is_told_of_within_five_seconds_and_when_it_speaks_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, train_s=1.0) as net:
            await net.wait_for_height(3)
            assert [entry[1:] for entry in list_said(net, "node0", "node3")] == [(True, None)]
            clock, begin_ms = net["node0"].clock, net["node0"].clock.now_ms()
            net.network.cut(net["node3"].key.id, net["node0"].key.id, one_way=True)
            await asyncio.sleep(10.0)
            _, (at_ms, *said) = list_said(net, "node0", "node3")
            assert said == [True, True]
            assert at_ms - begin_ms < 5_000
            assert clock.now_ms() - begin_ms >= 10_000
            assert len(list_said(net, "node3", "node0")) == 1  # which goes on to hear
            net.network.heal()
            await asyncio.sleep(5.0)
            assert [entry[1:] for entry in list_said(net, "node0", "node3")] == [
                (True, None),
                (True, True),
                (True, False),
            ]

    run_virtual(story(), LONG_S)


def test_one_that_goes_is_not_told_of_as_silent(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, train_s=1.0) as net:
            await net.wait_for_height(3)
            net.network.cut(net["node3"].key.id, net["node0"].key.id)
            await asyncio.sleep(10.0)
            assert [entry[1:] for entry in list_said(net, "node0", "node3")] == [(True, None), (False, None)]

    run_virtual(story(), LONG_S)
