"""Twelve real nodes of which each is connected with its neighbours alone: `network.mesh_max` is 4.

Of the eleven others two or so are no neighbours of a node. There are fewer connections, and no processes, in
`tests/integration/test_neighbours_over_sockets.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.pb import admin_pb2 as pb
from support.federation.dial_out import hide
from support.federation.few_connections import get_neighbours, get_strangers, keep_few, read_connected
from support.federation.real_nodes import Federation, make_federation, run_command
from support.machines import nat
from support.machines.namespaces import ADDRESS
from support.machines.nat import sites

OBSTACLE = nat.find_obstacle()
NUM_NODES = 12
COLLECT_S = 60  # how long a round waits for who is in sight: whoever is not heard by then is left out of its block
LIGHT = ("local_iterations=1", "model.hidden=[1]")  # as good as no training

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@asynccontextmanager
async def started(directory: Path, via: Any = None) -> AsyncIterator[Federation]:
    """All are up. In the end those that run agree, and what they and two others have on disk passes the audit."""
    async with Federation(directory, via) as net:
        await net.start()
        await net.wait_until_ready()
        yield net
        await net.check_agreement()
        names = net.running
        assert await asyncio.gather(*(net.stop(name) for name in names)) == [0] * len(names)
        for name in names[:: len(names) // 3]:
            done = run_command("chain", "verify", "--deep", "--json", "--data-dir", net.get_data_dir(name))
            assert done.code == 0, f"{name}: {done.out}{done.err}"
            assert json.loads(done.out)["ok"]


def make_network(path: Path, *settings: str, num_nodes: int = NUM_NODES, **spec: Any) -> Path:
    made = {"num_nodes": num_nodes, "partition": "iid", "rounds": 0, "difficulty": 1024, **spec}
    return keep_few(make_federation(path / "net", settings=(*settings, f"waits.collect_s={COLLECT_S}"), **made))


async def wait_until_all_contribute(net: Federation) -> int:
    """The height of a block that has everybody's contribution."""
    height = 0
    while True:
        height += 1
        await net.wait_for_height(height)
        if len(await net.read_contributors(net.names[0], height)) == len(net.names):
            return height


async def check_all_contribute(net: Federation, first: int, last: int) -> None:
    for height in range(first, last + 1):
        await net.wait_for_height(height)
        held = await asyncio.gather(*(net.read_contributors(name, height) for name in net.running))
        assert [sorted(names) for names in held] == [sorted(net.names)] * len(held), f"height {height}"


async def test_all_contribute_and_the_others_go_on_without_one_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    async with started(make_network(tmp_path, *LIGHT, method="local")) as net:
        height = await wait_until_all_contribute(net)
        await check_all_contribute(net, height + 1, height + 5)
        assert any(get_strangers(net, name) for name in net.names)
        near = get_neighbours(net)

        async def have_settled() -> bool:
            return {name: await read_connected(net, name) for name in net.names} == near

        await net.wait_until(have_settled, "each connected with its neighbours and nobody else")
        await net.wait_for(
            lambda now: all(status["members_in_sight"] == NUM_NODES for status in now.values()), "all in sight of all"
        )

        victim = max(net.names, key=lambda name: len(get_strangers(net, name)))
        await net.kill(victim)
        height = max(status["height"] for status in (await net.get_statuses()).values())
        await net.wait_for_height(height + 3)
        assert victim not in await net.read_contributors(net.running[0], height + 3)
        await net.start(victim)
        height = await net.wait_for_contribution(victim, height + 3)
        await net.wait_for_height(height)


async def test_models_on_demand_come_also_from_members_that_are_no_neighbours(tmp_path: Path) -> None:
    directory = make_network(tmp_path, "num_peers=2", "input.normalize=none", method="uapdfl")
    async with started(directory) as net:
        strangers = {name: get_strangers(net, name) for name in net.names}
        height, num_far = await wait_until_all_contribute(net), 0
        while num_far < 3:
            height += 1
            await check_all_contribute(net, height, height)
            for name in net.names:
                round_ = await read_applied_round(net, name, height)
                assert not round_.gone, f"{name} at height {height}"
                (own,) = (node for node in round_.peering.nodes if node.name == name)
                taken = {own.donor} if own.branch == "dropout" else set(own.peers)
                num_far += len(taken & strangers[name])


async def read_applied_round(net: Federation, name: str, number: int) -> pb.Round:
    """What a running node has kept of a round, once it has applied it."""
    await net.wait_for(lambda now: (now[name]["applied_round"] or 0) >= number, f"{name} to apply round {number}")
    return await net.ask(name, lambda admin: admin.get_round(number))


@pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces with NAT: {OBSTACLE}")
async def test_two_that_can_only_dial_out_take_part_in_full(tmp_path: Path) -> None:
    """Ten hosts, two of them behind routers, which are no neighbours even where the rings have them so."""
    with sites(10, behind=[8, 9]) as lan:
        directory = make_network(tmp_path, *LIGHT, method="local", num_nodes=10, host=ADDRESS)
        hide(directory, "node8", "node9")
        async with started(directory, {f"node{host.index}": host.enter for host in lan}) as net:
            height = await wait_until_all_contribute(net)
            await check_all_contribute(net, height + 1, height + 5)
            near = get_neighbours(net)
            assert any(get_strangers(net, name) for name in net.names)
            assert await read_connected(net, "node9") >= near["node9"] - {"node8"}
            assert "node8" not in await read_connected(net, "node9")
