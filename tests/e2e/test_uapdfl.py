"""UA-PDFL on six real nodes: all vote on representations, and each takes of a few others what the rule asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.simulation.run import SimulationConfig, simulate
from support.federation.real_nodes import Federation, ask_stopped, run_command, run_process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NODES, ROUNDS, SEED = 6, 6, 1
METHOD = {"name": "uapdfl", "num_peers": 2}
PER_PEER_AND_KIND = 1024  # bytes a round may cost besides 1.1 times its payloads (DESIGN §8)
MESSAGE_KINDS = 5  # status, contribution, block, vote, blob


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=["dirichlet:0.1", pytest.param("dirichlet:5", marks=pytest.mark.long)],
    ids=["skewed", "alike"],
)
def partition(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(partition: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six nodes that have done their rounds; every block has all of them."""
    directory = tmp_path_factory.mktemp("uapdfl") / "net"
    finished = run_process(
        *("demo", "-n", NODES, "--method", "uapdfl", "--set", f"num_peers={METHOD['num_peers']}"),
        *("--partition", partition, "--rounds", ROUNDS, "--seed", SEED, "--json", "--keep", directory),
        *("--set", "waits.collect_s=120", "--set", "input.normalize=none"),  # by which all draw somebody in each round
    )
    assert finished.code == 0, finished.err
    assert json.loads(finished.out.splitlines()[-1])["heads_agree"]
    return directory


@pytest.fixture(scope="module")
def rounds(directory: Path) -> list[list[dict[str, Any]]]:
    """What each node kept of each round, in order."""
    return [
        ask_stopped(directory, node, "rounds", "list", "--reverse", "--limit", 100)["rounds"] for node in range(NODES)
    ]


def test_everyone_can_recompute_what_was_voted_on_without_the_models(directory: Path) -> None:
    for node in (0, NODES - 1):
        report = ask_stopped(directory, node, "chain", "verify", "--deep", "--require-all")
        assert (report["ok"], report["recomputed"]) == (True, ROUNDS)


def test_the_blocks_name_the_simulations_aggregates(
    directory: Path, partition: str, rounds: list[list[dict[str, Any]]]
) -> None:
    blocks = ask_stopped(directory, 0, "chain", "list", "--reverse", "--limit", 100)["blocks"]
    assert [block["num_contributions"] for block in blocks] == [0] + [NODES] * ROUNDS
    genesis = Federation(directory).genesis
    members = sorted(genesis.state.members, key=lambda member: member.name)
    config = SimulationConfig(
        method=genesis.run.method,
        input=genesis.run.input,
        partition=partition,
        clients=NODES,
        rounds=ROUNDS,
        seed=SEED,
    )
    simulated = simulate(
        config,
        ids=[member.key for member in members],
        beacons=lambda height: bytes.fromhex(blocks[height - 1]["id"]),
    )
    assert [digest.hex() for digest in simulated.aggregate_digests] == [block["aggregate"] for block in blocks[1:]]
    for number, result in enumerate(simulated.rounds):
        branches = [entries[number]["apply"]["dropout"] for entries in rounds]
        assert result.dropout == pytest.approx(sum(branches) / NODES)


def count_sent(entry: dict[str, Any]) -> int:
    """Bytes of a round, but for statuses: these are as many as it has seconds, which is the machine's to say."""
    return sum(int(count) for kind, count in entry["bytes_sent"].items() if kind != "status")


def test_each_node_pulls_what_the_rule_asks_for_and_little_is_sent_besides(
    directory: Path, rounds: list[list[dict[str, Any]]]
) -> None:
    last = ask_stopped(directory, 0, "chain", "show", "head", "--payloads")
    sizes = {payload["kind"]: int(payload["bytes"]) for payload in last["contributions"][0]["payloads"]}
    voted = sizes["unit"] + sizes["auxiliary"]
    for of_one_height in zip(*rounds, strict=True):
        pulled = 0
        for entry in of_one_height:
            told = entry["apply"]
            expected = (
                sizes["g"] + sizes["h"]
                if told["dropout"]
                else (told["peers"] * sizes["g"] + told["similar"] * sizes["h"])
            )
            assert int(entry["pulled_bytes"]) <= expected
            pulled += int(entry["pulled_bytes"])
        assert pulled > 0
        sent = sum(count_sent(entry) for entry in of_one_height)
        payload = NODES * (NODES - 1) * voted + pulled
        assert sent <= 1.1 * payload + PER_PEER_AND_KIND * NODES * (NODES - 1) * MESSAGE_KINDS


def test_rounds_show_tells_who_drew_whom_and_why(directory: Path, rounds: list[list[dict[str, Any]]]) -> None:
    shown = run_command("rounds", "show", ROUNDS, "--data-dir", directory / "data/node3")
    assert shown.code == 0, shown.err
    assert all(f"node{i}" in shown.out for i in range(NODES))
    told = [entries[ROUNDS - 1]["apply"] for entries in rounds]
    branch = {1.0: "dropout", 0.0: "personalise"}
    for i, entry in enumerate(told):
        assert branch[entry["dropout"]] in shown.out, f"node{i}"
    assert all(earlier["round"] + 1 == later["round"] for earlier, later in pairwise(rounds[0]))
