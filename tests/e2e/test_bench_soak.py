"""`make bench-soak` over some rounds: real nodes, killed and frozen, and curves of what each takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_real_nodes_agree_and_are_measured_all_along(tmp_path: Path) -> None:
    done = run_bench("soak", "--rounds", 40, "--json", "--plot", tmp_path / "soak.png", timeout_s=800)
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    names = {f"node{i}" for i in range(4)}
    assert figures["heads_agree"]
    assert figures["heads"].keys() == figures["slopes"].keys() == names
    verified = figures["verified"].values()
    assert all(found["ok"] for found in verified)
    assert sum(found["recomputed"] for found in verified) >= 3 * 40  # three vote; who is away may miss a blob
    assert sum(figures["num_faults"].values()) == len(figures["faults"]) > 0
    assert {sample["node"] for sample in figures["samples"]} == names
    assert all(sample["daemon"]["pss_mb"] > 10 and sample["daemon"]["fds"] > 10 for sample in figures["samples"])
    assert all(slope is not None for slope in figures["slopes"]["node0"].values())
    assert (tmp_path / "soak.png").stat().st_size > 10_000
