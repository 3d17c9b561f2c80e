"""Runs of labels and of numbers in memory: the simulation's digests, and records of what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes
from ml.measures.kinds import read_measures
from ml.payload import encode_arrays
from ml.simulation.run import SimulationConfig, simulate
from ml.specs.run_schema import describe_payloads
from node.config.settings import make_input
from support.data.chains import make_keys
from support.data.tasks import write_diabetes, write_digits, write_findings
from support.federation.cluster import cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

MODEL = {"name": "mlp", "hidden": [16]}
ROUNDS = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def federate(path: Path, config: SimulationConfig) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The aggregates' digests of a federation in memory that is what `config` simulates, and all nodes' records."""
    assert config.input is not None
    classes = get_classes(config.data, config.task)
    initial = make_initial_aggregate(config.model, config.input["shape"], len(classes), config.seed)
    clients = make_clients(
        Federation(
            method=config.method,
            model=config.model,
            classes=classes,
            input=config.input,
            rounds=config.rounds,
            num_members=config.clients,
            task=config.task,
            target=config.target,
        ),
        data=config.data,
        partition=config.partition,
        run_seed=config.seed,
        initial=initial,
    )
    spec = clients[0].spec
    terms: dict[str, Any] = {"task": config.task, "schema": describe_payloads(spec)} | (
        {} if config.target is None else {"target": dict(config.target)}
    )

    async def run() -> tuple[list[bytes], list[dict[str, Any]]]:
        async with cluster(
            path,
            config.clients,
            rounds=config.rounds,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=spec.to_mapping(),
            model=config.model,
            classes=list(classes),
            input=dict(config.input or {}),
            **terms,
        ) as net:
            stores = [node.store for node in net.nodes.values() if node.store is not None]
            await net.wait_for(lambda: all(store.get_round(config.rounds) for store in stores), "all records")
            assert net.check_agreement() == config.rounds
            node = next(iter(net.nodes.values()))
            digests = [node.get_block(height).header.aggregate for height in range(1, config.rounds + 1)]
            return digests, [record for store in stores for _, record in store.rounds(1, config.rounds)]

    return run_virtual(run())


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_members_and_the_simulation_come_to_the_same_bytes(tmp_path: Path, task: str) -> None:
    if task == "multilabel":
        data: dict[str, Any] = {"format": "npz", "path": str(write_digits(tmp_path / "digits.npz"))}
    else:
        table, _ = write_diabetes(tmp_path, 1)
        data = {"format": "csv", "path": str(table), "columns": {"label": "progression"}}
    method = {"name": "fedavg", "local_iterations": 5, "lr": 0.01, "clip_norm": 1.0}
    config = SimulationConfig(
        method=method, model=MODEL, data=data, partition="iid", clients=4, rounds=ROUNDS, seed=1, task=task
    )
    simulated = simulate(config, ids=[key.id for key in make_keys(4)])
    digests, records = federate(tmp_path / "nodes", config)
    assert len(records) == 4 * ROUNDS
    names = {"multilabel": {"exact_match", "hamming_loss", "micro_f1"}, "regression": {"mae", "rmse", "r2"}}[task]
    for record in records:
        assert names <= read_measures(record["measures"]).summarise().keys()
        assert (record["accuracy"] is None) == (task == "regression")
        assert ("r2" in record["apply"]) == (task == "regression")
    assert digests == list(simulated.aggregate_digests)


def test_labels_of_a_table_with_categories_and_empty_cells_are_learned_on_agreed_statistics(tmp_path: Path) -> None:
    table = write_findings(tmp_path / "findings.csv")
    data = {"format": "csv", "path": str(table), "columns": {"label": ["advanced", "thin"]}}
    wanted = {"normalize": "agreed", "columns": "auto", "missing": "zero"}
    input_ = make_input(data, MODEL, None, wanted, None, "multilabel")
    assert {"name": "sex", "values": ["female", "male"]} in input_["columns"]
    assert (input_["normalize"], input_["shape"]) == ("agreed", [11, 1, 1])
    method = {"name": "fedavg", "local_epochs": 20, "lr": 0.3}
    config = SimulationConfig(
        method=method,
        model=MODEL,
        data=data,
        input=input_,
        partition="iid",
        clients=4,
        rounds=4,
        seed=1,
        task="multilabel",
    )
    simulated = simulate(config, ids=[key.id for key in make_keys(4)])
    digests, records = federate(tmp_path / "nodes", config)
    assert digests == list(simulated.aggregate_digests)
    learned = [read_measures(record["measures"]).summarise() for record in records if record["round"] == 4]
    assert len(learned) == 4
    assert fmean(one["hamming_loss"] for one in learned) < 0.35  # by prevalence alone it is about 0.42
