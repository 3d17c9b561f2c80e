"""`fednode bench round --waterfall` over a few rounds of real nodes: the steps of a round follow each other."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_process

pytestmark = [pytest.mark.e2e, pytest.mark.outer, pytest.mark.slow]

ALWAYS = ("taken_in", "trained", "contributed", "arrived", "verified", "cutoff", "block", "candidate", "final")


def test_the_steps_of_a_round_come_one_after_the_other_and_cost_cpu_and_messages() -> None:
    done = run_process("bench", "round", "--waterfall", "-n", 2, "--rounds", 8, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    steps = {step["step"]: step for step in figures["steps"]}
    assert steps.keys() >= {*ALWAYS}
    assert all(step["took_s"] >= 0 for step in figures["steps"])
    assert 0 < steps["trained"]["at_s"] <= steps["contributed"]["at_s"] <= steps["cutoff"]["at_s"]
    assert steps["cutoff"]["at_s"] <= steps["candidate"]["at_s"] <= steps["final"]["at_s"]
    assert figures["cpu_s"]["daemon"] > 0
    assert figures["messages"] > figures["batches"] > 0  # a contribution and its payload travel together
    assert figures["ratio"] == pytest.approx(figures["round_s"]["median"] / figures["bare"]["round_s"]["median"])
