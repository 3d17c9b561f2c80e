"""Rounds belong to runs, on virtual time: changes shift none of them, and runs follow each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.changes.rules import SetRules
from chain.changes.runs import EndRun
from chain.rules import MAX_ABS
from ml.payload import decode_arrays, encode_arrays
from node.ledger.audit import run_audit
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.proposing import (
    approve,
    change,
    find_change_heights,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_over,
)
from support.federation.runs import NODES, SCHEMA, RunTrainer, learn, make_initial, start_run
from support.federation.virtual_time import run_virtual

RULES = SetRules({"keep_heights": (2, 50)})
FEDAVG = {"name": "fedavg", "lr": 0.1, "decay": 0.5, "local_epochs": 1}
EDS = {
    "name": "fededs",
    "warmup_epochs": 1,
    "encryptor_epochs": 1,
    "unet_width": 4,
    "share_max": 100,
    "local_epochs": 2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def get_aggregates(net: Cluster, name: str) -> list[bytes]:
    """Of the rounds, in order."""
    blocks = [net[name].get_block(height) for height in range(1, net[name].height + 1)]
    return [block.header.aggregate for block in blocks if block.change is None]


def check_deeply(net: Cluster) -> None:
    """Every chain is the same, and each height recomputes by its own run."""
    net.check_agreement()
    for node in net.nodes.values():
        if node.store is not None:
            report = run_audit(net.genesis, node.store, deep=True, require_all=True)
            assert report.ok, report.fault


# ---- a change within a run


def test_a_change_takes_no_round_and_what_was_trained_for_it_counts_for_the_next_height(tmp_path: Path) -> None:
    """Three have trained when the change comes, and the fourth is at it: none trains a round twice."""
    aggregates: list[list[bytes]] = []

    async def story(path: Path, *, changes: bool) -> None:
        trainers = [ScriptedTrainer(i, 0.02 if i < 3 else 1.0) for i in range(4)]
        async with cluster(path, 4, rounds=5, trainers=trainers) as net:
            await net.wait_for_height(2)
            if changes:
                await net.wait_for(lambda: all(3 in trainers[i].trained for i in range(3)), "three to have trained")
                assert 3 not in trainers[3].trained
                await change(net, RULES)
            await wait_until_over(net)
            aggregates.append(get_aggregates(net, "node0"))
            assert find_change_heights(net, "node3") == ([3] if changes else [])
            assert [trainer.trained for trainer in trainers] == [[1, 2, 3, 4, 5]] * 4
            assert [sorted(trainer.applied) for trainer in trainers] == [[1, 2, 3, 4, 5]] * 4
            heights = range(1, net["node0"].height + 1)
            assert {len(net["node0"].get_block(height).contributions) for height in heights} == {0, 4} - {
                0 if not changes else -1
            }
            check_deeply(net)

    for changes in (False, True):
        run_virtual(story(tmp_path / str(changes), changes=changes))
    assert aggregates[0] == aggregates[1]


def test_a_member_that_dies_at_the_change_signs_its_training_anew(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = [ScriptedTrainer(i, 0.02 if i < 3 else 2.0) for i in range(4)]
        async with cluster(tmp_path, 4, rounds=4, trainers=trainers) as net:
            await net.wait_for_height(1)
            await net.wait_for(lambda: all(2 in trainers[i].trained for i in range(3)), "three to have trained")
            change_id = await propose(net, "node1", RULES)
            await net.wait_for(lambda: len(get_service(net, "node2").machine.contributions) == 3, "them")  # type: ignore[union-attr]
            await net.crash("node0")
            trainers[0].train_s = 50.0  # too long for anything but what is signed already
            await approve(net, change_id, "node2", "node3")
            await wait_for_state(net, "the rule", lambda state: state.rules.keep_heights == 50, *NODES[1:])
            net.start("node0")
            (height,) = find_change_heights(net, "node1")
            await net.wait_for_height(height + 1, *NODES[1:], timeout_s=20.0)
            authors = {one.author for one in net["node1"].get_block(height + 1).contributions}
            assert net.id("node0") in authors
            check_deeply(net)

    run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("method", [FEDAVG, EDS], ids=["decay of lr", "sharing rounds"])
def test_a_change_after_the_second_round_leaves_aggregates_as_they_are_without_it(
    tmp_path: Path, method: dict[str, Any]
) -> None:
    """Beacons are others after a change, so FedEDS draws other sets; what it shares in round 1 alone stays the same."""
    aggregates: list[list[bytes]] = []

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(2)
        if len(aggregates) == 1:
            await change(net, RULES)
        await wait_until_over(net)
        aggregates.append(get_aggregates(net, "node0"))
        kinds = {
            height: sorted(ref.kind for ref in block.contributions[0].payloads)
            for height in range(1, net["node0"].height + 1)
            if (block := net["node0"].get_block(height)).change is None
        }
        assert len({tuple(of) for height, of in kinds.items() if height > 1}) == 1
        check_deeply(net)

    for name in ("without", "with"):
        learn(tmp_path / name, method, story, rounds=4)
    assert len(aggregates[0]) == len(aggregates[1]) == 4
    same = 4 if method is FEDAVG else 2
    assert aggregates[0][:same] == aggregates[1][:same]


def test_waits_that_a_change_sets_are_in_force_from_the_next_height_on(tmp_path: Path) -> None:
    """The fourth is away: each round waits `collect_s` for it, until its credit is used up."""

    async def story() -> None:
        async with cluster(tmp_path, 4, start=NODES[:3], waits={"collect_s": 8.0}) as net:
            await net.wait_for_height(1, *NODES[:3])
            service = get_service(net, "node0")
            assert service.tasks.get_collect_s(service.tip.height + 1) == 8.0
            values = {"waits.collect_s": (8.0, 0.5), "waits.delta_s": (0.05, 0.1), "waits.status_s": (1.0, 2.0)}
            await change(net, SetRules(values))
            await wait_for_state(net, "it", lambda state: state.rules.waits.collect_s == 0.5, *NODES[:3])
            assert service.tasks.get_collect_s(service.tip.height + 1) == 0.5
            machine = service.machine
            assert machine is not None
            await net.wait_for_height(service.tip.height + 2, *NODES[:3], timeout_s=10.0)

    run_virtual(story())


# ---- one run after the other


@pytest.mark.slow
def test_a_second_run_goes_on_from_the_first_with_another_learning_rate(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        last = net["node0"].get_block(3).header.aggregate
        reached = get_service(net, "node0").learner.metrics["accuracy"]
        first = get_state(net, "node0").run
        await change(net, start_run(first, method={**first.method, "lr": 0.02}, rounds=2))
        await net.wait_for_height(6)
        await wait_until_over(net)
        run = get_state(net, "node3").run
        assert (run.number, run.first_height, run.initial_model) == (2, 5, last)
        assert [trainer.trained for trainer in trainers] == [[(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]] * 4
        assert [task.goes_on_after for task in trainers[0].tasks] == [None, 3]
        await net.wait_for(lambda: get_service(net, "node0").learner.applied >= 6, "the last round to be applied")
        assert get_service(net, "node0").learner.metrics["accuracy"] >= reached - 0.1
        check_deeply(net)

    learn(tmp_path, FEDAVG | {"decay": 1.0}, story, rounds=3)


@pytest.mark.slow
def test_a_second_run_has_a_model_and_a_method_of_its_own(tmp_path: Path) -> None:
    """In the middle of it a member restarts, and another that was away all the while catches up."""

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(2)
        first = get_state(net, "node0").run
        await change(net, EndRun(1))
        await wait_until_over(net)
        await net.crash("node3")
        model = {"name": "mlp", "hidden": [8]}
        initial = make_initial(model, first)
        for name in NODES[:3]:
            store = net[name].store
            assert store is not None
            store.put_blob(initial)
        method = {"name": "dfpl", "local_epochs": 1}
        await change(net, start_run(first, model_bytes=initial, method=method, model=model, rounds=4, schema={}))
        await wait_for_state(net, "the next run", lambda state: state.run.number == 2, *NODES[:3])
        start = get_state(net, "node0").run.first_height - 1
        await net.wait_for_height(start + 2, *NODES[:3])
        await net.crash("node1")
        net.start("node1")
        net.start("node3")
        await net.wait_for_height(start + 4)
        await wait_until_over(net)
        assert get_state(net, "node3").run.method["name"] == "dfpl"
        rounds = [place for place in trainers[0].trained if place[0] == 2]
        assert rounds == [(2, 1), (2, 2), (2, 3), (2, 4)]
        assert trainers[3].tasks[-1].run.number == 2
        assert [len(net["node0"].get_block(start + 1 + i).contributions) >= 3 for i in range(4)] == [True] * 4
        check_deeply(net)

    learn(tmp_path, FEDAVG, story, rounds=0)


@pytest.mark.slow
def test_a_run_from_a_model_that_only_its_proposer_holds_begins_once_all_have_it(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(1)
        first, model = get_state(net, "node0").run, {"name": "mlp", "hidden": [8]}
        initial = make_initial(model, first)
        store = net["node0"].store
        assert store is not None
        store.put_blob(initial)
        await change(net, start_run(first, model_bytes=initial, model=model, rounds=1, schema={}))
        await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
        await wait_until_over(net)
        digest = get_state(net, "node0").run.initial_model
        assert all(node.store is not None and node.store.has_blob(digest) for node in net.nodes.values())
        assert {trainer.trained[-1] for trainer in trainers} == {(2, 1)}
        check_deeply(net)

    learn(tmp_path, FEDAVG, story, rounds=0)


@pytest.mark.parametrize("bytes_", [None, b"no arrays", encode_arrays({"model/none": np.zeros(1, np.float32)})])
def test_a_run_does_not_begin_from_what_nobody_has_or_is_no_model_of_it(tmp_path: Path, bytes_: bytes | None) -> None:
    """Though a quorum has approved it. Rounds go on without it."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            named = b"held by nobody" if bytes_ is None else bytes_
            for node in net.nodes.values():
                if bytes_ is not None and node.store is not None:
                    node.store.put_blob(bytes_)
            await change(net, start_run(get_state(net, "node0").run, model_bytes=named, rounds=1, schema={}))
            await net.wait_for_height(net["node0"].height + 5)
            assert find_change_heights(net, "node0") == []
            assert get_state(net, "node3").run.number == 1

    run_virtual(story())


