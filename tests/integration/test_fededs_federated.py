"""FedEDS in a federation: the sets of height 1 reach everyone, and all heights are the simulation's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chain.beacon import compute_beacon
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.payload import encode_arrays
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from node.ledger.audit import run_audit
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

ROUNDS = 4  # the sharing round, two that train on sets, one that does not
SEED = 1
MODEL = {"name": "mlp", "hidden": [16]}
NODES = ("node0", "node1", "node2", "node3")
PARTITION = "dirichlet:0.3"
METHOD: dict[str, Any] = {
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


def federate(path: Path, method: dict[str, Any], story: Callable[[Cluster], Any]) -> None:
    """`story` of four members on digits."""
    classes, input_ = get_classes({"format": "digits"}), get_default_input({"format": "digits"}, MODEL)
    initial = make_initial_aggregate(MODEL, input_["shape"], len(classes), SEED)
    federation = Federation(
        method=method, model=MODEL, classes=classes, input=input_, rounds=ROUNDS, num_members=len(NODES)
    )
    clients = make_clients(federation, data={"format": "digits"}, partition=PARTITION, run_seed=SEED, initial=initial)

    async def run() -> None:
        async with cluster(
            path,
            len(NODES),
            rounds=ROUNDS,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=MODEL,
            classes=list(classes),
            input=input_,
        ) as net:
            await story(net)

    run_virtual(run())


def simulate_the_same(net: Cluster, method: dict[str, Any]) -> SimulationResult:
    """By the members' ids and the blocks that they have made."""
    return simulate(
        SimulationConfig(method=method, model=MODEL, clients=4, rounds=ROUNDS, seed=SEED, partition=PARTITION),
        ids=[net.id(name) for name in NODES],
        beacons=lambda height: compute_beacon(net["node0"].get_block(height - 1)),
    )


@pytest.mark.parametrize("settings", [{}, {"base": "fednova", "draw": "batch", "share_dtype": "uint8"}])
@pytest.mark.slow
def test_a_federation_comes_to_what_the_simulation_does(tmp_path: Path, settings: dict[str, Any]) -> None:
    method = METHOD | settings

    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS)
        assert net.check_agreement() == ROUNDS
        blocks = [net["node0"].get_block(height) for height in range(1, ROUNDS + 1)]
        assert all(len(block.contributions) == len(NODES) for block in blocks)
        assert blocks[0].header.aggregate == net.genesis.run.initial_model
        simulated = simulate_the_same(net, method)
        assert list(simulated.aggregate_digests) == [block.header.aggregate for block in blocks]
        store = net["node2"].store
        assert store is not None
        report = run_audit(net.genesis, store, deep=True)
        assert (report.ok, report.recomputed, list(report.not_held)) == (True, ROUNDS, [])
        await net.wait_for(lambda: store.get_round(ROUNDS) is not None, "the last record")
        records = [store.get_round(height) for height in range(1, ROUNDS + 1)]
        told = [(record or {})["train"].get("sets") for record in records]
        assert told[0] is None
        assert min(told[1], told[2]) >= 1
        assert not told[3]

    federate(tmp_path, method, story)


def test_a_member_that_starts_again_after_sharing_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(1)
        await net.crash("node1")
        net.start("node1")
        await net.wait_for_height(ROUNDS)
        assert net.check_agreement() == ROUNDS
        blocks = [net["node0"].get_block(height) for height in range(1, ROUNDS + 1)]
        assert all(len(block.contributions) == len(NODES) for block in blocks)
        digests = list(simulate_the_same(net, METHOD).aggregate_digests)
        assert digests == [block.header.aggregate for block in blocks]

    federate(tmp_path, METHOD, story)
