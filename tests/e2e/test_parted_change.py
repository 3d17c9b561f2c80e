"""Four sites, each on a host of its own, that are parted while a change is being approved: together it is executed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from support.federation.real_nodes import Federation, make_federation, run_command
from support.machines import namespaces
from support.machines.namespaces import ADDRESS, lan

OBSTACLE = namespaces.find_obstacle()
HOLD_S = 5.0  # how long the parted are watched

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}"),
]


async def say(nodes: Federation, name: str, *words: str) -> str:
    done = await asyncio.to_thread(run_command, *words, "-c", nodes.nodes[name].node.config_file)
    assert done.code == 0, f"{name}: fednode {words}: {done.err}"
    return done.out


async def list_open(nodes: Federation, name: str) -> list[str]:
    return [each["id"] for each in json.loads(await say(nodes, name, "proposals", "--json"))["proposals"]]


async def wait_for_open(nodes: Federation, change: str, *names: str, is_open: bool) -> None:
    async with asyncio.timeout(90):
        for name in names:
            while (change in await list_open(nodes, name)) is not is_open:  # noqa: ASYNC110 (of another process)
                await asyncio.sleep(0.2)


def read_collect_s(place: Path) -> list[float]:
    """What each change on the chain of a stopped node has set it to."""
    stored = SqliteStore.stored_genesis(place)
    assert stored is not None
    with SqliteStore.open(place, Genesis.from_mapping(stored), readonly=True) as store:
        heights = store.get_change_heights(1, store.head_height)
        return [store.get_state(height).rules.waits.collect_s for height in heights]


async def test_a_change_that_two_and_two_approve_apart_is_executed_on_all_once_they_are_together(
    tmp_path: Path,
) -> None:
    directory = make_federation(
        tmp_path / "net", num_nodes=4, host=ADDRESS, rounds=0, difficulty=4096, settings=("local_iterations=5",)
    )
    with lan(4) as net:
        async with Federation(directory, {f"node{host.index}": host.enter for host in net}) as nodes:
            await nodes.start()
            await nodes.wait_until_ready()
            await nodes.wait_for_height(2)
            proposed = await say(nodes, "node0", "propose", "set", "waits.collect_s=5", "--yes", "--json")
            change = json.loads(proposed)["id"]
            await wait_for_open(nodes, change, *nodes.names, is_open=True)
            net.partition([net[0], net[1]], [net[2], net[3]])
            for name in ("node1", "node2", "node3"):
                await say(nodes, name, "approve", change[:8])
            await asyncio.sleep(HOLD_S)
            for name in nodes.names:  # three have approved, and nobody knows
                assert change in await list_open(nodes, name)
            net.heal()
            await wait_for_open(nodes, change, *nodes.names, is_open=False)
            height = max(status["height"] for status in (await nodes.get_statuses()).values())
            await nodes.wait_for_height(height + 2)
            await nodes.check_agreement()
            assert [await nodes.stop(name) for name in nodes.names] == [0] * 4
            for name in nodes.names:
                place = nodes.get_data_dir(name)
                verified = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", place)
                assert verified.code == 0, verified.err
                assert read_collect_s(place) == [5.0]
