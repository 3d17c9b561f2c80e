"""The evaluations that a federation under virtual time has made, as all of its nodes show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from node.admin.json_view import to_json
from node.ledger.audit import run_audit
from node.ledger.evaluations import read_evaluations
from node.runs.specs import RunSpecs
from support.federation.cluster import Cluster
from support.federation.runs import NODES


def read_all(net: Cluster, names: Sequence[str] = NODES, *, is_whole: bool = True) -> list[dict[str, Any]]:
    """Reads the evaluations, the same at these nodes, and checks with audits that their chains are whole, unless
    `is_whole` is false."""
    found = []
    for name in names:
        store = net[name].store
        assert store is not None
        found.append([to_json(one) for one in read_evaluations(store, RunSpecs.load(store))])
        report = run_audit(net.genesis, store, deep=True, require_all=is_whole)
        assert report.ok, report.fault
    assert all(one == found[0] for one in found)
    return found[0]
