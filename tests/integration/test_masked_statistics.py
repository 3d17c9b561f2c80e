"""A run of statistics through masked sums, on virtual time: all come to the sums of all, and nobody sees a site's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.aggregation import RULES, Contributed
from ml.clients.build import Federation, make_client, make_initial_aggregate
from ml.clients.masked import MaskedStatisticsClient
from ml.data import get_classes
from ml.data.statistics import compute_statistics
from ml.payload import decode_arrays, encode_arrays, kind_code
from ml.specs import get_kind
from ml.specs.masked.aggregate import MASKED
from ml.specs.run_schema import describe_payloads
from ml.specs.statistics import Agreement
from node.ledger.audit import run_audit
from node.ledger.site_statistics import read_statistics
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

DIGITS = {"format": "digits"}
MODEL = {"name": "linear"}
METHOD = {"name": "local", "aggregation": "masked_sum"}
INPUT: dict[str, Any] = {
    "shape": [1, 8, 8],
    "resize": None,
    "normalize": "agreed",
    "min_count": 5,
    "class_counts": True,
    "correlations": True,
}


def make_clients(method: dict[str, Any], initial: dict[str, Any]) -> list[MaskedStatisticsClient]:
    federation = Federation(
        method=method, model=MODEL, classes=get_classes(DIGITS), input=INPUT, rounds=1, num_members=4
    )
    parts = [{"scheme": "classes", "avg": 10, "std": 0, "index": i, "of": 4, "seed": 7} for i in range(4)]
    made = [
        make_client(federation, data={**DIGITS, "partition": part}, seed=i, initial=initial)
        for i, part in enumerate(parts)
    ]
    clients = [client for client in made if isinstance(client, MaskedStatisticsClient)]
    assert len(clients) == 4
    return clients


def test_members_come_to_the_sums_of_all_and_nobody_sees_those_of_a_site(tmp_path: Path) -> None:
    initial = make_initial_aggregate(MODEL, (1, 8, 8), 10, 1)
    clients = make_clients(METHOD, initial)
    agreement, told = Agreement.from_input(INPUT), []
    assert agreement is not None
    for client in clients:
        assert client.unplaced is not None
        labels = np.asarray(client.unplaced.labels, np.int64)
        told.append(compute_statistics(client.unplaced.read(), labels, 10, agreement))
    expected = RULES["sum"]([Contributed(bytes([i]) * 32, 1, one) for i, one in enumerate(told)], None)

    async def run() -> None:
        async with cluster(
            tmp_path,
            4,
            rounds=1,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=MODEL,
            classes=list(get_classes(DIGITS)),
            input=INPUT,
            schema=describe_payloads(clients[0].spec),
        ) as net:
            await net.wait_for_height(3)
            check(net)

    def check(net: Cluster) -> None:
        net.check_agreement()
        context = net["node0"].get_context()
        store = context.store
        for height in (1, 2, 3):
            kinds = {ref.kind for one in net["node0"].get_block(height).contributions for ref in one.payloads}
            assert kinds == {kind_code(MASKED)}
        data = store.get_blob(net["node0"].get_block(3).header.aggregate)
        aggregate = decode_arrays(data, len(data))
        agreed = get_kind(aggregate, "statistics")
        assert agreed is not None
        assert {name: array.tolist() for name, array in agreed.items()} == {
            name: array.tolist() for name, array in expected.items()
        }
        assert get_kind(aggregate, "model") is not None
        shown = read_statistics(store, context.runs, 1)
        assert (shown.masked, shown.height, shown.all.samples) == (True, 3, 1438)
        assert [(site.name, site.held) for site in shown.sites] == [(f"node{i}", False) for i in range(4)]
        assert len(shown.all.features[0].classes) == 10
        for node in net.nodes.values():
            assert node.store is not None
            report = run_audit(net.genesis, node.store, deep=True, require_all=True)
            assert report.ok, report.fault

    run_virtual(run())
    assert {client.constants for client in clients} == {clients[0].constants}
    assert clients[0].constants is not None
    assert (clients[0].constants.sites, clients[0].constants.samples) == (4, 1438)
