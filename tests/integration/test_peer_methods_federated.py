"""Peer-to-peer methods as members run them: real training, over memory, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes
from ml.payload import encode_arrays
from ml.simulation.run import SimulationConfig
from support.federation.cluster import cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

MODEL = {"name": "mlp", "hidden": [32, 16]}
METRICS = {"uapdfl": {"peers", "similar", "dropout", "divergence"}, "fedper": {"peers"}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["uapdfl", "fedper"])
def test_six_members_train_take_from_two_peers_each_and_measure_what_came_of_it(tmp_path: Path, name: str) -> None:
    method = {"name": name, "num_peers": 2, "local_iterations": 5}
    config = SimulationConfig(method=method, model=MODEL, clients=6, rounds=3, seed=1)
    assert config.input is not None
    classes = get_classes({"format": "digits"})
    initial = make_initial_aggregate(MODEL, config.input["shape"], len(classes), config.seed)
    federation = Federation(method=method, model=MODEL, classes=classes, input=config.input, rounds=3, num_members=6)
    clients = make_clients(
        federation, data=config.data, partition=config.partition, run_seed=config.seed, initial=initial
    )

    async def federate() -> list[dict[str, Any]]:
        async with cluster(
            tmp_path,
            6,
            rounds=3,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=MODEL,
            classes=list(classes),
            input=dict(config.input or {}),
        ) as net:
            stores = [node.store for node in net.nodes.values() if node.store is not None]
            await net.wait_for(lambda: all(store.get_round(3) for store in stores), "all records of round 3")
            assert net.check_agreement() == 3
            return [record for store in stores for _, record in store.rounds(1, 3)]

    records = run_virtual(federate())
    assert len(records) == 18
    for record in records:
        assert record["apply"].keys() == METRICS[name] | {"accuracy", "loss"}
        assert record["apply"]["peers"] == 2.0
        assert record["gone"] == {}
        assert record["pulled_bytes"] > 0
