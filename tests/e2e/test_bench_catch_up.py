"""`make bench-catch-up` over few rounds: real processes, and a figure for each way to come late."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROUNDS = 150


def test_a_late_joiner_is_measured_in_every_way_it_comes() -> None:
    done = run_bench("catch-up", "--rounds", ROUNDS, "--json", timeout_s=600.0)
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["job"]["rounds"] == ROUNDS
    for way in ("joined", "killed", "observer", "served_by_observer"):
        assert figures[way]["blocks_per_s"] > 0
        assert figures[way]["cpu_s"] > 0
    assert figures["joined"]["blocks"] >= ROUNDS
    assert figures["joined"]["received_bytes"] > 1000 * ROUNDS
    assert ROUNDS // 2 <= figures["killed"]["killed_at"] <= figures["killed"]["resumed_at"]
    assert figures["killed"]["contributes_s"] >= figures["killed"]["there_s"]
    for lost in ("without_newest_checkpoint", "without_model"):
        assert 0 < figures[lost]["ready_s"] <= figures[lost]["contributes_s"]
