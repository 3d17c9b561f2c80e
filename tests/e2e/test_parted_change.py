"""Sites on hosts of their own, parted while they change their federation: once they are together it is executed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.testnet.cluster import NodeProcess
from support.federation.operators import (
    approve,
    get_proposal,
    get_since,
    init_newcomer,
    is_open,
    propose,
    read_change_heights,
    wait_until_newcomer_is_ready,
    wait_until_open,
    wait_until_over,
)
from support.federation.real_nodes import Federation, make_federation, run_command
from support.machines import namespaces
from support.machines.namespaces import ADDRESS, Host, lan

OBSTACLE = namespaces.find_obstacle()
HOLD_S = 5.0  # how long the parted are watched
JOINER = "node4"
WITHIN_HEIGHTS = 3  # a member contributes once its worker is ready

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}"),
]


@asynccontextmanager
async def spread(path: Path, hosts: Sequence[Host], difficulty: int = 4096) -> AsyncIterator[Federation]:
    """A member on each host, up and at height 2."""
    directory = make_federation(
        path / "net", num_nodes=4, host=ADDRESS, rounds=0, difficulty=difficulty, settings=("local_iterations=5",)
    )
    async with Federation(directory, {f"node{host.index}": host.enter for host in hosts}) as nodes:
        await nodes.start()
        await nodes.wait_until_ready()
        await nodes.wait_for_height(2)
        yield nodes


async def go_on(nodes: Federation, heights: int, *names: str) -> None:
    """Until these, or all, have so many blocks more than anybody has."""
    height = max(status["height"] for status in (await nodes.get_statuses()).values())
    await nodes.wait_for_height(height + heights, *names)


async def check_executed_once(nodes: Federation, changes: Collection[str]) -> dict[str, int]:
    """On all, which have one chain and end by themselves. The height of each change."""
    await nodes.check_agreement()
    assert [await nodes.stop(name) for name in nodes.names] == [0] * len(nodes.names)
    heights: dict[str, int] = {}
    for name in nodes.names:
        place = nodes.get_data_dir(name)
        verified = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", place)
        assert verified.code == 0, verified.err
        for change in changes:
            (height,) = read_change_heights(place, change)
            assert heights.setdefault(change, height) == height
    return heights


@pytest.mark.slow
async def test_a_change_that_two_and_two_approve_apart_is_executed_on_all_once_they_are_together(
    tmp_path: Path,
) -> None:
    with lan(4) as net:
        async with spread(tmp_path, net) as nodes:
            change = await propose(nodes, "node0", "set_rules", rules={"waits.collect_s": 5})
            await wait_until_open(nodes, change)
            net.partition([net[0], net[1]], [net[2], net[3]])
            await approve(nodes, change, "node1", "node2", "node3")
            await asyncio.sleep(HOLD_S)
            for name in nodes.names:  # three have approved, and nobody knows
                assert await is_open(nodes, name, change)
            net.heal()
            await wait_until_over(nodes, change)
            await go_on(nodes, 2)
            await check_executed_once(nodes, [change])


@pytest.mark.long
async def test_a_change_that_is_being_decided_when_two_and_two_are_parted_is_executed_once(tmp_path: Path) -> None:
    """The cut comes at different moments after the last approval: while the block is mined, voted for, or final at
    some. It takes 2^21 hashes, a second or so."""
    with lan(4) as net:
        async with spread(tmp_path, net, difficulty=1 << 21) as nodes:
            changes, caught = [], 0
            for number, wait_s in enumerate((0.0, 0.2, 0.5, 1.0, 1.5, 2.0)):
                rules = {"waits.collect_s": 5 + number}
                changes.append(await propose(nodes, "node0", "set_rules", rules=rules))
                await approve(nodes, changes[-1], "node1", "node2")
                await asyncio.sleep(wait_s)
                net.partition([net[0], net[1]], [net[2], net[3]])
                await asyncio.sleep(HOLD_S)
                waits = [name for name in nodes.names if await is_open(nodes, name, changes[-1])]
                print(f"cut {wait_s:g} s after the last approval: still open at {waits}")
                caught += bool(waits)
                before = await nodes.get_statuses()
                await asyncio.sleep(HOLD_S)
                now = await nodes.get_statuses()
                assert all(now[name]["height"] - before[name]["height"] <= 1 for name in nodes.names)
                net.heal()
                await wait_until_over(nodes, changes[-1])
                await go_on(nodes, 1)
            assert caught > 0, "every cut came after the decision"
            heights = await check_executed_once(nodes, changes)
            assert list(heights.values()) == sorted(heights.values())


@pytest.mark.long
async def test_a_joiner_that_is_parted_when_the_last_approval_comes_joins_once_all_are_together(tmp_path: Path) -> None:
    """It stands ready, and three of four approve: nobody mines that while the three do not see it alive."""
    with lan(5) as net:
        async with spread(tmp_path, net[:4]) as nodes:
            port = nodes.nodes["node0"].node.address.rpartition(":")[2]
            newcomer = await init_newcomer(nodes, JOINER, f"{net[4].address}:{port}", via="node0")
            nodes.nodes[JOINER] = NodeProcess(newcomer.node, via=net[4].enter)
            await nodes.start(JOINER)
            change = await propose(nodes, "node0", "add_member", request=newcomer.request)
            await approve(nodes, change, "node3")
            three = [f"node{i}" for i in range(3)]
            await wait_until_newcomer_is_ready(nodes, change, *three)
            net.partition(net[:3], net[3:])
            await nodes.wait_for(
                lambda now: all(now[name]["members_in_sight"] == 3 for name in three), "node3 to be out of sight"
            )
            await approve(nodes, change, "node1")
            await go_on(nodes, 5, *three)
            for name in three:
                waits = await get_proposal(nodes, name, change)
                assert waits is not None
                assert (waits.missing.before, waits.missing.after) == (0, 0)
            net.heal()
            await wait_until_over(nodes, change)
            since = await get_since(nodes, JOINER)
            await nodes.wait_until_ready(JOINER)  # its worker may take longer than some rounds
            ready = (await nodes.get_status(JOINER))["height"]
            contributed = await nodes.wait_for_contribution(JOINER, since)
            print(
                f"a member from height {since} on, ready at {ready}; its first contribution is in block {contributed}"
            )
            assert contributed <= ready + WITHIN_HEIGHTS
            await go_on(nodes, 2)
            heights = await check_executed_once(nodes, [change])
            assert heights[change] == since
