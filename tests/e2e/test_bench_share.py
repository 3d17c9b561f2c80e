"""`make bench-share` with a small set: real processes, and a figure for each of them."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SET_MB = 2.5


def test_a_small_set_is_shared_trained_on_and_measured_at_both_ends() -> None:
    done = run_bench("share", "--mb", SET_MB, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["machine"].keys() >= {"cpu", "cores", "memory_gib"}
    assert figures["set_mb"].keys() == {"node0", "node1"}
    assert all(size == pytest.approx(SET_MB, rel=0.02) for size in figures["set_mb"].values())
    assert figures["sets_trained_on"] == {"node0": 2, "node1": 2}
    assert figures["processes"].keys() == {f"node{i} {part}" for i in range(2) for part in ("daemon", "worker")}
    for found in figures["processes"].values():
        assert 0 < found["before_mb"] <= max(found["sharing_mb"], found["training_mb"])
        assert found["growth_mb"] < 100  # code and batches: the sets are next to nothing
    assert figures["is_within"] is None
    ways = {(pull["set"], pull["from"], pull["to"]) for pull in figures["transfers"]}
    assert ways == {("node0", "node0", "node1"), ("node1", "node1", "node0")}
    assert all(pull["mb_per_s"] > 0 for pull in figures["transfers"])
    for answers in figures["answers_s"].values():
        assert 0 < answers["median"] <= answers["longest"]
        assert answers["longest_while_sharing"] <= answers["longest"]
