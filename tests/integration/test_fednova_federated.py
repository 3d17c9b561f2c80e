"""FedNova in a federation: its aggregate needs the parent's, from block 0's on, whoever computes it and whenever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.payload import decode_arrays, encode_arrays
from node.admin.offline import OfflineNode
from node.ledger.audit import run_audit
from node.pb import admin_pb2 as pb
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

ROUNDS = 4
MODEL = {"name": "mlp", "hidden": [16]}
METHOD = {"name": "fednova", "momentum": 0.5, "local_epochs": 1}
NODES = ("node0", "node1", "node2", "node3")


def federate(path: Path, story: Callable[[Cluster], Any], *, start: Sequence[str] = NODES) -> None:
    """`story` of four members on digits that have unlike numbers of samples, and so make unlike numbers of steps."""
    classes, input_ = get_classes({"format": "digits"}), get_default_input({"format": "digits"}, MODEL)
    initial = make_initial_aggregate(MODEL, input_["shape"], len(classes), 1)
    federation = Federation(
        method=METHOD, model=MODEL, classes=classes, input=input_, rounds=ROUNDS, num_members=len(NODES)
    )
    clients = make_clients(
        federation, data={"format": "digits"}, partition="dirichlet:0.3", run_seed=1, initial=initial
    )

    async def run() -> None:
        async with cluster(
            path,
            len(NODES),
            rounds=ROUNDS,
            start=start,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=MODEL,
            classes=list(classes),
            input=input_,
        ) as net:
            await story(net)

    run_virtual(run())


def audit(net: Cluster, name: str) -> pb.VerifyReport:
    store = net[name].store
    assert store is not None
    report = run_audit(net.genesis, store, deep=True)
    assert report.ok, report
    return report


def test_every_height_can_be_computed_again_from_the_parents_aggregate(tmp_path: Path) -> None:
    heights: list[int] = []

    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS)
        assert net.check_agreement() == ROUNDS
        for name in NODES:
            assert (audit(net, name).recomputed, list(audit(net, name).not_held)) == (ROUNDS, [])
        store = net["node0"].store
        assert store is not None
        steps = set()
        for contribution in net["node0"].get_block(1).contributions:
            data = store.get_blob(contribution.payloads[0].digest)
            steps.add(int(decode_arrays(data, len(data))["local_steps"][0]))
        assert len(steps) > 1
        run_audit(net.genesis, store, deep=True, on_height=heights.append)

    federate(tmp_path, story)
    assert heights == list(range(ROUNDS + 1))  # parents are read besides, and not announced
    with OfflineNode(tmp_path / "node1") as node:
        report = node.verify(deep=True, require_all=True)
    assert (report.ok, report.recomputed) == (True, ROUNDS)


def test_without_the_parents_aggregate_a_height_is_not_held(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS)
        store = net["node0"].store
        assert store is not None
        assert store.delete_blob(net["node0"].get_block(2).header.aggregate)
        assert list(audit(net, "node0").not_held) == [3]

    federate(tmp_path, story)


def test_a_late_joiner_recomputes_what_it_has_followed(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(ROUNDS, *NODES[:3])
        net.start("node3")
        await net.wait_for_height(ROUNDS, "node3")
        await net.wait_for(lambda: not audit(net, "node3").not_held, "node3 to hold every blob")
        assert net["node3"].failure is None
        assert audit(net, "node3").recomputed == ROUNDS

    federate(tmp_path, story, start=NODES[:3])


def test_a_node_that_starts_again_goes_on_from_the_aggregate_it_has(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(1)
        await net.crash("node1")
        net.start("node1")
        await net.wait_for_height(ROUNDS)
        assert net.check_agreement() == ROUNDS
        assert not audit(net, "node1").not_held

    federate(tmp_path, story)


def test_the_common_model_moves_by_the_rule_and_not_by_the_mean(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        await net.wait_for_height(1)
        store, block = net["node0"].store, net["node0"].get_block(1)
        assert store is not None
        read = [store.get_blob(contribution.payloads[0].digest) for contribution in block.contributions]
        models = [decode_arrays(data, len(data)) for data in read]
        weights = [contribution.weight for contribution in block.contributions]
        start = store.get_blob(net.genesis.run.initial_model)
        w_global = decode_arrays(start, len(start))
        aggregate = store.get_blob(block.header.aggregate)
        assert hashlib.sha256(aggregate).digest() == block.header.aggregate
        got = decode_arrays(aggregate, len(aggregate))
        p, a = np.array(weights) / sum(weights), np.array([model["norm"][0] for model in models])
        for name in ("fc1.weight", "fc2.bias"):
            w = w_global[f"model/{name}"].astype(np.float64)
            ways = [share * (w - model[name]) / norm for share, norm, model in zip(p, a, models, strict=True)]
            np.testing.assert_allclose(got[f"model/{name}"], w - (p * a).sum() * sum(ways), rtol=1e-5, atol=1e-7)
            mean = sum(share * model[name] for share, model in zip(p, models, strict=True))
            assert np.abs(got[f"model/{name}"] - mean).max() > 1e-4

    federate(tmp_path, story)
