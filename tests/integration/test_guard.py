"""The guard: a federation and the simulation are the same computation, bit for bit, given the same block ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.beacon import compute_beacon
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes
from ml.payload import encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.simulation.run import SimulationConfig, simulate
from support.federation.cluster import cluster
from support.federation.inline import InlineTrainer
from support.federation.simulated import NORMED
from support.federation.virtual_time import run_virtual
from support.slow_rest import slow_after

pytestmark = pytest.mark.slow

MODEL = {"name": "mlp", "hidden": [64, 32]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("method", "rounds"),
    slow_after(
        5,
        [
            ({"name": "dfpl", "lambda": 1.0}, 10),
            ({"name": "fedavg"}, 10),
            ({"name": "blade_fl"}, 2),
            ({"name": "moon"}, 3),
            ({"name": "swim"}, 3),  # its contrast is none in the first and has no weight in the last
            ({"name": "fedintr"}, 3),
            ({"name": "fedprox"}, 2),
            (
                {"name": "fednova", "momentum": 0.5, "local_epochs": 1},
                4,
            ),  # whose steps are as many as there are samples for
            ({"name": "fedproto"}, 3),
            ({"name": "uapdfl", "num_peers": 2}, 4),
            ({"name": "fedrep"}, 2),
            ({"name": "ditto"}, 2),
            ({"name": "fedbn"}, 2),
            ({"name": "criticalfl", "num_peers": 1}, 3),
            ({"name": "fedper", "num_peers": 2}, 2),  # these vote on nothing: what they come to is what is compared
            ({"name": "fedavg_p2p", "num_peers": 2}, 2),
            ({"name": "dfedavgm", "num_peers": 1}, 2),
            ({"name": "dispfl", "num_peers": 2}, 3),
            ({"name": "mpfedcl"}, 3),
            ({"name": "fedavg", "aggregation": "median"}, 2),
            ({"name": "fedavg", "aggregation": "trimmed_mean"}, 3),
            ({"name": "fedavg", "aggregation": "clipped_mean"}, 3),
            ({"name": "fedavg", "aggregation": "multi_krum"}, 3),
            ({"name": "fedavg", "weight_cap": 1}, 2),
            ({"name": "dfpl", "aggregation": "median"}, 3),
            ({"name": "dfpl", "aggregation": "clipped_mean"}, 3),
            ({"name": "mpfedcl", "aggregation": "trimmed_mean"}, 3),
            ({"name": "fednova", "local_epochs": 1, "momentum": 0.5, "weight_cap": 1}, 3),
            ({"name": "fedintr", "aggregation": "clipped_mean"}, 2),  # whose projections block 0 has not
        ],
    ),
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_four_members_give_the_simulations_aggregates(tmp_path: Path, method: dict[str, Any], rounds: int) -> None:
    model = NORMED if method["name"] == "fedbn" else MODEL
    config = SimulationConfig(method=method, model=model, clients=4, rounds=rounds, seed=1)
    assert config.input is not None
    classes = get_classes({"format": "digits"})
    initial = make_initial_aggregate(model, config.input["shape"], len(classes), config.seed, plugins=ANY_PLUGIN)
    federation = Federation(
        method=method,
        model=model,
        classes=classes,
        input=config.input,
        rounds=rounds,
        num_members=4,
        plugins=ANY_PLUGIN,
    )
    clients = make_clients(
        federation, data=config.data, partition=config.partition, run_seed=config.seed, initial=initial
    )

    async def federate() -> tuple[list[bytes], list[bytes], list[bytes]]:
        async with cluster(
            tmp_path,
            4,
            rounds=rounds,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=model,
            classes=list(classes),
            input=dict(config.input or {}),
        ) as net:
            stores = [node.store for node in net.nodes.values() if node.store is not None]
            await net.wait_for(lambda: all(store.get_round(rounds) for store in stores), "records of the last round")
            assert net.check_agreement() == rounds
            blocks = [net["node0"].get_block(height) for height in range(rounds + 1)]
            assert all(len(block.contributions) == 4 for block in blocks[1:])
            ids = [net.id(f"node{i}") for i in range(4)]
            return ids, [compute_beacon(block) for block in blocks], [block.header.aggregate for block in blocks[1:]]

    ids, beacons, aggregates = run_virtual(federate())
    simulated = simulate(config, ids=ids, beacons=lambda height: beacons[height - 1])
    assert list(simulated.aggregate_digests) == aggregates
    assert [result.accuracy for result in simulated.clients] == [client.evaluate()["accuracy"] for client in clients]
    assert simulated.rounds[-1].tal == pytest.approx(
        np.mean([client.evaluate()["loss"] for client in clients]), rel=1e-12
    )
