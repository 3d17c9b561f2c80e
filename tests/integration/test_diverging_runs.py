"""A run in which no site can train: a change ends it, and the next run begins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chain.changes.runs import EndRun
from node.ledger.audit import run_audit
from node.training.trainer import RunTask, Trained, TrainerInfo, TrainingFailed
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.proposing import change, get_service, get_state, wait_for_state, wait_until_over
from support.federation.runs import SCHEMA, start_run
from support.federation.virtual_time import run_virtual


class DivergingTrainer(ScriptedTrainer):
    """Its loss is no number from a round of the first run on."""

    def __init__(self, seed: int, diverges_at: int) -> None:
        super().__init__(seed)
        self._diverges_at = diverges_at
        self._run = 1

    async def start(self, task: RunTask) -> TrainerInfo:
        self._run = task.run.number
        return await super().start(task)

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        if self._run == 1 and height >= self._diverges_at:
            raise TrainingFailed(f"round {height}: the loss is nan")
        return await super().train(height, beacon, **options)


async def end_it_and_begin_anew(net: Cluster, first_round: int) -> None:
    """Nothing is made of that round, however long one waits."""
    await net.wait_for_height(first_round - 1)
    await net.wait_for(lambda: get_service(net, "node0").stall is not None, "it to say so", timeout_s=600.0)
    assert {node.height for node in net.nodes.values()} == {first_round - 1}
    await change(net, EndRun(1))
    await wait_for_state(net, "its end", lambda state: state.run.is_ended)
    assert all(get_service(net, name).is_done for name in net.nodes)
    await net.wait_for(lambda: all(get_service(net, name).stall is None for name in net.nodes), "no stall", timeout_s=5)
    await change(net, start_run(get_state(net, "node0").run, rounds=3))
    await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
    await wait_until_over(net)
    assert {node.height for node in net.nodes.values()} == {first_round - 1 + 2 + 3}
    net.check_agreement()
    for node in net.nodes.values():
        assert node.store is not None
        report = run_audit(net.genesis, node.store, deep=True)
        assert report.ok, report.fault


@pytest.mark.parametrize("first_round", [1, 3])
def test_a_run_that_diverges_everywhere_is_ended_and_the_next_begins(tmp_path: Path, first_round: int) -> None:
    async def story() -> None:
        trainers = [DivergingTrainer(i, first_round) for i in range(4)]
        async with cluster(tmp_path, 4, trainers=trainers, schema=SCHEMA) as net:
            await end_it_and_begin_anew(net, first_round)
            assert [trainer.trained[-3:] for trainer in trainers] == [[1, 2, 3]] * 4

    run_virtual(story())


def test_a_run_in_which_all_abstain_is_ended_and_the_next_begins(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, schema=SCHEMA) as net:
            await net.wait_for_height(2)
            for name in net.nodes:
                get_service(net, name).participation.is_paused = True
            await asyncio.sleep(60.0)
            height = net["node0"].height
            for name in net.nodes:
                assert net[name].height == height
            await change(net, EndRun(1))
            await wait_for_state(net, "its end", lambda state: state.run.is_ended)
            await change(net, start_run(get_state(net, "node0").run, rounds=3))
            await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
            for name in net.nodes:
                get_service(net, name).participation.is_paused = False
                await get_service(net, name).resume()
            await wait_until_over(net)
            assert {node.height for node in net.nodes.values()} == {height + 2 + 3}
            net.check_agreement()

    run_virtual(story())
