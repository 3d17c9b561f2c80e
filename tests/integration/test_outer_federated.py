"""An outer optimiser, and SCAFFOLD, in a federation: what they remember is in each block's aggregate, whoever
computes it and whenever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.beacon import compute_beacon
from chain.changes.rules import SetRules
from ml.payload import Arrays, compute_encoded_bytes, decode_arrays, encode_arrays
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import add_kind
from ml.specs.masked.aggregate import explain_lost
from node.ledger.audit import run_audit
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.masked import BESIDE, get_aggregate, make_model, masked
from support.federation.proposing import change, find_change_heights, get_state, wait_until_over
from support.federation.runs import RunTrainer, learn, start_run
from support.federation.simulated import make_digit_federation
from support.federation.virtual_time import run_virtual

ROUNDS = 4
MODEL = {"name": "mlp", "hidden": [16]}
METHOD = {"name": "fedavg", "local_iterations": 2, "outer": {"optimizer": "adam", "lr": 0.05}}
NODES = ("node0", "node1", "node2", "node3")


def federate(
    path: Path,
    story: Callable[[Cluster], Any],
    *,
    method: dict[str, Any] = METHOD,
    start: Sequence[str] = NODES,
    rounds: int = ROUNDS,
) -> None:
    clients, genesis = make_digit_federation(method, num_clients=len(NODES), rounds=ROUNDS, model=MODEL)

    async def run() -> None:
        trainers = [InlineTrainer(client) for client in clients]
        async with cluster(path, len(NODES), rounds=rounds, start=start, trainers=trainers, **genesis) as net:
            await story(net)

    run_virtual(run())


def simulate_alike(net: Cluster, method: dict[str, Any]) -> SimulationResult:
    """The same run: the same beacons, and the same members away."""
    ids = [net.id(name) for name in NODES]
    blocks = [net["node0"].get_block(height) for height in range(ROUNDS + 1)]
    present = [[ids.index(c.author) for c in block.contributions] for block in blocks]
    return simulate(
        SimulationConfig(
            method=method, model=MODEL, clients=len(NODES), rounds=ROUNDS, seed=1, partition="dirichlet:5"
        ),
        ids=ids,
        beacons=lambda height: compute_beacon(blocks[height - 1]),
        present=lambda height: present[height],
    )


def read_aggregate(net: Cluster, height: int) -> Arrays:
    store = net["node0"].store
    assert store is not None
    data = store.get_blob(net["node0"].get_block(height).header.aggregate)
    return decode_arrays(data, len(data))


def check_all(net: Cluster, method: dict[str, Any]) -> None:
    digests = tuple(net["node0"].get_block(height).header.aggregate for height in range(1, ROUNDS + 1))
    assert digests == simulate_alike(net, method).aggregate_digests
    for name in NODES:
        store = net[name].store
        assert store is not None
        report = run_audit(net.genesis, store, deep=True)
        assert (report.ok, report.recomputed, list(report.not_held)) == (True, ROUNDS, [])


@pytest.mark.parametrize("model_dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_a_restart_and_a_late_joiner_go_on_with_the_moments_and_all_agree_with_a_simulation(
    tmp_path: Path, model_dtype: str
) -> None:
    method = {**METHOD, "model_dtype": model_dtype}

    async def story(net: Cluster) -> None:
        await net.wait_for_height(1, *NODES[:3])
        await net.crash("node1")
        net.start("node1")
        await net.wait_for_height(2, *NODES[:3])
        net.start("node3")
        await net.wait_for_height(ROUNDS)
        await net.wait_for(lambda: _holds_all(net), "node3 to hold every blob")
        assert net.check_agreement() == ROUNDS
        check_all(net, method)
        last = read_aggregate(net, ROUNDS)
        assert {name.partition("/")[0] for name in last} == {"model", "outer"}
        sent = [ref.size for c in net["node0"].get_block(ROUNDS).contributions for ref in c.payloads]
        model = {name: (str(of.dtype), of.shape) for name, of in last.items() if name.startswith("model/")}
        assert max(sent) <= compute_encoded_bytes(model)  # of the moments nothing is sent

    federate(tmp_path, story, method=method, start=NODES[:3])


@pytest.mark.slow
def test_control_variates_are_a_simulations_where_one_member_restarts_and_another_is_late(tmp_path: Path) -> None:
    method = {"name": "scaffold", "local_iterations": 2, "outer": {"optimizer": "nesterov"}}

    async def story(net: Cluster) -> None:
        await net.wait_for_height(2, *NODES[:3])
        await net.crash("node1")
        net.start("node1")
        net.start("node3")
        await net.wait_for_height(ROUNDS)
        await net.wait_for(lambda: _holds_all(net), "node3 to hold every blob")
        check_all(net, method)
        kinds = {name.partition("/")[0] for name in read_aggregate(net, ROUNDS)}
        assert kinds == {"model", "outer", "control", "scaffold"}

    federate(tmp_path, story, method=method, start=NODES[:3])


@pytest.mark.slow
def test_moments_stay_through_a_change_and_begin_anew_with_a_run(tmp_path: Path) -> None:
    method = {"name": "fedavg", "local_iterations": 1, "outer": {"optimizer": "momentum", "lr": 0.5}}

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(1)
        await change(net, SetRules({"keep_heights": (2, 50)}))
        await wait_until_over(net)
        (at,) = find_change_heights(net, "node0")
        assert net["node0"].get_block(at).header.aggregate == net["node0"].get_block(at - 1).header.aggregate
        last = net["node0"].height
        await change(net, start_run(get_state(net, "node0").run, rounds=2))
        first = last + 2
        await net.wait_for_height(first + 1)
        assert get_state(net, "node0").run.number == 2
        before, after = (read_aggregate(net, height) for height in (last, first))
        for name in ("fc1.weight", "fc2.bias"):  # x' = x + 0.5 d, and v is d
            way = after[f"outer/v1/{name}"].astype(np.float64)
            assert np.allclose(after[f"model/{name}"] - before[f"model/{name}"], 0.5 * way, atol=1e-7)
            store = net["node0"].store
            assert store is not None
            data = [store.get_blob(c.payloads[0].digest) for c in net["node0"].get_block(first).contributions]
            models = [decode_arrays(one, len(one))[name].astype(np.float64) for one in data]
            weights = [c.weight for c in net["node0"].get_block(first).contributions]
            mean = sum(weight * model for weight, model in zip(weights, models, strict=True)) / sum(weights)
            assert np.allclose(way, mean - before[f"model/{name}"], atol=1e-6)
        for name in NODES:
            store = net[name].store
            assert store is not None
            assert run_audit(net.genesis, store, deep=True).ok

    learn(tmp_path, method, story, rounds=3)


@pytest.mark.slow
def test_masked_sums_that_are_opened_step_and_those_that_are_not_leave_the_moments(tmp_path: Path) -> None:
    method = {**BESIDE, "outer": {"optimizer": "yogi"}}

    def get_own(net: Cluster, height: int) -> Arrays:
        return {
            name: array for name, array in get_aggregate(net, height).items() if name.startswith(("model", "outer"))
        }

    def is_same(net: Cluster, one: int, other: int) -> bool:
        return encode_arrays(get_own(net, one)) == encode_arrays(get_own(net, other))

    async def story() -> None:
        initial = encode_arrays(add_kind("model", make_model(9, 0)))
        async with masked(tmp_path, method=method, initial_model=initial) as net:
            for name in NODES:
                net.start(name)
            await net.wait_for_height(6)
            await net.crash("node0")
            await net.wait_for_height(11, *NODES[1:])
            assert all(is_same(net, height, height - 1) for height in (2, 4, 6, 8, 10))  # of inputs
            opened = [height for height in (3, 5, 7, 9, 11) if explain_lost(get_aggregate(net, height), str) is None]
            assert len(opened) >= 3
            assert not any(is_same(net, height, height - 1) for height in opened)
            moments = {name for name in get_own(net, 11) if name.startswith("outer/")}
            assert len(moments) == 2 * len([name for name in get_own(net, 11) if name.startswith("model/")])
            store = net["node1"].store
            assert store is not None
            assert run_audit(net.genesis, store, deep=True).ok

    run_virtual(story())


def _holds_all(net: Cluster) -> bool:
    store = net["node3"].store
    return store is not None and not run_audit(net.genesis, store, deep=True).not_held
