"""MP-FedCL on four real nodes: two payloads in a contribution, both aggregates in a block, answers by prototypes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.signing import encode_id
from ml.data import get_classes, load_dataset
from ml.simulation.run import SimulationConfig, simulate
from support.federation.real_nodes import Federation, ask_stopped, run_command, run_process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS, SEED, PARTITION = 10, 1, "dirichlet:0.3"
SAMPLES = 40  # that a node is asked to classify
PER_PEER_AND_KIND = 1024  # bytes a round may cost besides 1.1 times its payloads (DESIGN §8)
MESSAGE_KINDS = 5  # status, contribution, block, vote, blob


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes that have done their rounds; every block has all four."""
    directory = tmp_path_factory.mktemp("mpfedcl") / "net"
    finished = run_process(
        *("demo", "-n", 4, "--method", "mpfedcl", "--partition", PARTITION, "--rounds", ROUNDS, "--seed", SEED),
        *("--json", "--keep", directory, "--set", "waits.collect_s=120"),
    )
    assert finished.code == 0, finished.err
    assert json.loads(finished.out.splitlines()[-1])["heads_agree"]
    return directory


def read_blocks(directory: Path) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = ask_stopped(directory, 0, "chain", "list", "--reverse", "--limit", 100)["blocks"]
    assert [block["num_contributions"] for block in blocks] == [0] + [4] * ROUNDS
    return blocks


def get_ids(directory: Path) -> list[bytes]:
    """Of node0 to node3."""
    members = Federation(directory).genesis.state.members
    return [member.key for member in sorted(members, key=lambda member: member.name)]


def test_each_block_pins_both_aggregates_and_everyone_can_recompute_them(directory: Path) -> None:
    for node in range(4):
        report = ask_stopped(directory, node, "chain", "verify", "--deep", "--require-all")
        assert (report["ok"], report["recomputed"]) == (True, ROUNDS)
    head = ask_stopped(directory, 0, "chain", "show", "head", "--payloads")
    for contribution in head["contributions"]:
        assert {payload["kind"] for payload in contribution["payloads"]} == {"model", "prototypes"}


def test_the_blocks_name_the_simulations_aggregates(directory: Path) -> None:
    blocks, ids = read_blocks(directory), get_ids(directory)
    run = Federation(directory).genesis.run
    config = SimulationConfig(
        method=run.method, input=run.input, partition=PARTITION, clients=4, rounds=ROUNDS, seed=SEED
    )
    simulated = simulate(config, ids=ids, beacons=lambda height: bytes.fromhex(blocks[height - 1]["id"]))
    assert [digest.hex() for digest in simulated.aggregate_digests] == [block["aggregate"] for block in blocks[1:]]


def test_a_round_costs_its_model_and_prototypes_and_little_besides(directory: Path) -> None:
    """Summed over the nodes, since a blob may be pulled from any node that has it."""
    rounds = [ask_stopped(directory, node, "rounds", "list", "--limit", 100)["rounds"] for node in range(4)]
    for of_one_height in zip(*rounds, strict=True):
        sent = sum(sum(map(int, entry["bytes_sent"].values())) for entry in of_one_height)
        payload = 3 * int(of_one_height[0]["payload_bytes"])
        assert payload < sent <= 1.1 * payload + PER_PEER_AND_KIND * 4 * 3 * MESSAGE_KINDS


async def test_a_node_answers_with_a_class_and_whose_prototype_was_nearest(directory: Path, tmp_path: Path) -> None:
    blocks, ids = read_blocks(directory), get_ids(directory)
    data, method = {"format": "digits"}, {"name": "mpfedcl"}
    config = SimulationConfig(method=method, partition=PARTITION, clients=4, rounds=ROUNDS, seed=SEED)
    _, test = load_dataset(data, config.input or {})
    archive = tmp_path / "digits.npz"
    np.savez(archive, x=test.x[:SAMPLES])
    async with Federation(directory) as net:
        await net.start("node2")
        await net.wait_for(lambda now: now["node2"]["device"] is not None, "a worker that is ready")
        asked = ("predict", archive, "--config", net.nodes["node2"].node.config_file)
        finished = await asyncio.to_thread(run_command, *asked, "--json")
        assert finished.code == 0, finished.err
        predictions = json.loads(finished.out)["predictions"]
    head = ask_stopped(directory, 2, "chain", "show", "head")
    authors = [contribution["author"] for contribution in head["contributions"]]
    assert sorted(authors) == sorted(map(encode_id, ids))
    assert len(predictions) == SAMPLES
    classes = get_classes(data)
    right = sum(found["class"] == classes[label] for found, label in zip(predictions, test.y[:SAMPLES], strict=True))
    assert right >= 0.6 * SAMPLES
    for found in predictions:
        assert found["nearest"] in authors
        assert found["nearest_name"] in net.names
        assert 0 <= found["distance"] <= 2  # between two vectors of at most unit length
        assert found["applied_round"] == ROUNDS
    assert blocks[-1]["height"] == ROUNDS
