"""Agreed statistics in a federation, on virtual time: the simulation's digests, those who come late or come back, runs
that go on, and members that lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.beacon import compute_beacon
from chain.block import Block
from ml.clients.agreed import AgreedClient
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes
from ml.payload import decode_arrays, encode_arrays, kind_code
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import get_kind, get_spec
from ml.specs.run_schema import describe_payloads
from node.federation.run_terms import draft_run
from node.ledger.audit import run_audit
from node.training.trainer import Trained
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.proposing import change, get_state, wait_for_state, wait_until_over
from support.federation.runs import NODES, RunTrainer, learn
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

ROUNDS = 4
MODEL = {"name": "mlp", "hidden": [16]}
DIGITS = {"format": "digits"}
SHAPE = (1, 8, 8)
INPUT = {"shape": list(SHAPE), "resize": None, "normalize": "agreed", "min_count": 5, "class_counts": True}
FEDAVG = {"name": "fedavg", "lr": 0.1, "local_iterations": 5, "class_weights": "agreed"}
STATISTICS = kind_code("statistics")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_federation(method: Mapping[str, Any] = FEDAVG) -> tuple[list[Client], bytes]:
    classes = get_classes(DIGITS)
    initial = make_initial_aggregate(MODEL, SHAPE, len(classes), 1)
    federation = Federation(
        method=method, model=MODEL, classes=classes, input=INPUT, rounds=ROUNDS, num_members=len(NODES)
    )
    clients = make_clients(federation, data=DIGITS, partition="dirichlet:0.5", run_seed=1, initial=initial)
    return clients, encode_arrays(initial)


def federate(
    path: Path,
    story: Callable[[Cluster], Any],
    method: Mapping[str, Any] = FEDAVG,
    *,
    start: Sequence[str] = NODES,
    make_trainer: Callable[[int, Client], InlineTrainer] = lambda i, client: InlineTrainer(client),
) -> list[Client]:
    clients, initial = make_federation(method)

    async def run() -> None:
        async with cluster(
            path,
            len(NODES),
            rounds=ROUNDS,
            start=start,
            trainers=[make_trainer(i, client) for i, client in enumerate(clients)],
            initial_model=initial,
            method=clients[0].spec.to_mapping(),
            model=MODEL,
            classes=list(get_classes(DIGITS)),
            input=INPUT,
            schema=describe_payloads(clients[0].spec),
        ) as net:
            await story(net)

    run_virtual(run())
    return clients


def get_constants(client: Client) -> tuple[float, ...]:
    assert isinstance(client, AgreedClient)
    assert client.constants is not None
    return (*client.constants.mean, *client.constants.std)


def get_client(trainer: InlineTrainer) -> Client:
    client = trainer.client
    assert isinstance(client, Client)
    return client


def check_deeply(net: Cluster) -> None:
    net.check_agreement()
    for node in net.nodes.values():
        if node.store is not None:
            report = run_audit(net.genesis, node.store, deep=True, require_all=True)
            assert report.ok, report.fault


def test_a_model_is_not_said_to_learn_nothing_before_anybody_has_trained(tmp_path: Path) -> None:
    """At a learning rate of almost nothing it is after that."""

    async def story(net: Cluster) -> None:
        await net.wait_for_height(3)
        store = net["node0"].get_context().store
        await net.wait_for(lambda: bool((store.get_round(2) or {}).get("signs")), "signs after the round that trained")
        first = store.get_round(1)
        assert first is not None
        assert first["measures"] is not None
        assert not first.get("signs")

    federate(tmp_path, story, FEDAVG | {"lr": 1e-9})


HIDDEN = {"name": "fedavg", "local_iterations": 5, "dp_noise": 2.0}
OTHERS = [{"name": name} for name in ("local", "dfpl", "fednova", "fedavg_p2p", "uapdfl")]


@pytest.mark.parametrize(
    "method", [FEDAVG, HIDDEN, *OTHERS], ids=["fedavg", "hidden", *(other["name"] for other in OTHERS)]
)
def test_a_federation_comes_to_the_digests_of_the_simulation(tmp_path: Path, method: Mapping[str, Any]) -> None:
    aggregates: list[bytes] = []
    chain: list[Block] = []
    ids: list[bytes] = []

    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS)
        check_deeply(net)
        blocks = [net["node0"].get_block(height) for height in range(ROUNDS + 1)]
        assert {ref.kind for one in blocks[1].contributions for ref in one.payloads} == {STATISTICS}
        aggregates.extend(block.header.aggregate for block in blocks[1:])
        chain.extend(blocks)
        ids.extend(net.id(node) for node in NODES)

    clients = federate(tmp_path, story, method)
    config = SimulationConfig(
        method=method, model=MODEL, input=INPUT, partition="dirichlet:0.5", clients=4, rounds=ROUNDS, seed=1
    )
    simulated = simulate(config, ids=ids, beacons=lambda height: compute_beacon(chain[height - 1]))
    assert list(simulated.aggregate_digests) == aggregates
    assert bytes(32) not in aggregates  # whoever has one has the statistics
    assert len({get_constants(client) for client in clients}) == 1


def test_what_is_agreed_is_what_the_pooled_training_samples_have(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(1)

    clients, _ = make_federation()
    pooled = np.concatenate([c.unplaced.read() for c in clients if isinstance(c, AgreedClient) and c.unplaced])
    assert len(pooled) == 1438
    (mean, std) = get_constants(federate(tmp_path, story)[0])
    assert mean == pytest.approx(float(pooled.astype(np.float64).mean()), rel=1e-9)
    assert std == pytest.approx(float(pooled.astype(np.float64).std()), rel=1e-9)


@pytest.mark.parametrize("method", [FEDAVG, {"name": "local"}], ids=["fedavg", "local"])
def test_whoever_comes_late_or_comes_back_has_the_constants(tmp_path: Path, method: Mapping[str, Any]) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(2, *NODES[:3])
        net.start("node3")
        await net.crash("node1")
        net.start("node1")
        await net.wait_for_height(ROUNDS)
        assert all(node.failure is None for node in net.nodes.values())
        net.check_agreement()

    clients = federate(tmp_path, story, method, start=NODES[:3])
    assert len({get_constants(client) for client in clients}) == 1


class Lying(InlineTrainer):
    """Tells of sums that no samples can have."""

    async def train(self, round_number: int, beacon: bytes, /, **options: Any) -> Trained:
        trained = await super().train(round_number, beacon, **options)
        if round_number > 1:
            return trained
        told = dict(decode_arrays(trained.payloads["statistics"], 1 << 20))
        told["squares"] = told["squares"] * 0
        return Trained(1, {"statistics": encode_arrays(told)}, trained.metrics)


def test_the_word_of_a_liar_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS, *NODES[:3])
        authors = {one.author for one in net["node0"].get_block(1).contributions}
        assert authors == {net.id(name) for name in NODES[:3]}
        net.check_agreement()

    clients = federate(tmp_path, story, make_trainer=lambda i, client: (Lying if i == 3 else InlineTrainer)(client))
    assert len({get_constants(client) for client in clients[:3]}) == 1


# ---- the next run


def describe(method: Mapping[str, Any], input_: Mapping[str, Any]) -> dict[str, Any]:
    spec = get_spec(method, MODEL, 10, SHAPE, rounds=2, num_members=4, input_=input_)
    return describe_payloads(spec)


@pytest.mark.parametrize("name", ["fedavg", "dfpl", "local"])
def test_a_run_that_continues_inherits_the_constants(tmp_path: Path, name: str) -> None:
    method = get_spec({"name": name}, MODEL, 10, (1, 8, 8)).to_mapping()
    inherited = {**INPUT, "normalize": "inherited"}
    constants: list[tuple[float, ...]] = []

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        constants.extend(get_constants(get_client(trainer)) for trainer in trainers)
        drafted = draft_run(get_state(net, "node0"), {}, (), 3)
        assert drafted.terms["input"]["normalize"] == "inherited"
        await change(net, drafted)
        await wait_for_state(net, "run 2", lambda state: state.run.number == 2)
        await wait_until_over(net)
        run = get_state(net, "node0").run
        assert (run.number, run.input) == (2, inherited)
        block = net["node0"].get_block(run.first_height)
        assert STATISTICS not in {ref.kind for one in block.contributions for ref in one.payloads}
        constants.extend(get_constants(get_client(trainer)) for trainer in trainers)
        assert all((2, number) in trainer.trained for trainer in trainers for number in (1, 2, 3))
        check_deeply(net)

    learn(tmp_path, method, story, input=INPUT, schema=describe(method, INPUT), rounds=2)
    assert len(constants) == 8
    assert len(set(constants)) == 1


def test_what_cannot_be_inherited_is_agreed_on_anew(tmp_path: Path) -> None:
    method = get_spec({"name": "fedavg"}, MODEL, 10, (1, 8, 8)).to_mapping()

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        state = get_state(net, "node0")
        assert draft_run(state, {}, (), 3, continues=False).terms["input"]["normalize"] == "agreed"
        asked = draft_run(state, {}, ("input.normalize=agreed",), 3)
        assert asked.terms["input"]["normalize"] == "agreed"
        assert asked.terms["schema"]["aggregate"] == state.run.schema["aggregate"]
        await change(net, asked)
        await wait_for_state(net, "run 2", lambda state: state.run.number == 2)
        await wait_until_over(net)
        first = net["node0"].get_block(get_state(net, "node0").run.first_height)
        assert {ref.kind for one in first.contributions for ref in one.payloads} == {STATISTICS}
        check_deeply(net)

    learn(tmp_path, method, story, input=INPUT, schema=describe(method, INPUT), rounds=2)


def test_an_aggregate_names_what_it_holds(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(2)
        store = net["node0"].store
        assert store is not None
        data = store.get_blob(net["node0"].get_block(2).header.aggregate)
        arrays = decode_arrays(data, len(data))
        assert set(net.genesis.run.schema["aggregate"]) == set(arrays)
        assert (get_kind(arrays, "statistics") or {})["samples"] == 1438

    federate(tmp_path, story)
