"""`make bench-ledger` over real processes, as few and as briefly as there are figures of them."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.outer, pytest.mark.slow]


def test_processes_are_measured_each_for_itself() -> None:
    done = run_bench("ledger", "--sizes", "", "--processes", "2,3", "--rounds", 24, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["memory"] == {}
    assert figures["processes"].keys() == {"2", "3"}
    for n, found in figures["processes"].items():
        assert found["rounds"] == 24
        assert 0 < found["round_s"]["min"] <= found["round_s"]["median"]
        assert found["cpu_s_per_node"]["median"] > 0
        assert found["worker_cpu_s_per_node"]["max"] > 0  # in ticks of 10 ms, of which a few rounds may have none
        assert found["messages_per_node"] >= 2 * (int(n) - 1)
        assert found["bytes_per_node"] == pytest.approx(sum(found["bytes"].values()) / int(n))
    (step,) = figures["growth"]["processes"]
    assert step["messages_per_node"] > 0
