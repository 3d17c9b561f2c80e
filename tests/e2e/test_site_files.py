"""Sites whose samples are a file each: a test network and a simulation of these files deal the same samples, hold the
same ones out, and come to the same aggregates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_breast_cancer

from chain.store.sqlite import SqliteStore
from ml.simulation.run import SimulationConfig, simulate
from node.config.node_config import load_config
from support.federation.real_nodes import Federation, make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 2
PER_PATIENT = 3  # rows


def write_sites(directory: Path) -> tuple[str, ...]:
    """Three tables, the columns of the second the other way round; each patient has some rows in one of them."""
    cancer = load_breast_cancer()
    header = ["patient", *cancer.feature_names[:6], "label"]
    for i in range(3):
        rows = [
            [f"p{row // PER_PATIENT}", *map(repr, cancer.data[row, :6].tolist()), str(cancer.target[row])]
            for row in range(i * 150, (i + 1) * 150)
        ]
        table = [header, *rows]
        lines = [",".join(reversed(row) if i == 1 else row) for row in table]
        (directory / f"{'abc'[i]}.csv").write_text("\n".join(lines) + "\n")
    return tuple(str(directory / f"{name}.csv") for name in "abc")


async def test_a_file_a_site_gives_a_network_and_a_simulation_the_same_aggregates(tmp_path: Path) -> None:
    directory = make_federation(
        tmp_path / "net",
        num_nodes=3,
        sites=write_sites(tmp_path),
        partition="domains",
        method="fedavg",
        rounds=ROUNDS,
        settings=("data.group=patient", "local_iterations=5", "model.hidden=[8]", "waits.collect_s=120"),
    )
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(ROUNDS)
        await net.check_agreement()
        run, config = net.genesis.run, load_config(net.nodes["node0"].node.config_file)
        keys = {member.name: member.key for member in net.genesis.state.members}
        for name in net.names:
            assert await net.stop(name) == 0
        with SqliteStore.open(net.get_data_dir("node0"), net.genesis, readonly=True) as store:
            aggregates = [stored.block.header.aggregate for stored in store.blocks(1, ROUNDS)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a node's worker
    try:
        simulated = simulate(
            SimulationConfig(
                method=run.method,
                model=run.model,
                input=run.input,
                data={key: value for key, value in config.get_data().items() if key != "partition"},
                partition="domains",
                clients=3,
                rounds=ROUNDS,
                max_loss_ratio=4.0,  # the nodes' own
            ),
            ids=[keys[name] for name in net.names],
        )
    finally:
        torch.set_num_threads(threads)
    assert list(simulated.aggregate_digests) == aggregates
