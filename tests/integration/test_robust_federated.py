"""Robust rules in a federation: a lying member moves nobody out of the honest range, and every height can be computed
again by whoever holds the blobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.block import Contribution
from ml.clients.client import Client
from ml.payload import KINDS, Array, decode_arrays, encode_arrays
from node.admin.offline import OfflineNode
from node.ledger.audit import run_audit
from node.training.trainer import Trained
from support.faults.liar import lying, make_arrays
from support.federation.cluster import DIM, Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.simulated import make_digit_federation
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

MODEL = {"name": "mlp", "hidden": [16]}
NODES = ("node0", "node1", "node2", "node3")
HONEST = NODES[:3]
MAX_WEIGHT = 1_000_000  # as genesis has it; so is the largest number of a model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class LyingTrainer(InlineTrainer):
    """Trains as the honest do, and sends its own numbers in the place of what it learned, at the largest weight."""

    def __init__(self, client: Client, lie: float) -> None:
        super().__init__(client)
        self.lie = lie

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        payloads = {}
        for kind, data in trained.payloads.items():
            arrays = decode_arrays(data, len(data))
            payloads[kind] = encode_arrays({name: self._spoil(array) for name, array in arrays.items()})
        return Trained(MAX_WEIGHT if trained.weight > 1 else 1, payloads, trained.metrics)

    def _spoil(self, array: Array) -> Array:
        return np.full_like(array, self.lie) if array.dtype == np.float32 else array


def federate(path: Path, method: Mapping[str, Any], rounds: int, story: Any, lie: float | None = None) -> None:
    """`story` of four members on digits, of whom the last lies if it is said with what."""
    clients, genesis = make_digit_federation(method, num_clients=len(NODES), rounds=rounds, model=MODEL)
    trainers = [InlineTrainer(client) for client in clients]
    if lie is not None:
        trainers[-1] = LyingTrainer(clients[-1], lie)

    async def run() -> None:
        async with cluster(
            path,
            len(NODES),
            rounds=rounds,
            trainers=trainers,
            **genesis,
        ) as net:
            await net.wait_for_height(rounds)
            assert net.check_agreement() == rounds
            story(net, clients)

    run_virtual(run())


def get_arrays(net: Cluster, digest: bytes) -> dict[str, Array]:
    store = net["node0"].store
    assert store is not None
    data = store.get_blob(digest)
    return decode_arrays(data, len(data))


def get_sent(net: Cluster, contributions: Sequence[Contribution], kind: str) -> dict[str, dict[str, Array]]:
    """What was sent of one kind, by the name of who sent it."""
    names = {net.id(name): name for name in NODES}
    return {
        names[contribution.author]: get_arrays(net, ref.digest)
        for contribution in contributions
        for ref in contribution.payloads
        if ref.kind == KINDS[kind]
    }


# ---- every height again


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg", "aggregation": "trimmed_mean"},
        {"name": "fedavg", "aggregation": "clipped_mean"},
        {"name": "fedavg", "aggregation": "multi_krum"},
        {"name": "dfpl", "aggregation": "median"},
        {"name": "mpfedcl", "aggregation": "trimmed_mean"},
        {"name": "fednova", "local_epochs": 1, "weight_cap": 1},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_every_height_can_be_computed_again(tmp_path: Path, method: dict[str, Any]) -> None:
    def story(net: Cluster, clients: Sequence[Client]) -> None:
        for name in NODES:
            store = net[name].store
            assert store is not None
            report = run_audit(net.genesis, store, deep=True, require_all=True)
            assert (report.ok, report.recomputed) == (True, 3)

    federate(tmp_path, method, 3, story)
    with OfflineNode(tmp_path / "node1") as node:  # `chain verify --deep`
        report = node.verify(deep=True, require_all=True)
    assert (report.ok, report.recomputed) == (True, 3)


# ---- one of four lies


@pytest.mark.parametrize("lie", [-5.0, 1e6])
def test_a_trimmed_mean_of_models_stays_among_the_honest(tmp_path: Path, lie: float) -> None:
    def story(net: Cluster, clients: Sequence[Client]) -> None:
        for height in range(1, 4):
            block = net["node0"].get_block(height)
            sent = get_sent(net, block.contributions, "model")
            assert sent.keys() == set(NODES)
            out = get_arrays(net, block.header.aggregate)
            for name in sent["node0"]:
                honest = np.stack([sent[node][name] for node in HONEST])
                assert (honest.min(0) <= out[f"model/{name}"]).all()
                assert (out[f"model/{name}"] <= honest.max(0)).all()

    federate(tmp_path, {"name": "fedavg", "aggregation": "trimmed_mean"}, 3, story, lie)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "clipped_mean", "multi_krum"])
def test_the_honest_go_on_learning_beside_one_that_sends_absurd_models(tmp_path: Path, rule: str) -> None:
    def story(net: Cluster, clients: Sequence[Client]) -> None:
        blocks = [net["node0"].get_block(height) for height in range(1, 9)]
        assert all(net.id("node3") in {c.author for c in block.contributions} for block in blocks)
        assert all(client.evaluate()["accuracy"] > 0.4 for client in clients)  # 0.53 to 0.84 were seen

    federate(tmp_path, {"name": "fedavg", "aggregation": rule}, 8, story, 1e6)


def test_a_pool_goes_without_the_rows_of_the_liar(tmp_path: Path) -> None:
    """Its rows are short, all alike and so valid; of each class that three have or more they are the farthest."""

    def story(net: Cluster, clients: Sequence[Client]) -> None:
        block = net["node0"].get_block(1)
        out = get_arrays(net, block.header.aggregate)
        place = [contribution.author for contribution in block.contributions].index(net.id("node3"))
        sent = get_sent(net, block.contributions, "prototypes")
        for class_id in sorted(set(sent["node3"]["classes"].tolist())):
            holders = [node for node in NODES if class_id in sent[node]["classes"]]
            left = set(out["prototypes/authors"][out["prototypes/classes"] == class_id].tolist())
            assert len(left) == max(len(holders) - 1, min(len(holders), 2))
            if len(holders) > 2:
                assert place not in left

    method = {"name": "mpfedcl", "aggregation": "trimmed_mean", "num_prototypes": 2}
    federate(tmp_path, method, 1, story, -0.25)


def test_prototypes_of_a_liar_beside_three_others_stay_among_theirs(tmp_path: Path) -> None:
    """Three honest members at work and node3, which sends 1e6 for class 8, which all of them hold."""

    async def story() -> None:
        method = {"name": "dfpl", "aggregation": "trimmed_mean", "weight_cap": 4}
        async with (
            cluster(tmp_path, 4, start=HONEST, train_s=1.0, method=method) as net,
            lying(net, "node3") as liar,
        ):
            lied = set[int]()
            while len(lied) < 3:
                lied.add(liar.height)
                liar.send(liar.make_contribution(make_arrays((7, 8), DIM, 1e6)))
                await net.wait_for_height(liar.height, *HONEST)
            net.check_agreement()
            seen = 0
            for height in sorted(lied):
                block = net["node0"].get_block(height)
                sent = get_sent(net, block.contributions, "prototypes")
                if "node3" not in sent:
                    continue
                seen += 1
                out = get_arrays(net, block.header.aggregate)
                common = out["prototypes/prototypes"][out["prototypes/classes"].tolist().index(8)]
                honest = np.stack([sent[node]["prototypes"][-1] for node in HONEST if node in sent])
                assert (honest.min(0) <= common).all()
                assert (common <= honest.max(0)).all()
            assert seen

    run_virtual(story())
