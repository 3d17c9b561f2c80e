"""MP-FedCL with the pool of the averaged model on four real nodes: a closing round of prototypes alone, aggregates that
are the simulation's, and answers that lean to a site's own classes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml.data import load_dataset
from ml.simulation.run import SimulationConfig, simulate
from support.federation.real_nodes import Federation, ask_stopped, run_command, run_process

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS, SEED, PARTITION = 6, 1, "dirichlet:0.3"
METHOD = {"name": "mpfedcl", "reembed": True, "own_samples": 100}
SAMPLES = 60  # that a node is asked to classify


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
    directory = tmp_path_factory.mktemp("reembed") / "net"
    finished = run_process(
        *("demo", "-n", 4, "--method", "mpfedcl", "--partition", PARTITION, "--rounds", ROUNDS, "--seed", SEED),
        *("--set", "reembed=true", "--set", "own_samples=100", "--set", "waits.collect_s=120"),
        *("--json", "--keep", directory),
    )
    assert finished.code == 0, finished.err
    assert json.loads(finished.out.splitlines()[-1])["heads_agree"]
    return directory


def get_kinds(directory: Path, height: object) -> set[frozenset[str]]:
    """The kinds that the contributions of a block carry."""
    shown = ask_stopped(directory, 0, "chain", "show", height, "--payloads")
    return {frozenset(payload["kind"] for payload in made["payloads"]) for made in shown["contributions"]}


def test_the_last_block_is_of_prototypes_alone_and_everyone_can_recompute_them_all(directory: Path) -> None:
    for node in range(4):
        report = ask_stopped(directory, node, "chain", "verify", "--deep", "--require-all")
        assert (report["ok"], report["recomputed"]) == (True, ROUNDS)
    assert get_kinds(directory, ROUNDS - 1) == {frozenset({"model", "prototypes"})}
    assert get_kinds(directory, ROUNDS) == {frozenset({"prototypes"})}


def test_the_blocks_name_the_simulations_aggregates(directory: Path) -> None:
    blocks = ask_stopped(directory, 0, "chain", "list", "--reverse", "--limit", 100)["blocks"]
    assert [block["num_contributions"] for block in blocks] == [0] + [4] * ROUNDS
    net = Federation(directory).genesis
    ids = [member.key for member in sorted(net.state.members, key=lambda member: member.name)]
    config = SimulationConfig(
        method=net.run.method, input=net.run.input, partition=PARTITION, clients=4, rounds=ROUNDS, seed=SEED
    )
    simulated = simulate(config, ids=ids, beacons=lambda height: bytes.fromhex(blocks[height - 1]["id"]))
    assert [digest.hex() for digest in simulated.aggregate_digests] == [block["aggregate"] for block in blocks[1:]]


async def test_answers_lean_to_the_sites_own_classes_the_more_the_larger_the_prior(
    directory: Path, tmp_path: Path
) -> None:
    config = SimulationConfig(method=METHOD, partition=PARTITION, clients=4, rounds=ROUNDS, seed=SEED)
    _, test = load_dataset({"format": "digits"}, config.input or {})
    archive = tmp_path / "digits.npz"
    np.savez(archive, x=test.x[:SAMPLES])
    answers: dict[object, list[dict[str, Any]]] = {}
    async with Federation(directory) as net:
        await net.start("node2")
        await net.wait_for(lambda now: now["node2"]["device"] is not None, "a worker that is ready")
        for kappa in (None, 0, 0.5, 50):
            asked = ("predict", archive, "--config", net.nodes["node2"].node.config_file, "--json", "--top", 10)
            prior = () if kappa is None else ("--prior", kappa)
            finished = await asyncio.to_thread(run_command, *asked, *prior)
            assert finished.code == 0, finished.err
            answers[kappa] = json.loads(finished.out)["predictions"]
    classes = {kappa: [said["class"] for said in given] for kappa, given in answers.items()}
    assert classes[None] == classes[0]
    (most,) = set(classes[50])  # the class that the site has most of, whatever is asked
    assert len(set(classes[0])) > 5
    own = {kappa: given.count(most) for kappa, given in classes.items()}
    assert own[0] <= own[0.5] <= own[50] == SAMPLES
    for kappa in (0, 0.5):
        for said in answers[kappa]:
            shown = sum(other["probability"] for other in said["top"])
            assert shown == pytest.approx(1, abs=1e-3)
            assert said["probability"] == said["top"][0]["probability"]
            assert said["applied_round"] == ROUNDS
    members = {said.get("nearest") for said in answers[0]}
    assert None in members  # to some, a sample of the site's own was nearest
    assert len(members) > 1
