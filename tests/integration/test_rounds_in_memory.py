"""Whole federations in one process: members train, exchange, mine, vote and apply over the memory transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.difficulty import PERIOD
from node.config.genesis_file import get_genesis_spec
from node.consensus.height.actions import RoundPhase
from support.federation.cluster import ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_members_agree_on_ten_blocks(tmp_path: Path, n: int) -> None:
    async def story() -> None:
        async with cluster(tmp_path, n, rounds=10) as net:
            await net.wait_for_height(10)
            assert net.check_agreement() == 10
            assert all(len(net["node0"].get_block(height).contributions) == n for height in range(1, 11))

    run_virtual(story())


def test_every_member_applies_the_aggregate_that_the_block_names(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = [ScriptedTrainer(i) for i in range(4)]
        async with cluster(tmp_path, 4, rounds=3, trainers=trainers) as net:
            await net.wait_for(lambda: all(3 in trainer.applied for trainer in trainers), "all to have applied round 3")
            for height in (1, 2, 3):
                digest = net["node0"].get_block(height).header.aggregate
                assert net["node0"].store is not None
                expected = net["node0"].store.get_blob(digest)
                assert all(trainer.applied[height] == expected for trainer in trainers)

    run_virtual(story())


def test_when_the_set_rounds_are_done_nodes_keep_serving(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=2, start=["node0", "node1", "node2"]) as net:
            await net.wait_for_height(2, "node0", "node1", "node2")
            net.start("node3")
            await net.wait_for_height(2, "node3")
            assert net.check_agreement() == 2
            assert net["node3"].service is not None
            assert net["node3"].service.is_done

    run_virtual(story())


def test_an_absent_member_costs_one_collect_s_and_then_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=["node0", "node1", "node2"]) as net:
            collect_s = net.genesis.rules.waits.collect_s
            clock = net["node0"].clock
            began_s = clock.monotonic()
            await net.wait_for_height(1, "node0", "node1", "node2")
            assert clock.monotonic() - began_s >= collect_s
            began_s = clock.monotonic()
            await net.wait_for_height(6, "node0", "node1", "node2")
            assert clock.monotonic() - began_s < collect_s

    run_virtual(story())


def test_a_late_member_catches_up_and_contributes(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, start=["node0", "node1", "node2"]) as net:
            await net.wait_for_height(5, "node0", "node1", "node2")
            net.start("node3")
            await net.wait_for_height(5, "node3")

            def contributes() -> bool:
                head = net["node0"].get_block(net["node0"].height)
                return net.id("node3") in {contribution.author for contribution in head.contributions}

            await net.wait_for(contributes, "a block with node3's contribution")
            net.check_agreement()

    run_virtual(story())


def test_a_straggler_is_left_out_and_still_votes(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = [ScriptedTrainer(i, train_s=0.02 if i else 60.0) for i in range(4)]
        async with cluster(tmp_path, 4, trainers=trainers) as net:
            await net.wait_for_height(3)
            for height in (1, 2, 3):
                block = net["node1"].get_block(height)
                assert net.id("node0") not in {contribution.author for contribution in block.contributions}
            assert trainers[0].trained == []
            assert max(trainers[0].applied) >= 2

    run_virtual(story())


def test_two_of_four_finalise_nothing_and_say_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            await net.crash("node2")
            await net.crash("node3")
            service = net["node0"].service
            assert service is not None
            await net.wait_for(lambda: service.stall is not None, "node0 to say that it is stalled")
            assert service.stall == "2 of 4 members in sight, 3 needed; missing node2, node3"
            height = net["node0"].height
            await net.wait_for(lambda: net["node0"].clock.monotonic() > 60, "a minute to pass")
            assert net["node0"].height == height
            net.start("node2")
            await net.wait_for_height(height + 2, "node0", "node1", "node2")
            assert service.stall is None
            net.check_agreement()

    run_virtual(story())


@pytest.mark.parametrize(
    "sides",
    [
        (("node0", "node1"), ("node2", "node3")),
        pytest.param((("node0",), ("node1", "node2", "node3")), marks=pytest.mark.slow),
    ],
)
def test_a_partition_heals_without_two_finalised_blocks(
    tmp_path: Path, sides: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(2)
            before = {name: net[name].height for name in net.nodes}
            net.partition(*sides)
            start_s = net["node0"].clock.monotonic()
            await net.wait_for(lambda: net["node0"].clock.monotonic() > start_s + 30, "half a minute to pass")
            for side in sides:
                for name in side:
                    grew = net[name].height > before[name] + 1
                    assert grew == (len(side) >= net.genesis.state.q), net.describe()
            net.check_agreement()
            net.heal()
            await net.wait_for_height(max(before.values()) + 5)
            net.check_agreement()

    run_virtual(story())


def test_blocks_come_in_spite_of_loss_duplicates_and_reordering(tmp_path: Path) -> None:
    async def story() -> None:
        weather = {"loss": 0.2, "duplicate": 0.2, "latency_s": (0.0, 0.04)}
        async with cluster(tmp_path, 4, seed=7, network=weather) as net:
            await net.wait_for_height(8, timeout_s=600)
            net.check_agreement()

    run_virtual(story())


def test_two_members_that_cannot_reach_each_other_agree_through_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            net.cut("node0", "node1")
            await net.wait_for_height(5)
            net.check_agreement()
            block = net["node2"].get_block(5)
            assert len(block.contributions) == 4

    run_virtual(story())


@pytest.mark.slow
def test_difficulty_follows_the_hash_rate_over_33_blocks(tmp_path: Path) -> None:
    async def story() -> None:
        first = 80_000  # such that hardly a block is mined in no time at all, which tells nothing
        rules = {"difficulty": first, "min": 1, "max": 2**20, "target_ms": 160}
        async with cluster(tmp_path, 3, pow=rules, hash_rate=2_000_000.0, train_s=0.001) as net:
            await net.wait_for_height(2 * PERIOD + 1)
            net.check_agreement()
            found = [net["node0"].get_block(height).header.difficulty for height in range(1, 2 * PERIOD + 2)]
            assert set(found[:PERIOD]) == {first}
            assert found[PERIOD] > first
            assert set(found[PERIOD : 2 * PERIOD]) == {found[PERIOD]}
            assert found[2 * PERIOD] > found[PERIOD]

    run_virtual(story())


def test_the_machine_says_what_this_node_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(
            tmp_path, 4, train_s=0.5, pow={"difficulty": 5000, "min": 1, "max": 2**32, "target_ms": 9}
        ) as net:
            seen: set[RoundPhase] = set()

            def watch() -> bool:
                service = net["node0"].service
                assert service is not None
                if service.machine is not None:
                    seen.add(service.machine.phase)
                return net["node0"].height >= 3

            await net.wait_for(watch, "three blocks")
            assert {RoundPhase.TRAIN, RoundPhase.MINE} <= seen
            assert get_genesis_spec(net.genesis).name == "dfpl"

    run_virtual(story())


@pytest.mark.slow
def test_of_many_members_a_third_may_be_away_and_messages_get_lost(tmp_path: Path) -> None:
    """Where a status goes to some in turn, what one lacks comes all the same, and who is away is noticed."""

    async def story() -> None:
        names = [f"node{i}" for i in range(16)]
        network = {"latency_s": (0.005, 0.015), "loss": 0.05, "fifo": True}
        async with cluster(tmp_path, 22, start=names, network=network, profile="wide") as net:
            await net.wait_for_height(4, *names, timeout_s=600)
            assert net.check_agreement() >= 4
            assert {len(net["node0"].get_block(height).contributions) for height in (2, 3, 4)} == {16}
            assert net["node0"].service is not None
            peers = net["node0"].service.peers
            await net.wait_for(lambda: peers.count_alive_members() == 16, "the six to be out of sight", timeout_s=60)

    run_virtual(story())
