"""A member that is reset in the middle of a round: it catches up, goes on, and contradicts nothing it ever signed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.store.sqlite import SqliteStore
from support.federation.cluster import Cluster, cluster
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


async def reset(net: Cluster, name: str) -> None:
    await net.crash(name)
    SqliteStore.reset(net[name].path)


@pytest.mark.parametrize(
    "wait_s", [0.03, *(pytest.param(ms / 1000, marks=pytest.mark.long) for ms in (0, 15, 45, 60, 75, 90, 105))]
)
def test_a_member_that_is_reset_repeats_itself_or_is_silent(tmp_path: Path, wait_s: float) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 4, network_class=TappedNetwork, seed=7) as net:
            await net.wait_for_height(2)
            until = net["node0"].clock.monotonic() + wait_s
            await net.wait_for(lambda: net["node0"].clock.monotonic() >= until, "a moment of the round")
            await reset(net, "node0")
            net.start("node0")
            height = net["node1"].height
            await net.wait_for_height(height + 4)
            node = net["node0"]
            assert node.store is not None
            assert node.store.get_contribution(height + 4) is not None  # it takes part again
            assert net.check_agreement() >= height + 4
            assert not any(one.store.get_evidence() for one in net.nodes.values() if one.store is not None)
            tap = net.network
            assert isinstance(tap, TappedNetwork)
            tap.check()

    run_virtual(main())


@pytest.mark.long
def test_members_that_are_reset_while_locked_still_finalise(tmp_path: Path) -> None:
    """A lock's block, its blobs and its prevotes outlive a reset."""

    async def main() -> None:
        async with cluster(tmp_path, 4, network_class=TappedNetwork, seed=3) as net:
            await net.wait_for_height(2)
            await net.wait_for(
                lambda: all(
                    node.service is not None
                    and node.service.machine is not None
                    and node.service.machine.voting.lock is not None
                    for node in list(net.nodes.values())[:2]
                ),
                "two members locked",
            )
            height = net["node3"].height
            for name in ("node0", "node1"):
                await reset(net, name)
                net.start(name)
            await net.wait_for_height(height + 3)
            net.check_agreement()
            tap = net.network
            assert isinstance(tap, TappedNetwork)
            tap.check()

    run_virtual(main())