def test_a_model_that_does_not_fit_is_looked_at_again_once_the_rules_have_changed(tmp_path: Path) -> None:
    """Its values are beyond what payloads may have, until a change allows them."""

    async def story() -> None:
        async with cluster(tmp_path, 4) as net:
            await net.wait_for_height(1)
            first = get_state(net, "node0").run
            model = decode_arrays(made := make_initial(first.model, first), len(made))
            far = encode_arrays({name: np.full_like(array, 2 * MAX_ABS) for name, array in model.items()})
            for node in net.nodes.values():
                assert node.store is not None
                node.store.put_blob(far)
            await change(net, start_run(first, model_bytes=far, rounds=1, schema={}))
            await net.wait_for_height(net["node0"].height + 3)
            assert find_change_heights(net, "node0") == []
            await change(net, SetRules({"limits.max_abs": (MAX_ABS, 4 * MAX_ABS)}))
            await wait_for_state(net, "the run", lambda state: state.run.number == 2)

    run_virtual(story())


def test_a_run_of_a_method_that_this_release_does_not_know_costs_training_and_no_daemon(tmp_path: Path) -> None:
    """All four lack it, so that no round of it is ever made; a change ends it."""

    async def story() -> None:
        async with cluster(tmp_path, 4, schema=SCHEMA) as net:
            await net.wait_for_height(2)
            first = get_state(net, "node0").run
            await change(net, start_run(first, method={"name": "of tomorrow"}, rounds=3))
            await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
            height = net["node0"].height
            await asyncio.sleep(20.0)
            assert net["node0"].height == height
            await change(net, EndRun(2))
            await wait_for_state(net, "its end", lambda state: state.run.is_ended)
            net.check_agreement()

    run_virtual(story())
