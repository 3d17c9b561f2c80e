"""Rounds under a time budget: every member trains what its own machine can in the time that genesis sets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from node.consensus.signing.signer import ITERATIONS
from support.federation.cluster import USUAL_ITERATIONS, Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual


def make_method(budget_s: float | None) -> dict[str, Any]:
    method = {"name": "dfpl", "local_iterations": USUAL_ITERATIONS}
    return method if budget_s is None else {**method, "budget_s": budget_s}


def make_trainers(*alphas_s: float) -> list[ScriptedTrainer]:
    return [ScriptedTrainer(i, alpha_s=alpha_s) for i, alpha_s in enumerate(alphas_s)]


def read_record(net: Cluster, name: str, height: int) -> dict[str, Any]:
    store = net[name].store
    assert store is not None
    record = store.get_round(height)
    assert record is not None, f"{name} has no record of round {height}"
    return record


async def wait_for_records(net: Cluster, height: int) -> None:
    await net.wait_for_height(height)
    await net.wait_for(
        lambda: all(node.store is not None and node.store.get_round(height) for node in net.nodes.values()),
        f"everybody's record of round {height}",
    )


def test_members_of_unlike_speed_spend_the_same_time_and_agree(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = make_trainers(0.03, 0.06, 0.11, 0.13)
        async with cluster(tmp_path, 4, rounds=5, trainers=trainers, method=make_method(2.0)) as net:
            await wait_for_records(net, 5)
            assert net.check_agreement() == 5
            assert [trainer.iterations[1] for trainer in trainers] == [USUAL_ITERATIONS] * 4
            for height in (2, 3, 4, 5):
                for i, trainer in enumerate(trainers):
                    record = read_record(net, f"node{i}", height)
                    assert trainer.iterations[height] == record["train"]["iterations"] > 1
                    left_s = 2.0 - record["train"]["seconds"]
                    assert 0 <= record["beta_s"] < 0.1  # 0 where a candidate came before this node had settled its own
                    assert 0 < left_s < record["train"]["alpha_s"] + 0.1
                assert len(net["node0"].get_block(height).contributions) == 4

    run_virtual(story())


def test_without_a_budget_everybody_trains_the_methods_own_number(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = make_trainers(0.01, 0.02, 0.03)
        async with cluster(tmp_path, 3, rounds=3, trainers=trainers, method=make_method(None)) as net:
            await wait_for_records(net, 3)
            assert all(set(trainer.iterations.values()) == {USUAL_ITERATIONS} for trainer in trainers)
            service = net["node1"].service
            assert service is not None
            assert service.local_work.alpha_s == pytest.approx(0.02)

    run_virtual(story())


def test_one_too_slow_for_the_first_round_is_in_time_for_the_next(tmp_path: Path) -> None:
    """Its first training is never finished; how far it came says how fast it is."""

    async def story() -> None:
        trainers = make_trainers(0.05, 0.05, 0.05, 1.0)
        async with cluster(tmp_path, 4, rounds=3, trainers=trainers, method=make_method(3.0)) as net:
            await net.wait_for_height(3)
            assert 1 not in trainers[3].iterations
            assert trainers[3].iterations[2] == 2
            authors = {contribution.author for contribution in net["node0"].get_block(2).contributions}
            assert net.id("node3") in authors
            net.check_agreement()

    run_virtual(story())


def test_a_time_too_short_for_one_iteration_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        trainers = make_trainers(0.5)
        async with cluster(tmp_path, 1, rounds=6, trainers=trainers, method=make_method(0.1)) as net:
            await net.wait_for_height(6)
            assert [trainers[0].iterations[height] for height in (1, 2, 6)] == [USUAL_ITERATIONS, 1, 1]

    run_virtual(story())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in warnings if "budget_s" in text] == [warnings[0]]
    assert "expected at least one local iteration of 0.5 s; a round trains one" in warnings[0]


def test_a_node_that_starts_again_repeats_the_training_it_has_signed(tmp_path: Path) -> None:
    """Its contribution is durable, the model that came of it is not: the same number of iterations makes it again."""

    async def story() -> None:
        trainers = make_trainers(0.1, 0.1, 0.1)
        async with cluster(tmp_path, 3, trainers=trainers, method=make_method(1.0)) as net:
            await wait_for_records(net, 3)
            await net.crash("node1")
            await net.crash("node2")
            node0 = net["node0"]
            height = node0.height + 1
            await net.wait_for(lambda: height in trainers[0].iterations, "node0's training")
            await net.wait_for(
                lambda: node0.store is not None and bool(node0.store.get_contribution(height)), "it signed"
            )
            first = trainers[0].iterations.pop(height)
            assert node0.store is not None
            assert node0.store.get_meta(ITERATIONS) == {"height": height, "iterations": first}
            for past in range(1, height):  # as if all had been much faster: it would choose otherwise now
                record = node0.store.get_round(past)
                if record is not None:
                    node0.store.put_round(past, {**record, "train": {**record["train"], "alpha_s": 0.01}})
            await net.crash("node0")
            net.start("node0")
            await net.wait_for(lambda: height in trainers[0].iterations, "node0's training, again")
            assert trainers[0].iterations[height] == first
            net.start("node1")
            net.start("node2")
            await net.wait_for_height(height + 1)
            assert trainers[0].iterations[height + 1] > 5 * first
            net.check_agreement()

    run_virtual(story())


def test_a_restart_needs_no_probe(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = make_trainers(0.05, 0.05, 0.05)
        async with cluster(tmp_path, 3, trainers=trainers, method=make_method(2.0)) as net:
            await wait_for_records(net, 2)
            for name in net.nodes:
                await net.crash(name)
            reached = max(trainer.trained[-1] for trainer in trainers)
            for name in net.nodes:
                net.start(name)
            await net.wait_for_height(reached + 2)
            for trainer in trainers:
                again = [count for height, count in trainer.iterations.items() if height > 1]
                assert set(again) <= {38, 39}

    run_virtual(story())


def test_progress_is_shown_while_a_phase_runs_and_gone_after(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 3, rounds=2, trainers=make_trainers(0.5, 0.5, 0.5)) as net:
            service = net["node0"].service
            assert service is not None
            seen: set[tuple[int, int]] = set()

            def watch() -> bool:
                if (progress := service.learner.progress) is not None:
                    seen.add((progress.step, progress.steps))
                return net["node0"].height >= 2

            await net.wait_for(watch, "two rounds")
            assert seen >= {(step, USUAL_ITERATIONS) for step in range(1, USUAL_ITERATIONS)}
            assert service.learner.progress is None

    run_virtual(story())
