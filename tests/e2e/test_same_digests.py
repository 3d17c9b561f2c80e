"""Real processes and the simulation are the same computation, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from chain.signing import decode_id
from ml.simulation.run import SimulationConfig, simulate
from node.config.genesis_file import load_genesis
from support.federation.real_nodes import DemoRun, run_command

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_node_holds_the_simulations_aggregates_of_all_four_in_every_block(demo: DemoRun) -> None:
    chains = []
    for i in range(4):
        listed = run_command(
            "chain", "list", "--reverse", "--limit", 100, "--json", "--data-dir", demo.directory / f"data/node{i}"
        )
        assert listed.code == 0, listed.err
        blocks = json.loads(listed.out)["blocks"]
        assert [block["height"] for block in blocks] == list(range(demo.rounds + 1))
        assert [block["num_contributions"] for block in blocks] == [0] + [4] * demo.rounds
        chains.append([(block["id"], block["aggregate"]) for block in blocks])
    assert all(chain == chains[0] for chain in chains)
    ids, aggregates = zip(*chains[0], strict=True)
    assert ids[-1] == demo.result["nodes"][0]["head"]

    run = load_genesis(demo.directory / "genesis.yaml").genesis.run
    simulated = simulate(
        SimulationConfig(method=run.method, input=run.input, clients=4, rounds=demo.rounds, seed=demo.seed),
        ids=[decode_id(node["id"]) for node in demo.result["nodes"]],
        beacons=lambda height: bytes.fromhex(ids[height - 1]),
    )
    assert [digest.hex() for digest in simulated.aggregate_digests] == list(aggregates[1:])
