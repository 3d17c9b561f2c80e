"""Val samples in a federation: each node's record has what its own show of the model that a round left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.measures.val import ValMeasures
from ml.simulation.run import SimulationConfig, simulate
from support.federation.cluster import Cluster
from support.federation.runs import DIGITS, MODEL, NODES, RunTrainer, learn

FEDAVG = {"name": "fedavg", "lr": 0.1, "local_epochs": 1}
ROUNDS = 2


def test_each_nodes_record_has_what_the_simulation_measures(tmp_path: Path) -> None:
    data = {**DIGITS, "val": 0.1}
    told: dict[tuple[int, int], ValMeasures | None] = {}

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(ROUNDS + 2)
        assert (await trainers[0].start(trainers[0].tasks[0])).num_val == trainers[0].client.num_val >= 10
        for i, name in enumerate(NODES):
            for height in range(1, ROUNDS + 1):
                record = net[name].get_context().store.get_round(height)
                told[height, i] = None if record is None else ValMeasures.from_metrics(record["apply"])

    learn(tmp_path, FEDAVG, story, data=data, rounds=0)
    config = SimulationConfig(
        method=FEDAVG, model=MODEL, data=data, clients=len(NODES), rounds=ROUNDS, partition="dirichlet:5"
    )
    for row in simulate(config).rounds:
        assert row.val is not None
        for i, expected in enumerate(row.val):
            own = told[row.round, i]
            assert own is not None
            assert expected is not None
            assert own.num_samples == expected.num_samples
            assert own.loss == pytest.approx(expected.loss, rel=1e-4)  # the mean is in the order of the ids
            assert own.auc == pytest.approx(expected.auc, rel=1e-4)
